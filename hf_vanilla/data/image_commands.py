"""What the commands that read images share: paths on the command line, and the output."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from hf_vanilla.files import whole_file
from hf_vanilla.options import UsageError, options_and_paths, parse_options

from .image_files import IMAGE_SUFFIXES, ImageError
from .image_models import FileResult

logger = logging.getLogger(__name__)

STDIN = "-"


@dataclass(frozen=True)
class ImageRequest:
    """A parsed command line: the command's options, and paths of files and folders."""

    options: Any
    paths: tuple[str, ...]


def read_image_request(arguments: Sequence[str], options: type) -> ImageRequest:
    """Options and paths of a command line, in any order; a single `-` reads paths from stdin.

    Args:
        arguments: of the command line.
        options: dataclass of the command.

    Raises:
        UsageError: an option is unknown or missing, or there is no path.
    """
    given, paths = options_and_paths(arguments)
    parsed = parse_options(options, given)
    if not paths:
        raise UsageError("missing: paths of images or folders, or - to read them from stdin")
    return ImageRequest(parsed, tuple(paths))


def check_paths(paths: Iterable[str]) -> None:
    """Refuse a path that does not exist.

    Raises:
        FileNotFoundError: there is one.
    """
    for path in paths:
        if path != STDIN and not os.path.exists(path):
            raise FileNotFoundError(f"{path}: no such file or folder")


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


def reported(results: Iterable[FileResult], *, stops: bool) -> Iterator[FileResult]:
    """The same results; warns of unreadable images and logs their number at the end.

    Args:
        results: of image files.
        stops: end at the first unreadable image.

    Raises:
        ImageError: it ended so.
    """
    count = unreadable = 0
    for result in results:
        count += 1
        if result.error is not None:
            if stops:
                raise ImageError(result.error)
            unreadable += 1
            logger.warning("%s", result.error)
        yield result
    logger.info("%d images, %d of them unreadable", count, unreadable)


@contextmanager
def output_file(output: str | None) -> Iterator[TextIO]:
    """Stdout, or a file that is written completely or not at all."""
    if output is None:
        yield sys.stdout
        return
    with (
        whole_file(Path(output)) as unfinished,
        open(unfinished, "w", encoding="utf-8", newline="") as file,
    ):
        yield file
