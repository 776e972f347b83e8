"""Batches of labelled images as tensors, their statistics, image processor and random changes.

Shapes: B batch, C channels, H x W pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hf_vanilla.data.image_models import BILINEAR, resized_pixels
from hf_vanilla.data.images import ImageError, LabelledImages
from hf_vanilla.models.loss_vanilla import IGNORED_LABEL
from hf_vanilla.options import Options, option

if TYPE_CHECKING:
    from transformers import ViTImageProcessorPil

CACHE_BYTES = 256 * 2**20
STATISTICS_IMAGES = 1000


class ImageReader:
    """Reads batches of equal size; keeps a small dataset in memory.

    Args:
        images: to read.
        size: height and width in pixels of what is returned.
        stop_at_errors: raise at the first unreadable image instead of leaving it out.
        resample: Pillow's number of the interpolation.

    Attributes:
        unreadable: `(N,)` bool, True for the unreadable images so far; worker processes share it.
    """

    def __init__(
        self,
        images: LabelledImages,
        size: tuple[int, int],
        *,
        stop_at_errors: bool = False,
        resample: int = BILINEAR,
    ) -> None:
        self.images = images
        self.size = size
        self.stop_at_errors = stop_at_errors
        self.resample = resample
        self.unreadable = torch.zeros(len(images), dtype=torch.bool).share_memory_()
        is_small = len(images) * 3 * size[0] * size[1] <= CACHE_BYTES
        self._cache: dict[int, Tensor] | None = {} if is_small else None

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch.

        Returns:
            `(B, 3, H, W)` uint8, and labels `(B,)` int64; an unreadable image is black and its
            label -100, which the loss ignores.

        Raises:
            ImageError: an image is unreadable and `stop_at_errors` is on.
        """
        pixels = [self._pixels(row) for row in rows]
        labels = torch.from_numpy(self.images.labels[np.asarray(rows, dtype=np.int64)])
        labels[self.unreadable[list(rows)]] = IGNORED_LABEL
        return torch.stack(pixels), labels

    def left_out(self) -> str | None:
        """How many images were unreadable so far, and the first; None: all were readable."""
        rows = self.unreadable.nonzero().flatten().tolist()
        if not rows:
            return None
        return (
            f"{len(rows):,} unreadable of {len(self.images):,} images of "
            f"{Path(self.images.origin).name} were left out, the first is "
            f"{self.images.names[rows[0]]}"
        )

    def _pixels(self, row: int) -> Tensor:
        if self._cache is not None and row in self._cache:
            return self._cache[row]
        try:
            pixels = resized_pixels(self.images.open(row), self.size, self.resample)
        except (ImageError, FileNotFoundError) as error:
            if self.stop_at_errors:
                raise ImageError(str(error)) from None
            self.unreadable[row] = True
            pixels = torch.zeros(3, *self.size, dtype=torch.uint8)
        if self._cache is not None:
            self._cache[row] = pixels
        return pixels


def pixel_statistics(reader: ImageReader) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, of values in [0, 1].

    They are measured on at most 1,000 images, evenly spaced over the set. A channel of one value
    gets 1 as its deviation.

    Raises:
        ImageError: not one of these images is readable.
    """
    images = reader.images
    count = min(len(images), STATISTICS_IMAGES)
    rows = np.linspace(0, len(images) - 1, count).round().astype(int)
    total, squares, pixels = torch.zeros(3).double(), torch.zeros(3).double(), 0
    for first in range(0, count, 64):
        batch, labels = reader.read(rows[first : first + 64].tolist())
        values = batch[labels != IGNORED_LABEL].float() / 255
        total += values.sum((0, 2, 3)).double()
        squares += values.square().sum((0, 2, 3)).double()
        pixels += values.numel() // 3
    if not pixels:
        raise ImageError(f"no image of {images.origin} is readable: {reader.left_out()}")
    mean = total / pixels
    deviation = (squares / pixels - mean.square()).clamp(min=0).sqrt()
    deviation[deviation < 1e-6] = 1.0
    return mean.tolist(), deviation.tolist()


def image_processor(
    size: tuple[int, int], mean: Sequence[float], deviation: Sequence[float]
) -> "ViTImageProcessorPil":
    """Transformers' image processor: RGB, resize to `size`, scale to [0, 1], normalise."""
    from transformers import ViTImageProcessorPil

    return ViTImageProcessorPil(
        size={"height": size[0], "width": size[1]},
        do_convert_rgb=True,
        image_mean=list(mean),
        image_std=list(deviation),
    )


