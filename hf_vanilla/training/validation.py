"""Validate a run, and write its finished model: the best of several by validation (6.1).

The command `evaluate` scores any model; the model decides which task's options are read.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_vanilla.families import DEFAULT_TASK, load_part, task_entry, validation_measures
from hf_vanilla.files import read_json_lines, write_files
from hf_vanilla.hub.card import CARD_FILE, hub_id, license_of, public_name
from hf_vanilla.loading import read_settings, task_or_default
from hf_vanilla.options import UsageError, parse_options, pop_option
from hf_vanilla.plots.curves import floor_of_run, save_curves

from .checkpointing import (
    all_checkpoints,
    average_checkpoints,
    best_checkpoints,
    checkpoint_state,
    load_weights,
    whole_model,
)
from .metrics_log import MetricsLog, Progress, run_summary
from .preparation import PreparedRun
from .processes import average_running_statistics, precision_in_words
from .task import Validation

logger = logging.getLogger(__name__)

CURVES_FILE = "curves.png"
STALE_WARNING = 2  # the user is warned at every second validation without a better one
WORSE_BY = 0.2  # of the best value: smaller differences come and go near the end of training


def validate(run: PreparedRun, log: MetricsLog, progress: Progress) -> dict[str, float]:
    """Validate and log the model as it is, and compare with the best validation before.

    Returns:
        The values of measures that compare checkpoints.
    """
    with log.paused():
        validation = measure(run, run.model)
    log.validation(progress, validation, f"step {progress.step}")
    comparing = validation_measures(run.recipe.task)
    scores = {name: value for name, value in validation.values.items() if name in comparing}
    compare(run, progress, scores.get(run.recipe.best_by))
    return scores


def compare(run: PreparedRun, progress: Progress, value: float | None) -> None:
    """Note whether a validation is the best so far; tell when the patience is used up."""
    best_by = run.recipe.measures[run.recipe.best_by]
    if value is None:
        return
    if progress.best is None or best_by.rank(value) < best_by.rank(progress.best):
        progress.best, progress.stale = value, 0
    else:
        progress.stale += 1
    is_much_worse = abs(value - progress.best) > WORSE_BY * abs(progress.best)
    if progress.stale and progress.stale % STALE_WARNING == 0 and is_much_worse and run.is_main:
        logger.warning(
            "step %d: %s is %.4f, and was %.4f at its best %d validations before: if training "
            "diverges, lower learning_rate or lengthen warmup_steps; the best checkpoint is kept",
            *(progress.step, best_by.label, value, progress.best, progress.stale),
        )
    if 0 < run.options.patience <= progress.stale and run.is_main:
        logger.info(
            "step %d: %s has not improved on %.4f for %d validations, so training ends",
            *(progress.step, run.recipe.best_by, progress.best, progress.stale),
        )


@torch.no_grad()
def measure(run: PreparedRun, model: PreTrainedModel, *, is_final: bool = False) -> Validation:
    """Validate a model; call it on every process."""
    average_running_statistics(model, run.accelerator)
    model = whole_model(model).eval()
    # layers that are compiled for training would be compiled anew for each step of a search
    with run.accelerator.autocast(), torch.compiler.set_stance("force_eager"):
        return run.task.validate(model, run.accelerator, is_final=is_final)


def finish(run: PreparedRun, log: MetricsLog, progress: Progress) -> Path:
    """Write the model folder: the candidate that is the best by validation."""
    folders = all_checkpoints(run.output_dir)
    if not folders:
        raise ValueError(f"{run.output_dir} holds no checkpoints: were they removed meanwhile?")
    # without translations, for instance, no checkpoint has a BLEU
    scored = {name for folder in folders for name in checkpoint_state(folder).get("scores", {})}
    names = (run.recipe.best_by, *validation_measures(run.recipe.task))
    by = next((name for name in names if name in scored), run.recipe.best_by)
    candidates, model = _candidates(run, folders, by), whole_model(run.model)
    found: dict[str, Validation] = {}
    for name, folders in candidates.items() if run.task.has_validation else ():
        load_weights(model, average_checkpoints(folders))
        found[name] = measure(run, model, is_final=True)
    # the best comes last, in the log too; of equal ones, the mean
    deciding = run.recipe.measures[by]

    def rank(name: str) -> float:
        return deciding.rank(found[name].values.get(by, math.nan) if name in found else math.nan)

    ranked = sorted(candidates, key=rank, reverse=True)
    for name in ranked if found else ():
        log.validation(progress, found[name], name, averaged=len(candidates[name]))
    best = ranked[-1]
    load_weights(model, average_checkpoints(candidates[best]))
    if run.is_main:
        _write_model(run, log, progress, model, best, found.get(best))
        values = {n: found[n].values[by] for n in found if by in found[n].values}
        shown = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        reason = f": the best by {deciding.label} ({shown})" if shown else ""
        logger.info("wrote %s to %s, in float32%s", best, run.output_dir, reason)
        if found:
            _warn_of_no_success(run, found[best])
    run.accelerator.wait_for_everyone()
    return run.output_dir


def _candidates(run: PreparedRun, folders: list[Path], by: str) -> dict[str, list[Path]]:
    """Checkpoints of each model that may become the finished one, by name; their mean comes last.

    These are the last checkpoint, the best one by validation and the mean of several (6.1). After
    few steps weights still change fast, and the mean may be worse than its parts.
    """
    options, count = run.options, run.options.average_checkpoints
    ranked = best_checkpoints(folders, count, measures=run.recipe.measures, by=by)
    mean = ranked if options.average_best else folders[-count:]
    candidates = {}
    for part in filter(None, (folders[-1:], ranked[:1], mean)):
        steps = ", ".join(folder.name.removeprefix("checkpoint-") for folder in part)
        what = "mean of checkpoints" if len(part) > 1 else "checkpoint"
        candidates[f"{what} {steps}"] = part
    return candidates


def _write_model(
    run: PreparedRun,
    log: MetricsLog,
    progress: Progress,
    model: PreTrainedModel,
    name: str,
    validation: Validation | None,
) -> None:
    """Write weights, code, processor, model card and curves; `name` says which model it is."""
    entries, measures = read_json_lines(log.path), run.recipe.measures
    summary = {
        "finished model": name,
        "computed in": precision_in_words(run.accelerator),
        **run_summary(entries, measures, run.task.items),
    }

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        run.task.save(folder)
        facts = {**_card_facts(run, progress), "parameters": model.num_parameters()}
        run.task.card({**facts, "summary": summary}, validation).save(folder / CARD_FILE)
        with suppress(ImportError):  # figures are an extra
            name = run.output_dir.name
            floors = {name: floor_of_run(folder)}  # by the config that was just saved
            save_curves({name: entries}, folder / CURVES_FILE, measures, floors=floors)

    write_files(run.output_dir, write)


def _card_facts(run: PreparedRun, progress: Progress) -> dict[str, Any]:
    """What a run says of itself on the card of its model."""
    options, shown, processes = run.options, run.task.shown_count, run.accelerator.num_processes
    start = options.initial_model
    origin = "" if start is None else f"From {public_name(start)}: "
    total = f"{progress.counts.get(shown, 0):,} {shown.replace('_', ' ')}, " if shown else ""
    return {
        "title": run.output_dir.resolve().name,
        "recipe": run.recipe.to_yaml(),
        "base_model": None if start is None else hub_id(start),
        "license": options.model_license or (None if start is None else license_of(start)),
        "training": (
            f"{origin}{progress.step:,} steps, {total}{progress.seconds / 60:.1f} minutes, "
            f"{processes} process{'es' * (processes > 1)} on {run.accelerator.device.type}."
        ),
    }


def _warn_of_no_success(run: PreparedRun, validation: Validation) -> None:
    """Say so where the finished model has nothing right, by two measures of that kind.

    One alone may say little: sentences of one word have no 4-grams, so their BLEU is 0.
    """
    measures = validation_measures(run.recipe.task)
    higher = [name for name, measure in measures.items() if measure.better == "higher"]
    main = [name for name in higher if name == run.recipe.best_by] or higher[:1]
    others = [validation.values[n] for n in higher if n in validation.values and n not in main]
    is_nothing = not others or 0 in others
    if is_nothing and any(validation.values.get(name) == 0 for name in main):
        logger.warning(
            "%s of the finished model is 0: train longer, or lower learning_rate if the loss rose",
            measures[main[0]].label,
        )


# --- the command evaluate -------------------------------------------------------------------------


EPILOG = "These are the options for a translation model; --model M --help shows those for M."


def read_evaluation(arguments: Sequence[str]) -> tuple[Callable[[Any], Any], Any]:
    """What scores the model of a command line, and its options.

    Raises:
        UsageError: an option is unknown or missing.
        ValueError: so it is, and the folder holds no model; or its model belongs to no task.
        OSError: so it is, and the model is not found.
    """
    name = pop_option(list(arguments), "--model")
    task = task_or_default(name)
    entry, epilog = task_entry(task), EPILOG if task == DEFAULT_TASK else None
    action, options = load_part(entry.evaluate)
    try:
        return action, parse_options(options, arguments, epilog=epilog)
    except UsageError:
        # of a model that is not there, its error says more
        if name is not None and task == DEFAULT_TASK:
            read_settings(name)
        raise


def evaluate(evaluation: tuple[Callable[[Any], Any], Any]) -> Any:
    """Score a model on its task, as `read_evaluation` read."""
    action, options = evaluation
    return action(options)
