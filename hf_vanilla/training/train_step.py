"""One optimizer step over micro-batches, on any number of processes (5.3)."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from hf_vanilla.recipes.recipe import TrainRecipe

from .optimization import make_optimizer, make_schedule
from .validation import plain_nll


@dataclass(frozen=True)
class Update:
    """One optimizer step as this process saw it.

    Attributes:
        step: its number, from 1.
        rate: learning rate it used.
        loss: `()` nats per target token of the whole step, this process's share of the sum.
        nll: the same of the plain negative log-likelihood; None where nobody asked.
        tokens: `()` int64 real target tokens of the whole step.
        micro_batches: what it saw.
    """

    step: int
    rate: float
    loss: Tensor
    nll: Tensor | None
    tokens: Tensor
    micro_batches: list[dict[str, Tensor]]


class Stepper:
    """Model, optimizer and schedule on the device and in all processes.

    Args:
        accelerator: the processes.
        model: as it was made or loaded.
        options: read for rates, seed, clipping, compiling and checkpointing.

    Attributes:
        model: the model itself, without what makes it parallel, compiled or narrow.
    """

    def __init__(
        self, accelerator: Accelerator, model: PreTrainedModel, options: TrainRecipe
    ) -> None:
        self.accelerator, self.options = accelerator, options
        if options.gradient_checkpointing:
            # the older name of the two is the only one before transformers 5.21
            new = getattr(model, "activation_checkpointing_enable", None)
            (new or model.gradient_checkpointing_enable)({"use_reentrant": False})
        optimizer = make_optimizer(model, options)
        # not prepared: a prepared schedule would take one step per process
        self.schedule = make_schedule(optimizer, options)
        self.accelerator.register_for_checkpointing(self.schedule)
        self.parallel, self.optimizer = self.accelerator.prepare(model, optimizer)
        # accelerate's wrapper would widen the logits of every pass to a second copy in float32
        self.model = self.accelerator.unwrap_model(self.parallel, keep_fp32_wrapper=False)
        if options.compile:
            # sentences of any number and length pass through one compiled graph
            self.parallel = torch.compile(self.parallel, dynamic=True)

    def update(
        self,
        step: int,
        places: list[int],
        micro_batches: list[dict[str, Tensor]],
        *,
        with_nll: bool = False,
    ) -> Update:
        """One update, from all micro-batches of this process and of the others.

        Args:
            step: its number, from 1.
            places: of each micro-batch in the whole run, over all steps and processes.
            micro_batches: of this process.
            with_nll: whether to measure the plain negative log-likelihood too.
        """
        accelerator = self.accelerator
        self.parallel.train()
        count = sum(int((batch["labels"] >= 0).sum()) for batch in micro_batches)
        tokens = accelerator.reduce(torch.tensor(count, device=accelerator.device))
        total = torch.zeros((), device=accelerator.device)
        nll = torch.zeros_like(total) if with_nll else None
        for place, batch in zip(places, micro_batches, strict=True):
            # dropout depends on the place in the run alone, so that a resumed run repeats itself
            torch.manual_seed(self.options.seed * 1_000_003 + place)
            is_last = place == places[-1]
            with nullcontext() if is_last else accelerator.no_sync(self.parallel):
                on_device = {name: ids.to(accelerator.device) for name, ids in batch.items()}
                with accelerator.autocast():
                    outputs = self.parallel(**on_device, num_items_in_batch=tokens)
                if nll is not None:
                    nll += plain_nll(outputs.logits.detach(), on_device["labels"]) / tokens
                # data-parallel training averages gradients; this loss is already per token of all
                accelerator.backward(outputs.loss * accelerator.num_processes)
            total += outputs.loss.detach()
            del outputs  # its logits need not wait for those of the next pass
        if self.options.max_grad_norm:
            accelerator.clip_grad_norm_(self.parallel.parameters(), self.options.max_grad_norm)
        rate = float(self.schedule.get_last_lr()[0])  # of this update; the schedule moves on
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Update(step, rate, total, nll, tokens, micro_batches)

    def is_finite(self) -> bool:
        """Whether every weight is a finite number. Call it on every process."""
        finite = torch.stack([weight.isfinite().all() for weight in self._local_weights()])
        return not self.accelerator.reduce((~finite).sum()).item()

    def _local_weights(self) -> Iterator[Tensor]:
        """This process's weights, or its part of each."""
        for parameter in self.model.parameters():
            local = getattr(parameter, "to_local", None)
            yield (local() if local else parameter).detach()


def unusable_update(update: Update, what: str, folder: Path, process: int) -> ValueError:
    """The error that stops a run, after leaving this process's micro-batches to be looked at.

    Args:
        update: after which it stops.
        what: is wrong with it.
        folder: for the file.
        process: number of this process, for the file's name.
    """
    path = folder / f"not-finite-step-{update.step}-process-{process}.pt"
    where = f"its micro-batches are in {path} (torch.load)"
    try:
        torch.save(
            {
                "step": update.step,
                "learning_rate": update.rate,
                "loss": update.loss.item(),
                "micro_batches": update.micro_batches,
            },
            path,
        )
    except (OSError, RuntimeError) as error:
        where = f"its micro-batches could not be saved ({error})"
    return ValueError(
        f"{what} at step {update.step}, learning rate {update.rate:.3g}; {where}: lower "
        "learning_rate, lengthen warmup_steps or set max_grad_norm; the last checkpoint is "
        "untouched"
    )
