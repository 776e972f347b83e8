"""The command `evaluate`: the model decides which task's options are read."""

from collections.abc import Sequence
from typing import Any

from hf_vanilla.families import DEFAULT_TASK, load_part, task_entry
from hf_vanilla.loading import task_or_default
from hf_vanilla.options import parse_options, pop_option

EPILOG = "These are the options for a translation model; --model M --help shows those for M."


def read_evaluation(arguments: Sequence[str]) -> tuple[str, Any]:
    """The import string of what scores the model of a command line, and its options.

    Raises:
        UsageError: an option is unknown or missing.
    """
    task = task_or_default(pop_option(list(arguments), "--model"))
    entry, epilog = task_entry(task), EPILOG if task == DEFAULT_TASK else None
    return entry.evaluate, parse_options(
        load_part(entry.evaluate_options), arguments, epilog=epilog
    )


def evaluate(evaluation: tuple[str, Any]) -> Any:
    """Score a model on its task, as `read_evaluation` read."""
    action, options = evaluation
    return load_part(action)(options)
