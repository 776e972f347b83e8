"""Random changes of an image together with its boxes: mirror, crop, size, brightness."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_vanilla.options import Options, option

from .detection import ImageObjects, resized_size

if TYPE_CHECKING:
    from PIL.Image import Image

SMALLEST_CROP = 0.5  # of each side


@dataclass(frozen=True, kw_only=True)
class BoxAugmentation(Options):
    """How far images are changed at random; the defaults leave them as they are.

    Attributes:
        flip: probability of a mirror image, left for right.
        crop: probability of a crop of at least half of each side; objects whose center lies outside
            are left out, the others' boxes are cut.
        smallest_scale: the shorter side becomes a random multiple of its size, from this to 1.
        brightness: largest relative change of all values: 0.2 means 0.8 to 1.2 times.

    Raises:
        ValueError: a value is out of its range.
    """

    flip: float = option(0.0, "probability of a mirror image", at_least=0, at_most=1)
    crop: float = option(
        0.0, "probability of a crop that keeps the centers of objects", at_least=0, at_most=1
    )
    smallest_scale: float = option(
        1.0, "smallest random factor of shortest_edge", above=0, at_most=1
    )
    brightness: float = option(0.0, "largest random change of brightness", at_least=0, below=1)


def augmented(
    image: "Image",
    objects: ImageObjects,
    edges: tuple[int, int],
    changes: BoxAugmentation,
    generator: torch.Generator,
) -> "tuple[Image, ImageObjects]":
    """Change an image and its boxes, and resize both as the model reads images.

    Args:
        image: in three channels.
        objects: boxes in its pixels.
        edges: shortest and longest edge in pixels.
        changes: how far.
        generator: on the CPU; its state alone decides the result.
    """
    from PIL import Image, ImageEnhance, ImageOps

    chances = torch.rand(8, generator=generator).tolist()
    if chances[0] < changes.flip:
        image, objects = ImageOps.mirror(image), mirrored(objects, image.width)
    if chances[1] < changes.crop:
        box = crop_box(image.size, chances[2:6])
        image, objects = image.crop(box), cropped(objects, box)
    if changes.brightness:
        factor = 1 + changes.brightness * (2 * chances[6] - 1)
        image = ImageEnhance.Brightness(image).enhance(factor)
    scale = changes.smallest_scale + (1 - changes.smallest_scale) * chances[7]
    shortest = max(1, round(edges[0] * scale))
    height, width = resized_size((image.height, image.width), shortest, edges[1])
    if (width, height) == image.size:
        return image, objects
    factors = np.asarray([width / image.width, height / image.height] * 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return resized, replace(objects, boxes=objects.boxes * factors)


def mirrored(objects: ImageObjects, width: int) -> ImageObjects:
    """Objects of the mirror image of an image of this width."""
    left, top, right, bottom = objects.boxes.T
    return replace(objects, boxes=np.stack((width - right, top, width - left, bottom), axis=1))


def crop_box(size: tuple[int, int], chances: list[float]) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a crop, from four numbers in [0, 1)."""
    sides = [
        max(1, round(side * (SMALLEST_CROP + (1 - SMALLEST_CROP) * chance)))
        for side, chance in zip(size, chances[:2], strict=True)
    ]
    starts = [
        int(chance * (whole - side + 1))
        for whole, side, chance in zip(size, sides, chances[2:], strict=True)
    ]
    return starts[0], starts[1], starts[0] + sides[0], starts[1] + sides[1]


def cropped(objects: ImageObjects, box: tuple[int, int, int, int]) -> ImageObjects:
    """The objects whose center lies in a crop, in its pixels, cut at its border."""
    left, top, right, bottom = box
    centers = (objects.boxes[:, :2] + objects.boxes[:, 2:]) / 2
    is_inside = ((centers >= (left, top)) & (centers < (right, bottom))).all(axis=1)
    moved = objects.boxes[is_inside] - np.asarray([left, top, left, top])
    inside = moved.clip(0, [right - left, bottom - top] * 2)
    return replace(objects.where(is_inside), boxes=inside)
