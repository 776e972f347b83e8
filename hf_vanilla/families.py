"""The table of tasks: one row per task, whose parts are named by import strings.

Everything above this module that needs a part of a task finds it here, and imports it when it is
used. To add a task, add a row here and a folder with its modules.
"""

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

DEFAULT_TASK = "translation"


@dataclass(frozen=True)
class Measure:
    """One number of the metrics log: what it means for log, curves and card.

    Attributes:
        label: what it is, for legends and tables: `"validation NLL"`.
        unit: for the axis; numbers of one unit share a panel: `"nats per target token"`.
        better: direction of improvement for numbers of a validation; None for numbers that choose
            no checkpoint, such as the training loss.
        log_name: its key in the metrics log; empty where that is its name in the table.
        precision: digits after the decimal point in tables and messages.
    """

    label: str
    unit: str
    better: Literal["lower", "higher"] | None = None
    log_name: str = ""
    precision: int = 4

    def rank(self, value: float) -> float:
        """A number that is lower for a better value; NaN is the worst."""
        if math.isnan(value):
            return math.inf
        return -value if self.better == "higher" else value


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """Where the parts of a task are; every part is an import string of `load_part`.

    Attributes:
        model_types: `model_type` of its models' configs.
        data: dataclass of its data options. Its method `check_with(train)` compares them with the
            shared options.
        measures: its `dict` of `Measure` by name: every number of the log that is drawn or
            compared, in the order of the legend. Those with a `better` direction come from
            `validate`; the first of them is the default of `best_by`.
        prepare: function of a recipe that returns a `training.task.Task`.
        config: config class that the recipe's section `model` is for.
        model: class or function that makes a model from a config.
        auto_class: Auto class of transformers that loads a saved model.
        processor: class with `from_pretrained` for tokenizer or image processor; empty: none.
        decoding: function from config and section `decoding` to a generation config; empty: the
            task has no such section.
        load: function of a folder that returns model and processor; empty: by `auto_class` and
            `processor`.
        auto: function of the options of a command line that returns those of the recipe `auto`;
            empty: the task has none.
        set_by_data: fields of the config that follow from the data, or from the form; a recipe may
            not set them.
        evaluate: function that the command `evaluate` calls, and dataclass of its options.
        card: `hub.card.CardFacts` of all its models.
        service: function of models' names, `serve.Settings` and the `app.worker.Worker` that makes
            their `app.page.Served`.
        static_page: function of a model's name and a new folder that writes a page which needs no
            server; empty: the task has none.
        figures: figure of `hf-vanilla plot` -> function that draws it, and its dataclass.
        built_in: names of models without weights, which need no folder.
        forms: name of a form, as its data option has it -> model class; the first is the default.
        form_fields: form -> fields of the config that tell it from another one of its class.
        reads: what a forecaster reads beside an agent's own track: `others`, `lanes`.
        is_joint: its models forecast the agents of a scene together.
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
    load: str = ""
    auto: str = ""
    set_by_data: tuple[str, ...] = ()
    evaluate: str
    card: str
    service: str
    static_page: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)
    built_in: tuple[str, ...] = ()
    forms: Mapping[str, str] = field(default_factory=dict)
    form_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    is_joint: bool = False

    def form_of(self, config: Any, class_name: str) -> str:
        """The form of a model's config and class."""
        return next(
            form
            for form, name in self.forms.items()
            if name == class_name
            and all(getattr(config, k) == v for k, v in self.form_fields.get(form, {}).items())
        )