# --- small random changes, of a whole batch at once ----------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Augmentation(Options):
    """How far images are changed at random; 0 everywhere leaves them as they are.

    Attributes:
        rotation: largest angle in degrees, either way.
        scale: largest relative change of size: 0.1 means 0.9 to 1.1 times.
        shift: largest shift as a share of height and of width, either way.
        flip: probability of a mirror image, left for right.
        crop: largest share of the area that is cut away.
        brightness: largest relative change of all values: 0.2 means 0.8 to 1.2 times.

    Raises:
        ValueError: a value is out of its range.
    """

    rotation: float = option(0.0, "largest random angle in degrees", at_least=0, at_most=180)
    scale: float = option(0.0, "largest random relative change of size", at_least=0, below=1)
    shift: float = option(0.0, "largest random shift, share of each side", at_least=0, below=1)
    flip: float = option(0.0, "probability of a mirror image", at_least=0, at_most=1)
    crop: float = option(0.0, "largest random share of the area cut away", at_least=0, below=1)
    brightness: float = option(0.0, "largest random change of brightness", at_least=0, below=1)


def augment(images: Tensor, changes: Augmentation, generator: torch.Generator) -> Tensor:
    """Change each image of a batch by its own random numbers.

    What comes in from outside the image is 0 (black). Values are interpolated bilinearly.

    Args:
        images: `(B, C, H, W)` float in [0, 1].
        changes: how far.
        generator: on the CPU; its state alone decides the result.

    Returns:
        `(B, C, H, W)` float in [0, 1]; the same tensor where nothing changes.
    """
    if any((changes.rotation, changes.scale, changes.shift, changes.flip, changes.crop)):
        height, width = images.shape[-2:]
        transforms = affine_transforms(len(images), (height, width), changes, generator)
        grid = functional.affine_grid(transforms, list(images.shape), align_corners=False)
        images = functional.grid_sample(images, grid.to(images.dtype), align_corners=False)
    if changes.brightness:
        factors = 1 + _uniform(len(images), changes.brightness, generator)
        images = (images * factors.view(-1, 1, 1, 1)).clamp(0, 1)
    return images


def affine_transforms(
    count: int, size: tuple[int, int], changes: Augmentation, generator: torch.Generator
) -> Tensor:
    """Where each pixel of a new image is read in the old one.

    Args:
        count: images.
        size: height and width in pixels, so that a rotation keeps angles in oblong images.
        changes: how far.
        generator: on the CPU.

    Returns:
        `(count, 2, 3)`: from x, y of the new image, in [-1, 1] both, to x, y of the old one.
    """
    height, width = size
    angle = _uniform(count, math.radians(changes.rotation), generator)
    zoom = 1 / (1 + _uniform(count, changes.scale, generator))
    remaining = (1 - torch.rand(count, generator=generator) * changes.crop).sqrt()  # of each side
    mirror = 1 - 2 * (torch.rand(count, generator=generator) < changes.flip).float()
    # a crop may lie anywhere inside the image; a shift moves the content across its border
    room = 1 - remaining
    x = room * _uniform(count, 1.0, generator) + 2 * _uniform(count, changes.shift, generator)
    y = room * _uniform(count, 1.0, generator) + 2 * _uniform(count, changes.shift, generator)
    side = zoom * remaining
    sine, cosine = angle.sin() * side, angle.cos() * side
    rows = (
        torch.stack((cosine * mirror, -sine * height / width, x), dim=-1),
        torch.stack((sine * width / height * mirror, cosine, y), dim=-1),
    )
    return torch.stack(rows, dim=1)


def _uniform(count: int, limit: float, generator: torch.Generator) -> Tensor:
    """`(count,)` from -limit to limit."""
    return (2 * torch.rand(count, generator=generator) - 1) * limit
