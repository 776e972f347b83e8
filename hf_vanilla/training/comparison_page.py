"""A page about a sweep: what was run, differences beside the published ones, what holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .comparison_statistics import (
    Difference,
    FinishedRuns,
    SentenceCounts,
    correlation_note,
    counts_of_runs,
    paired_bootstrap,
    spread,
)
from .sweep_file import Sweep

HOLDS, OPPOSITE, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class RowDifference:
    """BLEU of a run against the baseline, beside the published difference.

    Attributes:
        seeds: that both have finished.
        of_seeds: difference with each of them.
        difference: of the means, with its interval; None for the baseline itself.
        published: difference of the published scores; None where one is missing.
    """

    seeds: tuple[int, ...]
    of_seeds: tuple[float, ...]
    difference: Difference | None
    published: float | None

    @property
    def verdict(self) -> str:
        """Whether the published difference is found again; empty where there is none."""
        if self.difference is None or self.published is None:
            return ""
        is_distinct = not self.difference.low <= 0 <= self.difference.high
        if self.published == 0:
            return OPPOSITE if is_distinct else HOLDS
        if not is_distinct:
            return UNDECIDED
        return HOLDS if self.difference.value * self.published > 0 else OPPOSITE


def sweep_page(path: Path, sweep: Sweep, rows: FinishedRuns, baseline: str, *, samples: int) -> str:
    """The page in Markdown.

    Args:
        path: of the sweep file.
        sweep: that file.
        rows: of `finished_runs`.
        baseline: name of the run that the others are compared to.
        samples: resamples of the paired bootstrap.

    Raises:
        ValueError: the sweep has no test set.
    """
    if sweep.test is None:
        raise ValueError(f"{path}: a page needs the scores of a test set: add test")
    counts = counts_of_runs(rows, sweep.test)
    seeds = {name: [run.seed for run, _ in runs] for name, runs in rows.items()}
    differences = {
        name: _difference(sweep, name, baseline, seeds, counts, samples=samples) for name in rows
    }
    parts = [f"# {sweep.title}", sweep.about, _what_was_run(sweep, rows)]
    parts += ["\n".join(_table(sweep, counts, differences, baseline)), _reading(samples)]
    lines = []
    for verdict in (HOLDS, OPPOSITE, UNDECIDED):
        names = [name for name, row in differences.items() if row.verdict == verdict]
        if names:
            lines.append(f"- {verdict.capitalize()}: {', '.join(names)}.")
    if note := correlation_note(counts, sweep.published):
        lines.append(f"- {note}")
    parts += ["\n".join(lines)]
    parts += [f"This page is written by `hf-vanilla compare {path.as_posix()} --page FILE`."]
    return "\n\n".join(filter(None, parts)) + "\n"


def _difference(
    sweep: Sweep,
    name: str,
    baseline: str,
    seeds: Mapping[str, Sequence[int]],
    counts: Mapping[str, Sequence[SentenceCounts]],
    *,
    samples: int,
) -> RowDifference:
    """Of the seeds that both have, so that a row is not compared with other seeds."""
    common = [seed for seed in seeds[name] if seed in seeds[baseline]]
    own, base = (
        [counts[run][seeds[run].index(seed)] for seed in common] for run in (name, baseline)
    )
    return RowDifference(
        seeds=tuple(common),
        of_seeds=tuple(a.bleu() - b.bleu() for a, b in zip(own, base, strict=True)),
        difference=(
            None if name == baseline or not common else paired_bootstrap(own, base, samples=samples)
        ),
        published=sweep.published_difference(name, baseline),
    )


def _what_was_run(sweep: Sweep, rows: FinishedRuns) -> str:
    """Rows and seeds that are finished, those that are missing, and the length of a run."""
    finished = sum(len(runs) for runs in rows.values())
    text = [f"Finished: {finished} of {len(sweep.runs)} runs ({len(rows)} of "]
    text += [f"{len(sweep.names)} rows)."]
    by_seed: dict[int, list[str]] = {}
    for run in sweep.runs:
        done = [other.seed for other, _ in rows.get(run.name, ())]
        if run.seed not in done:
            by_seed.setdefault(run.seed, []).append(run.name)
    if not by_seed:
        text += [" Nothing is missing."]
    for seed, names in sorted(by_seed.items()):
        missing = "all rows" if len(names) == len(sweep.names) else ", ".join(names)
        text += [f" Missing with seed {seed}: {missing}."]
    recipes = [run.recipe() for run in sweep.runs]
    lengths = {(r.train.max_steps, r.data.tokens_per_step) for r in recipes}
    if len(lengths) == 1:
        ((steps, tokens),) = lengths
        text += [f" A run is {steps:,} steps of {tokens:,} tokens a side."]
    return "".join(text)


def _table(
    sweep: Sweep,
    counts: Mapping[str, Sequence[SentenceCounts]],
    differences: Mapping[str, RowDifference],
    baseline: str,
) -> list[str]:
    head = ["run", "seeds", "test BLEU", "difference", "95 % interval"]
    head += ["published", "difference", "the published difference"] if sweep.published else []
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, row in differences.items():
        scores = [one.bleu() for one in counts[name]]
        cells = [name, str(len(scores)), spread(scores, 2)]
        difference = row.difference
        if difference is None:
            cells += ["baseline" if name == baseline else "no common seed", ""]
        else:
            interval = f"{difference.low:+.2f} to {difference.high:+.2f}"
            cells += [spread(row.of_seeds, 2, sign=True), interval]
        if sweep.published:
            value = sweep.published.get(name)
            shown = "" if row.published is None else f"{row.published:+.1f}"
            cells += ["" if value is None else f"{value:g}", shown, row.verdict]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _reading(samples: int) -> str:
    return (
        "Scores and differences: mean ± standard deviation over the seeds; one seed has no "
        "deviation. A difference is taken between runs of one seed. Interval: paired bootstrap of "
        f"{samples:,} resamples of the sentences, which covers the choice of sentences and not "
        f"that of seeds. A published difference *{HOLDS}* where the interval excludes 0 on its "
        f"side, or includes 0 if it is 0; it *{OPPOSITE}* where the interval excludes it; else it "
        f"is *{UNDECIDED}*."
    )
