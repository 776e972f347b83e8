"""Images with boxes from files: COCO JSON, `metadata.jsonl`, YOLO text; or from the Hub."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import numpy as np

from hf_vanilla.data.images import (
    MOST_PIXELS,
    FileImages,
    ImageCells,
    check_size,
    header_size,
    is_image_name,
    split_folder,
)
from hf_vanilla.file_values import checked, shown, yaml_value
from hf_vanilla.loading import load_rows

from .detection import DetectionImages, ImageObjects, objects_of

Values = TypeVar("Values", bound=Iterable[Any])

METADATA = "metadata.jsonl"
ID, SIDE = (int, float, str), (int, float, NoneType)
CATEGORY_KEYS = ("categories", "category", "label")  # in a record; the first that is there counts
MOST_CATEGORIES = 1_000_000  # where the largest number tells how many there are
# the types of what COCO's entries hold
COCO_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "images": {"id": ID, "file_name": (str,), "height": SIDE, "width": SIDE},
    "categories": {"id": ID, "name": ID},
    "annotations": {"image_id": (*ID, NoneType), "category_id": (*ID, NoneType)},
}


def load_detection_images(
    source: str, *, images: str | None = None, split: str = "train"
) -> DetectionImages:
    """Images with boxes from a COCO file, a folder or a dataset of the Hub.

    Args:
        source: a COCO JSON file; a folder with `metadata.jsonl`, or with YOLO's `images` and
            `labels`, whose subfolder `split` is taken where it exists; or a Hub id.
        images: folder of the images of a COCO file; None: the file's own folder.
        split: of a folder or dataset.

    Raises:
        ValueError: the annotations cannot be used, the message names file, id and value; or
            `images` is given for another form.
        OSError: nothing is found under that name.
    """
    path = Path(source)
    if path.is_file():
        return read_coco(path, Path(images) if images else None)
    if images:
        raise ValueError(
            f"images={images!r} is for a COCO file, and {source} is none: leave it out"
        )
    if not path.is_dir():
        return _from_hub(source, split)
    folder = split_folder(path, split)
    if (folder / METADATA).is_file():
        return read_metadata_folder(folder)
    if (path / "labels").is_dir() or (folder / "labels").is_dir():
        return read_yolo_folder(path, split)
    raise ValueError(
        f"{source} has neither {METADATA} nor a folder 'labels': give a COCO JSON file, an "
        "ImageFolder with metadata or a YOLO folder"
    )


# --- COCO ----------------------------------------------------------------------------------------


def read_coco(path: Path, folder: Path | None = None) -> DetectionImages:
    """A COCO JSON file; category ids become labels 0 to K - 1 in the order of the ids.

    Args:
        path: of the file.
        folder: of the images; None: the file's folder.

    Raises:
        ValueError: the file is damaged, has no boxes, or an annotation cannot be used.
        OSError: it cannot be read.
    """
    content = _coco_content(path)
    categories = sorted(content["categories"], key=lambda e: (isinstance(e["id"], str), e["id"]))
    ids, names = [e["id"] for e in categories], [str(e["name"]) for e in categories]
    image_ids = [entry["id"] for entry in content["images"]]
    files = [entry["file_name"] for entry in content["images"]]
    each = {"category id": ids, "category name": names, "image id": image_ids, "image": files}
    for part, values in each.items():
        _refuse_twice(values, f"{path}: {part}")
    label_of = {category: label for label, category in enumerate(ids)}
    by_image = _objects_by_image(content, label_of, path)
    root = folder or path.parent
    return DetectionImages(
        objects=[
            objects_of(*([entry[part] for entry in entries] for part in range(4)))
            for entries in by_image.values()
        ],
        label_names=tuple(names),
        category_ids=tuple(ids),
        image_ids=image_ids,
        origin=str(path),
        files=[root / file for file in files],
        **_of_files(root, content["images"]),
    )


def _objects_by_image(
    content: dict[str, Any], label_of: dict[Any, int], path: Path
) -> dict[Any, list[tuple[Any, ...]]]:
    """Label, corners, whether it is a crowd, and area of each object, by the id of its image."""
    by_image: dict[Any, list[tuple[Any, ...]]] = {entry["id"]: [] for entry in content["images"]}
    for entry in content["annotations"]:
        item = f"{path}: annotation {entry.get('id')}"
        if entry.get("image_id") not in by_image:
            raise ValueError(
                f"{item} is of image_id={entry.get('image_id')!r}, which is not among the "
                f"{len(by_image)} images: add the image or remove the annotation"
            )
        if entry.get("category_id") not in label_of:
            raise ValueError(
                f"{item} has category_id={entry.get('category_id')!r}; the categories are "
                f"{[*label_of][:20]}: add it to the categories or correct the annotation"
            )
        if "bbox" not in entry:
            raise ValueError(
                f"{item} has no bbox: export boxes, not segmentation alone, from the labelling tool"
            )
        by_image[entry["image_id"]].append(
            (
                label_of[entry["category_id"]],
                _corners_of(entry["bbox"], item),
                _number(entry, "iscrowd", 0, item) != 0,
                _number(entry, "area", np.nan, item),
            )
        )
    return by_image


def _coco_content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or cut off, no JSON: {error}") from None
    missing = [part for part in COCO_FIELDS if not isinstance(content, dict) or part not in content]
    if missing:
        raise ValueError(f"{path} is no COCO file, it has no {', '.join(missing)}")
    for part, fields in COCO_FIELDS.items():
        for number, entry in enumerate(checked(content[part], list, f"{path}: {part}")):
            item = f"{path}: {part}[{number}]"
            checked(entry, dict, item)
            for field, kinds in fields.items():
                checked(entry.get(field), kinds, f"{item}.{field}")
    for part in ("images", "categories"):
        if not content[part]:
            raise ValueError(f"{path} holds no {part}: export them with the annotations")
    return content


def _number(entry: Mapping[str, Any], key: str, default: float, item: str) -> float:
    """A number of an annotation, 0 or more; `default` where there is none."""
    given = entry.get(key)
    if given is None:
        return default
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = np.nan
    if not 0 <= value < np.inf:
        raise ValueError(f"{item} has {key} {given!r}: give a number from 0 on, or leave it out")
    return value


def _corners_of(box: Any, item: str) -> tuple[float, float, float, float]:
    """Corner form of a box of left, top, width, height.

    Raises:
        ValueError: it is something else than four finite numbers, or a side is negative.
    """
    try:
        left, top, width, height = (float(value) for value in box)
        if not np.isfinite([left, top, width, height]).all():
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{item} has bbox {shown(box)}: give four finite numbers, left, top, width, height"
        ) from None
    if width < 0 or height < 0:
        raise ValueError(
            f"{item} has bbox {box!r} with a negative side: give left, top, width, height"
        )
    return left, top, left + width, top + height


# --- folders -------------------------------------------------------------------------------------


def read_metadata_folder(folder: Path) -> DetectionImages:
    """An ImageFolder of `datasets`: each line of `metadata.jsonl` names a file and its objects.

    `{"file_name": "a.png", "objects": {"bbox": [[left, top, width, height]], "categories": [0]}}`;
    `category` may stand for `categories`, names for numbers.

    Raises:
        ValueError: a line cannot be used.
        OSError: it cannot be read.
    """
    path = folder / METADATA
    files, cells = [], []
    for item, line in _numbered_lines(path):
        try:
            row = checked(json.loads(line), dict, "the line")
            files.append({"file_name": checked(row["file_name"], str, "file_name")})
            cells.append((item, row["objects"]))
        except (ValueError, KeyError, RecursionError) as error:
            raise ValueError(f"{item}: {error}: give file_name and objects as JSON") from None
    _refuse_twice([file["file_name"] for file in files], f"{path}: image")
    return _from_cells(cells, str(folder), **_of_files(folder, files))


def read_yolo_folder(root: Path, split: str = "train") -> DetectionImages:
    """A folder as YOLO has it: `images` and `labels`, a text file per image, names in `data.yaml`.

    Each line of a text file is `class center-x center-y width height` in shares of the image.

    Raises:
        ValueError: a line cannot be used, or there are no names.
        OSError: it cannot be read.
    """
    pairs = [
        (root / "images" / split, root / "labels" / split),
        (root / split / "images", root / split / "labels"),
        (root / "images", root / "labels"),
    ]
    found = next((pair for pair in pairs if pair[0].is_dir() and pair[1].is_dir()), None)
    if found is None:
        raise ValueError(f"{root} has no folders images and labels for the split {split!r}")
    names = _yolo_names(root)
    files = sorted(path.name for path in found[0].iterdir() if is_image_name(path.name))
    if not files:
        raise ValueError(f"{root} has no image of the split {split!r}: {found[0]} holds none")
    images = _of_files(found[0], [{"file_name": file} for file in files])
    objects = [
        _yolo_objects((found[1] / file).with_suffix(".txt"), size, len(names))
        for file, size in zip(files, images["sizes"].tolist(), strict=True)
    ]
    return DetectionImages(objects=objects, label_names=names, origin=str(root), **images)


def _yolo_names(root: Path) -> tuple[str, ...]:
    for path in sorted(root.glob("*.y*ml")):
        content = yaml_value(path.read_text(encoding="utf-8"), str(path)) or {}
        names = checked(content, dict, str(path)).get("names")
        if names:
            checked(names, (list, dict), f"{path}: names")
            if isinstance(names, dict):
                if set(names) != set(range(len(names))):
                    raise ValueError(
                        f"{path}: the keys of names are {shown(list(names)[:20])}: number the "
                        f"classes from 0 to {len(names) - 1}"
                    )
                names = [names[number] for number in range(len(names))]
            return _refuse_twice(tuple(map(str, names)), f"{path}: class")
    path = root / "classes.txt"
    if path.is_file():
        return _refuse_twice(tuple(line for _, line in _numbered_lines(path)), f"{path}: class")
    raise ValueError(f"{root} names no classes: add data.yaml with names, or classes.txt")


def _yolo_objects(path: Path, size: tuple[int, int], classes: int) -> ImageObjects:
    """The objects of one text file; no file: no objects."""
    labels: list[int] = []
    boxes: list[tuple[float, float, float, float]] = []
    height, width = size
    for item, line in _numbered_lines(path) if path.is_file() else ():
        fields = line.split()
        try:
            label, (x, y, wide, high) = int(fields[0]), (float(field) for field in fields[1:])
        except ValueError:
            raise ValueError(
                f"{item}: {line!r}: give class, center x, center y, width, height"
            ) from None
        if not 0 <= label < classes:
            raise ValueError(f"{item} has class {label}, but there are {classes} names")
        box = ((x - wide / 2) * width, (y - high / 2) * height, wide * width, high * height)
        boxes.append(_corners_of(box, item))
        labels.append(label)
    return objects_of(labels, boxes)


# --- Hub -----------------------------------------------------------------------------------------


def _from_hub(name: str, split: str) -> DetectionImages:
    rows = load_rows(name, split=split)
    if missing := {"image", "objects"} - set(rows.column_names):
        raise ValueError(
            f"{name} has no column {', '.join(sorted(missing))}; it has "
            f"{', '.join(rows.column_names)}: rename its columns to image and objects"
        )
    cells = [(f"{name}[{row}]", objects) for row, objects in enumerate(rows["objects"])]
    pictures = ImageCells(rows, "image", name)
    sides = {key: rows[key][:] for key in ("height", "width") if key in rows.column_names}
    sizes = []
    for row, (item, _) in enumerate(cells):
        sizes.append(header_size(pictures.content(row), name=item))
        stated = _stated_size({key: sides[key][row] for key in sides}, item)
        check_size(sizes[-1], stated or sizes[-1], item)
    images = {
        "names": [item for item, _ in cells],
        "sizes": np.asarray(sizes, dtype=np.int64),
        "open": pictures,
    }
    feature = rows.features["objects"]
    inner = getattr(feature, "feature", feature)  # a list of one record, or a record of lists
    known = None  # names of the classes where the column says them
    for key in reversed(CATEGORY_KEYS):
        if isinstance(inner, Mapping) and key in inner:
            known = getattr(getattr(inner[key], "feature", inner[key]), "names", None)
    return _from_cells(cells, name, known=known, **images)


# --- inside --------------------------------------------------------------------------------------


def _numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """File and number of each line of a text file, for messages, and the line; no empty ones."""
    # str.splitlines() would also cut at U+2028 and U+0085, which JSON strings may contain
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            yield f"{path}, line {number}", line.strip()


def _of_files(folder: Path, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`names`, `sizes` and `open` of `DetectionImages`, for entries of a file as COCO has them."""
    names = [entry["file_name"] for entry in entries]
    sizes = [_size_of(entry, folder) for entry in entries]
    return {
        "names": names,
        "sizes": np.asarray(sizes, dtype=np.int64),
        "open": FileImages(folder, names, sizes),
    }


