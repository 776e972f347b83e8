"""Text pairs to token ids, with the pairs that are not fit to train on dropped and counted.

Shapes: N pairs.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

ENCODED = Features(
    {
        "input_ids": ListOf(Value("int32")),
        "labels": ListOf(Value("int32")),
        "source_length": Value("int32"),
        "target_length": Value("int32"),
    }
)
# pairs that are encoded at once and stored together: with this many, a column of lengths fills
# whole pages and is read without touching the ids
ENCODED_AT_ONCE = 10_000


@dataclass(frozen=True)
class LengthLimits:
    """Which pairs are fit to train on.

    Attributes:
        max_length: tokens a side may have, `</s>` included.
        max_length_ratio: tokens of the longer side per token of the shorter side, `</s>` not
            counted; None allows any ratio. fairseq's recipes use 1.5.
    """

    max_length: int
    max_length_ratio: float | None = None

    def drop_reasons(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Why each pair is dropped: 0 it is kept, 1 a side is empty, 2 too long, 3 too unequal.

        Args:
            source: `(N,)` tokens of each source; 0 is an empty one.
            target: `(N,)` tokens of each target; 0 is an empty one.

        Returns:
            `(N,)` int8; the first reason where several apply.
        """
        short, long = np.minimum(source, target), np.maximum(source, target)
        reasons = np.zeros(len(short), dtype=np.int8)
        if self.max_length_ratio is not None:
            reasons[(long - 1) > self.max_length_ratio * (short - 1)] = 3
        reasons[long > self.max_length] = 2
        reasons[short == 0] = 1
        return reasons


@dataclass(frozen=True)
class DroppedPairs:
    """How many pairs are not trained on, by reason.

    Attributes:
        empty: a side is empty.
        too_long: a side has more tokens than allowed.
        too_unequal: one side has too many tokens per token of the other side.
    """

    empty: int = 0
    too_long: int = 0
    too_unequal: int = 0

    @classmethod
    def count(cls, reasons: np.ndarray) -> "DroppedPairs":
        """Count what `LengthLimits.drop_reasons` returned."""
        return cls(*np.bincount(reasons, minlength=4)[1:].tolist())

    def describe(self, limits: LengthLimits) -> str:
        """The counts in words, with the limits they belong to."""
        text = f"{self.empty} with an empty side"
        text += f", {self.too_long} longer than {limits.max_length} tokens"
        if limits.max_length_ratio is not None:
            text += f", {self.too_unequal} beyond a length ratio of {limits.max_length_ratio}"
        return text


@dataclass(frozen=True)
class EncodedPairs:
    """Sentence pairs as token ids, memory-mapped if the text is.

    Attributes:
        rows: `input_ids` and `labels`, both ending in `</s>`.
        source_lengths: `(N,)` int32, tokens of each source.
        target_lengths: `(N,)` int32, tokens of each target.
        dropped: counts of the pairs that are not among the rows.
        kept: `(N,)` number of each row in the text; None where no pair was dropped.
    """

    rows: Dataset
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    dropped: DroppedPairs
    kept: np.ndarray | None = None


def encode_texts(
    tokenizer: PreTrainedTokenizerBase, batch: dict[str, list[str]]
) -> dict[str, list[Any]]:
    """Encode `source` as `input_ids` and `target` as `labels`; a blank text has length 0."""
    options = {"verbose": False, "return_attention_mask": False}
    sides = {
        "source": tokenizer(batch["source"], **options).input_ids,
        "target": tokenizer(text_target=batch["target"], **options).input_ids,
    }
    lengths = {
        f"{side}_length": [
            len(row) if text.strip() else 0 for text, row in zip(batch[side], rows, strict=True)
        ]
        for side, rows in sides.items()
    }
    return {"input_ids": sides["source"], "labels": sides["target"], **lengths}


def encode_pairs(
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    limits: LengthLimits,
    *,
    workers: int = 1,
) -> EncodedPairs:
    """Tokenize `source` and `target`, and drop the pairs outside the limits.

    The ids are stored in the cache of `datasets`, so a second call does not tokenize again.

    Args:
        pairs: rows of `source` and `target`.
        tokenizer: of both languages.
        limits: which pairs are kept.
        workers: processes that share the work.

    Raises:
        ValueError: no pair is left.
    """
    key = _fingerprint(pairs, tokenizer)
    rows = pairs.map(
        lambda batch: encode_texts(tokenizer, batch),
        batched=True,
        batch_size=ENCODED_AT_ONCE,
        writer_batch_size=ENCODED_AT_ONCE,
        remove_columns=pairs.column_names,
        features=ENCODED,
        num_proc=workers if workers > 1 else None,
        new_fingerprint=key,
        desc="Tokenizing",
    )
    return pairs_within(rows, limits, key)


def pairs_within(rows: Dataset, limits: LengthLimits, key: str) -> EncodedPairs:
    """The pairs within the limits.

    Args:
        rows: all pairs, with the columns of `ENCODED`.
        limits: which pairs are kept.
        key: of the rows in the cache of `datasets`.

    Raises:
        ValueError: no pair is left.
    """
    # Arrow columns to numpy directly: as Python lists they would need a hundred times the memory
    source, target = (
        rows.data.column(f"{side}_length").to_numpy() for side in ("source", "target")
    )
    reasons = limits.drop_reasons(source, target)
    dropped, keep = DroppedPairs.count(reasons), reasons == 0
    if not keep.any():
        raise ValueError(f"no sentence pair to use: of {len(rows)}, {dropped.describe(limits)}")
    if not keep.all():
        source, target = source[keep], target[keep]
        # filter() stores its row indices in a cache file; select() would hold them in memory
        rows = rows.filter(
            lambda source, target: limits.drop_reasons(np.array(source), np.array(target)) == 0,
            input_columns=["source_length", "target_length"],
            batched=True,
            batch_size=10 * ENCODED_AT_ONCE,
            new_fingerprint=Hasher.hash((key, limits)),
            desc="Dropping pairs",
        )
    return EncodedPairs(
        rows=rows.select_columns(["input_ids", "labels"]).with_format("numpy"),
        source_lengths=source,
        target_lengths=target,
        dropped=dropped,
        kept=None if keep.all() else np.flatnonzero(keep),
    )


def _fingerprint(pairs: Dataset, tokenizer: PreTrainedTokenizerBase) -> str:
    """A cache key that does not change when the tokenizer is used.

    `datasets` would hash the whole tokenizer, including padding and truncation of its last call.
    """
    state: Any = tokenizer
    if hasattr(tokenizer, "backend_tokenizer"):
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        state = {k: part for k, part in state.items() if k not in ("padding", "truncation")}
        state["class"] = type(tokenizer).__name__
    return Hasher.hash(("encode_pairs", pairs._fingerprint, state))
