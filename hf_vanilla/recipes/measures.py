"""What a number in the metrics log means: one table per task, read by log, curves and card."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Measure:
    """One number of the metrics log.

    Attributes:
        label: what it is, for legends and tables: `"validation NLL"`.
        unit: for the axis; numbers of one unit share a panel: `"nats per target token"`.
        better: direction of improvement for numbers of a validation; None for numbers that choose
            no checkpoint, such as the training loss.
        log_name: its key in the metrics log; empty where that is its name in the table.
        precision: digits behind the decimal point in tables and messages.
    """

    label: str
    unit: str
    better: Literal["lower", "higher"] | None = None
    log_name: str = ""
    precision: int = 4

    def rank(self, value: float) -> float:
        """A number that is lower for a better value."""
        return -value if self.better == "higher" else value
