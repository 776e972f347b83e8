"""Processor time of translators, as ratios to that of the first."""

import statistics
import time
from collections.abc import Sequence

from .translator import Translator


def times_as_fast(
    translators: Sequence[Translator], sources: Sequence[str], size: int, rounds: int
) -> list[float]:
    """How many times as fast as the first translator each one is: the median over rounds.

    In each round, all translate the same batch. Times include tokenization, but not loading.

    Args:
        translators: the first is what the others are compared with.
        sources: sentences; where there are too few, they are read again.
        size: sentences of a batch.
        rounds: batches.
    """
    ratios: list[list[float]] = [[] for _ in translators]
    texts = [sources[number % len(sources)] for number in range(size * rounds)]
    for translator in translators:
        list(translator.translate(texts[:size]))
    for number in range(rounds):
        batch = texts[number * size : (number + 1) * size]
        times = [_seconds(translator, batch) for translator in translators]
        for of_one, spent in zip(ratios, times, strict=True):
            of_one.append(times[0] / spent)
    return [statistics.median(of_one) for of_one in ratios]


def _seconds(translator: Translator, batch: Sequence[str]) -> float:
    began = time.process_time()
    list(translator.translate(batch))
    return time.process_time() - began
