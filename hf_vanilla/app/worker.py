"""The one thread that computes.

While transformers loads a model it changes torch's defaults for all threads, and what another
thread computes meanwhile goes wrong; so one thread loads and computes everything.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Worker:
    """Runs functions one after the other."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)

    def submit(self, function: Callable[[Any], Any], value: Any) -> "Future[Any]":
        """The result of a function of one value, when it is its turn."""
        return self._pool.submit(function, value)

    def close(self) -> None:
        """Finish what was submitted."""
        self._pool.shutdown()
