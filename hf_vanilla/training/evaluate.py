"""Commands that several tasks have: the model's config decides which task's options are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Seq2SeqTrainingArguments

from hf_vanilla.families import load_part
from hf_vanilla.loading import read_settings
from hf_vanilla.options import parse_options, pop_option
from hf_vanilla.text.evaluation import EvaluateOptions
from hf_vanilla.text.finetuning import FinetuneOptions
from hf_vanilla.tracks.simple_models import SIMPLE_MODELS

EPILOG = "These are the options for a translation model; --model M --help shows those for M."


@dataclass(frozen=True)
class ModelCommands:
    """Where the commands of a kind of model are; import strings, `module:name`.

    Attributes:
        evaluate: scores a model, and
        evaluate_options: its options.
        finetune: trains a model further, and
        finetune_options: its options, beside those of Trainer.
    """

    evaluate: str
    evaluate_options: str
    finetune: str
    finetune_options: str


TEXT = ModelCommands(
    "hf_vanilla.text.evaluation:evaluate_files",
    "hf_vanilla.text.evaluation:EvaluateOptions",
    "hf_vanilla.text.finetuning:finetune",
    "hf_vanilla.text.finetuning:FinetuneOptions",
)
TRACKS = ModelCommands(
    "hf_vanilla.tracks.evaluation:evaluate_tracks",
    "hf_vanilla.tracks.evaluation:EvaluateTracksOptions",
    "hf_vanilla.tracks.finetuning:finetune_tracks",
    "hf_vanilla.tracks.finetuning:FinetuneTracksOptions",
)
# by `model_type`; any other counts as text
COMMANDS_OF = {
    "vanilla_vit": ModelCommands(
        "hf_vanilla.images.evaluation:evaluate_images",
        "hf_vanilla.images.evaluation:EvaluateImagesOptions",
        "hf_vanilla.images.finetuning:finetune_images",
        "hf_vanilla.images.finetuning:FinetuneImagesOptions",
    ),
    "vanilla_detr": ModelCommands(
        "hf_vanilla.objects.evaluation:evaluate_objects",
        "hf_vanilla.objects.evaluation:EvaluateObjectsOptions",
        "hf_vanilla.objects.finetuning:finetune_objects",
        "hf_vanilla.objects.finetuning:FinetuneObjectsOptions",
    ),
    "vanilla_agentformer": TRACKS,
    "vanilla_scene": TRACKS,
    "vanilla_tracks": TRACKS,
}


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
    commands = _commands(arguments)
    kind = load_part(commands.evaluate_options)
    epilog = EPILOG if kind is EvaluateOptions else None
    return Evaluation(parse_options(kind, arguments, epilog=epilog), commands.evaluate)


def evaluate(asked: Evaluation) -> Any:
    """Score a model on its task."""
    return load_part(asked.action)(asked.options)


def read_finetuning(arguments: Sequence[str]) -> Finetuning:
    """The options of `finetune` for the model of a command line.

    Raises:
        UsageError: an option is unknown or missing.
    """
    commands = _commands(arguments)
    kind = load_part(commands.finetune_options)
    epilog = EPILOG if kind is FinetuneOptions else None
    options, trainer = parse_options((kind, Seq2SeqTrainingArguments), arguments, epilog=epilog)
    return Finetuning(options, trainer, commands.finetune)


def finetune_model(asked: Finetuning) -> Path:
    """Train a saved model further on its task."""
    return load_part(asked.action)(asked.options, asked.arguments)


def _commands(arguments: Sequence[str]) -> ModelCommands:
    """The commands for the model of `--model`; a model that is not found counts as text."""
    name = pop_option(list(arguments), "--model")
    if name is None:
        return TEXT
    if name in SIMPLE_MODELS:
        return TRACKS
    try:
        settings = read_settings(name)
    except (OSError, ValueError):
        return TEXT  # the command itself reports it
    return COMMANDS_OF.get(settings.get("model_type", ""), TEXT)
