"""Compare the runs of a sweep: mean, standard deviation over seeds, paired bootstrap of BLEU.

Shapes: K seeds, N sentences, R resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from hf_vanilla.data.corpus import read_lines
from hf_vanilla.files import write_text
from hf_vanilla.options import check_options, option, options_and_file
from hf_vanilla.recipes.tasks import validation_measures

from .sweep import TEST_FILE, Sweep, SweepRun, TestSet, read_sweep

# the seed of the resamples, as in sacreBLEU
RESAMPLING_SEED = 12345


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare the finished runs of FILE, a sweep: mean, deviation, paired bootstrap."""

    baseline: str | None = option(None, "run that the others are compared to; default: the first")
    samples: int = option(1000, "resamples of the paired bootstrap", at_least=1)
    output: str | None = option(None, "Markdown file for the table; default: stdout only")

    def __post_init__(self) -> None:
        check_options(self)


def read_comparison(arguments: Sequence[str]) -> tuple[Path, CompareOptions]:
    """The file and the options of a command line.

    Raises:
        UsageError: there is not exactly one file, or an option is unknown.
    """
    return options_and_file(
        CompareOptions, arguments, "the YAML file of a sweep: hf-vanilla compare FILE"
    )


@dataclass(frozen=True)
class SentenceCounts:
    """BLEU's counts of one translation of a test set, per sentence; they add up to the corpus's.

    Attributes:
        counts: `(N, 10)` int64: matched n-grams of order 1 to 4, all n-grams of order 1 to 4,
            tokens of the translation, tokens of the reference.
    """

    counts: np.ndarray

    def bleu(self, sentences: np.ndarray) -> float:
        """Corpus BLEU, 0 to 100, of these sentences; a sentence may occur several times."""
        from sacrebleu.metrics import BLEU

        total = self.counts[sentences].sum(axis=0).tolist()
        return BLEU.compute_bleu(total[:4], total[4:8], total[8], total[9], "exp").score


def sentence_counts(
    translations: Sequence[str], references: Sequence[str], test: TestSet
) -> SentenceCounts:
    """BLEU's counts of each sentence.

    Raises:
        ValueError: the numbers of lines differ.
    """
    from sacrebleu.metrics import BLEU

    if len(translations) != len(references):
        raise ValueError(f"{len(translations)} translations, but {len(references)} references")
    bleu = BLEU(tokenize=test.tokenize, lowercase=test.lowercase, force=True, effective_order=True)
    scores = [
        bleu.sentence_score(text, [reference])
        for text, reference in zip(translations, references, strict=True)
    ]
    return SentenceCounts(np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores]))


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
    run: Sequence[SentenceCounts], baseline: Sequence[SentenceCounts], *, samples: int
) -> Difference:
    """Resample the sentences of the test set, the same ones for both runs and all seeds.

    With one seed each this is the paired bootstrap of sacreBLEU. It covers the choice of sentences;
    the deviation over the seeds covers the training.

    Args:
        run: one translation of the test set per seed.
        baseline: likewise; the number of seeds may differ.
        samples: number R of resamples.
    """
    sentences = len(run[0].counts)

    def difference(chosen: np.ndarray) -> float:
        return mean(one.bleu(chosen) for one in run) - mean(one.bleu(chosen) for one in baseline)

    value = difference(np.arange(sentences))
    generator = np.random.default_rng(RESAMPLING_SEED)
    drawn = generator.integers(sentences, size=(samples, sentences))  # (R, N)
    resampled = np.array([difference(chosen) for chosen in drawn])  # (R,)
    low, high = np.percentile(resampled, [2.5, 97.5])
    is_as_large = np.abs(resampled - resampled.mean()) >= abs(value)
    return Difference(value, low, high, (is_as_large.sum() + 1) / (samples + 1))


def compare_runs(asked: tuple[Path, CompareOptions]) -> str:
    """The table of a sweep in Markdown.

    Raises:
        ValueError: the file is wrong, the baseline unknown, or no run is finished.
        OSError: a file cannot be read or written.
    """
    path, options = asked
    sweep = read_sweep(path)
    if options.baseline not in (None, *sweep.names):
        raise ValueError(f"baseline={options.baseline!r}: choose one of {', '.join(sweep.names)}")
    rows = _finished(sweep)
    baseline = options.baseline or next(iter(rows))
    if baseline not in rows:
        raise ValueError(f"baseline={baseline!r}: no seed of it is finished")
    table = _table(sweep, rows, baseline, options)
    if options.output:
        write_text(Path(options.output), table + "\n")
    return table


