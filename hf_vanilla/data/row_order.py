"""The order of rows in training: a function of seed and micro-batch number."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class RowOrder:
    """Micro-batches of equal size, epoch after epoch without a gap.

    Attributes:
        rows: how many there are.
        size: rows of a micro-batch.
        seed: of the order.
        unit: what a row is, in the plural.
    """

    rows: int
    size: int
    seed: int
    unit: str = "rows"

    def __getitem__(self, number: int) -> list[int]:
        """Row numbers of micro-batch `number` of the run."""
        first = number * self.size
        indices = (divmod(index, self.rows) for index in range(first, first + self.size))
        return [int(shuffled(self.rows, self.seed, epoch)[row]) for epoch, row in indices]

    def describe(self) -> str:
        """The size in words."""
        return f"{self.size:,} {self.unit}"


@lru_cache(maxsize=2)
def shuffled(count: int, *key: int) -> np.ndarray:
    """Numbers from 0 to `count` - 1 in an order that depends on the key alone; read it only."""
    return np.random.default_rng(key).permutation(count)
