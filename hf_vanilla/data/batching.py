"""Rows of text to ids, and ids to batches of a token budget with little padding (5.1).

Shapes: B batch, L any length, N pairs, S source, T target.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from datasets.fingerprint import Hasher
from torch import Tensor
from torch.utils.data import Sampler
from transformers import PreTrainedTokenizerBase

from hf_vanilla.models.loss_vanilla import IGNORED_LABEL

from .shuffling import shuffled_places

ENCODED = Features(
    {
        "input_ids": ListOf(Value("int32")),
        "labels": ListOf(Value("int32")),
        "source_length": Value("int32"),
        "target_length": Value("int32"),
    }
)
# pairs encoded at once and stored side by side: a column of lengths is read without touching the
# ids, and ten thousand lengths fill whole pages
ENCODED_AT_ONCE = 10_000


@dataclass(frozen=True)
class LengthLimits:
    """Which pairs are fit to train on.

    Attributes:
        max_length: tokens a side may have, `</s>` included.
        max_length_ratio: tokens of the longer side per token of the shorter one, `</s>` left out;
            None for any. 1.5 is what fairseq's recipes keep.
    """

    max_length: int
    max_length_ratio: float | None = None

    def reasons(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Why a pair is left out: 0 it is not, 1 a side is empty, 2 too long, 3 too unequal.

        Args:
            source: `(N,)` tokens of each source; 0 is an empty one.
            target: `(N,)` tokens of each target; 0 is an empty one.

        Returns:
            `(N,)` int8; of several reasons the first.
        """
        short, long = np.minimum(source, target), np.maximum(source, target)
        reasons = np.zeros(len(short), dtype=np.int8)
        if self.max_length_ratio is not None:
            reasons[(long - 1) > self.max_length_ratio * (short - 1)] = 3
        reasons[long > self.max_length] = 2
        reasons[short == 0] = 1
        return reasons


@dataclass(frozen=True)
class LeftOut:
    """How many pairs are not trained on, by reason.

    Attributes:
        blank: a side is empty.
        too_long: a side has more than the permitted tokens.
        too_unequal: one side is too many times longer than the other.
    """

    blank: int = 0
    too_long: int = 0
    too_unequal: int = 0

    @classmethod
    def count(cls, reasons: np.ndarray) -> "LeftOut":
        """The counts of what `LengthLimits.reasons` found."""
        return cls(*np.bincount(reasons, minlength=4)[1:].tolist())

    def __add__(self, other: "LeftOut") -> "LeftOut":
        return LeftOut(
            self.blank + other.blank,
            self.too_long + other.too_long,
            self.too_unequal + other.too_unequal,
        )

    def describe(self, limits: LengthLimits) -> str:
        """The counts in words, with the limits that they are of."""
        words = f"{self.blank} with an empty side"
        words += f", {self.too_long} longer than {limits.max_length} tokens"
        if limits.max_length_ratio is not None:
            words += f", {self.too_unequal} beyond a length ratio of {limits.max_length_ratio}"
        return words


@dataclass(frozen=True)
class EncodedPairs:
    """Sentence pairs as ids, memory-mapped where the text is.

    Attributes:
        rows: `input_ids` and `labels`, both ending in `</s>`.
        source_lengths: `(N,)` int32, tokens of each source.
        target_lengths: `(N,)` int32, tokens of each target.
        left_out: the pairs that are not among the rows.
    """

    rows: Dataset
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    left_out: LeftOut


