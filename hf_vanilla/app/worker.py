"""The one thread that computes, and the queue in front of it: requests share batches.

While transformers loads a model it changes torch's defaults for all threads, and what another
thread computes meanwhile goes wrong; so one thread loads and computes everything.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from hf_vanilla.cpus import return_freed_memory

MOST_WAITING = 1024  # values in the queue
BATCH_SIZE = 1024  # of a batch: its values times the largest of their sizes
RETURN_SECONDS = 5.0  # between two returns of freed memory; 1.0 costs 7 % more time


class BusyError(Exception):
    """The queue is full: ask again later."""


Batch = Callable[[list[Any]], Sequence[Any]]  # results of values, in their order


@dataclass(eq=False)
class _Work:
    """One value that waits.

    Attributes:
        batch: values of equal functions are computed together.
        value: its argument.
        size: tokens of a sentence, for example.
        future: gets the result.
        arrived: time on the monotonic clock.
    """

    batch: Batch
    value: Any
    size: int
    future: "Future[Any]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Worker:
    """Computes values of many clients in batches: the oldest value with those nearest to its size.

    Args:
        max_wait_seconds: a value waits at most so long for others of its batch, unless the thread
            is busy.
        most_waiting: values in the queue; further ones are refused.
        batch_size: values of a batch times the largest of their sizes.

    Attributes:
        batches: number of batches that were computed.
        values: number of values in them.
        seconds: that they took.
    """

    def __init__(
        self,
        *,
        max_wait_seconds: float = 0.0,
        most_waiting: int = MOST_WAITING,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        self._max_wait, self._most, self._batch_size = max_wait_seconds, most_waiting, batch_size
        self._waiting: list[_Work] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self.batches, self.values, self.seconds = 0, 0, 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of values in the queue."""
        return len(self._waiting)

    def submit(
        self, batch: Batch, values: Sequence[Any], sizes: Sequence[int]
    ) -> list["Future[Any]"]:
        """The results of values, computed in batches; a cancelled one is not computed.

        Args:
            batch: function of a list of values; those of equal functions share batches.
            values: its arguments.
            sizes: of each value.

        Raises:
            BusyError: the queue has no room for them.
        """
        works = [_Work(batch, *pair) for pair in zip(values, sizes, strict=True)]
        with self._changed:
            self._waiting = [work for work in self._waiting if not work.future.cancelled()]
            if len(self._waiting) + len(works) > self._most:
                raise BusyError
            self._waiting += works
            self._changed.notify()
        return [work.future for work in works]

    def alone(self, function: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
        """A coroutine function that computes `function` of one value when it is its turn."""

        async def call(value: Any) -> Any:
            # a function of its own: equal ones would share a batch
            (future,) = self.submit(
                lambda values: [function(one) for one in values], [value], [self._batch_size]
            )
            return await asyncio.wrap_future(future)

        return call

    def close(self) -> None:
        """Compute what waits, and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        returned = time.monotonic()
        while works := self._taken():
            running = [work for work in works if work.future.set_running_or_notify_cancel()]
            started = time.monotonic()
            if running:
                _compute(running)
                self.batches += 1
                self.values += len(running)
                self.seconds += time.monotonic() - started
                if time.monotonic() > returned + RETURN_SECONDS:
                    return_freed_memory()
                    returned = time.monotonic()

    def _taken(self) -> list[_Work]:
        """The next batch, removed from the queue; empty: there will be none."""
        with self._changed:
            while True:
                self._waiting = [work for work in self._waiting if not work.future.cancelled()]
                if not self._waiting:
                    if self._is_closed:
                        return []
                    self._changed.wait()
                    continue
                batch, is_full = self._batch()
                left = batch[0].arrived + self._max_wait - time.monotonic()
                if is_full or self._is_closed or left <= 0:
                    taken = set(batch)
                    self._waiting = [work for work in self._waiting if work not in taken]
                    return batch
                self._changed.wait(left)

    def _batch(self) -> tuple[list[_Work], bool]:
        """The oldest value and those of its function nearest in size; whether more do not fit."""
        oldest = self._waiting[0]
        others = [work for work in self._waiting[1:] if work.batch == oldest.batch]
        others.sort(key=lambda work: abs(work.size - oldest.size))
        batch, largest = [oldest], oldest.size
        for work in others:
            largest = max(largest, work.size)
            if (len(batch) + 1) * largest > self._batch_size:
                return batch, True
            batch.append(work)
        return batch, (len(batch) + 1) * largest > self._batch_size


def _compute(works: list[_Work]) -> None:
    """Give each its result; a batch that fails is halved, until the one that fails is alone."""
    try:
        results = works[0].batch([work.value for work in works])
    except BaseException as error:  # of any kind: memory is full, or code in Rust panics
        if len(works) == 1:
            works[0].future.set_exception(error)
            return
        middle = len(works) // 2
        _compute(works[:middle])
        _compute(works[middle:])
        return
    for work, result in zip(works, results, strict=True):
        work.future.set_result(result)
