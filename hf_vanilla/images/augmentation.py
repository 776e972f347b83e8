"""Small random changes of images, applied to a whole batch at once.

Shapes: B batch, C channels, H x W pixels.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hf_vanilla.options import Options, option


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

    @property
    def moves_pixels(self) -> bool:
        """Whether images change otherwise than in brightness."""
        return any((self.rotation, self.scale, self.shift, self.flip, self.crop))


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
    if changes.moves_pixels:
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
