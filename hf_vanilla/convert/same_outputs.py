"""Refuse a conversion whose result computes something else."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

LARGEST_DIFFERENCE = 1e-4  # of the largest value; float32 gives about 1e-6
COMPARED = ("logits", "pred_boxes", "last_hidden_state", "pooler_output")


def require_same_outputs(
    first: PreTrainedModel, second: PreTrainedModel, image_size: Sequence[int]
) -> None:
    """Compare two models on one random image.

    Args:
        first: in evaluation mode and float32.
        second: likewise.
        image_size: height and width in pixels.

    Raises:
        ValueError: an output differs, or is not finite.
    """
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(1, first.config.num_channels, *image_size, generator=generator)
    with torch.inference_mode():
        found, expected = first(pixel_values=pixels), second(pixel_values=pixels)
    names = [name for name in COMPARED if name in found and name in expected]
    for name in names[:2]:  # a head's outputs, or those of a body
        largest = float(expected[name].abs().max())
        difference = float((found[name] - expected[name]).abs().max())
        if not difference <= LARGEST_DIFFERENCE * largest:  # so that NaN is refused
            raise ValueError(
                f"the converted model differs: {name} of a random image by {difference:.2g}, where "
                f"the largest is {largest:.2g}; nothing was written. The model has a setting that "
                "the other format does not have"
            )
