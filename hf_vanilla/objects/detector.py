"""A trained object detector: images to boxes with labels and scores, and its attention.

Shapes: B batch, Q queries, K classes, S = h * w positions of the feature map.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForObjectDetection

from hf_vanilla.data.image_models import (
    FileResult,
    eager_attention,
    load_image_model,
    results_of_files,
)
from hf_vanilla.models.loss_vanilla_detr import to_corners

from .detection import resized_size

if TYPE_CHECKING:
    from PIL.Image import Image

    from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection

MODEL_TYPE = "vanilla_detr"


@dataclass(frozen=True)
class Detections:
    """The objects of one image, the surest first.

    Attributes:
        labels: `(m,)` int64.
        scores: `(m,)` float64 in [0, 1].
        boxes: `(m, 4)` float64, corner form in pixels of the image.
        queries: `(m,)` int64, the query of each.
    """

    labels: np.ndarray
    scores: np.ndarray
    boxes: np.ndarray
    queries: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def above(self, threshold: float) -> "Detections":
        """Those with a score of at least `threshold`."""
        return self.where(self.scores >= threshold)

    def where(self, mask: np.ndarray) -> "Detections":
        """Those at which `mask` `(m,)` bool is True."""
        parts = (self.labels, self.scores, self.boxes, self.queries)
        return Detections(*(part[mask] for part in parts))


def detected_objects(
    logits: Tensor, boxes: Tensor, sizes: Sequence[tuple[int, int]] | np.ndarray
) -> list[Detections]:
    """The objects of each image: for every query its most probable class, as the authors score.

    Args:
        logits: `(B, Q, K + 1)`; the last class is "no object".
        boxes: `(B, Q, 4)` center form, in shares of the image.
        sizes: height and width of each image in pixels.
    """
    scores, labels = logits.detach().float().softmax(-1)[..., :-1].max(-1)  # (B, Q)
    order = scores.argsort(dim=-1, descending=True, stable=True).cpu()
    corners = to_corners(boxes.detach().double()).cpu()
    found = []
    for image, (height, width) in enumerate(np.asarray(sizes).tolist()):
        queries = order[image]
        whole = torch.tensor([width, height, width, height], dtype=torch.float64)
        found.append(
            Detections(
                labels[image].cpu()[queries].numpy(),
                scores[image].cpu()[queries].double().numpy(),
                (corners[image, queries] * whole).numpy(),
                queries.numpy(),
            )
        )
    return found


@dataclass(frozen=True)
class Detector:
    """A model and its image processor.

    Attributes:
        model: in evaluation mode.
        processor: makes `pixel_values` and `pixel_mask` of images, as the model was trained.
    """

    model: "VanillaForObjectDetection"
    processor: Any

    @property
    def label_names(self) -> tuple[str, ...]:
        """The model's classes."""
        config = self.model.config
        return tuple(config.id2label[index] for index in range(config.num_labels))

    @torch.inference_mode()
    def detect(self, images: Iterable["Image"]) -> list[Detections]:
        """All queries' objects of each RGB image, boxes in its own pixels.

        Images of one size after resizing go through the model together. Padding would change the
        feature map near the border of an image, so the result would depend on the others.
        """
        pixels: list[Tensor] = []
        sizes: list[tuple[int, int]] = []
        for image in images:  # each is resized before the next one is opened
            pixels.append(self.pixels(image))
            sizes.append((image.height, image.width))
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, values in enumerate(pixels):
            groups.setdefault(tuple(values.shape), []).append(index)
        found: dict[int, Detections] = {}
        for indices in groups.values():
            batch = torch.cat([pixels[index] for index in indices])  # (B, 3, H, W)
            outputs = self.model(batch.to(self.model.device))
            of_group = detected_objects(
                outputs.logits, outputs.pred_boxes, [sizes[index] for index in indices]
            )
            found |= dict(zip(indices, of_group, strict=True))
        return [found[index] for index in range(len(pixels))]

    def pixels(self, image: "Image") -> Tensor:
        """`(1, 3, H, W)`, as the processor makes them; no side of a thin image becomes 0."""
        size = dict(self.processor.size)
        if {"shortest_edge", "longest_edge"} <= set(size):
            edges = size["shortest_edge"], size["longest_edge"]
            height, width = resized_size((image.height, image.width), *edges)
            size = {"height": height, "width": width}
        return self.processor(image, size=size, return_tensors="pt")["pixel_values"]

    def detect_files(
        self, paths: Iterable[str], *, batch_size: int = 8
    ) -> Iterator[FileResult[Detections]]:
        """The objects of each path, in their order; an unreadable file gets its error."""
        return results_of_files(paths, self.detect, batch_size=batch_size)


def load_detector(name: str, *, device: str | None = None) -> Detector:
    """The detector of a model folder or Hub id.

    Args:
        name: folder or Hub id.
        device: such as `"cpu"`; None: a GPU if there is one.

    Raises:
        ValueError: it is another type of model, or has no image processor.
        OSError: nothing is found under that name.
    """
    model, processor = load_image_model(
        name,
        AutoModelForObjectDetection,
        model_type=MODEL_TYPE,
        remedy="give a detector of this package; hf-vanilla convert makes one of a DETR",
        device=device,
    )
    return Detector(model, processor)


# --- attention -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ObjectAttention:
    """Attention weights of the last layers for one image.

    Attributes:
        found: the objects of the image, the surest first, with their queries.
        cross: `(Q, h, w)` mean over heads of the last decoder layer: what each query gives to each
            position; sums to 1 for each query.
        encoder: `(h, w, h, w)` mean over heads of the last encoder layer: what each position (the
            first pair) gives to each position (the second pair); sums to 1 over the second.
    """

    found: Detections
    cross: Tensor
    encoder: Tensor

    def from_position(self, row: int, column: int) -> Tensor:
        """`(h, w)`: what one position gives to all others; sums to 1."""
        return self.encoder[row, column]

    def to_position(self, row: int, column: int) -> Tensor:
        """`(h, w)`: what all positions give to one; need not sum to 1."""
        return self.encoder[:, :, row, column]


@torch.inference_mode()
def object_attention(detector: Detector, image: "Image") -> ObjectAttention:
    """Attention of the last encoder and decoder layer for one RGB image."""
    model = detector.model
    with eager_attention(model):
        outputs = model(detector.pixels(image).to(model.device), output_attentions=True)
    size = tuple(outputs.feature_size)
    sizes = [(image.height, image.width)]
    encoder = outputs.encoder_attentions[-1][0].float().mean(0).cpu()  # (S, S)
    return ObjectAttention(
        detected_objects(outputs.logits, outputs.pred_boxes, sizes)[0],
        outputs.cross_attentions[-1][0].float().mean(0).cpu().unflatten(-1, size),
        encoder.unflatten(0, size).unflatten(-1, size),
    )
