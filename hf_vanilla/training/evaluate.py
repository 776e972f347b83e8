"""The command `evaluate`: the model decides which task's options are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_vanilla.families import DEFAULT_TASK, load_part, task_entry
from hf_vanilla.loading import task_or_default
from hf_vanilla.options import parse_options, pop_option

EPILOG = "These are the options for a translation model; --model M --help shows those for M."


@dataclass(frozen=True)
class Evaluation:
    """Options of the task, and the import string of what takes them."""

    options: Any
    action: str


def read_evaluation(arguments: Sequence[str]) -> Evaluation:
    """The options of `evaluate` for the model of a command line.

    Raises:
        UsageError: an option is unknown or missing.
    """
    task = task_or_default(pop_option(list(arguments), "--model"))
    entry, epilog = task_entry(task), EPILOG if task == DEFAULT_TASK else None
    options = parse_options(load_part(entry.evaluate_options), arguments, epilog=epilog)
    return Evaluation(options, entry.evaluate)


def evaluate(evaluation: Evaluation) -> Any:
    """Score a model on its task."""
    return load_part(evaluation.action)(evaluation.options)
