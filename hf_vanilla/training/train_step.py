"""The parts of an optimizer step: its micro-batches, their divisors, the update (5.3)."""

import signal
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset

from hf_vanilla.models.search_vanilla_decoder import StepGraph

from .checkpointing import all_checkpoints
from .preparation import PreparedRun
from .task import Batch, Task, Work

# runs with neighbouring seeds share no seed within their first million micro-batches
SEED_STEP = 1_000_003
AUGMENTATION_SEED = 1 << 62  # augmentation and dropout draw from different sequences


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of this process.

    Attributes:
        number: its number in the run, over all steps and processes.
        batch: tensors, on the CPU until `on_device`.
        is_last: whether it is this process's last of its step.
    """

    number: int
    batch: Batch
    is_last: bool


@dataclass(frozen=True)
class StepResult:
    """One optimizer step as this process saw it; its tensors stay on the device until read.

    Attributes:
        step: its number, from 1.
        learning_rate: that it used.
        totals: `(counted,)` int64 divisors of the whole step.
        values: `()` sums over this process's micro-batches, by name; `"loss"` is always there.
        numbers: of those micro-batches, from which their batches can be made again. The batches
            themselves would fill the memory, since results of many steps are read at once.
    """

    step: int
    learning_rate: float
    totals: Tensor
    values: dict[str, Tensor]
    numbers: list[int]

    def add(self, losses: dict[str, Tensor]) -> None:
        """Add one micro-batch's shares."""
        for name, value in losses.items():
            self.values[name] = self.values.get(name, torch.zeros_like(value)) + value.detach()


class _Batches(Dataset):
    """Batch number i of a run, for worker processes that make them ahead of time.

    An error is returned: torch would put the traceback of a worker process into its message.
    """

    def __init__(self, task: Task, order: Any, seed: int) -> None:
        self._task, self._order, self._seed = task, order, seed

    def __getitem__(self, number: int) -> Batch | ValueError | OSError:
        seed = (self._seed * SEED_STEP + number) ^ AUGMENTATION_SEED
        try:
            return self._task.batch(self._order[number], torch.Generator().manual_seed(seed))
        except (ValueError, OSError) as error:
            return error


def training_steps(
    run: PreparedRun, first_step: int
) -> Generator[tuple[int, list[MicroBatch]], None, None]:
    """This process's micro-batches step by step, without end, after `first_step` steps.

    Close it: worker processes ignore SIGTERM, so Python would wait for them at its exit.
    """
    processes = run.accelerator.num_processes
    first = first_step * run.per_step + run.accelerator.process_index
    numbers, last = count(first, processes), run.per_step // processes - 1
    data = _Batches(run.task, run.order, run.options.seed)
    batches: Any = map(data.__getitem__, count(first, processes))
    if run.options.dataloader_workers:
        loader = DataLoader(
            data,
            sampler=count(first, processes),
            batch_size=None,
            num_workers=run.options.dataloader_workers,
            pin_memory=run.accelerator.device.type == "cuda",
            worker_init_fn=_ignore_sigterm,
        )
        batches = iter(loader)
    try:
        for step in count(first_step + 1):
            parts = []
            for index in range(last + 1):
                batch = next(batches)
                if isinstance(batch, Exception):
                    raise batch
                parts.append(MicroBatch(next(numbers), batch, is_last=index == last))
            yield step, parts
    finally:  # not left to the iterator's end: the traceback of an error may keep it
        if run.options.dataloader_workers:
            batches._shutdown_workers()


def _ignore_sigterm(_: int) -> None:
    """A signal to a whole group of processes must not take the batches of the current step."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on another device; the host does not wait for a copy to a CUDA GPU."""
    if device.type != "cuda":
        return values.to(device)
    return (values if values.is_pinned() else values.pin_memory()).to(device, non_blocking=True)


def sum_counts(run: PreparedRun, micro_batches: list[MicroBatch]) -> Tensor:
    """Divisors of a step's loss: `(counted,)` int64, over all micro-batches and processes."""
    counts = [list(run.task.counts(part.batch)) for part in micro_batches]
    return run.accelerator.reduce(to_device(torch.tensor(counts).sum(0), run.accelerator.device))


def on_device(run: PreparedRun, micro_batches: list[MicroBatch]) -> Iterator[MicroBatch]:
    """Micro-batches on the run's device; CUDA copies each while it computes the one before."""
    device = run.accelerator.device

    def copied(part: MicroBatch) -> MicroBatch:
        batch = {name: to_device(value, device) for name, value in part.batch.items()}
        return replace(part, batch=batch)

    if device.type != "cuda":
        yield from map(copied, micro_batches)
        return
    copying, computing = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copying):
        following = copied(micro_batches[0])
    for number in range(len(micro_batches)):
        computing.wait_stream(copying)
        part = following
        for value in part.batch.values():
            value.record_stream(computing)  # its memory is reused only after the computation
        if number + 1 < len(micro_batches):
            with torch.cuda.stream(copying):
                following = copied(micro_batches[number + 1])
        yield part


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def sum_work(run: PreparedRun, micro_batches: list[MicroBatch]) -> Work:
    """What this process's micro-batches of a step contain and cost."""
    works = (run.task.work(run.model.config, part.batch) for part in micro_batches)
    return sum(works, Work(0, 0, 0))


