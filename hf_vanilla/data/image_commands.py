"""What the commands that read images share: paths on the command line, and the output."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from hf_vanilla.files import whole_file
from hf_vanilla.options import UsageError, options_and_paths, parse_options

from .image_files import IMAGE_SUFFIXES

STDIN = "-"


def read_image_command(arguments: Sequence[str], options: type) -> tuple[Any, tuple[str, ...]]:
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
    return parsed, tuple(paths)


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
