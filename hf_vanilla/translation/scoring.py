"""Log-probabilities of given translations, by forced decoding: to filter and to rerank.

Shapes: B batch, S source, T target, V vocabulary.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.data.batching import batch_bounds, padded
from hf_vanilla.data.corpus import read_pairs
from hf_vanilla.files import check_output_file

from .attentions import readable_tokens, start_token_id
from .file_translation import STANDARD_STREAM, open_output
from .translator import check_tokens_per_batch, load_translator

FORMATS = ("tsv", "jsonl")
WINDOW_PAIRS = 8192  # sorted by length together


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Log-probability of each given translation, per sentence and per token."""

    model: str = field(metadata={"help": "model folder or Hub id"})
    source: str = field(metadata={"help": "file of source sentences, plain or .gz"})
    target: str = field(metadata={"help": "file of translations, one per source line"})
    output: str = field(default="-", metadata={"help": "file for the scores; -: stdout"})
    overwrite: bool = field(default=False, metadata={"help": "replace an existing output file"})
    format: str = field(
        default="tsv",
        metadata={"help": "tsv: log-probability in nats, tokens; jsonl: those of each token too"},
    )
    tokens_per_batch: int = field(
        default=4096, metadata={"help": "tokens of the longer side in a batch, padding included"}
    )

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"format={self.format!r}: choose one of {', '.join(FORMATS)}")
        check_tokens_per_batch(self.tokens_per_batch)


def score_files(options: ScoreOptions) -> Path | None:
    """Score the pairs of two files; returns the file written, None for stdout.

    Raises:
        ValueError: the files have different numbers of lines, one side of a pair is blank or too
            long, or the folder has no model.
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


@torch.inference_mode()
def log_probs_of_pairs(
    model: PreTrainedModel,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    tokens_per_batch: int = 4096,
) -> list[list[float]]:
    """Log-probability in nats of every target token, given the source and the tokens before it.

    Args:
        model: an encoder-decoder in evaluation mode.
        pairs: input ids and target ids of each pair; the targets have no start token.
        tokens_per_batch: upper limit of pairs times longest side.

    Returns:
        One list per pair, in the same order, with one number per target id.
    """
    longest = [max(len(source), len(target)) for source, target in pairs]
    order = sorted(range(len(pairs)), key=lambda i: -longest[i])
    lengths = np.minimum([longest[i] for i in order], tokens_per_batch)
    found: list[list[float]] = [[] for _ in pairs]
    for begin, end in pairwise(batch_bounds(lengths, tokens_per_batch).tolist()):
        batch = order[begin:end]
        log_probs = _batch_log_probs(model, [pairs[i] for i in batch]).tolist()
        for i, row in zip(batch, log_probs, strict=True):
            found[i] = row[: len(pairs[i][1])]
    return found


def _batch_log_probs(
    model: PreTrainedModel, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> torch.Tensor:
    """`(B, T)`; entries behind a pair's target are meaningless."""
    pad, device = model.config.pad_token_id, model.device
    input_ids = padded([source for source, _ in pairs], pad)  # (B, S)
    targets = padded([target for _, target in pairs], pad).to(device)  # (B, T)
    lengths = torch.tensor([len(source) for source, _ in pairs])
    attention_mask = (torch.arange(input_ids.shape[1]) < lengths.unsqueeze(1)).long()
    start = targets.new_full((len(pairs), 1), start_token_id(model))
    logits = model(
        input_ids=input_ids.to(device),
        attention_mask=attention_mask.to(device),
        # padding is on the right, and the decoder is causal: no decoder_attention_mask is needed
        decoder_input_ids=torch.cat([start, targets[:, :-1]], dim=1),
        use_cache=False,
    ).logits  # (B, T, V)
    log_probs = logits.float().log_softmax(dim=-1)
    return log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