class Gradients:
    """Adds the gradients of micro-batches; those of one shape are one CUDA graph, see `captures`.

    The first micro-batch of each shape is computed without: it makes the arrays of the gradients,
    and libraries prepare themselves. So are all of a shape for whose graph there is no memory.
    """

    def __init__(self, run: PreparedRun) -> None:
        self._run = run
        self._graphs: dict[tuple, StepGraph | None] = {}
        self._pool = torch.cuda.graph_pool_handle() if run.captures else None
        self._is_full = False

    def add(self, micro_batch: MicroBatch, totals: Tensor, *, is_logged: bool) -> dict[str, Tensor]:
        """The task's losses of one micro-batch, which lies on the device; `()`, to be read now."""
        run, batch = self._run, micro_batch.batch
        # dropout depends on the number in the run alone, so a resumed run repeats itself exactly
        torch.manual_seed(run.options.seed * SEED_STEP + micro_batch.number)

        def passes(*inputs: Tensor) -> dict[str, Tensor]:
            *values, divisors = inputs
            with run.accelerator.autocast():
                named = dict(zip(batch, values, strict=True))
                losses = run.task.losses(run.parallel, named, divisors, is_logged=is_logged)
            # processes average their gradients, but this loss has the divisor of all
            run.accelerator.backward(losses["loss"] * run.accelerator.num_processes)
            return {name: value.detach() for name, value in losses.items()}

        inputs = (*batch.values(), totals)
        if not run.captures:
            return passes(*inputs)
        shapes = (is_logged, *(values.shape for values in inputs))
        if shapes not in self._graphs:
            self._graphs[shapes] = None
            return passes(*inputs)
        graph = self._graphs[shapes]
        if graph is None and self._has_room():
            graph = self._graphs[shapes] = StepGraph(passes, *inputs, pool=self._pool)
        return passes(*inputs) if graph is None else graph(*inputs)

    def _has_room(self) -> bool:
        """Whether the GPU has memory for one more graph beside what the first passes need."""
        if not self._is_full:
            torch.cuda.empty_cache()  # graphs cannot use what the first passes used
            free, _ = torch.cuda.mem_get_info()
            self._is_full = free < 2 * torch.cuda.max_memory_allocated()
        return not self._is_full


def gradient_sync(run: PreparedRun, micro_batch: MicroBatch) -> Any:
    """A context for forward and backward pass: processes exchange gradients at the last only."""
    return nullcontext() if micro_batch.is_last else run.accelerator.no_sync(run.parallel)


def update_weights(run: PreparedRun) -> None:
    """One step of the optimizer and of the learning rate."""
    if run.options.max_grad_norm:
        run.accelerator.clip_grad_norm_(run.parallel.parameters(), run.options.max_grad_norm)
    run.optimizer.step()
    run.schedule.step()
    run.optimizer.zero_grad(set_to_none=not run.captures)  # a graph writes to the same arrays


def all_finite(run: PreparedRun) -> bool:
    """Whether every weight is a finite number. Call it on every process."""
    weights = (w.to_local() if isinstance(w, DTensor) else w for w in run.model.parameters())
    finite = torch.stack([weight.isfinite().all() for weight in weights])
    # FSDP 2 may keep weights on the CPU, where NCCL cannot add them up
    return not run.accelerator.reduce((~finite).sum().to(run.accelerator.device)).item()


def unusable_step(run: PreparedRun, result: StepResult, what: str) -> ValueError:
    """The error that ends a run; this process's micro-batches are saved for inspection.

    Args:
        run: that ends.
        result: the step after which it ends.
        what: is wrong.
    """
    process = run.accelerator.process_index
    path = run.output_dir / f"not-finite-step-{result.step}-process-{process}.pt"
    where = f"its micro-batches are in {path} (torch.load)"
    data = _Batches(run.task, run.order, run.options.seed)
    try:
        content: dict[str, Any] = {"step": result.step, "learning_rate": result.learning_rate}
        content["loss"] = result.values["loss"].item()
        content["micro_batches"] = [data[number] for number in result.numbers]
        torch.save(content, path)
    except (OSError, RuntimeError) as error:
        where = f"its micro-batches could not be saved ({error})"
    folders = all_checkpoints(run.output_dir)
    return ValueError(
        f"{what} at step {result.step}, learning rate {result.learning_rate:.3g}; {where}: lower "
        "learning_rate, lengthen warmup_steps or set max_grad_norm, and choose another output_dir, "
        "since a run keeps these options; "
        + (f"{folders[-1].name} is unchanged" if folders else "there is no checkpoint yet")
    )
