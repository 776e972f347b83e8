"""What is in a detection data set, before training: most AP of 0 is visible here."""

from collections import Counter
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np

from hf_vanilla.data.images import ImageError, header_size
from hf_vanilla.options import Options, option

from .detection import DetectionImages, repeats
from .sources import load_detection_images

SMALL, MEDIUM = 32**2, 96**2  # pixels, COCO's borders of small, medium and large
SHOWN = 5
DUPLICATE_IOU = 0.9


@dataclass(frozen=True, kw_only=True)
class InspectOptions(Options):
    """Report what is in a detection data set: classes, boxes, sizes, and what is wrong."""

    dataset: str = option(text="COCO JSON file, folder with metadata.jsonl, YOLO folder, or Hub id")
    images: str | None = option(None, "folder of a COCO file's images; default: its own")
    split: str = option("train", "split of a folder or dataset")
    num_queries: int = option(100, "queries of the model", at_least=1)


def inspect_dataset(options: InspectOptions) -> str:
    """Read a data set and report on it.

    Raises:
        ValueError: the annotations cannot be used.
        OSError: nothing is found under that name.
    """
    images = load_detection_images(options.dataset, images=options.images, split=options.split)
    return detection_report(images, num_queries=options.num_queries)


def detection_report(images: DetectionImages, *, num_queries: int = 100) -> str:
    """Classes, boxes and problems of a data set, in lines.

    Args:
        images: the data.
        num_queries: of the model: an image may not have more objects.
    """
    used = [entry.trained_on for entry in images.objects]
    labels = Counter(int(label) for entry in used for label in entry.labels)
    sides = np.concatenate([entry.boxes[:, 2:] - entry.boxes[:, :2] for entry in used] or [[]])
    areas = sides.reshape(-1, 2).prod(axis=1)
    is_of_size = (areas < SMALL, (areas >= SMALL) & (areas <= MEDIUM), areas > MEDIUM)
    small, medium, large = (100 * (is_size.sum() / max(len(areas), 1)) for is_size in is_of_size)
    width = max((len(name) for name in images.label_names), default=0)
    most = max(map(len, used), default=0)
    lines = [
        f"{images.origin}: {len(images):,} images, {len(areas):,} objects of "
        f"{len(images.label_names)} classes, at most {most} in one image",
        f"sizes: {small:.0f} % small (under 32 x 32 pixels), {medium:.0f} % medium, "
        f"{large:.0f} % large (over 96 x 96)",
        *(f"  {name:{width}}  {labels[label]:,}" for label, name in enumerate(images.label_names)),
    ]
    found = problems(images, num_queries) or ["none found"]
    return "\n".join([*lines, "problems:", *(f"  {problem}" for problem in found)])


def problems(images: DetectionImages, num_queries: int = 100) -> list[str]:
    """What is wrong or doubtful, a line each, with an example and the remedy."""
    used = [entry.trained_on for entry in images.objects]
    boxes = [entry.boxes for entry in images.objects]
    ends = np.tile(images.sizes[:, ::-1], 2) + 1  # right and bottom of each image, twice
    faults = {
        f"images have more than {num_queries} objects: raise num_queries": [
            len(entry) > num_queries for entry in used
        ],
        "images have no object to train on: right only if nothing is in them": [
            not len(entry) for entry in used
        ],
        "images have boxes that reach more than a pixel outside: they are cut at the border": [
            ((box < -1) | (box > end)).any() for box, end in zip(boxes, ends, strict=True)
        ],
        "images have boxes without area, which are not trained on: remove them": [
            (box[:, 2:] <= box[:, :2]).any() for box in boxes
        ],
        f"images have two boxes of one class with IoU over {DUPLICATE_IOU}: remove one": [
            repeats(entry, DUPLICATE_IOU).any() for entry in used
        ],
    }
    found = file_faults(images)
    for fault, is_faulty in faults.items():
        found.append((list(compress(images.names, is_faulty)), fault))
    lines = [
        f"{len(names):,} {fault} ({', '.join(map(str, names[:SHOWN]))})"
        for names, fault in found
        if names
    ]
    labels = {label for entry in used for label in entry.labels}
    if empty := [name for label, name in enumerate(images.label_names) if label not in labels]:
        lines.append(
            f"classes without an object: {len(empty)} ({', '.join(empty[:SHOWN])}); remove them or "
            "check the export"
        )
    if hint := box_form_hint(images):
        lines.append(hint)
    return lines


