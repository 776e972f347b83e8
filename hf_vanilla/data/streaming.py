"""Streaming datasets: windows of a stream, each sorted by length and shuffled."""

import logging
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import IterableDataset
from transformers import PreTrainedTokenizerBase

from .batching import TokenBatchSampler
from .encoding import ENCODED, DroppedPairs, LengthLimits, encode_texts

logger = logging.getLogger(__name__)

POSITION = ("stream", "epoch", "window", "used", "dropped", "pairs")  # what a saved state has


@dataclass(frozen=True)
class _Window:
    """Some neighbours of the stream, encoded and divided into batches.

    Attributes:
        table: ids of the pairs within the limits.
        sampler: the batches; None where no pair is within the limits.
        dropped: pairs beyond the limits.
        following: state of the stream behind the window.
    """

    table: pa.Table
    sampler: TokenBatchSampler | None
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
    another size. Datasets of Parquet or Arrow files continue without reading what came before.

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
        return window.table.take(window.sampler.batch(self._number, number - self._first))

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
            self._used += window.table.num_rows
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
        keep = np.flatnonzero(reasons == 0)
        sampler = None
        if len(keep):
            sampler = TokenBatchSampler(
                source[keep], target[keep], tokens_per_batch=self._budget, seed=self._seed
            )
        kept = table.select(["input_ids", "labels"]).take(keep)
        return _Window(kept, sampler, DroppedPairs.count(reasons), following)

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
        the window that come before it.
        """
        self._window_of(number)
        return {
            "stream": self._stream,
            "epoch": self._epoch,
            "window": self._number,
            "used": self._used,
            "dropped": list(astuple(self._dropped)),
            "pairs": self._pairs_before()[number - self._first],
        }

    def load_state_dict(self, state: dict[str, Any], number: int) -> None:
        """Continue at a saved position, whose first batch now has the number `number`.

        With another budget the window is divided otherwise: batches of at least as many pairs as
        were used are skipped, so some pairs of this one window may be skipped or seen twice.

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
        self._window = self._read()
        before = self._pairs_before()
        skipped = next(
            (place for place, pairs in enumerate(before) if pairs >= state["pairs"]),
            len(before) - 1,
        )
        self._first = number - skipped

    def _pairs_before(self) -> list[int]:
        """Pairs of the current window in front of each of its batches, and in all of them."""
        window = self._window
        sampler = None if window is None else window.sampler
        if sampler is None:
            return [0]
        sizes = (len(sampler.batch(self._number, place)) for place in range(len(sampler)))
        return list(accumulate(sizes, initial=0))
