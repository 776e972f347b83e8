"""Export a classifier, detector or forecaster to ONNX: one graph, its config, a program."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_vanilla.data.image_models import check_channels, check_steps
from hf_vanilla.families import entry_of
from hf_vanilla.images.classifier import load_classifier
from hf_vanilla.models.configuration_vanilla_scene import OPTIONAL_INPUTS
from hf_vanilla.objects.detector import load_detector
from hf_vanilla.objects.trainer import processor_edges
from hf_vanilla.text.loading import require_float
from hf_vanilla.tracks.forecaster import class_name, load_forecaster

from .files import ANY, Input, write_graph

RUNNERS = Path(__file__).with_name("runners")
PROGRAM = "the exported program"
# classes that draw samples or search, which a graph cannot do
SAMPLING = ("VanillaForQuantizedTrajectoryPrediction", "VanillaForJointTrajectoryPrediction")


class Outputs(nn.Module):
    """Some outputs of a model as a tuple, from inputs in the order of their names."""

    def __init__(self, model: PreTrainedModel, inputs: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """The outputs by name."""
        found = self.model(**dict(zip(self.inputs, inputs, strict=True)))
        return tuple(found[name] for name in self.outputs)


def export_classifier(name: str, folder: Path, dtype: str) -> None:
    """Write model.onnx, for images of the model's size, and classify.py.

    Args:
        name: folder or Hub id of our model.
        folder: to fill.
        dtype: of the weights.
    """
    classifier = load_classifier(name, device="cpu")
    require_float(classifier.model, name)
    check_steps(classifier.processor, PROGRAM)
    height, width = classifier.model.config.image_height_width
    pixels = torch.randn(2, 3, height, width)
    check_channels(classifier.model.config.num_channels)
    inputs: list[Input] = [("pixel_values", pixels, {0: ANY})]
    _write(classifier.model, folder, inputs, ["logits"], dtype=dtype, program="classify.py")
    classifier.processor.save_pretrained(folder)


def export_detector(name: str, folder: Path, dtype: str) -> None:
    """Write model.onnx, for images of any size with a mask of their padding, and detect.py.

    Args:
        name: folder or Hub id of our model.
        folder: to fill.
        dtype: of the weights.
    """
    detector = load_detector(name, device="cpu")
    require_float(detector.model, name)
    check_steps(detector.processor, PROGRAM)
    processor_edges(detector.processor)
    pixels = torch.randn(2, 3, 64, 80)
    mask = torch.ones(2, 64, 80, dtype=torch.long)
    inputs: list[Input] = [
        ("pixel_values", pixels, {0: ANY, 2: ANY, 3: ANY}),
        ("pixel_mask", mask, {0: ANY, 1: ANY, 2: ANY}),
    ]
    check_channels(detector.model.config.num_channels)
    outputs = ["logits", "pred_boxes"]
    _write(detector.model, folder, inputs, outputs, dtype=dtype, program="detect.py")
    detector.processor.save_pretrained(folder)


def export_forecaster(name: str, folder: Path, dtype: str) -> None:
    """Write model.onnx, for any number of agents and lanes, and forecast.py.

    Args:
        name: folder or Hub id of our model.
        folder: to fill.
        dtype: of the weights.

    Raises:
        ValueError: a graph cannot do what the model does.
    """
    model = load_forecaster(name, device="cpu")
    if (form := class_name(model.config)) in SAMPLING:
        raise ValueError(
            f"{name} is a {form}, which draws samples or searches: use the command forecast"
        )
    for field in OPTIONAL_INPUTS:
        if value := getattr(model.config, field, 0):
            raise ValueError(
                f"{name} has {field}={value}, whose inputs a graph does not take: export a model "
                "trained without it"
            )
    # sdpa's operators give other values to a query that may attend to nothing
    model.config._attn_implementation = "eager"
    inputs, outputs = _forecaster_inputs(model.config), ["trajectories", "mode_logits"]
    _write(model, folder, inputs, outputs, dtype=dtype, program="forecast.py")


def _write(
    model: Any, folder: Path, inputs: list[Input], outputs: list[str], *, dtype: str, program: str
) -> None:
    """Write the graph and config of a model, and its program of `runners/`."""
    graph = Outputs(model.float(), [name for name, *_ in inputs], outputs)
    write_graph(graph, [inputs], outputs, folder / "model.onnx", dtype=dtype)
    model.config.save_pretrained(folder)
    shutil.copy(RUNNERS / program, folder)


def _forecaster_inputs(config: Any) -> list[Input]:
    steps = config.observed_steps
    agents, lanes, points = 4, 5, 6
    rows = {0: ANY, 1: ANY}
    past = torch.randn(2, agents, steps, 2).cumsum(2)
    is_observed = torch.ones(2, agents, steps, dtype=torch.bool)
    reads = entry_of(config).reads
    if not reads:
        rows = {0: ANY}
        return [("past_values", past[0], rows), ("past_observed_mask", is_observed[0], rows)]
    inputs: list[Input] = [
        ("past_values", past, rows),
        ("past_observed_mask", is_observed, rows),
        ("agent_mask", torch.ones(2, agents, dtype=torch.bool), rows),
    ]
    if "lanes" not in reads:
        return inputs
    return [
        *inputs,
        ("lane_values", torch.randn(2, lanes, points, 2), rows | {2: ANY}),
        ("lane_mask", torch.ones(2, lanes, points, dtype=torch.bool), rows | {2: ANY}),
        ("lane_kinds", torch.zeros(2, lanes, dtype=torch.long), rows),
    ]