def file_faults(images: DetectionImages) -> list[tuple[list[str], str]]:
    """Files that are missing, unreadable, or of another size than the annotations say."""
    missing, unreadable = [], []
    different: list[str] = []
    turned: list[str] = []
    for path, (height, width) in zip(images.files, images.sizes.tolist(), strict=False):
        try:
            found = header_size(path)
        except FileNotFoundError:
            missing.append(path.name)
        except ImageError:
            unreadable.append(path.name)
        else:
            if found != (height, width):
                is_turned = found == (width, height) and _is_turned(path)
                names = turned if is_turned else different
                names.append(f"{path.name}: {found[1]} x {found[0]}, not {width} x {height}")
    return [
        (missing, "images do not exist: correct file_name, or give their folder"),
        (unreadable, "images are damaged or no images: replace or remove them"),
        (different, "images have another size than their annotations: scale the boxes"),
        (
            turned,
            "images are turned by their EXIF data: annotate the turned image, or remove that data",
        ),
    ]


def check_files(images: DetectionImages) -> None:
    """Refuse files that are missing, unreadable, or of another size; their pixels are not decoded.

    Raises:
        FileNotFoundError: images do not exist.
        ValueError: others are unreadable or have another size than their annotations.
    """
    missing = [path for path in images.files if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{missing[0]}: no such file; {images.origin} names {len(missing):,} images that do "
            "not exist: correct file_name, or give the folder of the images"
        )
    for names, fault in file_faults(images):
        if names:
            raise ValueError(
                f"{images.origin}: {len(names):,} {fault} ({', '.join(names[:SHOWN])})"
            )


def _is_turned(path: Path) -> bool:
    """Whether EXIF data exchanges width and height of an image."""
    from PIL import Image

    with Image.open(path) as image:
        return header_size(path) != (image.height, image.width)


def box_form_hint(images: DetectionImages) -> str | None:
    """Says so where boxes look like shares of the image, or like left, top, right, bottom.

    Shares are at most 1 nearly everywhere. Right and bottom, read as sides, are larger than left
    and top nearly everywhere, and boxes reach out of the image where they would lie inside if read
    the other way.
    """
    boxes = np.concatenate([entry.boxes for entry in images.objects] or [np.zeros((0, 4))])
    if not len(boxes):
        return None
    left_top, sides = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
    owner = np.repeat(np.arange(len(images)), [len(entry) for entry in images.objects])
    whole = images.sizes[owner][:, ::-1]  # width, height
    is_share = (left_top <= 1).all(axis=1) & (sides <= 1).all(axis=1) & (whole > 1).all(axis=1)
    if is_share.mean() >= 0.99:
        return (
            f"{100 * is_share.mean():.0f} % of the boxes are shares of the image, all numbers at "
            "most 1: multiply x and width by the width, y and height by the height"
        )
    is_outside = (left_top + sides > whole + 1).any(axis=1)
    fits_otherwise = (sides > left_top).all(axis=1) & (sides <= whole + 1).all(axis=1)
    if is_outside.mean() < 0.1 or fits_otherwise.mean() < 0.99:
        return None
    return (
        f"{100 * is_outside.mean():.0f} % of the boxes reach outside, and all would fit as left, "
        "top, right, bottom: the file has corners where COCO wants left, top, width, height"
    )