def encode_texts(
    tokenizer: PreTrainedTokenizerBase, batch: dict[str, list[str]]
) -> dict[str, list[Any]]:
    """`source` and `target` as `input_ids` and `labels`, with the length of each; 0 is no text."""
    told = {"verbose": False, "return_attention_mask": False}
    sides = {
        "source": tokenizer(batch["source"], **told).input_ids,
        "target": tokenizer(text_target=batch["target"], **told).input_ids,
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
    """Tokenize `source` and `target` once; pairs that do not keep the limits are counted out.

    The ids are written to the cache of `datasets` as they come, and found there the next time.

    Args:
        pairs: rows of `source` and `target`.
        tokenizer: of both languages.
        limits: which pairs stay.
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
    # whole columns at once, past the rows; a list of them would take a hundred times the room
    source, target = (
        rows.data.column(f"{side}_length").to_numpy() for side in ("source", "target")
    )
    reasons = limits.reasons(source, target)
    left_out, keep = LeftOut.count(reasons), reasons == 0
    if not keep.any():
        told = left_out.describe(limits)
        raise ValueError(f"no sentence pair to use: of {len(rows)}, {told}")
    if not keep.all():
        source, target = source[keep], target[keep]
        # a filter keeps its places in a file of the cache, where a selection holds them in memory
        rows = rows.filter(
            lambda source, target: limits.reasons(np.array(source), np.array(target)) == 0,
            input_columns=["source_length", "target_length"],
            batched=True,
            batch_size=10 * ENCODED_AT_ONCE,
            new_fingerprint=Hasher.hash((key, limits)),
            desc="Leaving out",
        )
    return EncodedPairs(
        rows=rows.select_columns(["input_ids", "labels"]).with_format("numpy"),
        source_lengths=source,
        target_lengths=target,
        left_out=left_out,
    )


def _fingerprint(pairs: Dataset, tokenizer: PreTrainedTokenizerBase) -> str:
    """A name in the cache that stays the same when the tokenizer has been used meanwhile.

    `datasets` would hash all its state, to which padding and truncation of the last call belong.
    """
    told: Any = tokenizer
    if hasattr(tokenizer, "backend_tokenizer"):
        told = json.loads(tokenizer.backend_tokenizer.to_str())
        told = {name: part for name, part in told.items() if name not in ("padding", "truncation")}
        told["class"] = type(tokenizer).__name__
    return Hasher.hash(("encode_pairs", pairs._fingerprint, told))


def batch_bounds(longest: Sequence[int] | np.ndarray, tokens_per_batch: int) -> np.ndarray:
    """Where to cut sorted sentences into batches whose padded size keeps the budget.

    Runs of equal length are cut at once, so that millions of sentences take no time.

    Args:
        longest: `(N,)` tokens of each sentence's longer side, in the order of batching.
        tokens_per_batch: sentences times longest sentence, at most.

    Returns:
        `(batches + 1,)` places; batch i holds the sentences from `bounds[i]` to `bounds[i + 1]`.

    Raises:
        ValueError: one sentence alone exceeds the budget.
    """
    longest = np.asarray(longest)
    if len(longest) and longest.max() > tokens_per_batch:
        raise ValueError(
            f"tokens_per_batch={tokens_per_batch} is smaller than the longest sentence "
            f"({longest.max()} tokens): raise it, or lower max_length"
        )
    ends = np.append(np.flatnonzero(np.diff(longest)) + 1, len(longest))
    bounds, place, tallest = [0], 0, 0
    for end in ends.tolist():
        while place < end:
            height = max(tallest, int(longest[place]))
            room = tokens_per_batch // height - (place - bounds[-1])
            if room <= 0:
                bounds.append(place)
                tallest = 0
                continue
            place, tallest = min(place + room, end), height
    if place > bounds[-1]:
        bounds.append(place)
    return np.asarray(bounds)


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of sentences of like length, holding a token budget rather than a count (5.1).

    Sentences are sorted by target and source length and cut where the budget is full. Every epoch
    shuffles sentences of equal lengths among themselves, and the batches; so each epoch has the
    same number of batches, and each sentence is seen exactly once. The order is a function of seed
    and epoch alone, and every batch of every epoch is computed by itself: no epoch is ever held in
    memory, and any place can be returned to at once.

    Args:
        source_lengths: `(N,)` tokens of each source.
        target_lengths: `(N,)` tokens of each target.
        tokens_per_batch: padded tokens of either side, at most.
        seed: of the shuffling.
        multiple_of: the number of batches becomes a multiple of this, such as the processes that
            share them, by cutting some in two.

    Raises:
        ValueError: there is no sentence, one alone exceeds the budget, or there are too few
            sentences for `multiple_of` batches.

    Attributes:
        source_padding: share of the padded source tokens that is padding, in [0, 1).
        target_padding: the same of the target.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        *,
        tokens_per_batch: int,
        seed: int = 0,
        multiple_of: int = 1,
    ) -> None:
        source, target = (np.asarray(n, dtype=np.int32) for n in (source_lengths, target_lengths))
        if not len(source):
            raise ValueError("no sentences to batch: the training data are empty")
        # sources rise within one target length and fall within the next: neighbours stay alike
        turn = np.where(target % 2, -source, source)
        self._order = np.lexsort((turn, target)).astype(np.int32)
        del turn
        source, target = source[self._order], target[self._order]
        bounds = batch_bounds(np.maximum(source, target), tokens_per_batch)
        self._bounds = _cut_to_a_multiple(bounds, multiple_of)
        self.source_padding, self.target_padding = (
            _padding_share(lengths, self._bounds) for lengths in (source, target)
        )
        is_new = (np.diff(source) != 0) | (np.diff(target) != 0)
        # runs of equal lengths on both sides: run i ends where run i + 1 begins
        self._runs = np.concatenate(([0], np.flatnonzero(is_new) + 1, [len(source)]))
        self._seed = seed
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that iteration will run through."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches(self._epoch))

    def describe(self) -> str:
        """How many batches an epoch has, and how much of them is padding."""
        return (
            f"{len(self)} batches; padding {self.source_padding:.1%} of source and "
            f"{self.target_padding:.1%} of target tokens"
        )

    def batches(self, epoch: int) -> "EpochBatches":
        """All batches of an epoch, each a list of row numbers made when it is asked for."""
        return EpochBatches(self, epoch)

    def batch(self, epoch: int, place: int) -> list[int]:
        """Row numbers of the batch at one place of an epoch."""
        one = np.zeros(1, dtype=np.int64)
        (number,) = shuffled_places(one + place, one + len(self), one, (self._seed, epoch, 0))
        places = np.arange(self._bounds[number], self._bounds[number + 1])
        run = np.searchsorted(self._runs, places, side="right") - 1
        first, size = self._runs[run], self._runs[run + 1] - self._runs[run]
        places = first + shuffled_places(places - first, size, first, (self._seed, epoch, 1))
        return self._order[places].tolist()


class EpochBatches(Sequence[list[int]]):
    """The batches of one epoch in their order.

    Args:
        sampler: knows the sentences.
        epoch: which.
        places: some of them; default: all.
    """

    def __init__(self, sampler: TokenBatchSampler, epoch: int, places: range | None = None) -> None:
        self._sampler, self._epoch = sampler, epoch
        self._places = range(len(sampler)) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return EpochBatches(self._sampler, self._epoch, self._places[place])
        return self._sampler.batch(self._epoch, self._places[place])


def _cut_to_a_multiple(bounds: np.ndarray, multiple_of: int) -> np.ndarray:
    """Cut the batches of most sentences in two until there are a multiple of so many."""
    needed = -(-(len(bounds) - 1) // multiple_of) * multiple_of
    if bounds[-1] < needed:
        raise ValueError(
            f"{bounds[-1]} sentences are too few for {needed} batches, which {multiple_of} "
            "processes would share: use fewer processes or more text"
        )
    while (len(bounds) - 1) % multiple_of:
        widest = int(np.diff(bounds).argmax())
        middle = (bounds[widest] + bounds[widest + 1]) // 2
        bounds = np.insert(bounds, widest + 1, middle)
    return bounds


def _padding_share(lengths: np.ndarray, bounds: np.ndarray) -> float:
    """Padding among the tokens of one side, in [0, 1), when batches are padded to their longest."""
    padded_tokens = (np.maximum.reduceat(lengths, bounds[:-1]) * np.diff(bounds)).sum()
    return 1 - int(lengths.sum(dtype=np.int64)) / int(padded_tokens)


class StepSampler(Sampler[list[int]]):
    """One process's share of an endless stream of batches, grouped into optimizer steps.

    Epochs follow each other without a gap, so every step has the same number of batches and no
    sentence is dropped at an epoch's end. Steps are the same whatever the number of processes.

    Args:
        sampler: the batches of every epoch.
        per_step: batches of one optimizer step, over all processes.
        first_step: steps already made.
        rank: this process.
        processes: how many there are; must divide `per_step`.
    """

    def __init__(
        self,
        sampler: TokenBatchSampler,
        *,
        per_step: int,
        first_step: int = 0,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        if per_step % processes:
            raise ValueError(f"per_step={per_step} is not a multiple of {processes} processes")
        self._sampler = sampler
        self._first = first_step * per_step + rank
        self._stride = processes

    def __iter__(self) -> Iterator[list[int]]:
        for place in count(self._first, self._stride):
            yield self._sampler.batch(*divmod(place, len(self._sampler)))


class PairCollator:
    """Encoded rows to padded tensors.

    It takes rows as dicts, or as the Arrow table that a set `with_format("arrow")` gives for a list
    of numbers, which is ten times as fast: `DataLoader(rows.with_format("arrow"),
    sampler=batch_sampler, batch_size=None, collate_fn=collator)`.

    Args:
        pad_token_id: fills `input_ids`; labels are filled with -100.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(
        self, rows: Sequence[dict[str, Sequence[int]]] | Sequence[pa.Table] | pa.Table
    ) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` `(B, S)`, `labels` `(B, T)`, all int64."""
        if isinstance(rows, list) and isinstance(rows[0], pa.Table):
            (rows,) = rows  # a loader's batch of one table, which is a batch by itself
        ids, lengths = _end_to_end(rows, "input_ids")
        labels, label_lengths = _end_to_end(rows, "labels")
        return {
            "input_ids": _filled(ids, lengths, self.pad_token_id),
            "attention_mask": torch.from_numpy(_is_real(lengths).astype(np.int64)),
            "labels": _filled(labels, label_lengths, IGNORED_LABEL),
        }


def padded(sequences: Sequence[Sequence[int]], value: int) -> Tensor:
    """Sequences of ids as one `(B, L)` int64 tensor, filled up on the right."""
    lengths = np.array([len(sequence) for sequence in sequences])
    return _filled(np.concatenate(sequences), lengths, value)


def _end_to_end(rows: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The sequences of one column in one array, and the `(B,)` length of each."""
    if isinstance(rows, pa.Table):
        column = rows.column(name).combine_chunks()
        return column.flatten().to_numpy(), np.diff(column.offsets.to_numpy())
    sequences = [row[name] for row in rows]
    return np.concatenate(sequences), np.array([len(sequence) for sequence in sequences])


def _is_real(lengths: np.ndarray) -> np.ndarray:
    """`(B, L)` bool: True where a row of this length has a token."""
    return np.arange(lengths.max()) < lengths[:, None]


def _filled(ids: np.ndarray, lengths: np.ndarray, value: int) -> Tensor:
    table = np.full((len(lengths), lengths.max()), value, dtype=np.int64)
    table[_is_real(lengths)] = ids
    return torch.from_numpy(table)
