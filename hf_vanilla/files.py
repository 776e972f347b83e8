"""Files that are whole or not there: write to a temporary name, flush to disk, rename."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PARTIAL = ".partial"  # ends the name of everything that is not finished


@contextmanager
def whole_file(path: Path, *, mark: str = "") -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block ends well.

    Args:
        path: the finished file; replaced if it exists.
        mark: makes the temporary name unique where several processes write the same file.
    """
    unfinished = path.with_name(f"{path.name}{mark}{PARTIAL}")
    try:
        yield unfinished
        flush_to_disk(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file in UTF-8; a reader sees the old file or the new one."""
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_files(folder: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary folder, then move each file into `folder`.

    The files of `folder` are complete at every moment, whenever the process is killed.
    """
    unfinished = folder / f"files{PARTIAL}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        write(unfinished)
        # "tokenizer.json" comes last: where it exists, tokenizer_config.json exists too
        for path in sorted(
            unfinished.iterdir(), key=lambda p: (p.name == "tokenizer.json", p.name)
        ):
            flush_to_disk(path)
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def whole_folder(output: str | Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `output` when the block ends well.

    Enter it before the work, so that an output that exists is reported at once.

    Raises:
        FileExistsError: the output exists and is not an empty folder.
    """
    output = Path(output).absolute()
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder: choose another name")
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{output.name}{PARTIAL}-", dir=output.parent))
    try:
        inner = unfinished / output.name  # mkdtemp gives only its owner access; this one has umask
        inner.mkdir()
        yield inner
        if output.is_dir():
            output.rmdir()
        inner.replace(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content is on the disk, so that a rename never shows an empty file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a line cut off by a killed process is dropped."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries
