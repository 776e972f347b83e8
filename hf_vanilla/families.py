"""The table of tasks: options, measures, model and engine part of each by import string.

This package is imported by the tasks, so it names their modules as text and imports them when a
task is used. To add a task, add a row here and a module to `hf_vanilla/tasks/`.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hf_vanilla.families import Measure
from hf_vanilla.loading import read_settings

DEFAULT_TASK = "translation"


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """Where the parts of a task are; every part is an import string, `module:name`.

    Attributes:
        model_types: `model_type` of its models' configs.
        data: dataclass of its data options. Its method `check_with(train)` compares them with the
            shared options.
        measures: its `dict` of `Measure` by name.
        prepare: function of a recipe that returns a `training.task.Task`.
        config: config class that the recipe's section `model` is for.
        model: class or function that makes a model from a config.
        auto_class: Auto class of transformers that loads a saved model.
        processor: class with `from_pretrained` for tokenizer or image processor; empty: none.
        decoding: function from config and section `decoding` to a generation config; empty: the
            task has no such section.
        set_by_data: fields of the config that follow from the data; a recipe may not set them.
    """

    model_types: tuple[str, ...]
    data: str
    measures: str
    prepare: str
    config: str
    model: str
    auto_class: str
    processor: str = ""
    decoding: str = ""
    set_by_data: tuple[str, ...] = ()


TASKS = {
    "translation": TaskEntry(
        model_types=("vanilla",),
        data="hf_vanilla.text.options:TranslationDataOptions",
        measures="hf_vanilla.text.options:MEASURES",
        prepare="hf_vanilla.text.task:prepare",
        config="hf_vanilla.models.configuration_vanilla:VanillaConfig",
        model="hf_vanilla.models.modeling_vanilla:VanillaForConditionalGeneration",
        auto_class="transformers:AutoModelForSeq2SeqLM",
        processor="transformers:AutoTokenizer",
        decoding="hf_vanilla.text.options:generation_config",
        set_by_data=("pad_token_id", "eos_token_id", "decoder_start_token_id"),
    ),
    "image_classification": TaskEntry(
        model_types=("vanilla_vit",),
        data="hf_vanilla.images.options:ImageDataOptions",
        measures="hf_vanilla.images.options:MEASURES",
        prepare="hf_vanilla.images.task:prepare",
        config="hf_vanilla.models.configuration_vanilla_vit:VanillaVitConfig",
        model="hf_vanilla.models.modeling_vanilla_vit:VanillaForImageClassification",
        auto_class="transformers:AutoModelForImageClassification",
        processor="transformers:AutoImageProcessor",
        set_by_data=("id2label", "label2id"),
    ),
    "object_detection": TaskEntry(
        model_types=("vanilla_detr",),
        data="hf_vanilla.objects.options:DetectionData",
        measures="hf_vanilla.objects.options:MEASURES",
        prepare="hf_vanilla.objects.task:prepare",
        config="hf_vanilla.models.configuration_vanilla_detr:VanillaDetrConfig",
        model="hf_vanilla.models.modeling_vanilla_detr:VanillaForObjectDetection",
        auto_class="transformers:AutoModelForObjectDetection",
        processor="transformers:AutoImageProcessor",
        set_by_data=("id2label", "label2id"),
    ),
    "trajectories": TaskEntry(
        model_types=("vanilla_tracks",),
        data="hf_vanilla.tracks.options:TrackDataOptions",
        measures="hf_vanilla.tracks.options:MEASURES",
        prepare="hf_vanilla.tracks.single_task:prepare",
        config="hf_vanilla.models.configuration_vanilla_tracks:VanillaTracksConfig",
        model="hf_vanilla.tracks.loading:new_forecaster",
        auto_class="transformers:AutoModelForTimeSeriesPrediction",
        set_by_data=("step_seconds", "unit", "velocity_std", "largest_step"),
    ),
    "joint_trajectories": TaskEntry(
        model_types=("vanilla_agentformer",),
        data="hf_vanilla.tracks.joint_options:JointDataOptions",
        measures="hf_vanilla.tracks.joint_options:MEASURES",
        prepare="hf_vanilla.tracks.joint_task:prepare",
        config="hf_vanilla.models.configuration_vanilla_agentformer:VanillaAgentFormerConfig",
        model="hf_vanilla.tracks.loading:new_joint_forecaster",
        auto_class="transformers:AutoModelForTimeSeriesPrediction",
        set_by_data=("step_seconds", "unit", "largest_step"),
    ),
    "scene_trajectories": TaskEntry(
        model_types=("vanilla_scene",),
        data="hf_vanilla.tracks.scene_options:SceneDataOptions",
        measures="hf_vanilla.tracks.scene_options:MEASURES",
        prepare="hf_vanilla.tracks.scene_task:prepare",
        config="hf_vanilla.models.configuration_vanilla_scene:VanillaSceneConfig",
        model="hf_vanilla.tracks.loading:new_scene_forecaster",
        auto_class="transformers:AutoModelForTimeSeriesPrediction",
        set_by_data=("step_seconds", "unit", "velocity_std", "largest_step"),
    ),
}


def load_part(path: str) -> Any:
    """The object that an import string `module:name` stands for."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


def task_entry(task: str) -> TaskEntry:
    """The row of a task.

    Raises:
        ValueError: there is no task of that name.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r}: choose one of {', '.join(TASKS)}")
    return TASKS[task]


def task_of_model(name: str) -> str:
    """The task of a saved model, from the `model_type` in its config.

    Args:
        name: model folder or Hub id.

    Raises:
        ValueError: the model belongs to no task of this package.
        OSError: there is no config.
    """
    model_type = read_settings(name).get("model_type")
    for task, entry in TASKS.items():
        if model_type in entry.model_types:
            return task
    known = ", ".join(kind for entry in TASKS.values() for kind in entry.model_types)
    raise ValueError(f"{name} has model_type={model_type!r}; this package has tasks for {known}")


def task_measures(task: str) -> Mapping[str, Measure]:
    """Every number that a task's metrics log has a meaning for, by name."""
    return load_part(task_entry(task).measures)


def validation_measures(task: str) -> Mapping[str, Measure]:
    """Those measures of a task that compare checkpoints; the first is the default."""
    return {name: measure for name, measure in task_measures(task).items() if measure.better}


def task_of_option(name: str) -> str | None:
    """The first task that has a data option of this name; None if none has."""
    for task, entry in TASKS.items():
        if name in {declared.name for declared in fields(load_part(entry.data))}:
            return task
    return None
