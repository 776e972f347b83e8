"""Detect objects in files and folders of images, from the command line."""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from hf_vanilla.data.image_commands import check_paths, image_paths, output_file, read_image_command
from hf_vanilla.data.image_files import ImageError, open_image
from hf_vanilla.options import Options, option

from .coco_scores import coco_results
from .detector import Detected, Found, load_detector
from .drawing import drawn_objects
from .sources import read_coco

logger = logging.getLogger(__name__)

FORMATS = ("jsonl", "coco")


@dataclass(frozen=True, kw_only=True)
class DetectOptions(Options):
    """Detect objects in the images of PATHS: files, folders, or - for paths from stdin."""

    model: str = option(text="model folder or Hub id")
    output: str | None = option(None, "file to write; default: stdout")
    format: str = option(
        "jsonl", f"one of {', '.join(FORMATS)}; coco: one JSON list of results", choices=FORMATS
    )
    threshold: float | None = option(
        None, "lowest score; default: 0.5, for coco 0, as AP needs it", at_least=0, at_most=1
    )
    annotations: str | None = option(
        None, "COCO file whose image ids and category ids the format coco writes"
    )
    draw: str | None = option(None, "folder for the images with their boxes")
    batch_size: int = option(8, "images at a time", at_least=1)
    device: str | None = option(None, "such as cpu; default: a GPU if there is one")
    stop_at_unreadable: bool = option(
        False, "end at the first unreadable image instead of reporting it"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.annotations is not None and self.format != "coco":
            raise ValueError("annotations: only the format coco has ids; add --format coco")

    @property
    def lowest_score(self) -> float:
        """The threshold, or the format's own."""
        if self.threshold is not None:
            return self.threshold
        return 0.0 if self.format == "coco" else 0.5


@dataclass(frozen=True)
class Detection:
    """What a command line asks for: options, and paths of files and folders."""

    options: DetectOptions
    paths: tuple[str, ...]


@dataclass(frozen=True)
class CocoIds:
    """The ids of a COCO file; without one, the image's path and the label's number.

    Attributes:
        images: id by file name; None: no file was given.
        categories: id of each label.
    """

    images: dict[str, Any] | None
    categories: tuple[int, ...]

    def image_id(self, path: str) -> Any:
        """The id of an image.

        Raises:
            ValueError: the file of annotations does not have it.
        """
        if self.images is None:
            return path
        for name in (path, os.path.basename(path)):
            if name in self.images:
                return self.images[name]
        raise ValueError(f"{path} is not among the {len(self.images)} images of the annotations")


def read_detection(arguments: Sequence[str]) -> Detection:
    """Options and paths of a command line; see `read_image_command`."""
    return Detection(*read_image_command(arguments, DetectOptions))


def detect_files(asked: Detection) -> None:
    """Write the objects of each image, in the order of the paths; folders by sorted names.

    Raises:
        ValueError: the model is another, or an image is unreadable and the options say to stop.
        OSError: a path does not exist, or the output cannot be written.
    """
    options = asked.options
    check_paths(asked.paths)
    detector = load_detector(options.model, device=options.device)
    names = detector.label_names
    ids = coco_ids(options.annotations, names)
    results = detector.detect_files(image_paths(asked.paths), batch_size=options.batch_size)
    chosen = _chosen(results, options)
    if options.draw is not None:
        chosen = _drawing(chosen, Path(options.draw), names)
    with output_file(options.output) as file:
        if options.format == "coco":
            _write_coco(chosen, file, ids)
        else:
            for result in chosen:
                file.write(line_of(result, names) + "\n")


def coco_ids(annotations: str | None, label_names: Sequence[str]) -> CocoIds:
    """The ids that results are written with.

    Raises:
        ValueError: a label of the model is no category of the file.
    """
    if annotations is None:
        return CocoIds(None, tuple(range(len(label_names))))
    truth = read_coco(Path(annotations))
    of_name = dict(zip(truth.label_names, truth.category_ids, strict=True))
    if missing := [name for name in label_names if name not in of_name]:
        raise ValueError(f"{annotations} has no category {missing[0]!r}, a label of the model")
    images = dict(zip(truth.names, truth.image_ids, strict=True))
    return CocoIds(images, tuple(of_name[name] for name in label_names))


def line_of(result: Detected, label_names: Sequence[str]) -> str:
    """One result as a line of JSON, without its end; boxes are left, top, right, bottom."""
    if result.found is None:
        return json.dumps({"path": result.name, "objects": [], "error": result.error})
    found = result.found
    objects = [
        {"label": label_names[label], "score": float(score), "box": [round(v, 3) for v in box]}
        for label, score, box in zip(found.labels, found.scores, found.boxes.tolist(), strict=True)
    ]
    return json.dumps({"path": result.name, "objects": objects})


def _chosen(results: Iterable[Detected], options: DetectOptions) -> Iterator[Detected]:
    """Results with objects above the threshold; counts them in the log at the end."""
    count = unreadable = 0
    for result in results:
        count += 1
        if result.found is None:
            unreadable += 1
            if options.stop_at_unreadable:
                raise ImageError(str(result.error))
            logger.warning("%s", result.error)
            yield result
        else:
            yield Detected(result.name, result.found.above(options.lowest_score))
    logger.info("%d images, %d of them unreadable", count, unreadable)


def _drawing(
    results: Iterable[Detected], folder: Path, label_names: Sequence[str]
) -> Iterator[Detected]:
    """Draw each readable image into a folder while results pass; names are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    used: set[str] = set()
    for number, result in enumerate(results):
        if result.found is not None:
            stem = Path(result.name).stem
            name = stem if stem not in used else f"{stem}-{number}"  # of another folder
            used.add(name)
            picture = drawn_objects(open_image(result.name), _shown(result.found), label_names)
            picture.save(folder / f"{name}.png")
        yield result


def _shown(found: Found) -> Found:
    return found.above(0.5) if len(found) > 50 else found


def _write_coco(results: Iterable[Detected], file: TextIO, ids: CocoIds) -> None:
    entries: list[dict[str, Any]] = []
    for result in results:
        if result.found is not None:
            entries += coco_results([result.found], ids.categories, [ids.image_id(result.name)])
    json.dump(entries, file)
    file.write("\n")
