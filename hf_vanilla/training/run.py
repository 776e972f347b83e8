"""The training loop: one recipe, any number of processes through Accelerate (5)."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from hf_vanilla.files import read_json_lines, write_files
from hf_vanilla.models.saving_vanilla import code_beside_weights
from hf_vanilla.plots.curves import floor_of_run, save_curves
from hf_vanilla.recipes.recipe import Recipe, TrainRecipe
from hf_vanilla.recipes.tasks import validation_measures

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
from .metrics_log import MetricsLog, Progress, log_entry, run_summary
from .preparation import PreparedRun, prepare_run
from .processes import average_running_statistics
from .task import RunFacts, StreamOrder, Validation
from .train_step import (
    StepResult,
    all_finite,
    forward,
    gradient_sync,
    learning_rate,
    sum_counts,
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
    """
    with locked(Path(recipe.train.output_dir)):
        folder, accelerator = _train(recipe)
        # DistributedDataParallel must go before its process group: as its last owner it would hold
        # Python's lock while it waits for threads of the group, which may need that lock
        accelerator.free_memory()
        accelerator.end_training()  # without it, processes may crash at shutdown
    return folder


def _train(recipe: Recipe) -> tuple[Path, Accelerator]:
    run, options = prepare_run(recipe), recipe.train
    progress = load_progress(run)
    log = MetricsLog(run.accelerator, recipe, run.task, progress)
    started = time.monotonic() - progress.seconds
    steps = training_steps(run, progress.step)
    with _ended(run, log, progress):
        while not is_over(options, progress):
            step, micro_batches = next(steps)
            is_logged = step % options.logging_steps == 0
            run.parallel.train()
            totals = sum_counts(run, micro_batches)
            result = StepResult(step, learning_rate(run), totals, {}, micro_batches)
            for micro_batch in micro_batches:
                with gradient_sync(run, micro_batch):
                    losses = forward(run, micro_batch, totals, is_logged=is_logged)
                    # processes average their gradients, but this loss has the divisor of all
                    run.accelerator.backward(losses["loss"] * run.accelerator.num_processes)
                result.add(losses)
            update_weights(run)
            progress.step = step
            log.add(result)
            if not _is_read(run, step):
                continue
            progress.seconds = time.monotonic() - started
            values = log.read(run.model.config, progress)
            if is_logged:
                log.train_line(progress, values)
            scores: dict[str, float] = {}
            if run.task.has_validation and _is_due(options.eval_steps, options, step):
                scores = validate(run, log, progress)
            if step % options.save_steps == 0 or is_over(options, progress):
                save(run, log, progress, scores, result)
    return finish(run, log, progress), run.accelerator


@contextmanager
def _ended(run: PreparedRun, log: MetricsLog, progress: Progress) -> Iterator[None]:
    """Close the log at the end of the steps; after Ctrl-C say how to resume."""
    try:
        yield
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


def is_over(options: TrainRecipe, progress: Progress) -> bool:
    """Whether the last step is done, or validations stopped improving."""
    is_stale = 0 < options.patience <= progress.stale
    return is_stale or progress.step >= options.max_steps


def _is_due(every: int, options: TrainRecipe, step: int) -> bool:
    return step % every == 0 or step == options.max_steps


def _is_read(run: PreparedRun, step: int) -> bool:
    """Whether results are read after this step; on a GPU only where something is due."""
    options = run.options
    every = (options.logging_steps, options.eval_steps, options.save_steps)
    is_cpu = run.accelerator.device.type == "cpu"
    return is_cpu or any(_is_due(steps, options, step) for steps in every)


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
    if isinstance(run.order, StreamOrder):
        run.order.load_state_dict(state.get("order", {}), progress.step * run.per_step)
    if run.is_main:
        what = "nothing to train" if is_over(run.options, progress) else "resuming"
        logger.info("found %s: %s after step %d", run.output_dir, what, progress.step)
        before = state.get("micro_batches", run.per_step)
        if before != run.per_step and not isinstance(run.order, StreamOrder):
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
        validation = _measure(run, log, progress, run.model)
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
def _measure(
    run: PreparedRun,
    log: MetricsLog,
    progress: Progress,
    model: PreTrainedModel,
    *,
    averaged: int = 0,
) -> Validation:
    """Validate a model and write the result to the log."""
    average_running_statistics(model, run.accelerator)
    model = whole_model(model).eval()
    with run.accelerator.autocast():
        validation = run.task.validate(model, run.accelerator, is_final=averaged > 0)
    entry = log_entry(validation.values, run.task.measures)
    log.write(
        step=progress.step, samples=validation.samples, averaged_checkpoints=averaged, **entry
    )
    line = "  ".join(f"{name} {value:.3f}" for name, value in entry.items())
    which = f"mean of {averaged} checkpoints" if averaged else f"step {progress.step}"
    log.show(f"{which}: {line}")
    return validation


