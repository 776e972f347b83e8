"""Rows of text to ids, and ids to batches of a token budget with little padding (5.1).

Shapes: B batch, S source, T target.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import Sampler
from transformers import PreTrainedTokenizerBase

from .loss_vanilla import IGNORED_LABEL


@dataclass(frozen=True)
class EncodedPairs:
    """Sentence pairs as ids.

    Attributes:
        rows: `input_ids` and `labels`, both ending in `</s>`.
        source_lengths: `(N,)` tokens of each source.
        target_lengths: `(N,)` tokens of each target.
        blank: pairs left out because a side is empty.
        too_long: pairs left out because a side has more than the permitted tokens.
    """

    rows: Dataset
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    blank: int
    too_long: int


def encode_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int
) -> EncodedPairs:
    """Tokenize `source` and `target`; pairs with an empty or an overlong side are counted out.

    Args:
        pairs: rows of `source` and `target`.
        tokenizer: of both languages.
        max_length: tokens a side may have, `</s>` included.

    Raises:
        ValueError: no pair is left.
    """

    def lengths(texts: list[str], rows: list[list[int]]) -> list[int]:
        return [len(row) if text.strip() else 0 for text, row in zip(texts, rows, strict=True)]

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        ids = tokenizer(batch["source"], verbose=False).input_ids
        labels = tokenizer(text_target=batch["target"], verbose=False).input_ids
        return {
            "input_ids": ids,
            "labels": labels,
            "source_length": lengths(batch["source"], ids),
            "target_length": lengths(batch["target"], labels),
        }

    rows = pairs.map(encode, batched=True, remove_columns=pairs.column_names, desc="Tokenizing")
    rows = rows.with_format("numpy")
    source, target = np.asarray(rows["source_length"]), np.asarray(rows["target_length"])
    is_blank = np.minimum(source, target) == 0
    is_long = np.maximum(source, target) > max_length
    keep = np.flatnonzero(~is_blank & ~is_long)
    if not len(keep):
        raise ValueError(
            f"no sentence pair to use: of {len(rows)}, {is_blank.sum()} have an empty side and "
            f"{is_long.sum()} have more than {max_length} tokens"
        )
    if len(keep) < len(rows):
        rows = rows.select(keep)
    return EncodedPairs(
        rows=rows.select_columns(["input_ids", "labels"]),
        source_lengths=source[keep],
        target_lengths=target[keep],
        blank=int(is_blank.sum()),
        too_long=int((is_long & ~is_blank).sum()),
    )


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
    and epoch alone: any place of any epoch can be returned to.

    Args:
        source_lengths: `(N,)` tokens of each source.
        target_lengths: `(N,)` tokens of each target.
        tokens_per_batch: padded tokens of either side, at most.
        seed: of the shuffling.

    Raises:
        ValueError: there is no sentence, or one alone exceeds the budget.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        *,
        tokens_per_batch: int,
        seed: int = 0,
    ) -> None:
        source, target = np.asarray(source_lengths), np.asarray(target_lengths)
        if not len(source):
            raise ValueError("no sentences to batch")
        # sources rise within one target length and fall within the next: neighbours stay alike
        turn = np.where(target % 2, -source, source)
        order = np.lexsort((turn, target))
        self._bounds = batch_bounds(np.maximum(source, target)[order], tokens_per_batch)
        is_new = (np.diff(source[order]) != 0) | (np.diff(target[order]) != 0)
        self._run = np.empty(len(order), dtype=np.int64)  # rank of a sentence's pair of lengths
        self._run[order] = np.concatenate(([0], np.cumsum(is_new)))
        self._seed = seed
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that iteration will run through."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches(self._epoch))

    def batches(self, epoch: int) -> list[list[int]]:
        """All batches of an epoch, each a list of row numbers."""
        draw = np.random.default_rng((self._seed, epoch))
        shuffled = draw.permutation(len(self._run))
        order = shuffled[np.argsort(self._run[shuffled], kind="stable")]
        batches = [rows.tolist() for rows in np.split(order, self._bounds[1:-1])]
        return [batches[i] for i in draw.permutation(len(batches))]


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
        place, per_epoch = self._first, len(self._sampler)
        while True:
            epoch = place // per_epoch
            batches = self._sampler.batches(epoch)
            while place // per_epoch == epoch:
                yield batches[place % per_epoch]
                place += self._stride


class PairCollator:
    """Encoded rows to padded tensors.

    Args:
        pad_token_id: fills `input_ids`; labels are filled with -100.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[dict[str, Sequence[int]]]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` `(B, S)`, `labels` `(B, T)`, all int64."""
        input_ids = padded([row["input_ids"] for row in rows], self.pad_token_id)
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        return {
            "input_ids": input_ids,
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths.unsqueeze(1)).long(),
            "labels": padded([row["labels"] for row in rows], IGNORED_LABEL),
        }


def padded(sequences: Sequence[Sequence[int]], value: int) -> Tensor:
    """Sequences of ids as one `(B, L)` int64 tensor, filled up on the right."""
    longest = max(len(sequence) for sequence in sequences)
    table = np.full((len(sequences), longest), value, dtype=np.int64)
    for row, sequence in zip(table, sequences, strict=True):
        row[: len(sequence)] = sequence
    return torch.from_numpy(table)
