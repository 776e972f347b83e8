"""The training loop: one recipe, any number of processes through Accelerate (5)."""

import logging
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from hf_vanilla.families import validation_measures
from hf_vanilla.files import read_json_lines, write_files
from hf_vanilla.plots.curves import floor_of_run, save_curves

from .averaging import average_checkpoints
from .checkpointing import (
    Keeping,
    TrainingParts,
    all_checkpoints,
    best_checkpoints,
    checkpoint_state,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    whole_model,
)
from .folder_lock import locked
from .metrics_log import MetricsLog, Progress, run_summary
from .preparation import PreparedRun, prepare_run
from .processes import TERMINATED_STATUS, average_running_statistics, precision_in_words
from .recipe import Recipe, TrainRecipe
from .task import RunFacts, Validation
from .train_step import (
    StepResult,
    all_finite,
    forward,
    gradient_sync,
    learning_rate,
    sum_counts,
    sum_work,
    training_steps,
    unusable_step,
    update_weights,
)

logger = logging.getLogger(__name__)

CURVES_FILE = "curves.png"
STALE_WARNING = 2  # the user is warned at every second validation without a better one
WORSE_BY = 0.2  # of the best value: smaller differences come and go near the end of training


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
    steps = training_steps(run, progress.step)
    with _ended(run, log, progress) as signals:
        while not is_over(options, progress):
            step, micro_batches = next(steps)
            is_logged = step % options.logging_steps == 0
            run.parallel.train()
            totals = sum_counts(run, micro_batches)
            numbers = [part.number for part in micro_batches]
            result = StepResult(step, learning_rate(run), totals, {}, numbers)
            for micro_batch in micro_batches:
                with gradient_sync(run, micro_batch):
                    losses = forward(run, micro_batch, totals, is_logged=is_logged)
                    # processes average their gradients, but this loss has the divisor of all
                    run.accelerator.backward(losses["loss"] * run.accelerator.num_processes)
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
        log.close()
        if run.is_main:
            folders = all_checkpoints(run.output_dir)
            what = (
                f"resumes after step {folders[-1].name.rpartition('-')[2]}"
                if folders
                else (
                    f"starts anew; the first checkpoint comes after step {run.options.save_steps}"
                )
            )
            logger.info("stopped after step %d: the same command %s", progress.step, what)
        raise
    finally:
        log.close()
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
    load_checkpoint(_parts(run), run.checkpoint)
    state = checkpoint_state(run.checkpoint)
    known = {name: state[name] for name in asdict(Progress()) if name in state}
    # earlier versions saved the counts beside the step
    counts = {name: state[name] for name in run.task.counted if name in state}
    progress = Progress(**{"counts": counts, **known})
    # a schedule is a function of the step; this recipe's may be another one than before
    run.schedule.load_state_dict(
        {
            **run.schedule.state_dict(),
            "last_epoch": progress.step - 1,
            "_step_count": progress.step,
        }
    )
    run.schedule.step()
    if run.is_main:
        what = "nothing to train" if is_over(run.options, progress) else "resuming"
        logger.info("found %s: %s after step %d", run.output_dir, what, progress.step)
        before = state.get("micro_batches", run.per_step)
        if before != run.per_step:
            logger.warning(
                "the run began with %d micro-batches a step and resumes with %d: in the current "
                "epoch, some rows are seen twice and others not",
                before,
                run.per_step,
            )
        threads = state.get("threads", torch.get_num_threads())
        if threads != torch.get_num_threads():
            logger.warning(
                "the run used %d threads and resumes with %d, so rounding may differ: set "
                "OMP_NUM_THREADS=%d for identical weights",
                *(threads, torch.get_num_threads(), threads),
            )
    return progress


def _parts(run: PreparedRun) -> TrainingParts:
    return TrainingParts(run.accelerator, run.model, run.optimizer)


# --- validation ----------------------------------------------------------------------------------


def validate(run: PreparedRun, log: MetricsLog, progress: Progress) -> dict[str, float]:
    """Validate and log the model as it is, and compare with the best validation before.

    Returns:
        The values of measures that compare checkpoints.
    """
    with log.paused():
        validation = _measure(run, run.model)
    log.validation(progress, validation, f"step {progress.step}")
    comparing = validation_measures(run.recipe.task)
    scores = {name: value for name, value in validation.values.items() if name in comparing}
    compare(run, progress, scores.get(run.recipe.best_by))
    return scores


def compare(run: PreparedRun, progress: Progress, value: float | None) -> None:
    """Note whether a validation is the best so far; tell when the patience is used up."""
    measure = run.best_by
    if value is None:
        return
    if progress.best is None or measure.rank(value) < measure.rank(progress.best):
        progress.best, progress.stale = value, 0
    else:
        progress.stale += 1
    is_much_worse = abs(value - progress.best) > WORSE_BY * abs(progress.best)
    if progress.stale and progress.stale % STALE_WARNING == 0 and is_much_worse and run.is_main:
        logger.warning(
            "step %d: %s is %.4f, and was %.4f at its best %d validations before: if training "
            "diverges, lower learning_rate or lengthen warmup_steps; the best checkpoint is kept",
            *(progress.step, measure.label, value, progress.best, progress.stale),
        )
    if 0 < run.options.patience <= progress.stale and run.is_main:
        logger.info(
            "step %d: %s has not improved on %.4f for %d validations, so training ends",
            progress.step,
            run.recipe.best_by,
            progress.best,
            progress.stale,
        )


