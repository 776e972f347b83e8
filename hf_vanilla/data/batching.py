"""Which rows form a batch: of a token budget with little padding (5.1), or of equal number.

Shapes: B batch, L any length, N sentence pairs, S source, T target.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from hf_vanilla.models.loss_vanilla import IGNORED_LABEL

if TYPE_CHECKING:  # its import takes long, and a translator has no tables
    import pyarrow as pa

EMPTY_ROW = -1  # number of a row that only fills a batch up to its shape


def batch_bounds(longest: Sequence[int] | np.ndarray, tokens_per_batch: int) -> np.ndarray:
    """Where to cut sorted sentences into batches whose padded size stays within the budget.

    The loop runs once per group of equal lengths and per batch, not once per sentence.

    Args:
        longest: `(N,)` tokens of each sentence's longer side, in the order of batching.
        tokens_per_batch: sentences times longest sentence, at most.

    Returns:
        `(batches + 1,)` indices; batch i holds sentences `bounds[i]` to `bounds[i + 1] - 1`.

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
    bounds, start, widest = [0], 0, 0  # widest: tokens of the current batch's longest sentence
    for end in ends.tolist():
        while start < end:
            width = max(widest, int(longest[start]))
            free = tokens_per_batch // width - (start - bounds[-1])
            if free <= 0:
                bounds.append(start)
                widest = 0
                continue
            start, widest = min(start + free, end), width
    if start > bounds[-1]:
        bounds.append(start)
    return np.asarray(bounds)


