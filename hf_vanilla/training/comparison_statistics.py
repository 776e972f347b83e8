"""Statistics of runs with several seeds: mean and deviation, paired bootstrap, rank correlation.

Shapes: K seeds, N sentences, R resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from hf_vanilla.data.lines import read_lines

from .sweep import TEST_FILE, SweepRun, TestSet

# the seed of the resamples, as in sacreBLEU
RESAMPLING_SEED = 12345
PERMUTATIONS = 10_000
# runs with their records, by name
FinishedRuns = dict[str, list[tuple[SweepRun, dict[str, Any]]]]


def bleu_of(counts: np.ndarray) -> float:
    """BLEU, 0 to 100, of sentences by their `sentence_counts`; one may occur twice."""
    from sacrebleu.metrics import BLEU

    total = counts.sum(axis=0).tolist()
    return BLEU.compute_bleu(total[:4], total[4:8], total[8], total[9], "exp").score


def sentence_counts(
    translations: Sequence[str], references: Sequence[str], test: TestSet
) -> np.ndarray:
    """BLEU's counts of each sentence of a translation; they add up to the corpus's.

    Returns:
        `(N, 10)` int64: matched n-grams of order 1 to 4, all n-grams of order 1 to 4, tokens of the
        translation, tokens of the reference.

    Raises:
        ValueError: the numbers of lines differ.
    """
    from sacrebleu.metrics import BLEU

    if len(translations) != len(references):
        raise ValueError(f"{len(translations)} translations, but {len(references)} references")
    bleu = BLEU(tokenize=test.tokenize, lowercase=test.lowercase, force=True, effective_order=True)
    pairs = zip(translations, references, strict=True)
    scores = [bleu.sentence_score(text, [reference]) for text, reference in pairs]
    return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores])


@dataclass(frozen=True)
class Difference:
    """BLEU of one run minus that of the baseline, both the mean over their seeds.

    Attributes:
        value: in points of BLEU.
        low: of the 95 % interval of the resamples.
        high: of the same interval.
        p_value: probability of a difference at least as large if there is none.
    """

    value: float
    low: float
    high: float
    p_value: float


def paired_bootstrap(
    run: Sequence[np.ndarray], baseline: Sequence[np.ndarray], *, samples: int
) -> Difference:
    """Resample the sentences of the test set, the same ones for both runs and all seeds.

    With one seed each this is the paired bootstrap of sacreBLEU. It covers the choice of sentences;
    the deviation over the seeds covers the training.

    Args:
        run: `sentence_counts` of the translation of the test set with each seed.
        baseline: likewise; the number of seeds may differ.
        samples: number R of resamples.
    """
    sentences = len(run[0])

    def difference(rows: np.ndarray) -> float:
        ours, others = ([bleu_of(one[rows]) for one in counts] for counts in (run, baseline))
        return mean(ours) - mean(others)

    value = difference(np.arange(sentences))
    generator = np.random.default_rng(RESAMPLING_SEED)
    drawn = generator.integers(sentences, size=(samples, sentences))  # (R, N)
    resampled = np.array([difference(rows) for rows in drawn])  # (R,)
    low, high = np.percentile(resampled, [2.5, 97.5])
    is_as_large = np.abs(resampled - resampled.mean()) >= abs(value)
    return Difference(value, low, high, (is_as_large.sum() + 1) / (samples + 1))


def counts_of_runs(rows: FinishedRuns, test: TestSet) -> dict[str, list[np.ndarray]]:
    """`sentence_counts` of the translations of finished runs, one per seed, by name.

    Args:
        rows: of `finished_runs`.
        test: what they translated.

    Raises:
        ValueError: a run translated another test set, or none.
        OSError: a file cannot be read.
    """
    for runs in rows.values():
        for run, record in runs:
            if not run.is_done(record, test):
                raise ValueError(
                    f"{run.folder / TEST_FILE} is no translation of {test.source} as it is now: "
                    "hf-vanilla sweep FILE translates it"
                )
    references = list(read_lines(test.reference))
    return {
        name: [
            sentence_counts(list(read_lines(str(run.folder / TEST_FILE))), references, test)
            for run, _ in runs
        ]
        for name, runs in rows.items()
    }


def spread(values: Sequence[float], precision: int, *, sign: bool = False) -> str:
    """Mean and standard deviation of a sample; one value has no deviation.

    Args:
        values: the sample.
        precision: digits after the decimal point.
        sign: show the sign of a positive mean too.
    """
    shown = f"{mean(values):{'+' if sign else ''}.{precision}f}"
    return shown if len(values) == 1 else f"{shown} ± {stdev(values):.{precision}f}"


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """Spearman's correlation of two lists; equal values share the mean of their ranks.

    Returns:
        The correlation, and the share of random orders whose correlation is as far from 0 or more.
        None where it is not defined: all values of a list are equal.
    """
    if len(set(first)) == 1 or len(set(second)) == 1:
        return None
    # ranks without their mean: how many values are below, less how many are above
    one, other = (
        np.sign(np.subtract.outer(values, values)).sum(axis=1) / 2 for values in (first, second)
    )
    generator = np.random.default_rng(RESAMPLING_SEED)
    shuffled = generator.permuted(np.tile(one, (PERMUTATIONS, 1)), axis=1)
    # ranks are halves, so sums of their products are exact
    is_as_far = np.abs(shuffled @ other) >= abs(one @ other) - 1e-6
    return float(np.corrcoef(one, other)[0, 1]), float(is_as_far.mean())


def correlation_note(
    counts: Mapping[str, Sequence[np.ndarray]], published: Mapping[str, float]
) -> str:
    """How our scores rank beside the published ones; empty for two rows, or where all are equal.

    Args:
        counts: of `counts_of_runs`.
        published: scores by name.
    """
    both = [name for name in counts if name in published]
    if len(both) <= 2:
        return ""
    ours = [mean(map(bleu_of, counts[name])) for name in both]
    found = rank_correlation(ours, [published[name] for name in both])
    if found is None:
        return ""
    correlation, chance = found
    return (
        f"Rank correlation of our {len(both)} rows with the published scores: {correlation:.2f} "
        f"(Spearman, p {chance:.2f})."
    )
