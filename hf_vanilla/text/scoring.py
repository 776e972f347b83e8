"""Log-probabilities of given translations, by forced decoding: to filter and to rerank."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hf_vanilla.data.lines import read_pairs
from hf_vanilla.files import check_output_file
from hf_vanilla.options import Options, option

from .attentions import readable_tokens
from .file_translation import STANDARD_STREAM, open_output
from .loading import load_translator
from .n_best import log_probs_of_pairs

FORMATS = ("tsv", "jsonl")
WINDOW_PAIRS = 8192  # sorted by length together


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
        choices=FORMATS,
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
    if options.output != STANDARD_STREAM:
        check_output_file(options.output, overwrite=options.overwrite)
    pairs = read_pairs(options.source, options.target)
    first = next(pairs)  # a missing file is reported before the model is loaded
    model, tokenizer = load_translator(options.model)
    with open_output(options.output) as file:
        window, first_line = [first, *islice(pairs, WINDOW_PAIRS - 1)], 1
        while window:
            texts = [(pair["source"], pair["target"]) for pair in window]
            ids = pair_ids(tokenizer, texts, first_line=first_line)
            scored = log_probs_of_pairs(model, ids, tokens_per_batch=options.tokens_per_batch)
            for (_, target), log_probs in zip(ids, scored, strict=True):
                tokens = readable_tokens(tokenizer, target) if options.format == "jsonl" else None
                file.write(_record(log_probs, tokens) + "\n")
            first_line += len(window)
            window = list(islice(pairs, WINDOW_PAIRS))
    return None if options.output == STANDARD_STREAM else Path(options.output)


def _record(log_probs: list[float], tokens: list[str] | None) -> str:
    """One pair as a line of TSV, or of JSON if `tokens` are given."""
    total = math.fsum(log_probs)
    if tokens is None:
        return f"{total:.4f}\t{len(log_probs)}"
    record = {"log_prob": total, "tokens": tokens, "token_log_probs": log_probs}
    return json.dumps(record, ensure_ascii=False)


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
    sources, targets = zip(*pairs, strict=True)
    sides = {
        "source": (sources, tokenizer(list(sources), verbose=False).input_ids),
        "target": (targets, tokenizer(text_target=list(targets), verbose=False).input_ids),
    }
    limit = tokenizer.model_max_length
    for name, (texts, rows) in sides.items():
        for line, (text, row) in enumerate(zip(texts, rows, strict=True), start=first_line):
            if not text.strip():
                raise ValueError(f"line {line}: the {name} is blank: remove the pair")
            if len(row) > limit:
                raise ValueError(
                    f"line {line}: the {name} has {len(row)} tokens, and the model accepts "
                    f"{limit}: remove the pair"
                )
    return list(zip(sides["source"][1], sides["target"][1], strict=True))
