"""Lines of text files, plain or `.gz`, and pairs of lines."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

# the first bytes of bzip2, xz, zstd, gzip and zip
COMPRESSED = (b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"PK\x03\x04")
LONGEST_LINE = 2**24  # bytes; a .gz file of 2 MB can hold one of gigabytes


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or `.gz`, without line ends.

    Only a line feed ends a line, so that both sides of a corpus have the same line numbers.

    Raises:
        ValueError: a line is not UTF-8; the message names file and line.
        OSError: the file cannot be read, or a `.gz` file is incomplete or damaged.
    """
    with opened(Path(path)) as file:
        yield from decoded_lines(file, str(path))


@contextmanager
def opened(path: Path) -> Iterator[BufferedIOBase | BinaryIO]:
    """The bytes of a file, plain or `.gz`.

    Raises:
        OSError: the file cannot be read, or a `.gz` file is incomplete or damaged.
    """
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            yield file
        except EOFError:
            raise OSError(f"{path} is incomplete: its compressed data has no end") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise OSError(f"{path} is damaged or no gzip file: {error}") from None


def check_text_file(path: str | Path) -> Path:
    """Check that a text file or pipe, such as bash's `<(command)`, is there; returns its path.

    Raises:
        OSError: it is missing, or a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a text file")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    return path


def decoded_lines(file: BufferedIOBase | BinaryIO, name: str) -> Iterator[str]:
    """The lines of a binary stream as text, without line ends; `name` is for the error message.

    Raises:
        ValueError: a line is not UTF-8, or longer than `LONGEST_LINE`.
    """
    lines = iter(lambda: file.readline(LONGEST_LINE + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"{name}, line {number} has more than {LONGEST_LINE:,} bytes: put each sentence "
                "into a line of its own"
            )
        try:
            # some editors write a byte order mark at the start of a file
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield text.rstrip("\r\n")
        except UnicodeDecodeError as error:
            if number == 1 and line.startswith(COMPRESSED):
                raise ValueError(f"{name} is compressed: give plain text, or a .gz file") from None
            raise ValueError(
                f"{name}, line {number}: byte {error.start + 1} is not UTF-8; "
                "convert the text, for example with iconv -t utf-8"
            ) from None


def read_pairs(source: str | Path, target: str | Path) -> Iterator[dict[str, str]]:
    """Rows of `source` and `target` from two files, line by line.

    Raises:
        ValueError: one file ends before the other, both are empty, or a line is not UTF-8.
    """
    number = 0
    sides = zip_longest(read_lines(source), read_lines(target))
    for number, (source_line, target_line) in enumerate(sides, start=1):
        if source_line is None or target_line is None:
            short, long = (source, target) if source_line is None else (target, source)
            raise ValueError(
                f"{short} ends after line {number - 1}, but {long} has more lines: "
                f"line {number} has no translation"
            )
        yield {"source": source_line, "target": target_line}
    if not number:
        raise ValueError(f"{source} and {target} are empty: no sentence pairs to read")


def check_sentences(sentences: Any) -> None:
    """Refuse one text where a sequence of texts is needed; it would be read letter by letter.

    Raises:
        ValueError: it is one text.
    """
    if isinstance(sentences, str | bytes):
        raise ValueError(f"{sentences!r:.60} is one text: give a list of sentences, [text]")
