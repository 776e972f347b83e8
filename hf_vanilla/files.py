"""Files that are complete or absent: write to a temporary name, flush to disk, rename."""

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PARTIAL = ".partial"  # part of the name of everything that is not finished
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def digest_of(text: str) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def check_output_file(path: str | Path, *, overwrite: bool = False) -> Path:
    """Check, before the work, that an output file can be written; returns its path.

    Devices, pipes and sockets are written through, so they need no `overwrite`.

    Raises:
        OSError: it is a folder, its folder is missing, or it exists and `overwrite` is False.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file")
    if path.is_file() and not overwrite:
        raise FileExistsError(f"{path} exists: choose another name or add --overwrite")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent}: no such folder")
    return path


@contextmanager
def whole_file(path: Path, *, mark: str = "") -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block ends well.

    A symbolic link stays: the file it names is replaced. A device or pipe is written through: the
    block gets its own path.

    Args:
        path: the finished file; replaced if it exists.
        mark: makes the temporary name unique where several processes write the same file.

    Raises:
        IsADirectoryError: `path` is a folder.
    """
    check_output_file(path, overwrite=True)
    if path.exists() and not path.is_file():
        with _os_errors(path):
            yield path
        return
    path = path.resolve()
    unfinished = path.with_name(f"{path.name}{mark}{PARTIAL}")
    try:
        with _os_errors(path):
            yield unfinished
            flush_to_disk(unfinished)
        unfinished.replace(path)
        flush_to_disk(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, mark: str = "") -> None:
    """Write a whole text file in UTF-8; a reader sees the old file or the new one.

    Args:
        path: the file.
        text: its content.
        mark: as for `whole_file`.
    """
    with whole_file(path, mark=mark) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_files(folder: Path, write: Callable[[Path], Any], *, mark: str = "") -> None:
    """Let `write` fill a temporary folder, then move each file into `folder`.

    The files of `folder` are complete at every moment, whenever the process is killed.

    Args:
        folder: of the finished files.
        write: gets the temporary folder.
        mark: as for `whole_file`.

    Raises:
        OSError: the disk is full, or refuses for another reason.
    """
    unfinished = folder / f"files{mark}{PARTIAL}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        with _os_errors(folder):
            write(unfinished)
        finish_folder(unfinished)
        # "tokenizer.json" comes last: where it exists, tokenizer_config.json exists too
        for path in sorted(
            unfinished.iterdir(), key=lambda p: (p.name == "tokenizer.json", p.name)
        ):
            path.replace(folder / path.name)
        flush_to_disk(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def whole_folder(output: str | Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `output` when the block ends well.

    Enter it before the work, so that an output that exists is reported at once. A killed process
    leaves its temporary folder behind; the next one that writes the same output removes it. A
    symbolic link stays: the folder it names is written.

    Raises:
        FileExistsError: the output exists and is not an empty folder.
        OSError: the disk is full, or refuses for another reason.
    """
    output = Path(output).resolve()
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder: choose another name")
    output.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{output.name}{PARTIAL}-{socket.gethostname()}-"
    for path in output.parent.iterdir():  # abandoned by processes of this machine that have ended
        process = path.name.removeprefix(prefix).partition("-")[0]
        if path.name.startswith(prefix) and process.isdecimal() and not _is_running(int(process)):
            shutil.rmtree(path, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=output.parent))
    try:
        inner = unfinished / output.name  # mkdtemp allows its owner only; this one follows umask
        inner.mkdir()
        with _os_errors(output):
            yield inner
        finish_folder(inner)
        if output.is_dir():
            output.rmdir()
        inner.replace(output)
        flush_to_disk(output.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def finish_folder(folder: Path) -> None:
    """Flush all files of a new folder to disk, readable for whom the folder is.

    Some libraries write files that only their owner may read (safetensors: mode 0600).
    """
    mode = folder.stat().st_mode & 0o666  # what the umask left of a new folder's mode
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode | mode)
            flush_to_disk(path)


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content, or the list of a folder's files, is on the disk.

    Without it, a power cut after a rename can leave an empty file under the final name.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; lines cut off by a killed process are dropped."""
    if not path.is_file():
        return []
    entries = []
    # str.splitlines() would also cut at U+2028 and U+0085, which JSON strings may contain
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        with suppress(ValueError):
            entries.append(json.loads(line))
    return [entry for entry in entries if isinstance(entry, dict)]


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


@contextmanager
def _os_errors(output: Path) -> Iterator[None]:
    """Name the output where the disk is full, for which libraries in Rust raise an Exception."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:  # of a write to an open file
            raise OSError(errno.ENOSPC, f"cannot write: {error.strerror}", str(output)) from error
        raise
    except Exception as error:
        if found := _OS_ERROR.search(str(error)):
            number = int(found[1])
            raise OSError(number, f"cannot write: {os.strerror(number)}", str(output)) from error
        raise