def _from_cells(
    cells: Sequence[tuple[str, Any]], origin: str, known: Sequence[str] | None = None, **images: Any
) -> DetectionImages:
    """Images from records of `datasets`: boxes of left, top, width, height, and categories."""
    read = [_record(item, objects) for item, objects in cells]
    kinds = {kind for kinds, *_ in read for kind in kinds}
    if known is not None:
        classes = tuple(known)
    elif all(isinstance(kind, int) for kind in kinds):
        if (largest := max(kinds, default=-1)) >= MOST_CATEGORIES:
            raise ValueError(f"{origin} has the category {shown(largest)}: number them from 0")
        classes = tuple(str(number) for number in range(largest + 1))
    elif any(isinstance(kind, int) for kind in kinds):
        raise ValueError(f"{origin} has numbers and names as categories: give all as names")
    else:
        classes = tuple(sorted(kinds))
    if not classes:
        raise ValueError(f"{origin} has no object at all")
    objects = []
    for (item, _), (categories, *others) in zip(cells, read, strict=True):
        labels = [c if isinstance(c, int) else list(classes).index(str(c)) for c in categories]
        if wrong := [label for label in labels if not 0 <= label < len(classes)]:
            raise ValueError(f"{item} has category {wrong[0]}, but there are {len(classes)} names")
        objects.append(objects_of(labels, *others))
    return DetectionImages(objects=objects, label_names=classes, origin=origin, **images)


