"""The trained model that a run starts from: `initial_model` of a recipe."""

from collections.abc import Mapping
from typing import Any

from hf_vanilla.families import TaskEntry, load_part
from hf_vanilla.loading import load_saved, read_settings

# fields that act in training alone; a run may have its own
OF_TRAINING = frozenset(
    {
        *("dropout", "attention_dropout", "activation_dropout"),
        *("label_smoothing", "label_smoothing_type"),
        *("auxiliary_loss", "eos_coefficient", "class_cost", "bbox_cost", "giou_cost"),
        *("bbox_loss_coefficient", "giou_loss_coefficient"),
    }
)


# beside them: a recipe's `vocab_size` is for a tokenizer that is still to be trained; images may
# have another size, for which positions are interpolated; a new head has no pooler
MAY_DIFFER = OF_TRAINING | {"vocab_size", "image_size", "has_pooler"}


def initial_config(
    name: str, entry: TaskEntry, section: Mapping[str, Any], changes: Mapping[str, Any]
) -> Any:
    """The config of a trained model with fields of a recipe.

    Args:
        name: folder or Hub id.
        entry: of the recipe's task.
        section: fields of the recipe's section `model`.
        changes: fields that follow from the data.

    Raises:
        ValueError: it is damaged, a model of another task, or another one than the section says.
        OSError: there is no such model.
    """
    if name in entry.built_in:
        raise ValueError(f"initial_model={name!r} has no weights: give a model folder")
    if (saved := read_settings(name).get("model_type")) not in entry.model_types:
        raise ValueError(
            f"initial_model={name!r} is a model of type {saved!r}, and this task trains "
            f"{', '.join(entry.model_types)}: leave task and recipe out, or give another model"
        )
    kind = load_part(entry.config)
    config = load_saved(kind, name)
    check_section(name, config, section)
    return kind(**{**config.to_dict(), **section, **changes})


def check_section(name: str, saved: Any, section: Mapping[str, Any]) -> None:
    """Refuse a recipe whose section `model` describes another model than the initial one.

    Args:
        name: of the initial model.
        saved: its config.
        section: fields of the recipe.

    Raises:
        ValueError: a field differs; the message names it with both values.
    """
    wrong = [
        f"{field} is {getattr(saved, field)} there and {value} here"
        for field, value in section.items()
        if field not in MAY_DIFFER and getattr(saved, field) != value
    ]
    if wrong:
        raise ValueError(
            f"initial_model={name!r} has another config: {'; '.join(wrong)}: set the section model "
            "to the values there, or leave them out"
        )
