"""Images with boxes: rows, targets, random changes, and batches of images of several sizes.

Boxes of a file are in corner form, pixels of the original image: left, top, right, bottom. Boxes
of the model are in center form, shares of width and height. Shapes: N images, B batch, M objects of
the fullest image, H x W pixels.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.image_transforms import corners_to_center_format, get_size_with_aspect_ratio

from hf_vanilla.data.image_models import normalised, resized_pixels
from hf_vanilla.data.images import check_known
from hf_vanilla.files import write_text
from hf_vanilla.models.loss_vanilla_detr import NO_LABEL, iou
from hf_vanilla.options import Options, option

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import DetrImageProcessorPil

SMALLEST_CROP = 0.5  # of each side
NUMBERS = range(sys.maxsize)


@dataclass(frozen=True)
class ObjectArrays:
    """Base of what is known of the objects of one image: an array for each attribute.

    Attributes:
        labels: `(m,)` int64, indices into the label names.
        boxes: `(m, 4)` float64, corner form in pixels.
    """

    labels: np.ndarray
    boxes: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, mask: np.ndarray) -> Self:
        """The objects at which `mask` `(m,)` bool is True."""
        return replace(self, **{name: values[mask] for name, values in vars(self).items()})


@dataclass(frozen=True)
class ImageObjects(ObjectArrays):
    """The annotated objects of one image.

    Attributes:
        is_crowd: `(m,)` bool: the box surrounds a group. Such boxes are not trained on; when
            scored, detections inside them count neither as right nor as wrong.
        areas: `(m,)` float64, pixels of the object as annotated, for AP by size; NaN: the box's.
    """

    is_crowd: np.ndarray
    areas: np.ndarray

    @property
    def trained_on(self) -> "ImageObjects":
        """The objects that are no crowd and whose box has an area."""
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        return self.where(~self.is_crowd & (sides > 0).all(axis=1))


def objects_of(
    labels: Sequence[int],
    boxes: "Sequence[Sequence[float]] | np.ndarray",
    is_crowd: Sequence[bool] | None = None,
    areas: Sequence[float] | None = None,
) -> ImageObjects:
    """Objects from lists; boxes in corner form, pixels."""
    crowds = [False] * len(labels) if is_crowd is None else is_crowd
    return ImageObjects(
        np.asarray(labels, dtype=np.int64),
        np.asarray(boxes, dtype=np.float64).reshape(-1, 4),
        np.asarray(crowds, dtype=bool),
        np.asarray([np.nan] * len(labels) if areas is None else areas, dtype=np.float64),
    )


@dataclass(frozen=True, kw_only=True)
class DetectionImages:
    """Images with their objects, and where they are read from.

    Attributes:
        objects: of each image.
        sizes: `(N, 2)` int64, height and width in pixels.
        label_names: the classes.
        category_ids: the file's id of each class; default: its number.
        image_ids: the file's id of each image; likewise.
        names: of the images, for messages and results.
        open: from a row to the image in three channels; raises `ImageError`.
        origin: where the data come from, for messages.
        files: of the images; empty where they are no files.
    """

    objects: Sequence[ImageObjects]
    sizes: np.ndarray
    label_names: tuple[str, ...]
    category_ids: Sequence[Any] = NUMBERS
    image_ids: Sequence[Any] = NUMBERS
    names: Sequence[str]
    open: Callable[[int], "Image"] = field(repr=False)
    origin: str
    files: Sequence[Path] = ()

    def __len__(self) -> int:
        return len(self.objects)

    def read(self, row: int) -> "tuple[Image, ImageObjects]":
        """An image and its objects."""
        return self.open(row), self.objects[row]

    @property
    def fingerprint(self) -> str:
        """Changes with names, sizes, labels, boxes and classes."""
        digest = hashlib.sha256(repr((self.label_names, list(self.names))).encode())
        digest.update(np.ascontiguousarray(self.sizes).tobytes())
        for entry in self.objects:
            digest.update(entry.labels.tobytes() + entry.boxes.tobytes() + entry.is_crowd.tobytes())
        return f"{len(self)}:{digest.hexdigest()[:16]}"

    def relabelled(self, label_names: Sequence[str]) -> "DetectionImages":
        """The same images with labels that index other names, which hold all of these.

        Raises:
            ValueError: a class is not among the names.
        """
        names = list(label_names)
        used = {self.label_names[label] for entry in self.objects for label in entry.labels}
        check_known(sorted(used), names, self.origin)
        new_labels = np.asarray(
            [names.index(name) if name in names else -1 for name in self.label_names]
        )
        ids = dict(zip(self.label_names, self.category_ids, strict=False))
        unused = iter(set(range(len(names) + len(ids) + 1)) - set(ids.values()))
        return replace(
            self,
            objects=[replace(entry, labels=new_labels[entry.labels]) for entry in self.objects],
            label_names=tuple(names),
            category_ids=tuple(ids[name] if name in ids else next(unused) for name in names),
        )


# --- from an image to a row ----------------------------------------------------------------------


def resized_size(size: tuple[int, int], shortest: int, longest: int) -> tuple[int, int]:
    """Height and width after resizing as DETR does: the aspect is kept, no side becomes 0.

    Args:
        size: height and width in pixels.
        shortest: the shorter side becomes this,
        longest: unless the longer side would become more than this.
    """
    height, width = get_size_with_aspect_ratio(size, shortest, longest)
    return max(1, height), max(1, width)


def detection_processor(shortest: int, longest: int) -> "DetrImageProcessorPil":
    """Transformers' image processor of DETR: resize, scale to [0, 1], normalize, pad, mask.

    It normalizes by the statistics of ImageNet, which pretrained backbones were trained with.
    """
    from transformers import DetrImageProcessorPil

    return DetrImageProcessorPil(size={"shortest_edge": shortest, "longest_edge": longest})


def detection_row(image: "Image", objects: ImageObjects, processor: Any) -> dict[str, Tensor]:
    """One row for `DetectionCollator`; pixels equal those of the image processor.

    Args:
        image: in three channels, after `augmented`.
        objects: of the image, boxes in its pixels; crowds and boxes without area are left out, and
            boxes are cut at the image's border.
        processor: image processor, read for mean and standard deviation.

    Returns:
        `pixel_values` `(3, H, W)`, `labels` `(m,)` int64, `boxes` `(m, 4)` in center form, in
        shares of width and height.
    """
    pixels = resized_pixels(image, (image.height, image.width)).float() / 255
    whole = np.asarray([image.width, image.height] * 2, dtype=np.float64)
    inside = replace(objects, boxes=objects.boxes.clip(0, whole)).trained_on
    return {
        "pixel_values": normalised(pixels, processor),
        "labels": torch.from_numpy(inside.labels),
        "boxes": corners_to_center_format(torch.from_numpy(inside.boxes / whole)).float(),
    }


def repeats(objects: ObjectArrays, above_iou: float) -> np.ndarray:
    """Which objects (rows) repeat which earlier ones (columns): same class, high IoU; `(m, m)`.

    Args:
        objects: whose boxes have an area.
        above_iou: they overlap more than this.
    """
    corners = torch.from_numpy(objects.boxes)
    overlap = iou(corners[:, None], corners[None]).numpy()
    is_same = objects.labels[:, None] == objects.labels[None]
    return np.tril(is_same & (overlap > above_iou), -1)


class DetectionCollator:
    """Rows of several sizes as one batch, padded right and below.

    Examples:
        >>> import torch
        >>> from hf_vanilla.objects.detection import DetectionCollator
        >>> rows = [{"pixel_values": torch.zeros(3, 4, 6), "labels": torch.tensor([2]),
        ...          "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.4]])},
        ...         {"pixel_values": torch.zeros(3, 5, 2), "labels": torch.tensor([]).long(),
        ...          "boxes": torch.zeros(0, 4)}]
        >>> batch = DetectionCollator()(rows)
        >>> batch["pixel_values"].shape, batch["labels"].tolist(), batch["boxes"].shape
        (torch.Size([2, 3, 5, 6]), [[2], [-100]], torch.Size([2, 1, 4]))
    """

    def __call__(self, rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """A batch.

        Args:
            rows: of `detection_row`.

        Returns:
            `pixel_values` `(B, 3, H, W)`, 0 outside an image; `pixel_mask` `(B, H, W)` int64, 1 =
            real pixel; `labels` `(B, M)` int64, -100 pads; `boxes` `(B, M, 4)`.
        """
        shapes = [row["pixel_values"].shape for row in rows]
        height, width = (max(shape[axis] for shape in shapes) for axis in (1, 2))
        pixels = torch.zeros(len(rows), shapes[0][0], height, width)
        mask = torch.zeros(len(rows), height, width, dtype=torch.long)
        for index, (row, (_, rows_high, columns)) in enumerate(zip(rows, shapes, strict=True)):
            pixels[index, :, :rows_high, :columns] = row["pixel_values"]
            mask[index, :rows_high, :columns] = 1
        labels = [row["labels"] for row in rows]
        return {
            "pixel_values": pixels,
            "pixel_mask": mask,
            "labels": pad_sequence(labels, batch_first=True, padding_value=NO_LABEL),
            "boxes": pad_sequence([row["boxes"] for row in rows], batch_first=True),
        }


def save_coco(images: DetectionImages, folder: Path) -> Path:
    """Write images as PNG and their boxes as COCO JSON; returns the file `annotations.json`.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [f"{row:06d}.png" for row in range(len(images))]
    for row, file in enumerate(files):
        images.open(row).save(folder / file)
    annotations = folder / "annotations.json"
    write_text(annotations, json.dumps(coco_content(replace(images, names=files))))
    return annotations


def coco_content(images: DetectionImages) -> dict[str, Any]:
    """The annotations in the form of a COCO file."""
    annotations: list[dict[str, Any]] = []
    for row, objects in enumerate(images.objects):
        for label, box, crowd, area in zip(
            objects.labels, objects.boxes, objects.is_crowd, objects.areas, strict=True
        ):
            left, top, right, bottom = box.tolist()
            annotations.append(
                {
                    "id": len(annotations) + 1,  # 0 means "no match" to COCO's evaluation
                    "image_id": images.image_ids[row],
                    "category_id": images.category_ids[label],
                    "bbox": [left, top, right - left, bottom - top],
                    "area": (right - left) * (bottom - top) if np.isnan(area) else float(area),
                    "iscrowd": int(crowd),
                }
            )
    sizes = zip(images.image_ids, images.names, images.sizes.tolist(), strict=False)
    return {
        "info": {},
        "images": [
            {"id": number, "file_name": name, "height": height, "width": width}
            for number, name, (height, width) in sizes
        ],
        "annotations": annotations,
        "categories": [
            {"id": number, "name": name}
            for number, name in zip(images.category_ids, images.label_names, strict=False)
        ],
    }


# --- random changes of an image together with its boxes ------------------------------------------


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
