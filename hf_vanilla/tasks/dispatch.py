"""Commands that several tasks have: the model's config decides which task's options are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedConfig, Seq2SeqTrainingArguments

from hf_vanilla.options import parse_options, pop_option
from hf_vanilla.training.finetuning import FinetuneOptions, finetune
from hf_vanilla.translation.evaluation import EvaluateOptions, evaluate_files

if TYPE_CHECKING:
    from .image_evaluation import EvaluateImagesOptions
    from .image_finetuning import FinetuneImagesOptions

IMAGE_MODEL = "vanilla_vit"
EPILOG = "These are the options for a translation model; --model M --help shows those for M."


@dataclass(frozen=True)
class Finetuning:
    """Options of a task and of the Trainer."""

    options: "FinetuneOptions | FinetuneImagesOptions"
    arguments: Any


def read_evaluation(arguments: Sequence[str]) -> "EvaluateOptions | EvaluateImagesOptions":
    """The options of `evaluate` for the model of a command line.

    Raises:
        UsageError: an option is unknown or missing.
    """
    if _is_image_model(arguments):
        from .image_evaluation import EvaluateImagesOptions

        return parse_options(EvaluateImagesOptions, arguments)
    return parse_options(EvaluateOptions, arguments, epilog=EPILOG)


def evaluate(options: "EvaluateOptions | EvaluateImagesOptions") -> Any:
    """Score a model on its task."""
    if isinstance(options, EvaluateOptions):
        return evaluate_files(options)
    from .image_evaluation import evaluate_images

    return evaluate_images(options)


def read_finetuning(arguments: Sequence[str]) -> Finetuning:
    """The options of `finetune` for the model of a command line.

    Raises:
        UsageError: an option is unknown or missing.
    """
    if _is_image_model(arguments):
        from .image_finetuning import FinetuneImagesOptions

        kinds = (FinetuneImagesOptions, Seq2SeqTrainingArguments)
        return Finetuning(*parse_options(kinds, arguments))
    text = (FinetuneOptions, Seq2SeqTrainingArguments)
    return Finetuning(*parse_options(text, arguments, epilog=EPILOG))


def finetune_model(asked: Finetuning) -> Path:
    """Train a saved model further on its task."""
    if isinstance(asked.options, FinetuneOptions):
        return finetune(asked.options, asked.arguments)
    from .image_finetuning import finetune_images

    return finetune_images(asked.options, asked.arguments)


def _is_image_model(arguments: Sequence[str]) -> bool:
    """Whether `--model` names an image model; a model that is not found counts as text."""
    name = pop_option(list(arguments), "--model")
    if name is None:
        return False
    try:
        settings, _ = PreTrainedConfig.get_config_dict(name)
    except (OSError, ValueError):
        return False  # the command itself reports it
    return settings.get("model_type") == IMAGE_MODEL
