"""Digit scenes: generated images with boxes, for tests, demo and measuring without a download.

A scene has 64 x 64 pixels and 1 to 4 handwritten digits of 14 to 26 pixels that do not overlap, on
noise. Scene number i is a function of seed and i alone.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hf_vanilla.data.images import BUILT_IN_DIGITS, LabelledImages, load_images

from .detection import DetectionImages, ImageObjects, objects_of

if TYPE_CHECKING:
    from PIL.Image import Image

DIGIT_SCENES = "digit_scenes"
SCENE_SIZE = 64
MOST_DIGITS = 4
SMALLEST_DIGIT, LARGEST_DIGIT = 14, 26
NOISE = 0.05
VALIDATION_SEED = 1_000_003  # scenes of a training seed are never those of the validation
ATTEMPTS = 30  # to find a free corner for a digit; four always find one, or fewer are drawn


@dataclass(frozen=True)
class DigitScenes:
    """Any number of scenes; it is read as `DetectionImages` are.

    Attributes:
        digits: what is drawn, 8 x 8 pixels each.
        seed: of all scenes.
        label_names: classes, the digits that occur.
    """

    digits: LabelledImages = field(repr=False)
    seed: int
    label_names: tuple[str, ...]
    origin: ClassVar[str] = DIGIT_SCENES

    @property
    def fingerprint(self) -> str:
        """That of the first scene."""
        return self.images(1).fingerprint

    def read(self, number: int) -> "tuple[Image, ImageObjects]":
        """Scene `number`: an RGB image, and its digits with square boxes in pixels."""
        from PIL import Image

        generator = np.random.default_rng((self.seed, number))
        values = np.zeros((SCENE_SIZE, SCENE_SIZE))
        boxes: list[tuple[int, int, int, int]] = []
        labels: list[int] = []
        for _ in range(generator.integers(1, MOST_DIGITS + 1)):
            side = int(generator.integers(SMALLEST_DIGIT, LARGEST_DIGIT + 1))
            corner = _free_corner(boxes, side, generator)
            if corner is None:
                continue
            index = int(generator.integers(len(self.digits)))
            digit = self.digits.open(index).convert("L")
            left, top = corner
            scaled = digit.resize((side, side), Image.Resampling.BILINEAR)
            values[top : top + side, left : left + side] = np.asarray(scaled) / 255
            boxes.append((left, top, left + side, top + side))
            labels.append(int(self.digits.labels[index]))
        values += NOISE * generator.standard_normal(values.shape)
        grey = np.rint(255 * values.clip(0, 1)).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB"), objects_of(labels, boxes)

    def open(self, number: int) -> "Image":
        """The image of scene `number`."""
        return self.read(number)[0]

    def images(self, count: int) -> DetectionImages:
        """The first `count` scenes as a data set.

        Raises:
            ValueError: `count` is not positive.
        """
        if count < 1:
            raise ValueError(f"{count} digit scenes: give a positive number")
        numbers = range(count)
        return DetectionImages(
            objects=[self.read(number)[1] for number in numbers],
            sizes=np.full((count, 2), SCENE_SIZE),
            label_names=self.label_names,
            names=[f"{DIGIT_SCENES}[{number}]" for number in numbers],
            open=self.open,
            origin=DIGIT_SCENES,
        )


def digit_scenes(
    source: str = BUILT_IN_DIGITS,
    split: str = "first_half",
    *,
    classes: str = "0123456789",
    seed: int,
) -> DigitScenes:
    """Scenes of scikit-learn's digits, or of a file of optdigits.

    Args:
        source: `"digits"` or a file of optdigits.
        split: of the built-in digits: `"train"` (all), `"first_half"`, `"second_half"`. The halves
            come from different writers.
        classes: the digits that occur, such as `"01234567"`.
        seed: of all scenes.

    Raises:
        ValueError: `classes` is something else than digits, or the source does not have them.
        FileNotFoundError: there is no such file.
    """
    names = tuple(dict.fromkeys(classes))
    if not names or not set(names) <= set("0123456789"):
        raise ValueError(f"digits {classes!r}: give some of 0123456789")
    if source != BUILT_IN_DIGITS and not Path(source).is_file():
        raise FileNotFoundError(f"{source}: no such file; '{BUILT_IN_DIGITS}' is built in")
    digits = load_images(source, split)
    number_of = {name: label for label, name in enumerate(names)}
    labels = np.asarray([number_of.get(digits.label_names[label], -1) for label in digits.labels])
    rows = np.flatnonzero(labels >= 0)
    if not len(rows):
        raise ValueError(f"{digits.origin} has none of the digits {classes}")
    drawn = replace(digits.subset(rows), labels=labels[rows], label_names=names)
    return DigitScenes(drawn, seed, names)


def _free_corner(
    boxes: list[tuple[int, int, int, int]], side: int, generator: np.random.Generator
) -> tuple[int, int] | None:
    """Left and top of a square that meets no box; None where none was found."""
    for left, top in generator.integers(SCENE_SIZE - side + 1, size=(ATTEMPTS, 2)).tolist():
        right, bottom = left + side, top + side
        if all(
            right <= box[0] or box[2] <= left or bottom <= box[1] or box[3] <= top for box in boxes
        ):
            return left, top
    return None