# --- saving --------------------------------------------------------------------------------------


def save(
    run: PreparedRun,
    log: MetricsLog,
    progress: Progress,
    scores: dict[str, float],
    result: StepResult,
) -> None:
    """Write a checkpoint.

    Raises:
        ValueError: a weight is not finite; such weights must not replace good ones.
        OSError: the checkpoint cannot be written; older ones stay.
    """
    average_running_statistics(run.model, run.accelerator)
    # a gradient may overflow where the loss did not
    if not all_finite(run):
        what = "a weight is not a finite number"
        raise unusable_step(result, what, run.output_dir, run.accelerator.process_index)
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
        "scores": scores,
        "facts": run.facts,
    }
    with log.paused():
        if isinstance(run.order, StreamOrder) and run.is_main:
            state["order"] = run.order.state_dict(progress.step * run.per_step)
        save_checkpoint(_parts(run), run.output_dir, state, keep=keep)


def finish(run: PreparedRun, log: MetricsLog, progress: Progress) -> Path:
    """Average the chosen checkpoints, validate the mean, write the model folder."""
    options, by = run.options, run.recipe.best_by
    chosen = folders = all_checkpoints(run.output_dir)
    if options.average_best:
        count, measures = options.average_checkpoints, run.task.measures
        chosen = best_checkpoints(folders, count, measures=measures, by=by)
    else:
        chosen = folders[-options.average_checkpoints :]
    model = whole_model(run.model)
    load_weights(model, average_checkpoints(chosen))
    validation = None
    if run.task.has_validation:
        validation = _measure(run, log, progress, model, averaged=len(chosen))
    if run.is_main:
        _write_model(run, log, progress, model, validation)
        steps = ", ".join(folder.name.removeprefix("checkpoint-") for folder in chosen)
        logger.info("wrote the mean of checkpoints %s to %s", steps, run.output_dir)
        if validation is not None:
            _warn_of_a_bad_mean(run, log, progress, validation)
            _warn_of_no_success(run, validation)
    run.accelerator.wait_for_everyone()
    return run.output_dir


def _write_model(
    run: PreparedRun,
    log: MetricsLog,
    progress: Progress,
    model: PreTrainedModel,
    validation: Validation | None,
) -> None:
    """Write weights, code, processor, model card and curves."""
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
        summary=run_summary(entries, task.measures, task.items),
    )

    def write(folder: Path) -> None:
        with code_beside_weights(model, task.processor):
            model.save_pretrained(folder)
            task.save(folder)
        task.card(facts, validation).save(folder / "README.md")
        with suppress(ImportError):  # figures are an extra
            name = run.output_dir.name
            floors = {name: floor_of_run(folder)}  # by the config that was just saved
            save_curves({name: entries}, folder / CURVES_FILE, task.measures, floors=floors)

    write_files(run.output_dir, write)


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


def _warn_of_a_bad_mean(
    run: PreparedRun, log: MetricsLog, progress: Progress, validation: Validation
) -> None:
    """After few steps weights still change fast, and their mean may be worse than the last."""
    name, measure = run.recipe.best_by, run.best_by
    key, value = measure.log_name or name, validation.values.get(name)
    alone = [
        entry[key]
        for entry in read_json_lines(log.path)
        if entry["step"] == progress.step and key in entry and not entry["averaged_checkpoints"]
    ]
    if value is not None and alone and measure.rank(value) > measure.rank(alone[-1]):
        logger.warning(
            "the mean (%s %.3f) is worse than step %d alone (%.3f): train longer, or average fewer "
            "(--average_checkpoints 1)",
            *(measure.label, value, progress.step, alone[-1]),
        )
