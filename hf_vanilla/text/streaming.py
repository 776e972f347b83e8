"""Streaming datasets: windows of a stream, each sorted by length and shuffled."""

import logging
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import accumulate, chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import IterableDataset
from transformers import PreTrainedTokenizerBase

from hf_vanilla.data.batching import TokenBatchSampler

from .encoding import ENCODED, DroppedPairs, LengthLimits, encode_texts

logger = logging.getLogger(__name__)

POSITION = ("stream", "epoch", "window", "used", "dropped", "divisions")  # what a saved state has


@dataclass(frozen=True)
class _Window:
    """Some neighbours of the stream, encoded and divided into batches.

    Attributes:
        table: ids of the pairs within the limits, without those of earlier divisions.
        sampler: the batches; None where the table is empty.
        pairs: how many are within the limits.
        dropped: pairs beyond the limits.
        following: state of the stream behind the window.
    """

    table: pa.Table
    sampler: TokenBatchSampler | None
    pairs: int
    dropped: DroppedPairs
    following: dict[str, Any]

    def __len__(self) -> int:
        return 0 if self.sampler is None else len(self.sampler)


class StreamedBatches:
    """Endless token batches of a stream that is read again in each epoch (5.1).

    The stream is read one window at a time. A window is encoded, sorted by length, cut into batches
    and shuffled like a small epoch, so memory holds one window whatever the size of the dataset.
    The batches and their order are a function of stream, window size, budget and seed. Every
    process reads the whole stream and takes its share of the batches, so steps do not depend on the
    number of processes; the price is that each process encodes the others' sentences too.

    `batches[i]` is batch number i as a table for `PairCollator`. Numbers must rise, since a stream
    is read forwards. A saved state counts pairs, not batches: a run may continue with batches of
    another size, and each epoch still has every pair once. Datasets of Parquet or Arrow files
    continue without reading what came before.

    Args:
        pairs: rows of `source` and `target`.
        tokenizer: of both languages.
        limits: which pairs are used; the others are dropped and counted.
        tokens_per_batch: most tokens per side, padding included.
        window_pairs: pairs read at once.
        seed: of the shuffling.

    Raises:
        ValueError: a batch could not hold every sentence within the limits.
    """

    def __init__(
        self,
        pairs: IterableDataset,
        tokenizer: PreTrainedTokenizerBase,
        limits: LengthLimits,
        *,
        tokens_per_batch: int,
        window_pairs: int,
        seed: int = 0,
    ) -> None:
        if tokens_per_batch < limits.max_length:
            raise ValueError(
                f"tokens_per_batch={tokens_per_batch} is smaller than max_length="
                f"{limits.max_length}: a batch must hold one sentence"
            )
        # a copy: a stream's position belongs to the object
        self._pairs = pairs.select_columns(["source", "target"])
        self._tokenizer, self._limits = tokenizer, limits
        self._budget, self._window_pairs, self._seed = tokens_per_batch, window_pairs, seed
        self._beginning = self._pairs.state_dict()
        self._divisions: list[list[int]] = []  # of the current window: earlier budgets, and pairs
        self._load(self._beginning, epoch=0, window=0, used=0, dropped=DroppedPairs())
        self._first = 0

    def _load(
        self, stream: dict[str, Any], *, epoch: int, window: int, used: int, dropped: DroppedPairs
    ) -> None:
        """Begin to read at a window: its number over all epochs, and this epoch's pairs so far."""
        self._stream, self._epoch, self._number = stream, epoch, window
        self._used, self._dropped = used, dropped
        self._rows: Iterator[dict[str, str]] | None = None
        self._window: _Window | None = None

    def describe(self) -> str:
        """The budget in words."""
        return f"up to {self._budget:,} tokens a side"

    def __getitem__(self, number: int) -> pa.Table:
        """Batch `number`, counted from 0 or from what `load_state_dict` was given.

        Raises:
            ValueError: the number lies before the current window, or an epoch has no pair within
                the limits.
        """
        window = self._window_of(number)
        assert window.sampler is not None
        return window.table.take(self._rows_of(window.sampler, number - self._first))

    def _window_of(self, number: int) -> _Window:
        """Read until the window with batch `number`, which is then the current one."""
        if number < self._first:
            raise ValueError(
                f"batch {number} lies before the current window, which starts at {self._first}: a "
                "stream is only read forwards"
            )
        window = self._read() if self._window is None else self._window
        while number >= self._first + len(window):
            self._first += len(window)
            self._used += window.pairs
            self._divisions = []
            self._dropped += window.dropped
            self._number, self._stream = self._number + 1, window.following
            window = self._read()
        self._window = window
        return window

    def _read(self) -> _Window:
        """The window at the current position; at the end of an epoch the first of the next."""
        while True:
            if self._rows is None:
                self._pairs.load_state_dict(self._stream)
                self._rows = iter(self._pairs)
            rows = list(islice(self._rows, self._window_pairs))
            if rows:
                return self._encode(rows, self._pairs.state_dict())
            self._end_epoch()

    def _encode(self, rows: list[dict[str, str]], following: dict[str, Any]) -> _Window:
        texts = {side: [row[side] for row in rows] for side in ("source", "target")}
        table = pa.table(encode_texts(self._tokenizer, texts), schema=ENCODED.arrow_schema)
        source, target = (table.column(f"{s}_length").to_numpy() for s in ("source", "target"))
        reasons = self._limits.drop_reasons(source, target)
        within = keep = np.flatnonzero(reasons == 0)
        for budget, pairs in self._divisions:
            earlier = self._sampler(source[keep], target[keep], budget)
            if earlier is None:
                break
            batches = (self._rows_of(earlier, place) for place in range(len(earlier)))
            order = list(chain.from_iterable(batches))
            keep = np.sort(keep[order[pairs:]])
        sampler = self._sampler(source[keep], target[keep], self._budget)
        kept = table.select(["input_ids", "labels"]).take(keep)
        return _Window(kept, sampler, len(within), DroppedPairs.count(reasons), following)

    def _sampler(
        self, source: np.ndarray, target: np.ndarray, budget: int
    ) -> TokenBatchSampler | None:
        """The batches of these lengths; None where there are none."""
        if not len(source):
            return None
        return TokenBatchSampler(source, target, tokens_per_batch=budget, seed=self._seed)

    def _rows_of(self, sampler: TokenBatchSampler, place: int) -> list[int]:
        """Rows of a batch of the current window."""
        return sampler.batch(self._number, place)

    def _end_epoch(self) -> None:
        """Report the dropped pairs, and begin again."""
        dropped = self._dropped.describe(self._limits)
        if not self._used:
            raise ValueError(f"no sentence pair to use in a whole epoch of the stream: {dropped}")
        logger.info("epoch %d of the stream: dropped: %s", self._epoch, dropped)
        self._load(
            self._beginning,
            epoch=self._epoch + 1,
            window=self._number,
            used=0,
            dropped=DroppedPairs(),
        )

    def state_dict(self, number: int) -> dict[str, Any]:
        """The position of batch `number`, from which it and all later ones can be made; JSON-able.

        It names the window by the state of the stream in front of it, and the batch by the pairs of
        the window that come before it: `divisions` lists the budgets by which the window was
        divided so far, each with the pairs that were used of that division.
        """
        self._window_of(number)
        return {
            "stream": self._stream,
            "epoch": self._epoch,
            "window": self._number,
            "used": self._used,
            "dropped": list(astuple(self._dropped)),
            "divisions": [
                *self._divisions,
                [self._budget, self._pairs_before()[number - self._first]],
            ],
        }

    def load_state_dict(self, state: dict[str, Any], number: int) -> None:
        """Continue at a saved position, whose first batch now has the number `number`.

        With another budget, the pairs of the window that are left are divided anew.

        Raises:
            ValueError: the state is incomplete, as in checkpoints of earlier versions.
        """
        if missing := [name for name in POSITION if name not in state]:
            raise ValueError(
                f"the checkpoint lacks the position in the stream ({', '.join(missing)}), as those "
                "of earlier versions do: resume it with the version that wrote it, or choose "
                "another output_dir to start anew"
            )
        self._load(
            state["stream"],
            epoch=state["epoch"],
            window=state["window"],
            used=state["used"],
            dropped=DroppedPairs(*state["dropped"]),
        )
        self._divisions = [list(division) for division in state["divisions"]]
        skipped = 0
        if self._divisions[-1][0] == self._budget:
            _, skipped = self._divisions.pop()
        self._window = self._read()
        self._first = number - self._pairs_before().index(skipped)

    def _pairs_before(self) -> list[int]:
        """Pairs of the current window in front of each of its batches, and in all of them."""
        window = self._window
        sampler = None if window is None else window.sampler
        if sampler is None:
            return [0]
        sizes = (len(self._rows_of(sampler, place)) for place in range(len(sampler)))
        return list(accumulate(sizes, initial=0))
