"""Sets that are read while training: windows of a stream, each sorted by length and shuffled."""

import logging
from collections.abc import Iterator
from dataclasses import astuple
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import IterableDataset
from transformers import PreTrainedTokenizerBase

from .batching import TokenBatchSampler
from .encoding import ENCODED, DroppedPairs, LengthLimits, encode_texts

logger = logging.getLogger(__name__)


class StreamedBatches:
    """Endless token batches of a stream that is read anew for each epoch (5.1).

    The stream is read a window at a time. A window is encoded, sorted by length, cut into batches
    and shuffled like a small epoch, so memory holds one window whatever the size of the set. The
    batches and their order are a function of the stream, the window and the seed: every process
    reads the whole stream and takes its share of the batches, and steps are the same whatever the
    number of processes. What this costs is that each process encodes the others' sentences too.

    `state_dict` tells where the current window begins. A run that goes on reads the stream from
    there; sets of Parquet or Arrow files find the place without reading what lies before it.

    Args:
        pairs: rows of `source` and `target`.
        tokenizer: of both languages.
        limits: which pairs are trained on; the others are counted.
        tokens_per_batch: padded tokens of either side, at most.
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
        # a view of its own: a stream remembers how far anybody has read it
        self._pairs = pairs.select_columns(["source", "target"])
        self._tokenizer, self._limits = tokenizer, limits
        self._budget, self._window_pairs, self._seed = tokens_per_batch, window_pairs, seed
        # first: the first batch of the epoch; place: that of the window; window: over all epochs
        self._state: dict[str, Any] = {"epoch": 0, "first": 0, "window": 0, "place": 0}
        self._beginning = self._pairs.state_dict()
        self._state |= {"stream": self._beginning, "left_out": astuple(DroppedPairs())}

    def state_dict(self) -> dict[str, Any]:
        """Where the window of the last batch begins: in the stream, and in the run."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next reading at a window that `state_dict` told of."""
        self._state = dict(state)

    def batches(self, first: int, stride: int) -> Iterator[pa.Table]:
        """Every `stride`-th batch of the run from batch `first` on, as tables for `PairCollator`.

        Raises:
            ValueError: `first` lies before the window at which reading begins, or an epoch has no
                pair within the limits.
        """
        if first < self._state["place"]:
            raise ValueError(f"batch {first} is over: reading begins at {self._state['place']}")
        for table, sampler in self._windows():
            start, window = self._state["place"], self._state["window"]
            while first < start + len(sampler):
                yield table.take(sampler.batch(window, first - start))
                first += stride

    def _windows(self) -> Iterator[tuple[pa.Table, TokenBatchSampler]]:
        """Window after window, encoded, with the order of its batches; the state is up to date."""
        while True:
            self._pairs.load_state_dict(self._state["stream"])
            rows = iter(self._pairs)
            while window := list(islice(rows, self._window_pairs)):
                following = self._pairs.state_dict()
                table, sampler = self._encode(window)
                if sampler is not None:
                    yield table, sampler
                    self._state["place"] += len(sampler)
                self._state |= {"window": self._state["window"] + 1, "stream": following}
            self._end_epoch()

    def _encode(self, window: list[dict[str, str]]) -> tuple[pa.Table, TokenBatchSampler | None]:
        """Ids of the pairs within the limits, and their batches; None where no pair is."""
        texts = {side: [row[side] for row in window] for side in ("source", "target")}
        table = pa.table(encode_texts(self._tokenizer, texts), schema=ENCODED.arrow_schema)
        source, target = (table.column(f"{s}_length").to_numpy() for s in ("source", "target"))
        reasons = self._limits.drop_reasons(source, target)
        self._state["left_out"] = astuple(self._left_out() + DroppedPairs.count(reasons))
        keep = np.flatnonzero(reasons == 0)
        if not len(keep):
            return table, None
        sampler = TokenBatchSampler(
            source[keep], target[keep], tokens_per_batch=self._budget, seed=self._seed
        )
        return table.select(["input_ids", "labels"]).take(keep), sampler

    def _left_out(self) -> DroppedPairs:
        return DroppedPairs(*self._state["left_out"])

    def _end_epoch(self) -> None:
        """Tell what was left out, and begin anew."""
        told = self._left_out().describe(self._limits)
        if self._state["place"] == self._state["first"]:
            raise ValueError(f"no sentence pair to use in a whole epoch of the stream: {told}")
        logger.info("epoch %d of the stream: left out: %s", self._state["epoch"], told)
        self._state |= {"epoch": self._state["epoch"] + 1, "first": self._state["place"]}
        self._state |= {"stream": self._beginning, "left_out": astuple(DroppedPairs())}
