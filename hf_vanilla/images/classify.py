"""Classify files and folders of images, from the command line."""

import csv
import io
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from hf_vanilla.data.image_commands import check_paths, image_paths, output_file, read_image_command
from hf_vanilla.data.image_files import ImageError
from hf_vanilla.options import Options, option

from .classifier import Classified, load_classifier

logger = logging.getLogger(__name__)

FORMATS = ("csv", "jsonl")


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(Options):
    """Classify the images of PATHS: files, folders, or - for paths from stdin."""

    model: str = option(text="model folder or Hub id")
    output: str | None = option(None, "file to write; default: stdout")
    format: str = option("csv", f"one of {', '.join(FORMATS)}", choices=FORMATS)
    top_k: int = option(5, "labels of each image", at_least=1)
    batch_size: int = option(32, "images at a time", at_least=1)
    device: str | None = option(None, "such as cpu; default: a GPU if there is one")
    stop_at_unreadable: bool = option(
        False, "end at the first unreadable image instead of reporting it"
    )


@dataclass(frozen=True)
class Classification:
    """What a command line asks for: options, and paths of files and folders."""

    options: ClassifyOptions
    paths: tuple[str, ...]


def read_classification(arguments: Sequence[str]) -> Classification:
    """Options and paths of a command line; see `read_image_command`."""
    return Classification(*read_image_command(arguments, ClassifyOptions))


def classify_files(asked: Classification) -> None:
    """Write one line for each image, in the order of the paths; folders by sorted names.

    Raises:
        ValueError: the model is another, or an image is unreadable and the options say to stop.
        OSError: a path does not exist, or the output cannot be written.
    """
    options = asked.options
    check_paths(asked.paths)
    classifier = load_classifier(options.model, device=options.device)
    top_k = min(options.top_k, classifier.model.config.num_labels)
    results = classifier.classify(
        image_paths(asked.paths), top_k=top_k, batch_size=options.batch_size
    )
    with output_file(options.output) as file:
        _write(results, file, options, top_k)


def line_of(result: Classified, form: str, top_k: int) -> str:
    """One result as a line of CSV or JSON, without its end."""
    if form == "jsonl":
        guesses = [
            {"label": guess.label, "probability": guess.probability} for guess in result.guesses
        ]
        entry = {"path": result.name, "labels": guesses}
        return json.dumps(entry | ({"error": result.error} if result.error else {}))
    cells: list[str] = [result.name]
    for guess in result.guesses:
        cells += [guess.label, f"{guess.probability:.6f}"]
    cells += [""] * (1 + 2 * top_k - len(cells))
    return _csv_line([*cells, result.error or ""])


def _write(
    results: Iterable[Classified], file: TextIO, options: ClassifyOptions, top_k: int
) -> None:
    if options.format == "csv":
        names = [f"{name}_{rank}" for rank in range(1, top_k + 1) for name in ("label", "p")]
        file.write(_csv_line(["path", *names, "error"]) + "\n")
    count = unreadable = 0
    for result in results:
        if result.error and options.stop_at_unreadable:
            raise ImageError(result.error)
        file.write(line_of(result, options.format, top_k) + "\n")
        count, unreadable = count + 1, unreadable + (result.error is not None)
    logger.info("%d images, %d of them unreadable", count, unreadable)


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