# of the three tasks of forecasters
_FORECASTERS: dict[str, Any] = {
    "model": "hf_vanilla.tracks.forecaster:new_forecaster",
    "auto_class": "transformers:AutoModelForTimeSeriesPrediction",
    "evaluate": "hf_vanilla.tracks.evaluation:evaluate_tracks:EvaluateTracksOptions",
    "card": "hf_vanilla.tracks.card:CARD",
    "service": "hf_vanilla.tracks.page:open_service",
}

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
        load="hf_vanilla.text.loading:load_translator",
        auto="hf_vanilla.text.auto_recipe:auto_recipe",
        set_by_data=("pad_token_id", "eos_token_id", "decoder_start_token_id"),
        evaluate="hf_vanilla.text.evaluation:evaluate_files:EvaluateOptions",
        card="hf_vanilla.text.card:CARD",
        service="hf_vanilla.text.service:open_service",
        static_page="hf_vanilla.text.static_page:write_folder",
        figures={"attention": "hf_vanilla.text.plot:plot_attention:PlotAttentionOptions"},
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
        evaluate="hf_vanilla.images.evaluation:evaluate_images:EvaluateImagesOptions",
        card="hf_vanilla.images.card:CARD",
        service="hf_vanilla.images.page:open_service",
        figures={"patches": "hf_vanilla.images.plot:plot_patches:PlotPatchesOptions"},
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
        evaluate="hf_vanilla.objects.evaluation:evaluate_objects:EvaluateObjectsOptions",
        card="hf_vanilla.objects.card:CARD",
        service="hf_vanilla.objects.page:open_service",
        figures={"objects": "hf_vanilla.objects.plot:plot_objects:PlotObjectsOptions"},
    ),
    "trajectories": TaskEntry(
        **_FORECASTERS,
        model_types=("vanilla_tracks",),
        data="hf_vanilla.tracks.options:TrackDataOptions",
        measures="hf_vanilla.tracks.options:MEASURES",
        prepare="hf_vanilla.tracks.task:prepare",
        config="hf_vanilla.models.configuration_vanilla_tracks:VanillaTracksConfig",
        set_by_data=(
            *("step_seconds", "unit", "largest_step"),
            *("velocity_std", "velocity_mean", "velocity_deviation", "follows_paper"),
        ),
        figures={"tracks": "hf_vanilla.tracks.plot:plot_tracks:PlotTracksOptions"},
        built_in=("constant_velocity", "constant_turn", "linear_fit"),
        forms={
            "modes": "VanillaForMultimodalTrajectoryPrediction",
            "one": "VanillaForTrajectoryPrediction",
            "density": "VanillaForTrajectoryDensityPrediction",
            "quantized": "VanillaForQuantizedTrajectoryPrediction",
            "tf_paper": "VanillaForTrajectoryPrediction",
            "tf_quantized_paper": "VanillaForQuantizedTrajectoryPrediction",
        },
        form_fields={
            "one": {"follows_paper": False},
            "quantized": {"follows_paper": False},
            "tf_paper": {"follows_paper": True},
            "tf_quantized_paper": {"follows_paper": True},
        },
    ),
    "joint_trajectories": TaskEntry(
        **_FORECASTERS,
        model_types=("vanilla_agentformer",),
        data="hf_vanilla.tracks.options:JointDataOptions",
        measures="hf_vanilla.tracks.options:JOINT_MEASURES",
        prepare="hf_vanilla.tracks.scene_tasks:prepare_joint",
        config="hf_vanilla.models.configuration_vanilla_agentformer:VanillaAgentFormerConfig",
        set_by_data=("step_seconds", "unit", "largest_step"),
        forms={
            "first": "VanillaForJointTrajectoryPrediction",
            "second": "VanillaForDiverseTrajectoryPrediction",
        },
        reads=("others",),
        is_joint=True,
    ),
    "scene_trajectories": TaskEntry(
        **_FORECASTERS,
        model_types=("vanilla_scene",),
        data="hf_vanilla.tracks.options:SceneDataOptions",
        measures="hf_vanilla.tracks.options:SCENE_MEASURES",
        prepare="hf_vanilla.tracks.scene_tasks:prepare_scenes",
        config="hf_vanilla.models.configuration_vanilla_scene:VanillaSceneConfig",
        set_by_data=("step_seconds", "unit", "velocity_std", "largest_step", "reads_lanes"),
        forms={
            "fusion": "VanillaForSceneTrajectoryPrediction",
            "proposals": "VanillaForProposalTrajectoryPrediction",
            "proposals_paper": "VanillaForSocialProposalTrajectoryPrediction",
            "neighbors": "VanillaForNeighborTrajectoryPrediction",
            "gate": "VanillaForGatedTrajectoryPrediction",
            "vectors": "VanillaForVectorTrajectoryPrediction",
        },
        reads=("others", "lanes"),
    ),
}


def load_part(path: str) -> Any:
    """The object that an import string `module:name` stands for; of `module:name:name`, a tuple."""
    module, *names = path.split(":")
    found = tuple(getattr(importlib.import_module(module), name) for name in names)
    return found if len(found) > 1 else found[0]


def task_entry(task: str) -> TaskEntry:
    """The row of a task.

    Raises:
        ValueError: there is no task of that name.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r}: choose one of {', '.join(TASKS)}")
    return TASKS[task]


def task_of_type(model_type: str | None) -> str | None:
    """The task whose models have this `model_type`; None if none has."""
    return next((task for task, e in TASKS.items() if model_type in e.model_types), None)


def entry_of(config: Any) -> TaskEntry:
    """The row of the task that a model's config belongs to.

    Raises:
        ValueError: no task has such models.
    """
    task = task_of_type(getattr(config, "model_type", None))
    if task is None:
        raise ValueError(f"{type(config).__name__} belongs to no task: {', '.join(TASKS)}")
    return TASKS[task]


def task_measures(task: str) -> Mapping[str, Measure]:
    """Every number that a task's metrics log has a meaning for, by name."""
    return load_part(task_entry(task).measures)


def validation_measures(task: str) -> Mapping[str, Measure]:
    """Those measures of a task that compare checkpoints; the first is the default."""
    return {name: measure for name, measure in task_measures(task).items() if measure.better}


def task_of_option(name: str) -> str | None:
    """The first task that has a data option of this name; None if none has."""
    names = {task: [f.name for f in fields(load_part(e.data))] for task, e in TASKS.items()}
    return next((task for task, of_task in names.items() if name in of_task), None)
