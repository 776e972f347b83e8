"""A model folder of any task, with what belongs to it."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from hf_vanilla.families import DEFAULT_TASK, load_part, task_entry, task_of_model
from hf_vanilla.loading import load_model, load_saved
from hf_vanilla.text.loading import load_translator


def load_folder(folder: Path) -> tuple[PreTrainedModel, Any]:
    """The model of a folder, and its tokenizer or image processor; None where it has none.

    Raises:
        ValueError: the folder holds no model.
        OSError: a file is missing or damaged.
    """
    try:
        task = task_of_model(str(folder))
    except (OSError, ValueError):
        task = DEFAULT_TASK  # a translation model that transformers knows, or none at all
    if task == DEFAULT_TASK:
        return load_translator(str(folder))
    entry = task_entry(task)
    processor = load_saved(load_part(entry.processor), folder) if entry.processor else None
    return load_model(load_part(entry.auto_class), folder), processor
