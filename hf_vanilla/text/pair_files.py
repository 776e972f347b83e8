"""The lines of two files: score given translations, align their words, choose what aligns best.

`hf-vanilla score` decodes the translations by force, to filter and to rerank. `hf-vanilla align`
can also measure all layers and heads on pairs whose alignments are known.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hf_vanilla.data.corpus import built_in_numbers, number_parts, number_words
from hf_vanilla.data.lines import read_lines, read_pairs
from hf_vanilla.models.packing_vanilla import pack
from hf_vanilla.options import Options, option

from .alignments import (
    AlignedPair,
    Aligner,
    AlignmentHead,
    alignment_line,
    error_rates,
    save_head,
    saved_head,
    word_spans,
)
from .attentions import readable_tokens
from .encoding import encode_texts
from .file_translation import N_BEST_FORMATS, STANDARD_STREAM, checked_output, open_output
from .loading import load_translator
from .n_best import log_probs_of_pairs

ALIGNED_PAIRS, SCORED_PAIRS = 512, 8192  # at once; sorted by length together
LINK_FORMATS = ("pharaoh", "jsonl")
NUMBERS = "numbers"


def _windows(source: str, target: str, size: int) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """So many pairs of two files at once, with the line number of the first; reads some now."""
    pairs = ((row["source"], row["target"]) for row in read_pairs(source, target))
    first = list(islice(pairs, size))
    others = iter(lambda: list(islice(pairs, size)), [])
    return zip(count(1, size), chain([first], others), strict=False)


# --- scores --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Options):
    """Log-probability of each given translation, per sentence and per token."""

    model: str = option(text="model folder or Hub id")
    source: str = option(text="file of source sentences, plain or .gz")
    target: str = option(text="file of translations, one per source line")
    output: str = option("-", "file for the scores; -: stdout")
    overwrite: bool = option(False, "replace an existing output file")
    format: str = option(
        "tsv",
        "tsv: log-probability in nats, tokens; jsonl: those of each token too",
        choices=N_BEST_FORMATS,
    )
    tokens_per_batch: int = option(
        4096, "tokens of the longer side in a batch, padding included", at_least=1
    )


def score_files(options: ScoreOptions) -> Path | None:
    """Score the pairs of two files; returns the file written, None for stdout.

    Raises:
        ValueError: the files have different numbers of lines, one side of a pair is blank or too
            long, the folder has no model, or its weights give NaN.
        OSError: a file cannot be read, or the output exists and `overwrite` is off.
    """
    output = checked_output(options.output, overwrite=options.overwrite)
    windows = _windows(options.source, options.target, SCORED_PAIRS)  # before the model is loaded
    model, tokenizer = load_translator(options.model)
    pack(model)
    with open_output(output) as file:
        for first_line, texts in windows:
            ids = pair_ids(tokenizer, texts, first_line=first_line)
            scored = log_probs_of_pairs(model, ids, tokens_per_batch=options.tokens_per_batch)
            for (_, target), log_probs in zip(ids, scored, strict=True):
                total = math.fsum(log_probs)
                line = f"{total:.4f}\t{len(log_probs)}"
                if options.format == "jsonl":
                    tokens = readable_tokens(tokenizer, target)
                    record = {"log_prob": total, "tokens": tokens, "token_log_probs": log_probs}
                    line = json.dumps(record, ensure_ascii=False)
                file.write(line + "\n")
    return output


def pair_ids(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]], *, first_line: int = 1
) -> list[tuple[list[int], list[int]]]:
    """Input ids and labels of sentence pairs, end tokens included.

    Args:
        tokenizer: of the model.
        pairs: source and target of each.
        first_line: line number of the first pair, for messages.

    Raises:
        ValueError: a side is blank, or longer than the tokenizer's limit; the line is named.
    """
    if not pairs:
        return []
    sources, targets = map(list, zip(*pairs, strict=True))
    encoded = encode_texts(tokenizer, {"source": sources, "target": targets})
    limit = tokenizer.model_max_length
    for side in ("source", "target"):
        for line, length in enumerate(encoded[f"{side}_length"], start=first_line):
            if not length:
                raise ValueError(f"line {line}: the {side} is blank: remove the pair")
            if length > limit:
                raise ValueError(
                    f"line {line}: the {side} has {length} tokens, and the model accepts "
                    f"{limit}: remove the pair"
                )
    return list(zip(encoded["input_ids"], encoded["labels"], strict=True))


# --- alignments ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AlignOptions(Options):
    """Align the words of given translations by cross-attention."""

    model: str = option(text="model folder or Hub id")
    source: str = option("", "file of source sentences, plain or .gz")
    target: str = option("", "file of translations, one per source line")
    gold: str = option(
        "",
        (
            "file of right alignments (0-0 1?2, ? for possible), or numbers for the "
            "built-in corpus: measures every layer and head, saves the best in the model folder"
        ),
    )
    layer: int | None = option(None, "layer from 0; default: the saved one, else the last but one")
    head: int | None = option(None, "head from 0; default: the mean of all")
    output: str = option("-", "file for the alignments; -: stdout")
    overwrite: bool = option(False, "replace an existing output file")
    format: str = option("pharaoh", "pharaoh: 0-0 1-2; jsonl: with the words", choices=LINK_FORMATS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gold == NUMBERS and (self.source or self.target):
            raise ValueError("gold=numbers has its own texts: give no source and target")
        if self.gold != NUMBERS and not (self.source and self.target):
            raise ValueError("give both --source and --target, or --gold numbers")
        if self.head is not None and self.layer is None:
            raise ValueError(f"head={self.head} needs a layer")
        if self.gold and self.layer is not None:
            raise ValueError("gold measures every layer: give no layer")
        if self.gold and self.output != STANDARD_STREAM:
            raise ValueError("gold prints a table and aligns nothing: give no output")


def align_files(options: AlignOptions) -> Path | str | None:
    """Align two files, or measure all layers and heads on pairs with known alignments.

    Returns:
        The file written, None for stdout; a table of error rates with `gold`.

    Raises:
        ValueError: an option is wrong, the files have different numbers of lines, or the model's
            attention is NaN.
        OSError: a file cannot be read, or the output exists and `overwrite` is off.
    """
    if options.gold:
        return _choose(options)
    output = checked_output(options.output, overwrite=options.overwrite)
    windows = _windows(options.source, options.target, ALIGNED_PAIRS)
    model, tokenizer = load_translator(options.model)
    pack(model)
    head = saved_head(options.model)
    if options.layer is not None:
        head = AlignmentHead(layer=options.layer, head=options.head)
    aligner = Aligner(model, tokenizer, head)
    with open_output(output) as file:
        for first_line, window in windows:
            found = aligner.align(window, first_line=first_line)
            for texts, links in zip(window, found, strict=True):
                file.write(alignment_line(texts, links, options.format))
    return output


def _choose(options: AlignOptions) -> str:
    """Measure all layers and heads, save the best, and return the table of the layers."""
    if not Path(options.model).is_dir():
        raise ValueError(f"model={options.model!r}: gold writes into it, so give a folder")
    gold = validation_numbers() if options.gold == NUMBERS else _gold_of_files(options)
    rates = error_rates(*load_translator(options.model), gold)
    best = save_head(options.model, rates, f"{options.gold}, {len(gold)} pairs")
    lines = ["alignment error rate, the mean of all heads and the best head of each layer:"]
    for layer in sorted({head.layer for head in rates}):
        of_layer = {h: rate for h, rate in rates.items() if h.layer == layer}
        mean = min(rate for head, rate in of_layer.items() if head.head is None)
        one = min(of_layer, key=lambda head: of_layer[head])
        lines.append(f"layer {layer}: {mean:.3f}; {_named(one)}: {of_layer[one]:.3f}")
    return "\n".join([*lines, f"saved: layer {best.layer}, {_named(best)}"])


def _named(head: AlignmentHead) -> str:
    which = "mean of all heads" if head.head is None else f"head {head.head}"
    return f"{which}, step that {'reads' if head.is_next else 'writes'} the token"


def validation_numbers() -> list[AlignedPair]:
    """The validation part of the built-in corpus with its alignments."""
    return [aligned_number(number) for number in built_in_numbers()["validation"]]


def _gold_of_files(options: AlignOptions) -> list[AlignedPair]:
    rows = list(read_pairs(options.source, options.target))
    lines = list(read_lines(options.gold))
    if len(lines) != len(rows):
        raise ValueError(f"{options.gold} has {len(lines)} lines, but there are {len(rows)} pairs")
    pairs = []
    for number, (row, line) in enumerate(zip(rows, lines, strict=True), start=1):
        source, target = (tuple(word_spans(row[side])) for side in ("source", "target"))
        links: dict[str, set[tuple[int, int]]] = {"-": set(), "?": set()}  # by their signs
        for part in line.split():
            if (link := re.fullmatch(r"(\d+)([-?])(\d+)", part)) is None:
                raise ValueError(
                    f"{options.gold}, line {number}: {part!r:.60} is no alignment: give 0-0 for "
                    "sure and 1?2 for possible links"
                )
            i, j = int(link[1]), int(link[3])
            if i >= len(source) or j >= len(target):
                raise ValueError(f"{options.gold}, line {number}: there is no word {i}-{j}")
            links[link[2]].add((i, j))
        gold = frozenset(links["-"]), frozenset(links["-"] | links["?"])
        pairs.append(AlignedPair(row["source"], row["target"], source, target, *gold))
    if not any(pair.possible for pair in pairs):  # all heads would be equally wrong
        raise ValueError(f"{options.gold} has no links: give 0-0 (sure) and 1?2 (possible)")
    return pairs


# --- the built-in corpus ------------------------------------------------------------------------


def aligned_number(number: int) -> AlignedPair:
    """A number below a million in both languages, with the alignment of its parts.

    "twenty-three" has the parts "twenty" and "three", "dreiundzwanzig" has "drei", "und" and
    "zwanzig". "und" has no translation; a link of it to either neighbor is possible.
    """
    texts = number_words(number)
    english, german, sure = number_parts(number)
    possible = set(sure)
    for place, part in enumerate(german):
        if part == "und":
            possible |= {(i, place) for i, j in sure if abs(j - place) == 1}
    return AlignedPair(
        texts["source"],
        texts["target"],
        _spans(english, texts["source"]),
        _spans(german, texts["target"]),
        frozenset(sure),
        frozenset(possible),
    )


def _spans(parts: list[str], text: str) -> tuple[tuple[int, int], ...]:
    """Where each part is in a text that has them in this order."""
    spans, first = [], 0
    for part in parts:
        first = text.index(part, first)
        spans.append((first, first + len(part)))
        first += len(part)
    return tuple(spans)
