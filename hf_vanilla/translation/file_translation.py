"""Translate a file or stdin into a file or stdout, line by line."""

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import torch
from accelerate import PartialState

from hf_vanilla.data.corpus import check_text_file, decoded_lines, read_lines
from hf_vanilla.files import check_output_file, whole_file

from .decoding_options import DecodingOptions

STANDARD_STREAM = "-"


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(DecodingOptions):
    """Translate a file or stdin, one sentence per line."""

    input: str = field(
        default="-", metadata={"help": "UTF-8 text, plain or .gz, one sentence per line; -: stdin"}
    )
    output: str = field(default="-", metadata={"help": "file for the translations; -: stdout"})
    overwrite: bool = field(default=False, metadata={"help": "replace an existing output file"})


def translate_file(options: TranslateOptions) -> Path | None:
    """Translate a file or stdin, line by line and in order, into a file or stdout.

    Under `accelerate launch` or `torchrun` the processes share the work and rank 0 writes.

    Returns:
        The file written; None for stdout, and on all ranks but 0.

    Raises:
        ValueError: the folder has no model, the input is not UTF-8 text, or stdin or stdout is
            closed; or, after the output is written, lines could not be translated and
            `accept_failures` is off.
        OSError: a file cannot be read, or the output exists and `overwrite` is off.
    """
    # without cpu=True, processes on a machine without GPUs do not connect to each other
    processes = PartialState(cpu=not torch.cuda.is_available())
    _check_streams(options, processes)
    translator = options.open_translator(processes if processes.num_processes > 1 else None)
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    shows_progress = is_terminal or options.output != STANDARD_STREAM
    translations = translator.translate(_lines(options.input), progress=shows_progress)
    if not processes.is_main_process:
        for _ in translations:
            pass
        return None
    with open_output(options.output) as file:
        write_lines(translations, file)
    options.check_failures(translator.failed)
    return None if options.output == STANDARD_STREAM else Path(options.output)


def _check_streams(options: TranslateOptions, processes: PartialState) -> None:
    """Refuse impossible inputs and outputs before the model is loaded."""
    if options.output != STANDARD_STREAM:
        check_output_file(options.output, overwrite=options.overwrite)
    elif sys.stdout is None:
        raise ValueError("stdout is closed: give a file by --output")
    path = Path(options.input)
    if options.input == STANDARD_STREAM:
        if sys.stdin is None:
            raise ValueError("stdin is closed: give a file by --input")
    else:
        check_text_file(options.input)
    if processes.num_processes > 1 and not path.is_file():
        name = "stdin" if options.input == STANDARD_STREAM else str(path)
        raise ValueError(
            f"{processes.num_processes} processes cannot share {name}: give a regular file "
            "by --input"
        )


@contextmanager
def open_output(name: str) -> Iterator[TextIO]:
    """Open the output in UTF-8, whatever the locale is; a file appears when it is complete."""
    if name != STANDARD_STREAM:
        with whole_file(Path(name)) as unfinished, unfinished.open("w", encoding="utf-8") as file:
            yield file
        return
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # a replacement of stdout that takes text only
        yield sys.stdout
        return
    sys.stdout.flush()
    stream = io.TextIOWrapper(buffer, encoding="utf-8")
    try:
        yield stream
    finally:
        stream.detach()  # a TextIOWrapper that is collected would close stdout


def write_lines(texts: Iterable[str], file: TextIO) -> int:
    """Write each text on its own line as soon as it is there; returns the number of lines."""
    count = 0
    for text in texts:
        # a line feed in a translation must not start a new line of the file
        file.write(text.replace("\n", " ") + "\n")
        file.flush()
        count += 1
    return count


def _lines(name: str) -> Iterator[str]:
    return decoded_lines(sys.stdin.buffer, "stdin") if name == STANDARD_STREAM else read_lines(name)