def bucket_widths(longest: np.ndarray, buckets: int) -> tuple[int, ...]:
    """Up to `buckets` widths, the smallest first, that pad sentences least.

    Args:
        longest: `(N,)` tokens of each sentence's longer side, at least one sentence.
        buckets: how many widths; each sentence is padded to the next of them.
    """
    lengths, counts = np.unique(longest, return_counts=True)
    below = counts.cumsum()  # sentences of up to that length
    # padded tokens of all sentences up to each length, of which the last is a width
    tokens, chosen = below * lengths, []
    for _ in range(min(buckets, len(lengths)) - 1):
        # rows: the width before; columns: the last one
        with_one_more = tokens[:, None] + (below - below[:, None]) * lengths
        with_one_more[np.tril_indices(len(lengths))] = np.iinfo(np.int64).max
        with_one_more[0, 0] = tokens[0]
        chosen.append(with_one_more.argmin(axis=0))
        tokens = with_one_more.min(axis=0)
    widths = [len(lengths) - 1]
    for before in reversed(chosen):
        widths.append(int(before[widths[-1]]))
    return tuple(sorted({int(lengths[index]) for index in widths}))


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of sentences of similar length, limited by tokens instead of sentences (5.1).

    Sentences are sorted by target and source length and cut into batches at the token budget. Each
    epoch shuffles the sentences of equal source and target length among each other, and then the
    batches. So every epoch has the same number of batches and contains each sentence exactly once.

    The order is a function of seed and epoch alone, whatever was read before, so a resumed run
    continues with the same batches. One epoch's order is kept at a time: with the sorted order
    that is 8 bytes a sentence (two int32 arrays), 0.8 GB for 100 million.

    Args:
        source_lengths: `(N,)` tokens of each source.
        target_lengths: `(N,)` tokens of each target.
        tokens_per_batch: padded tokens of either side, at most.
        seed: of the shuffle; 0 or more.
        multiple_of: halve large batches until their number is a multiple of this, for example of
            the processes that share them.
        widths: to which both sides are padded, rising, up to the longest sentence at least; a
            batch then has as many rows as the budget allows, with `EMPTY_ROW` at its end, so that
            there are no more shapes than widths. Empty: each batch has a shape of its own.

    Raises:
        ValueError: there is no sentence, one alone exceeds the budget, or there are too few
            sentences for `multiple_of` batches.

    Attributes:
        source_padding: share of padding in the padded source batches, in [0, 1).
        target_padding: the same for the target.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        *,
        tokens_per_batch: int,
        seed: int = 0,
        multiple_of: int = 1,
        widths: Sequence[int] = (),
    ) -> None:
        source, target = (np.asarray(n, dtype=np.int32) for n in (source_lengths, target_lengths))
        if not len(source):
            raise ValueError("no sentences to batch: the training data are empty")
        # source lengths rise within one target length and fall within the next, so they are
        # similar where one target length ends and the next begins
        signed = np.where(target % 2, -source, source)
        longest = np.maximum(source, target)
        if widths:
            longest = np.asarray(widths)[np.searchsorted(widths, longest)]
        keys = (signed, target, longest) if widths else (signed, target)
        self._order = np.lexsort(keys).astype(np.int32)
        del signed, keys
        source, target, longest = (n[self._order] for n in (source, target, longest))
        bounds = batch_bounds(longest, tokens_per_batch)
        needed = -(-(len(bounds) - 1) // multiple_of) * multiple_of
        if bounds[-1] < needed:
            raise ValueError(
                f"{bounds[-1]} sentences are too few for {needed} batches, a multiple of "
                f"{multiple_of} processes: use fewer processes or more text"
            )
        while (len(bounds) - 1) % multiple_of:  # halve the batch with the most sentences
            largest = int(np.diff(bounds).argmax())
            middle = (bounds[largest] + bounds[largest + 1]) // 2
            bounds = np.insert(bounds, largest + 1, middle)
        self._bounds = bounds
        self._sizes: np.ndarray | None = None  # rows of each batch with its empty ones
        padded_sides = [
            (np.maximum.reduceat(n, bounds[:-1]) * np.diff(bounds)).sum() for n in (source, target)
        ]
        if widths:
            width = np.maximum.reduceat(longest, bounds[:-1])
            self._sizes = tokens_per_batch // width
            padded_sides = [(self._sizes * width).sum()] * 2
        self.source_padding, self.target_padding = (
            1 - int(lengths.sum(dtype=np.int64)) / int(tokens)
            for lengths, tokens in zip((source, target), padded_sides, strict=True)
        )
        is_new = (np.diff(source) != 0) | (np.diff(target) != 0)
        # group i of equal lengths on both sides is `_order[_groups[i] : _groups[i + 1]]`
        self._groups = np.concatenate(([0], np.flatnonzero(is_new) + 1, [len(source)]))
        self._seed = seed
        self._epoch = 0
        self._shuffled: tuple[int, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self._epoch
        return (self.batch(epoch, index) for index in range(len(self)))

    def __getitem__(self, number: int) -> list[int]:
        """Row numbers of batch `number` of a run, epoch after epoch without a gap."""
        return self.batch(*divmod(number, len(self)))

    def batches(self, epoch: int) -> list[list[int]]:
        """Row numbers of all batches of an epoch, which take memory."""
        return [self.batch(epoch, index) for index in range(len(self))]

    def batch(self, epoch: int, index: int) -> list[int]:
        """Row numbers of one batch of an epoch."""
        if self._shuffled is None or self._shuffled[0] != epoch:
            # methods of RandomState are frozen, those of Generator may change
            bits = np.random.PCG64(np.random.SeedSequence((self._seed, epoch)))
            generator = np.random.RandomState(bits)
            rows = self._order.copy()
            for start, end in pairwise(self._groups.tolist()):
                generator.shuffle(rows[start:end])
            self._shuffled = (epoch, rows, generator.permutation(len(self)))
        _, rows, batches = self._shuffled
        number = batches[index]
        found = rows[self._bounds[number] : self._bounds[number + 1]].tolist()
        size = len(found) if self._sizes is None else self._sizes[number]
        return found + [EMPTY_ROW] * (size - len(found))


class PairCollator:
    """Encoded rows to padded tensors.

    Rows are dicts, or the Arrow table that a dataset `with_format("arrow")` returns for a list of
    row numbers, which is ten times as fast: `DataLoader(rows.with_format("arrow"),
    sampler=batch_sampler, batch_size=None, collate_fn=collator)`.

    Args:
        pad_token_id: pads `input_ids`; labels are padded with -100.

    Examples:
        >>> from hf_vanilla import PairCollator
        >>> rows = [{"input_ids": [5, 1], "labels": [6, 1]}, {"input_ids": [7, 1], "labels": [1]}]
        >>> PairCollator(pad_token_id=0)(rows)["labels"]
        tensor([[   6,    1],
                [   1, -100]])
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(
        self, rows: "Sequence[dict[str, Sequence[int]]] | Sequence[pa.Table] | pa.Table"
    ) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` `(B, S)`, `labels` `(B, T)`, all int64."""
        if isinstance(rows, list) and hasattr(rows[0], "column_names"):
            if len(rows) > 1:
                raise ValueError(
                    f"{len(rows)} items, but one is a whole batch: set per_device_train_batch_size "
                    "and per_device_eval_batch_size to 1"
                )
            (rows,) = rows  # DataLoader's list of one item, and the item is a whole batch
        ids, lengths = _concatenated(rows, "input_ids")
        input_ids, mask = _padded_table(ids, lengths, self.pad_token_id)
        labels, _ = _padded_table(*_concatenated(rows, "labels"), IGNORED_LABEL)
        return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}


def filled_up(
    batch: dict[str, Tensor], rows: int, widths: Sequence[int], pad_token_id: int
) -> dict[str, Tensor]:
    """A batch of `PairCollator` with `rows` rows, both sides padded to the next of `widths`.

    A new row has no label and one real token, so that it attends to something.
    """
    longest = max(batch["input_ids"].shape[1], batch["labels"].shape[1])
    width = min(width for width in widths if width >= longest)
    fillers = {"input_ids": pad_token_id, "attention_mask": 0, "labels": IGNORED_LABEL}
    filled = {
        name: torch.nn.functional.pad(
            ids, (0, width - ids.shape[1], 0, rows - len(ids)), value=fillers[name]
        )
        for name, ids in batch.items()
    }
    filled["attention_mask"][len(batch["labels"]) :, 0] = 1
    return filled


def padded_with_mask(sequences: Sequence[Sequence[int]], value: int) -> tuple[Tensor, Tensor]:
    """Sequences of ids as `(B, L)` int64, padded on the right with `value`, and their mask.

    The attention mask `(B, L)`, int64, is 1 where a row has a token.
    """
    lengths = np.array([len(sequence) for sequence in sequences])
    return _padded_table(np.concatenate(sequences), lengths, value)


def _concatenated(rows: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The sequences of one column in one 1-D array, and the `(B,)` lengths."""
    if hasattr(rows, "column_names"):  # an Arrow table
        column = rows.column(name).combine_chunks()
        return column.flatten().to_numpy(), np.diff(column.offsets.to_numpy())
    sequences = [row[name] for row in rows]
    return np.concatenate(sequences), np.array([len(sequence) for sequence in sequences])


def _padded_table(ids: np.ndarray, lengths: np.ndarray, value: int) -> tuple[Tensor, Tensor]:
    """Rows of `(B,)` lengths as `(B, L)`, padded with `value`, and their mask, both int64."""
    is_real = np.arange(lengths.max()) < lengths[:, None]
    table = np.full(is_real.shape, value, dtype=np.int64)
    table[is_real] = ids
    return torch.from_numpy(table), torch.from_numpy(is_real.astype(np.int64))


# --- rows of equal size --------------------------------------------------------------------------


@dataclass(frozen=True)
class RowOrder:
    """Micro-batches of equal size, epoch after epoch without a gap.

    Attributes:
        rows: how many there are; None: endlessly many, which come by their numbers.
        size: rows of a micro-batch.
        seed: of the order.
    """

    rows: int | None
    size: int
    seed: int

    def __getitem__(self, number: int) -> list[int]:
        """Row numbers of micro-batch `number` of the run."""
        indices = range(number * self.size, (number + 1) * self.size)
        if self.rows is None:
            return list(indices)
        places = (divmod(index, self.rows) for index in indices)
        return [int(shuffled(self.rows, self.seed, epoch)[row]) for epoch, row in places]


@lru_cache(maxsize=2)
def shuffled(count: int, *key: int) -> np.ndarray:
    """Numbers from 0 to `count` - 1 in an order that depends on the key alone; read it only."""
    return np.random.default_rng(key).permutation(count)