def _record(item: str, objects: Any) -> tuple[list[Any], ...]:
    """Categories, corners, whether they are crowds, and areas of one record.

    A record is a dict of lists, a list of dicts, or None: no objects.
    """
    if not isinstance(objects, dict):
        for entry in checked(objects or [], list, f"{item}: objects"):
            checked(entry, dict, f"{item}: an entry of objects")
        fields = {key for entry in objects or [] for key in entry}
        objects = {key: [entry.get(key) for entry in objects] for key in fields}
    boxes = checked(objects.get("bbox", []), list, f"{item}: bbox")
    keys = [key for key in CATEGORY_KEYS if key in objects]
    parts = {"categories": objects[keys[0]] if keys else []}
    parts |= {key: objects.get(key) or [None] * len(boxes) for key in ("iscrowd", "area")}
    for key, values in parts.items():
        if len(checked(values, list, f"{item}: {key}")) != len(boxes):
            raise ValueError(f"{item} has {len(boxes)} bbox and {len(values)} {key}: give one each")
    each = [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
    return (
        [checked(one["categories"], (int, str), f"{item}: a category") for one in each],
        [_corners_of(box, item) for box in boxes],
        [_number(one, "iscrowd", 0, item) != 0 for one in each],
        [_number(one, "area", np.nan, item) for one in each],
    )


def _refuse_twice(values: Values, item: str) -> Values:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{item} {twice[0]!r} is there twice: remove one")
    return values


def _size_of(entry: Mapping[str, Any], folder: Path) -> tuple[int, int]:
    """Height and width of an image: as the file says, else as the image is."""
    path = folder / entry["file_name"]
    # by the names alone: files of a folder may be links, as in the Hub's cache
    if not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)):
        raise ValueError(f"{entry['file_name']!r} is outside of {folder}, the folder of the images")
    if stated := _stated_size(entry, str(path)):
        return stated
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; the annotations name it")
    return header_size(path)


def _stated_size(entry: Mapping[str, Any], item: str) -> tuple[int, int] | None:
    """The `height` and `width` of an entry; None where it has none."""
    height, width = (checked(entry.get(key), SIDE, f"{item}: {key}") for key in ("height", "width"))
    if not height or not width:
        return None
    if not (height >= 1 and width >= 1 and height * width <= MOST_PIXELS):
        raise ValueError(
            f"{item}: a size of {shown(height)} x {shown(width)} is not of 1 to "
            f"{MOST_PIXELS:,} pixels: correct it, or make the image smaller"
        )
    return int(height), int(width)