def _finished(sweep: Sweep) -> dict[str, list[tuple[SweepRun, dict[str, Any]]]]:
    """Finished runs and their records by name."""
    found = {}
    for name, runs in groupby(sweep.runs, lambda run: run.name):
        of_name = [(run, record) for run in runs if (record := run.record()) is not None]
        if of_name:
            found[name] = of_name
    if not found:
        raise ValueError("no run of the sweep is finished: hf-vanilla sweep FILE trains them")
    return found


def _table(
    sweep: Sweep,
    rows: dict[str, list[tuple[SweepRun, dict[str, Any]]]],
    baseline: str,
    options: CompareOptions,
) -> str:
    measures = validation_measures(sweep.task)
    columns = [name for name in measures if any(name in r["values"] for _, r in rows[baseline])]
    head = ["run", "seeds", *(measures[name].label for name in columns)]
    tested = {} if sweep.test is None else _counts(rows, sweep.test)
    if tested:
        head += ["test BLEU", "difference (95 %)", "p"]
    if sweep.published:
        head += ["published", "difference"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    scores = {}
    for name, runs in rows.items():
        cells = [name, str(len(runs))]
        for measure in columns:
            values = [record["values"][measure] for _, record in runs]
            cells.append(spread(values, measures[measure].precision))
        if tested:
            every = np.arange(len(tested[name][0].counts))
            test_scores = [one.bleu(every) for one in tested[name]]
            scores[name] = mean(test_scores)
            cells += [spread(test_scores, 2), *_difference_cells(tested, name, baseline, options)]
        if sweep.published:
            cells += _published_cells(sweep, name, baseline)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_notes(sweep, scores, options)])


def _counts(
    rows: dict[str, list[tuple[SweepRun, dict[str, Any]]]], test: TestSet
) -> dict[str, list[SentenceCounts]]:
    references = list(read_lines(test.reference))
    return {
        name: [
            sentence_counts(list(read_lines(str(run.folder / TEST_FILE))), references, test)
            for run, _ in runs
        ]
        for name, runs in rows.items()
    }


def spread(values: Sequence[float], precision: int) -> str:
    """Mean and standard deviation of a sample; one value has no deviation."""
    if len(values) == 1:
        return f"{values[0]:.{precision}f}"
    return f"{mean(values):.{precision}f} ± {stdev(values):.{precision}f}"


def _difference_cells(
    tested: dict[str, list[SentenceCounts]], name: str, baseline: str, options: CompareOptions
) -> list[str]:
    if name == baseline:
        return ["", ""]
    found = paired_bootstrap(tested[name], tested[baseline], samples=options.samples)
    return [f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})", f"{found.p_value:.3f}"]


def _published_cells(sweep: Sweep, name: str, baseline: str) -> list[str]:
    value, base = sweep.published.get(name), sweep.published.get(baseline)
    if value is None:
        return ["", ""]
    return [f"{value:g}", "" if base is None or name == baseline else f"{value - base:+.2f}"]


def _notes(sweep: Sweep, scores: dict[str, float], options: CompareOptions) -> list[str]:
    """What the numbers are, below the table."""
    notes = ["Mean ± standard deviation over the seeds."]
    if sweep.test is not None:
        from sacrebleu.metrics import BLEU

        bleu = BLEU(tokenize=sweep.test.tokenize, lowercase=sweep.test.lowercase, force=True)
        bleu.corpus_score(["a"], [["a"]])  # the signature needs the number of references
        notes.append(
            f"Differences and p: paired bootstrap of {options.samples} resamples, by "
            f"`{bleu.get_signature()}`."
        )
    both = [name for name in scores if name in sweep.published]
    if len(both) > 2:
        ours, theirs = [scores[n] for n in both], [sweep.published[n] for n in both]
        correlation = rank_correlation(ours, theirs)
        notes.append(f"Rank correlation with the published scores: {correlation:.2f} (Spearman).")
    return notes


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's correlation of two lists; equal values share the mean of their ranks."""
    ranks = [_ranks(np.asarray(values, dtype=float)) for values in (first, second)]
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    below = (values[:, None] > values[None, :]).sum(axis=1)
    equal = (values[:, None] == values[None, :]).sum(axis=1)
    return below + (equal - 1) / 2
