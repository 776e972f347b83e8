"""The training loop: one recipe, any number of processes through Accelerate (5)."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from .checkpointing import all_checkpoints, checkpoint_state, load_checkpoint, save_checkpoint
from .metrics_log import MetricsLog, Progress
from .options import TrainRecipe
from .preparation import PreparedRun, locked, prepare_run
from .processes import TERMINATED_STATUS, average_running_statistics
from .recipe import Recipe
from .train_step import (
    Gradients,
    StepResult,
    all_finite,
    gradient_sync,
    on_device,
    sum_counts,
    sum_work,
    training_steps,
    unusable_step,
    update_weights,
)
from .validation import finish, validate

logger = logging.getLogger(__name__)


def train(recipe: Recipe) -> Path:
    """Train by a recipe, from the newest checkpoint if there is one.

    Returns:
        The folder of the finished model.

    Raises:
        ValueError: recipe, data or folder do not fit, or a loss is not finite.
        OSError: data cannot be read, or a checkpoint cannot be written.
        ImportError: something that the recipe names is not installed.
        SystemExit: SIGTERM ended the run; a checkpoint of its last step is saved.
    """
    with locked(Path(recipe.train.output_dir)):
        folder, accelerator = _train(recipe)
        # DistributedDataParallel must go before its process group: as its last owner it would hold
        # Python's lock while it waits for threads of the group, which may need that lock
        accelerator.free_memory()
        accelerator.end_training()  # without it, processes may crash at shutdown
    if folder is None:
        raise SystemExit(TERMINATED_STATUS)
    return folder


def _train(recipe: Recipe) -> tuple[Path | None, Accelerator]:
    """Train; the folder is None where SIGTERM ended the run before its last step."""
    run, options = prepare_run(recipe), recipe.train
    progress = load_progress(run)
    log = MetricsLog(run.accelerator, recipe, run.task, progress)
    started = time.monotonic() - progress.seconds
    steps, gradients = training_steps(run, progress.step), Gradients(run)
    with _ended(run, log, progress) as signals, closing(steps):
        while not is_over(options, progress):
            step, micro_batches = next(steps)
            is_logged = step % options.logging_steps == 0
            run.parallel.train()
            totals = sum_counts(run, micro_batches)
            numbers = [part.number for part in micro_batches]
            rate = float(run.schedule.get_last_lr()[0])  # of the optimizer's first group
            result = StepResult(step, rate, totals, {}, numbers)
            for micro_batch in on_device(run, micro_batches):
                with gradient_sync(run, micro_batch):
                    losses = gradients.add(micro_batch, totals, is_logged=is_logged)
                result.add(losses)
            update_weights(run)
            progress.step = step
            log.add(result, sum_work(run, micro_batches))
            if not (_is_read(run, step, signals) or log.is_timed(step)):
                continue
            is_terminated = _is_terminated(run, signals)
            progress.seconds = time.monotonic() - started
            values = log.read(run, progress)
            log.show_expected_time(step)
            if is_logged:
                log.train_line(progress, values)
            scores: dict[str, float] = {}
            if run.task.has_validation and _is_due(options.eval_steps, options, step):
                scores = validate(run, log, progress)
            is_due = step % options.save_steps == 0 or is_over(options, progress)
            if is_due or is_terminated:
                save(run, log, progress, scores, result, is_extra=not is_due)
            if is_terminated and not is_over(options, progress):
                return None, run.accelerator
    return finish(run, log, progress), run.accelerator


@contextmanager
def _ended(run: PreparedRun, log: MetricsLog, progress: Progress) -> Iterator[list[int]]:
    """Close the log at the end of the steps; after Ctrl-C say how to resume.

    Yields:
        The SIGTERMs that this process has received: they end it after its step, see `_train`.
    """
    received: list[int] = []
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread:
        before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        yield received
    except KeyboardInterrupt:
        log.bar.close()
        if run.is_main:
            folders = all_checkpoints(run.output_dir)
            what = f"starts anew; the first checkpoint comes after step {run.options.save_steps}"
            if folders:
                what = f"resumes after step {folders[-1].name.rpartition('-')[2]}"
            logger.info("stopped after step %d: the same command %s", progress.step, what)
        raise
    finally:
        log.bar.close()
        if is_main_thread:
            signal.signal(signal.SIGTERM, before)


def _is_terminated(run: PreparedRun, signals: list[int]) -> bool:
    """Whether a process of the run was asked to terminate. Call it on every process."""
    count = torch.tensor(len(signals), device=run.accelerator.device)
    is_terminated = bool(run.accelerator.reduce(count).item())
    if is_terminated and run.is_main:
        logger.info("SIGTERM: saving a checkpoint; the same command resumes from it")
    return is_terminated


def is_over(options: TrainRecipe, progress: Progress) -> bool:
    """Whether the last step is done, or validations stopped improving."""
    is_stale = 0 < options.patience <= progress.stale
    return is_stale or progress.step >= options.max_steps


def _is_due(every: int, options: TrainRecipe, step: int) -> bool:
    return step % every == 0 or step == options.max_steps


def _is_read(run: PreparedRun, step: int, signals: list[int]) -> bool:
    """Whether results are read after this step; on a GPU only where something is due.

    Several processes must agree on it, so a signal that one of them has received has to wait.
    """
    options = run.options
    every = (options.logging_steps, options.eval_steps, options.save_steps)
    is_cpu = run.accelerator.device.type == "cpu"
    is_signalled = run.accelerator.num_processes == 1 and bool(signals)
    return is_cpu or is_signalled or any(_is_due(steps, options, step) for steps in every)


def load_progress(run: PreparedRun) -> Progress:
    """Load the newest checkpoint into the run; returns how far it is."""
    if run.checkpoint is None:
        return Progress()
    load_checkpoint(run, run.checkpoint)
    state = checkpoint_state(run.checkpoint)
    known = {name: state[name] for name in asdict(Progress()) if name in state}
    # earlier versions saved the counts beside the step
    counts = {name: state[name] for name in run.task.counted if name in state}
    progress = Progress(**{"counts": counts, **known})
    # a schedule is a function of the step; this recipe's may be another one than before
    done = {"last_epoch": progress.step - 1, "_step_count": progress.step}
    run.schedule.load_state_dict({**run.schedule.state_dict(), **done})
    run.schedule.step()
    if run.is_main:
        what = "nothing to train" if is_over(run.options, progress) else "resuming"
        logger.info("found %s: %s after step %d", run.output_dir, what, progress.step)
        before = state.get("micro_batches", run.per_step)
        if before != run.per_step:
            logger.warning(
                "the run began with %d micro-batches a step and resumes with %d: in the current "
                "epoch, some rows are seen twice and others not",
                *(before, run.per_step),
            )
        threads = state.get("threads", torch.get_num_threads())
        if threads != torch.get_num_threads():
            logger.warning(
                "the run used %d threads and resumes with %d, so rounding may differ: set "
                "OMP_NUM_THREADS=%d for identical weights",
                *(threads, torch.get_num_threads(), threads),
            )
    return progress


# --- saving --------------------------------------------------------------------------------------


def save(
    run: PreparedRun,
    log: MetricsLog,
    progress: Progress,
    scores: dict[str, float],
    result: StepResult,
    *,
    is_extra: bool = False,
) -> None:
    """Write a checkpoint; an extra one is removed by the next, so that it is not averaged.

    Raises:
        ValueError: a weight is not finite; such weights must not replace good ones.
        OSError: the checkpoint cannot be written; older ones stay.
    """
    average_running_statistics(run.model, run.accelerator)
    # a gradient may overflow where the loss did not
    if not all_finite(run):
        raise unusable_step(run, result, "a weight is not a finite number")
    state: dict[str, Any] = {
        **asdict(progress),
        "micro_batches": run.per_step,
        "threads": torch.get_num_threads(),
        "scores": {} if is_extra else scores,
        "facts": run.facts,
        "is_extra": is_extra,
    }
    with log.paused():
        save_checkpoint(run, state)
