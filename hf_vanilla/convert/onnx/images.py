"""Export a classifier or a detector to ONNX: one graph, image processor, labels, a program."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_vanilla.data.image_models import check_channels
from hf_vanilla.images.classifier import load_classifier
from hf_vanilla.objects.detector import load_detector

from .files import write_graph

RUNNERS = Path(__file__).with_name("runners")
ANY = torch.export.Dim.AUTO


class Outputs(nn.Module):
    """Some outputs of a model, as a tuple."""

    def __init__(self, model: PreTrainedModel, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs `names`."""
        outputs = self.model(*inputs)
        return tuple(outputs[name] for name in self.names)


def export_classifier(name: str, folder: Path, dtype: str) -> None:
    """Write model.onnx, for images of the model's size, and classify.py.

    Args:
        name: folder or Hub id of our model.
        folder: to fill.
        dtype: of the weights.
    """
    classifier = load_classifier(name, device="cpu")
    height, width = classifier.model.config.image_height_width
    pixels = torch.randn(2, 3, height, width)
    _write(classifier, folder, "classify.py", inputs={"pixel_values": (pixels, (0,))}, dtype=dtype)


def export_detector(name: str, folder: Path, dtype: str) -> None:
    """Write model.onnx, for images of any size with a mask of their padding, and detect.py.

    Args:
        name: folder or Hub id of our model.
        folder: to fill.
        dtype: of the weights.
    """
    detector = load_detector(name, device="cpu")
    pixels = torch.randn(2, 3, 64, 80)
    inputs = {
        "pixel_values": (pixels, (0, 2, 3)),
        "pixel_mask": (torch.ones(2, 64, 80, dtype=torch.long), (0, 1, 2)),
    }
    _write(detector, folder, "detect.py", inputs=inputs, dtype=dtype)


def _write(loaded: Any, folder: Path, program: str, *, inputs: dict[str, Any], dtype: str) -> None:
    """Write the graph of a classifier or detector, and what its program reads.

    Args:
        loaded: model and processor.
        folder: to fill.
        program: of `runners/`.
        inputs: name -> an example and its axes of any size.
        dtype: of the weights.
    """
    model = loaded.model.float()
    check_channels(model.config.num_channels)
    outputs = ("logits",) if program == "classify.py" else ("logits", "pred_boxes")
    write_graph(
        Outputs(model, outputs),
        tuple(example for example, _ in inputs.values()),
        folder / "model.onnx",
        names=(list(inputs), outputs),
        sizes=(tuple(dict.fromkeys(axes, ANY) for _, axes in inputs.values()),),
        dtype=dtype,
    )
    model.config.save_pretrained(folder)
    loaded.processor.save_pretrained(folder)
    shutil.copy(RUNNERS / program, folder)
