"""Classify files and folders of images, from the command line."""

import csv
import io
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from hf_vanilla.data.image_files import IMAGE_SUFFIXES, ImageError
from hf_vanilla.files import whole_file
from hf_vanilla.options import UsageError, options_and_paths, parse_options

from .classifier import Classified, load_classifier

logger = logging.getLogger(__name__)

FORMATS = ("csv", "jsonl")
STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions:
    """Classify the images of PATHS: files, folders, or - for paths from stdin."""

    model: str = field(metadata={"help": "model folder or Hub id"})
    output: str | None = field(default=None, metadata={"help": "file to write; default: stdout"})
    format: str = field(default="csv", metadata={"help": f"one of {', '.join(FORMATS)}"})
    top_k: int = field(default=5, metadata={"help": "labels of each image"})
    batch_size: int = field(default=32, metadata={"help": "images at a time"})
    device: str | None = field(
        default=None, metadata={"help": "such as cpu; default: a GPU if there is one"}
    )
    stop_at_unreadable: bool = field(
        default=False,
        metadata={"help": "end at the first unreadable image instead of reporting it"},
    )

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"format={self.format!r}: choose one of {', '.join(FORMATS)}")
        for name in ("top_k", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give a positive number")


@dataclass(frozen=True)
class Classification:
    """What a command line asks for: options, and paths of files and folders."""

    options: ClassifyOptions
    paths: tuple[str, ...]


def read_classification(arguments: Sequence[str]) -> Classification:
    """Options and paths of a command line, in any order; a single `-` reads paths from stdin.

    Raises:
        UsageError: an option is unknown or missing, or there is no path.
    """
    options, paths = options_and_paths(arguments)
    parsed = parse_options(ClassifyOptions, options)
    if not paths:
        raise UsageError("missing: paths of images or folders, or - to read them from stdin")
    return Classification(parsed, tuple(paths))


def classify_files(asked: Classification) -> None:
    """Write one line for each image, in the order of the paths; folders by sorted names.

    Raises:
        ValueError: the model is another, or an image is unreadable and the options say to stop.
        OSError: a path does not exist, or the output cannot be written.
    """
    options = asked.options
    for path in asked.paths:
        if path != STDIN and not os.path.exists(path):
            raise FileNotFoundError(f"{path}: no such file or folder")
    classifier = load_classifier(options.model, device=options.device)
    top_k = min(options.top_k, classifier.model.config.num_labels)
    results = classifier.classify(
        image_paths(asked.paths), top_k=top_k, batch_size=options.batch_size
    )
    target = nullcontext(None) if options.output is None else whole_file(Path(options.output))
    with target as unfinished:
        if unfinished is None:
            _write(results, sys.stdout, options, top_k)
            return
        with open(unfinished, "w", encoding="utf-8", newline="") as file:
            _write(results, file, options, top_k)


def image_paths(paths: Iterable[str]) -> Iterator[str]:
    """Paths of images: files as given, folders at any depth sorted by name, `-` from stdin."""
    for path in paths:
        if path == STDIN:
            yield from (line.rstrip("\n") for line in sys.stdin if line.strip())
        elif os.path.isdir(path):
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
            inner = [
                entry.path
                for entry in entries
                if entry.is_dir() or os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES
            ]
            yield from image_paths(inner)
        else:
            yield path


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
