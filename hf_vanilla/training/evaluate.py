"""The commands `evaluate` and `finetune`: the model decides which task's options are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Seq2SeqTrainingArguments

from hf_vanilla.families import DEFAULT_TASK, TaskEntry, load_part, task_entry
from hf_vanilla.loading import task_of_model
from hf_vanilla.options import parse_options, pop_option

EPILOG = "These are the options for a translation model; --model M --help shows those for M."


@dataclass(frozen=True)
class Evaluation:
    """Options of the task, and the import string of what takes them."""

    options: Any
    action: str


@dataclass(frozen=True)
class Finetuning:
    """Options of the task and of Trainer, and the import string of what takes them."""

    options: Any
    arguments: Any
    action: str


def read_evaluation(arguments: Sequence[str]) -> Evaluation:
    """The options of `evaluate` for the model of a command line.

    Raises:
        UsageError: an option is unknown or missing.
    """
    entry = _entry(arguments)
    options = parse_options(load_part(entry.evaluate_options), arguments, epilog=_epilog(entry))
    return Evaluation(options, entry.evaluate)


def evaluate(evaluation: Evaluation) -> Any:
    """Score a model on its task."""
    return load_part(evaluation.action)(evaluation.options)


def read_finetuning(arguments: Sequence[str]) -> Finetuning:
    """The options of `finetune` for the model of a command line.

    Raises:
        UsageError: an option is unknown or missing.
    """
    entry = _entry(arguments)
    classes = (load_part(entry.finetune_options), Seq2SeqTrainingArguments)
    options, trainer = parse_options(classes, arguments, epilog=_epilog(entry))
    return Finetuning(options, trainer, entry.finetune)


def finetune_model(finetuning: Finetuning) -> Path:
    """Train a saved model further on its task."""
    return load_part(finetuning.action)(finetuning.options, finetuning.arguments)


def _entry(arguments: Sequence[str]) -> TaskEntry:
    """The task of the model of `--model`; a model that is not found counts as text."""
    name = pop_option(list(arguments), "--model")
    try:
        return task_entry(DEFAULT_TASK if name is None else task_of_model(name))
    except (OSError, ValueError):
        return task_entry(DEFAULT_TASK)  # the command itself reports it


def _epilog(entry: TaskEntry) -> str | None:
    return EPILOG if entry is task_entry(DEFAULT_TASK) else None
