"""Where a detector's queries look, and what the pixels of its encoder attend to.

Shapes: H heads, Q queries, S = h * w positions of the feature map.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .detector import Detector, Found, found_objects

if TYPE_CHECKING:
    from PIL.Image import Image


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

    found: Found
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
    inputs = detector.processor(image, return_tensors="pt").to(model.device)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the others keep no weights
    try:
        outputs = model(inputs["pixel_values"], output_attentions=True)
    finally:
        model.set_attn_implementation(before)
    size = tuple(outputs.feature_size)
    sizes = [(image.height, image.width)]
    return ObjectAttention(
        found_objects(outputs.logits, outputs.pred_boxes, sizes)[0],
        outputs.cross_attentions[-1][0].float().mean(0).cpu().unflatten(-1, size),
        outputs.encoder_attentions[-1][0]
        .float()
        .mean(0)
        .cpu()
        .unflatten(0, size)
        .unflatten(-1, size),
    )


def query_places(found: list[Found], sizes: "list[tuple[int, int]]", queries: int) -> list[Tensor]:
    """Centers of each query's boxes over many images, `(n, 2)` x and y in shares of the image.

    Args:
        found: of each image, all queries.
        sizes: height and width of each image.
        queries: Q.
    """
    places: list[list[list[float]]] = [[] for _ in range(queries)]
    for entry, (height, width) in zip(found, sizes, strict=True):
        centers = (entry.boxes[:, :2] + entry.boxes[:, 2:]) / 2 / (width, height)
        for query, center in zip(entry.queries.tolist(), centers.tolist(), strict=True):
            places[query].append(center)
    return [torch.tensor(of_query).view(-1, 2) for of_query in places]
