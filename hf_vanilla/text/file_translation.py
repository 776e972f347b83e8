"""Translate a file or stdin into a file or stdout, line by line."""

import gzip
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import tee
from pathlib import Path
from typing import Any, TextIO

import torch
from accelerate import PartialState

from hf_vanilla.data.lines import check_text_file, decoded_lines, read_lines
from hf_vanilla.files import check_output_file, whole_file
from hf_vanilla.options import option

from .alignments import alignment_line, read_head
from .decoding import first_numbers
from .decoding_options import DecodingOptions
from .loading import NOTE, demo_model
from .text_translator import TextTranslator
from .translator import Translator

logger = logging.getLogger(__name__)

STANDARD_STREAM = "-"
N_BEST_FORMATS = ("tsv", "jsonl")


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(DecodingOptions):
    """Translate a file or stdin, one sentence per line."""

    model: str = option("", "model folder or Hub id; default: the package's model of number words")
    input: str = option("-", "UTF-8 text, plain or .gz, one sentence per line; -: stdin")
    output: str = option("-", "file for the translations, plain or .gz; -: stdout")
    overwrite: bool = option(False, "replace an existing output file")
    n_best: int | None = option(None, "write so many hypotheses per line, with scores", at_least=1)
    format: str = option("tsv", "n-best lists and alignments: tsv or jsonl", choices=N_BEST_FORMATS)
    alignments: bool = option(False, "write word alignments (0-0 1-2) beside translations")
    alignment_head: str | None = option(None, "LAYER or LAYER:HEAD from 0; default: see align")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("n_best", "alignments") if getattr(self, name)]
        if self.format == "jsonl" and not given:
            raise ValueError(f"format={self.format!r} needs --n_best or --alignments")
        if len(given) > 1:
            raise ValueError("give n_best or alignments, not both")
        if given:
            self.check_single_sentences(given[0])
        if self.alignment_head is not None:
            if not self.alignments:
                raise ValueError(f"alignment_head={self.alignment_head!r} needs --alignments")
            read_head(self.alignment_head)


def translate_file(options: TranslateOptions) -> Path | None:
    """Translate a file or stdin, line by line and in order, into a file or stdout.

    Under `accelerate launch` or `torchrun` the processes share the work and rank 0 writes.

    Returns:
        The file written; None for stdout, and on all ranks but 0.

    Raises:
        ValueError: the folder has no model, the input is not UTF-8 text, or stdin is closed; or,
            after the output is written, lines could not be translated and `accept_failures` is off.
        OSError: a file cannot be read, or the output exists and `overwrite` is off.
    """
    # without cpu=True, processes on a machine without GPUs do not connect to each other
    processes = PartialState(cpu=not torch.cuda.is_available())
    processes.wait_for_everyone()  # one that ends earlier by an error would cut the others off
    if not options.model:
        options = replace(options, model=demo_model())
        if processes.is_main_process:
            logger.info("this is the demo model: %s; --model names another one", NOTE)
    output = checked_output(options.output, overwrite=options.overwrite)
    _check_input(options.input, processes)
    translator = options.open_texts(processes if processes.num_processes > 1 else None)
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    shows_progress = is_terminal or output is not None
    blank: list[int] = []
    translations = _translations(options, translator, shows_progress, blank)
    if not processes.is_main_process:
        for _ in translations:
            pass
        return None
    with open_output(output) as file:
        for text in translations:
            file.write(text)
            file.flush()
    if blank:
        logger.warning("there is no text to translate (lines: %s)", first_numbers(blank))
    options.check_failures(translator.failed)
    return output


def _translations(
    options: TranslateOptions,
    translator: Translator | TextTranslator,
    shows_progress: bool,
    blank: list[int],
) -> Iterator[str]:
    """The texts to write, each for one input line; numbers of blank lines are added to `blank`."""
    if options.input == STANDARD_STREAM:
        lines = decoded_lines(sys.stdin.buffer, "stdin")
    else:
        lines = read_lines(options.input)
    read, kept = tee(lines)
    results: Iterator[Any]
    if options.n_best is None and not options.alignments:
        results = translator.translate(read, progress=shows_progress)
    else:
        assert isinstance(translator, Translator)  # TranslateOptions refuses the other
        if options.n_best is not None:
            results = translator.n_best(read, options.n_best, progress=shows_progress)
        else:
            head = None if options.alignment_head is None else read_head(options.alignment_head)
            results = translator.translate_aligned(read, head=head, progress=shows_progress)
    for number, (source, found) in enumerate(zip(kept, results, strict=True), start=1):
        if not source.strip():
            blank.append(number)
        yield _written(options, number, source, found)


def _written(options: TranslateOptions, number: int, source: str, found: Any) -> str:
    """What is written for a line: its translation, that with its links, or its n-best list.

    A list has rows of line number, score and text, a translation with links two columns; or each is
    one JSON object.
    """
    if options.alignments:
        text, links = found
        if options.format == "jsonl":
            return alignment_line((source, text), links, "jsonl")
        return f"{' '.join(text.split())}\t{alignment_line((source, text), links, 'pharaoh')}"
    if options.n_best is None:
        # a line feed in a translation must not start a new line of the file
        return found.replace("\n", " ") + "\n"
    if options.format == "jsonl":
        hypotheses = [{"text": one.text, "score": one.score} for one in found]
        return json.dumps({"line": number, "hypotheses": hypotheses}, ensure_ascii=False) + "\n"
    rows = ((f"{one.score:.4f}", " ".join(one.text.split())) for one in found)
    return "".join(f"{number}\t{score}\t{text}\n" for score, text in rows)


def checked_output(name: str, *, overwrite: bool) -> Path | None:
    """The path of an output file; None for stdout.

    Raises:
        ValueError: its ending is that of a compression other than gzip.
        OSError: the file cannot be written, or exists and `overwrite` is off.
    """
    if Path(name).suffix in {".bz2", ".xz", ".zst"}:
        raise ValueError(f"output={name}: give a name that ends in .gz, or one of plain text")
    return None if name == STANDARD_STREAM else check_output_file(name, overwrite=overwrite)


def _check_input(name: str, processes: PartialState) -> None:
    """Refuse an impossible input before the model is loaded."""
    if name != STANDARD_STREAM:
        check_text_file(name)
    elif sys.stdin is None:
        raise ValueError("stdin is closed: give a file by --input")
    if processes.num_processes > 1 and not Path(name).is_file():
        name = "stdin" if name == STANDARD_STREAM else name
        raise ValueError(
            f"{processes.num_processes} processes cannot share {name}: give a regular file "
            "by --input"
        )


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """Open a file in UTF-8, which appears when complete; or stdout, UTF-8 in every command."""
    if path is None:
        yield sys.stdout
        return
    write = gzip.open if path.suffix == ".gz" else open
    with whole_file(path) as unfinished, write(unfinished, "wt", encoding="utf-8") as file:
        yield file
