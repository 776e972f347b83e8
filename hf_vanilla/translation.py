"""Sentences to sentences: sort by length, batch by tokens, `generate`, decode, restore order."""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from tqdm import tqdm
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from .batching import batch_bounds, padded
from .corpus import decoded_lines, read_lines

logger = logging.getLogger(__name__)

# lines sorted by length together: enough for dense batches, little enough to hold
CHUNK_LINES = 8192
STANDARD_STREAM = "-"


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Which model, and how it decodes."""

    model: str = field(metadata={"help": "model folder or Hub id"})
    num_beams: int | None = field(
        default=None, metadata={"help": "hypotheses kept per sentence; default: as the model saved"}
    )
    tokens_per_batch: int = field(
        default=4096, metadata={"help": "source tokens decoded together, padding included"}
    )

    def __post_init__(self) -> None:
        if self.tokens_per_batch < 1:
            raise ValueError(f"tokens_per_batch={self.tokens_per_batch}: give a positive number")
        if self.num_beams is not None and self.num_beams < 1:
            raise ValueError(f"num_beams={self.num_beams}: give a positive number")

    @property
    def generate_kwargs(self) -> dict[str, int]:
        """What to tell `generate()` beyond the model's own settings."""
        return {} if self.num_beams is None else {"num_beams": self.num_beams}


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(DecodingOptions):
    """Options of `translate_file`."""

    input: str = field(
        default="-", metadata={"help": "UTF-8 text, plain or .gz, a sentence a line; -: stdin"}
    )
    output: str = field(default="-", metadata={"help": "file for the translations; -: stdout"})
    overwrite: bool = field(default=False, metadata={"help": "replace an existing output file"})


def load_translator(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model in evaluation mode and tokenizer of a folder or Hub id.

    Raises:
        ValueError: a local folder holds no model, or not one that translates.
        OSError: nothing is found under that name.
    """
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise ValueError(
            f"{name} is not a model folder: it has no config.json; "
            "give the folder that training or save_pretrained wrote"
        )
    parent = Path(name).parent
    if not Path(name).is_dir() and parent != Path() and parent.is_dir():
        raise FileNotFoundError(f"{name}: no such folder")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(name).to(device).eval()
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise OSError(f"{name}: no such folder, and not found on the Hub: {reason}") from None
    return model, AutoTokenizer.from_pretrained(name)


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    tokens_per_batch: int = 4096,
    progress: bool = False,
    first_line: int = 1,
    **generate_kwargs: object,
) -> list[str]:
    """Translate sentences, keeping their order and number.

    A blank sentence translates to an empty one. A sentence of more than the tokenizer's
    `model_max_length` tokens is cut there, with a warning that names its place.

    Args:
        model: a sequence-to-sequence model.
        tokenizer: its tokenizer.
        sentences: raw text.
        tokens_per_batch: sentences times longest source, at most.
        progress: show a progress bar.
        first_line: number of the first sentence in warnings.
        **generate_kwargs: passed on to `model.generate`.
    """
    translations = [""] * len(sentences)
    places = [place for place, sentence in enumerate(sentences) if sentence.strip()]
    if not places:
        return translations
    rows = tokenizer([sentences[place] for place in places], verbose=False).input_ids
    for row, place in zip(rows, places, strict=True):
        _cut(row, tokenizer.model_max_length, first_line + place)
    lengths = np.array([len(row) for row in rows])
    order = np.argsort(-lengths, kind="stable")  # longest first: memory runs out at once or never
    bounds = batch_bounds(lengths[order], max(tokens_per_batch, lengths.max()))
    with tqdm(total=len(places), unit="sent", disable=not progress, desc="Translating") as bar:
        for begin, end in pairwise(bounds.tolist()):
            batch = order[begin:end]
            texts = _translate_batch(model, tokenizer, [rows[i] for i in batch], generate_kwargs)
            for i, text in zip(batch, texts, strict=True):
                translations[places[i]] = text
            bar.update(len(batch))
    return translations


def _cut(row: list[int], limit: int, line: int) -> None:
    if len(row) > limit:
        logger.warning("line %d has %d tokens; only the first %d are used", line, len(row), limit)
        del row[limit - 1 : -1]  # the last one is </s>


@torch.inference_mode()
def _translate_batch(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[list[int]],
    generate_kwargs: dict[str, object],
) -> list[str]:
    input_ids = padded(rows, tokenizer.pad_token_id)
    lengths = torch.tensor([len(row) for row in rows])
    attention_mask = (torch.arange(input_ids.shape[1]) < lengths.unsqueeze(1)).long()
    generated = model.generate(
        input_ids=input_ids.to(model.device),
        attention_mask=attention_mask.to(model.device),
        **generate_kwargs,
    )
    return tokenizer.batch_decode(generated, skip_special_tokens=True)


def translate_file(options: TranslateOptions) -> Path | None:
    """Translate a file or stdin, line by line and in order, into a file or stdout.

    Returns:
        The file written; None for stdout.

    Raises:
        ValueError: the model folder or the input is not what it should be.
        OSError: a file cannot be read, or the output exists and `overwrite` is off.
    """
    output = Path(options.output)
    if options.output != STANDARD_STREAM and output.exists() and not options.overwrite:
        raise FileExistsError(f"{output} exists: choose another name or add --overwrite")
    if options.input != STANDARD_STREAM and not Path(options.input).is_file():
        raise FileNotFoundError(f"{options.input}: no such file")
    model, tokenizer = load_translator(options.model)
    chunks = (
        translate(
            model,
            tokenizer,
            chunk,
            tokens_per_batch=options.tokens_per_batch,
            progress=sys.stderr.isatty() or options.output != STANDARD_STREAM,
            first_line=1 + number * CHUNK_LINES,
            **options.generate_kwargs,
        )
        for number, chunk in enumerate(_chunks(_lines(options.input)))
    )
    if options.output == STANDARD_STREAM:
        _write(chunks, sys.stdout)
        return None
    unfinished = output.with_name(output.name + ".partial")
    with unfinished.open("w", encoding="utf-8") as file:
        _write(chunks, file)
    unfinished.replace(output)
    return output


def _write(chunks: Iterable[list[str]], file: TextIO) -> None:
    for chunk in chunks:
        # a line feed that the model wrote must not become a line of its own
        file.writelines(text.replace("\n", " ") + "\n" for text in chunk)
        file.flush()


def _lines(name: str) -> Iterator[str]:
    return decoded_lines(sys.stdin.buffer, "stdin") if name == STANDARD_STREAM else read_lines(name)


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    lines = iter(lines)
    while chunk := list(islice(lines, CHUNK_LINES)):
        yield chunk
