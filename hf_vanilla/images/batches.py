"""Batches of labelled images as tensors, their statistics, and the image processor of a model.

Shapes: B batch, H x W pixels.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hf_vanilla.data.image_files import ImageError
from hf_vanilla.data.images import LabelledImages

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import ViTImageProcessorPil

IGNORED_LABEL = -100
CACHE_BYTES = 256 * 2**20
STATISTICS_IMAGES = 1000


class ImageReader:
    """Reads batches of equal size; keeps a small dataset in memory.

    Args:
        images: to read.
        size: height and width in pixels of what is returned.
        stop_at_errors: raise at the first unreadable image instead of leaving it out.
        resample: Pillow's number of the interpolation; 2 is bilinear.

    Attributes:
        unreadable: `(N,)` bool, True for the unreadable images so far; worker processes share it.
    """

    def __init__(
        self,
        images: LabelledImages,
        size: tuple[int, int],
        *,
        stop_at_errors: bool = False,
        resample: int = 2,
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


def resized_pixels(image: "Image", size: tuple[int, int], resample: int) -> Tensor:
    """An RGB image as `(3, H, W)` uint8, resized as `ViTImageProcessorPil` does."""
    from PIL import Image

    height, width = size
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling(resample))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)  # (H, W, 3) -> (3, H, W)


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


def normalised(images: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """`(B, 3, H, W)` in [0, 1] with mean 0 and deviation 1 over the training images."""
    shift, scale = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, deviation))
    return (images - shift) / scale