@torch.no_grad()
def _measure(run: PreparedRun, model: PreTrainedModel, *, is_final: bool = False) -> Validation:
    """Validate a model; call it on every process."""
    average_running_statistics(model, run.accelerator)
    model = whole_model(model).eval()
    with run.accelerator.autocast():
        return run.task.validate(model, run.accelerator, is_final=is_final)


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
    options = run.options
    keep = Keeping(
        options.save_total_limit,
        best=options.average_checkpoints if options.average_best else 1,
        measures=run.task.measures,
        by=run.recipe.best_by,
    )
    state: dict[str, Any] = {
        **asdict(progress),
        "micro_batches": run.per_step,
        "threads": torch.get_num_threads(),
        "scores": {} if is_extra else scores,
        "facts": run.facts,
        "is_extra": is_extra,
    }
    with log.paused():
        save_checkpoint(_parts(run), run.output_dir, state, keep=keep)


def finish(run: PreparedRun, log: MetricsLog, progress: Progress) -> Path:
    """Write the model folder: the candidate that is the best by validation."""
    candidates, model = _candidates(run), whole_model(run.model)
    found: dict[str, Validation] = {}
    for name, folders in candidates.items() if run.task.has_validation else ():
        load_weights(model, average_checkpoints(folders))
        found[name] = _measure(run, model, is_final=True)
    # the best comes last, in the log too; of equal ones, the mean
    ranked = sorted(candidates, key=lambda name: _rank(run, found.get(name)), reverse=True)
    for name in ranked if found else ():
        log.validation(progress, found[name], name, averaged=len(candidates[name]))
    best = ranked[-1]
    load_weights(model, average_checkpoints(candidates[best]))
    if run.is_main:
        _write_model(run, log, progress, model, best, found.get(best))
        _log_choice(run, best, found)
        if found:
            _warn_of_no_success(run, found[best])
    run.accelerator.wait_for_everyone()
    return run.output_dir


def _candidates(run: PreparedRun) -> dict[str, list[Path]]:
    """Checkpoints of each model that may become the finished one, by name; their mean comes last.

    These are the last checkpoint, the best one by validation and the mean of several (6.1). After
    few steps weights still change fast, and the mean may be worse than its parts.
    """
    options, folders = run.options, all_checkpoints(run.output_dir)
    if not folders:
        raise ValueError(f"{run.output_dir} holds no checkpoints: were they removed meanwhile?")
    count, by = options.average_checkpoints, run.recipe.best_by
    ranked = best_checkpoints(folders, count, measures=run.task.measures, by=by)
    mean = ranked[:count] if options.average_best else folders[-count:]
    chosen = [part for part in (folders[-1:], ranked[:1], mean) if part]
    return {_name(part): part for part in chosen}


def _name(folders: list[Path]) -> str:
    steps = ", ".join(folder.name.removeprefix("checkpoint-") for folder in folders)
    return f"mean of checkpoints {steps}" if len(folders) > 1 else f"checkpoint {steps}"


def _rank(run: PreparedRun, validation: Validation | None) -> float:
    """A number that is lower for a better model; infinite where it is not known."""
    value = math.nan if validation is None else validation.values.get(run.recipe.best_by, math.nan)
    return math.inf if math.isnan(value) else run.best_by.rank(value)


def _write_model(
    run: PreparedRun,
    log: MetricsLog,
    progress: Progress,
    model: PreTrainedModel,
    name: str,
    validation: Validation | None,
) -> None:
    """Write weights, code, processor, model card and curves; `name` says which model it is."""
    entries, task = read_json_lines(log.path), run.task
    facts = RunFacts(
        model_name=run.output_dir.resolve().name,
        recipe=run.recipe.to_yaml(),
        parameters=model.num_parameters(),
        steps=progress.step,
        counts=progress.counts,
        seconds=progress.seconds,
        processes=run.accelerator.num_processes,
        device=run.accelerator.device.type,
        summary={
            "finished model": name,
            "computed in": precision_in_words(run.accelerator),
            **run_summary(entries, task.measures, task.items),
        },
    )

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        task.save(folder)
        task.card(facts, validation).save(folder / "README.md")
        with suppress(ImportError):  # figures are an extra
            name = run.output_dir.name
            floors = {name: floor_of_run(folder)}  # by the config that was just saved
            save_curves({name: entries}, folder / CURVES_FILE, task.measures, floors=floors)

    write_files(run.output_dir, write)


def _log_choice(run: PreparedRun, best: str, found: dict[str, Validation]) -> None:
    """Say which model was written, and how good it and the others are by validation."""
    by = run.recipe.best_by
    values = {n: found[n].values[by] for n in found if by in found[n].values}
    shown = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
    reason = f": the best by {run.best_by.label} ({shown})" if shown else ""
    logger.info("wrote %s to %s, in float32%s", best, run.output_dir, reason)


def _warn_of_no_success(run: PreparedRun, validation: Validation) -> None:
    """Say so where the finished model has nothing right, by the main measure of that kind."""
    measures = validation_measures(run.recipe.task)
    higher = [name for name, measure in measures.items() if measure.better == "higher"]
    main = [name for name in higher if name == run.recipe.best_by] or higher[:1]
    if any(validation.values.get(name) == 0 for name in main):
        logger.warning(
            "%s of the finished model is 0: train longer, or lower learning_rate if the loss rose",
            measures[main[0]].label,
        )
