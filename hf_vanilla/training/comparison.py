"""Compare the runs of a sweep: a table of means, deviations and paired bootstraps, and a page."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from hf_vanilla.families import validation_measures
from hf_vanilla.files import write_text
from hf_vanilla.options import Options, option

from .comparison_statistics import (
    Difference,
    FinishedRuns,
    bleu_of,
    correlation_note,
    counts_of_runs,
    paired_bootstrap,
    spread,
)
from .sweep import Sweep, options_and_file, read_sweep

SUFFIXES = (".md", ".tex", ".csv", ".json")
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",  # these three print as other signs in LaTeX's default encoding
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
    }
)
HOLDS, OPPOSITE, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class RowDifference:
    """BLEU of a run against the baseline, beside the published difference.

    Attributes:
        of_seeds: difference with each seed that both have finished.
        difference: of the means, with its interval; None for the baseline itself.
        published: difference of the published scores; None where one is missing.
    """

    of_seeds: tuple[float, ...]
    difference: Difference | None
    published: float | None

    @property
    def verdict(self) -> str:
        """Whether the runs reproduce the published difference; empty where there is none."""
        if self.difference is None or self.published is None:
            return ""
        is_distinct = not self.difference.low <= 0 <= self.difference.high
        if self.published == 0:
            return OPPOSITE if is_distinct else HOLDS
        if not is_distinct:
            return UNDECIDED
        return HOLDS if self.difference.value * self.published > 0 else OPPOSITE


@dataclass(frozen=True)
class Comparison:
    """The finished runs of a sweep, and how the others differ from one of them.

    Attributes:
        sweep: what was asked for.
        rows: of `finished_runs`.
        baseline: name of the run that the others are compared to.
        samples: resamples of the paired bootstrap.
        counts: of `counts_of_runs`; empty where the sweep has no test set.
    """

    sweep: Sweep
    rows: FinishedRuns
    baseline: str
    samples: int
    counts: Mapping[str, Sequence[np.ndarray]]

    @cached_property
    def differences(self) -> dict[str, RowDifference]:
        """Of the seeds that a row and the baseline both have: not of a run with other seeds."""
        of_seed = {
            name: {run.seed: one for (run, _), one in zip(self.rows[name], counts, strict=True)}
            for name, counts in self.counts.items()
        }
        differences, base = {}, of_seed[self.baseline]
        for name, own in of_seed.items():
            pairs = [(own[seed], base[seed]) for seed in sorted(own.keys() & base.keys())]
            difference = None
            if pairs and name != self.baseline:
                difference = paired_bootstrap(*zip(*pairs, strict=True), samples=self.samples)
            of_seeds = tuple(bleu_of(a) - bleu_of(b) for a, b in pairs)
            published = self.sweep.published_difference(name, self.baseline)
            differences[name] = RowDifference(of_seeds, difference, published)
        return differences


@dataclass(frozen=True)
class Table:
    """Cells as text, and what the numbers are.

    Attributes:
        head: names of the columns.
        rows: cells of each row.
        notes: sentences below the table.
    """

    head: list[str]
    rows: list[list[str]]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """Compare the finished runs of FILE, a sweep: mean, deviation, paired bootstrap."""

    baseline: str | None = option(None, "run that the others are compared to; default: the first")
    samples: int = option(1000, "resamples of the paired bootstrap", at_least=1)
    output: str | None = option(None, f"file for the table: {', '.join(SUFFIXES)}; else stdout")
    page: str | None = option(
        None, "Markdown file for a page: what was run, and differences beside the published ones"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output is not None and Path(self.output).suffix not in SUFFIXES:
            raise ValueError(f"output={self.output!r}: its end is one of {', '.join(SUFFIXES)}")


# from a command line to the file and its options
read_comparison = partial(
    options_and_file, CompareOptions, use="the YAML file of a sweep: hf-vanilla compare FILE"
)


def compare_runs(request: tuple[Path, CompareOptions]) -> str:
    """The table of a sweep in Markdown.

    Raises:
        ValueError: the file is wrong, the baseline unknown, or no run is finished.
        OSError: a file cannot be read or written.
    """
    path, options = request
    sweep = read_sweep(path)
    if options.baseline not in (None, *sweep.names):
        raise ValueError(f"baseline={options.baseline!r}: choose one of {', '.join(sweep.names)}")
    rows = finished_runs(sweep)
    baseline = options.baseline or sweep.names[0]
    if baseline not in rows:
        raise ValueError(f"baseline={baseline!r}: no seed of it is finished; give another run")
    if options.page and sweep.test is None:
        raise ValueError(f"{path}: a page needs the scores of a test set: add test")
    counts = {} if sweep.test is None else counts_of_runs(rows, sweep.test)
    compared = Comparison(sweep, rows, baseline, options.samples, counts)
    page, table = _page(path, compared) if options.page else "", _table(compared)
    if options.page:
        write_text(Path(options.page), page)
    if options.output:
        write_text(Path(options.output), table_text(table, Path(options.output).suffix))
    return table_text(table, ".md").rstrip("\n")


def finished_runs(sweep: Sweep) -> FinishedRuns:
    """Finished runs and their records by name.

    Raises:
        ValueError: there is none.
    """
    finished: FinishedRuns = {}
    for run in sweep.runs:
        if (record := run.record()) is not None:
            finished.setdefault(run.name, []).append((run, record))
    if not finished:
        raise ValueError("no run of the sweep is finished: hf-vanilla sweep FILE trains them")
    return finished


def _table(compared: Comparison) -> Table:
    sweep, rows, baseline = compared.sweep, compared.rows, compared.baseline
    measures = validation_measures(sweep.task)
    measured = {name for runs in rows.values() for _, record in runs for name in record["values"]}
    columns = [name for name in measures if name in measured]
    head = ["run", "seeds", *(measures[name].label for name in columns)]
    if compared.counts:
        head += ["test BLEU", "difference (95 %)", "p"]
    if sweep.published:
        head += ["published", "difference"]
    lines = []
    for name, runs in rows.items():
        cells = [name, str(len(runs))]
        for measure in columns:
            values = [r["values"][measure] for _, r in runs if measure in r["values"]]
            cells.append(spread(values, measures[measure].precision) if values else "")
        if compared.counts:
            cells.append(spread([*map(bleu_of, compared.counts[name])], 2))
            one = compared.differences[name].difference
            if one is None:
                cells += ["", ""]
            else:
                interval = f"({one.low:+.2f} to {one.high:+.2f})"
                cells += [f"{one.value:+.2f} {interval}", f"{one.p_value:.3f}"]
        if sweep.published:
            value = sweep.published.get(name)
            difference = sweep.published_difference(name, baseline)
            cells.append("" if value is None else f"{value:g}")
            cells.append("" if difference is None else f"{difference:+.2f}")
        lines.append(cells)
    return Table(head, lines, _notes(compared))


def _notes(compared: Comparison) -> list[str]:
    """What the numbers are, below the table."""
    sweep, notes = compared.sweep, ["Mean ± standard deviation over the seeds."]
    if sweep.test is not None:
        from sacrebleu.metrics import BLEU

        bleu = BLEU(tokenize=sweep.test.tokenize, lowercase=sweep.test.lowercase, force=True)
        bleu.corpus_score(["a"], [["a"]])  # the signature needs the number of references
        notes.append(
            f"Differences to {compared.baseline} and p: paired bootstrap of {compared.samples} "
            f"resamples, by `{bleu.get_signature()}`."
        )
    notes += [correlation_note(compared.counts, sweep.published), _finished(sweep, compared.rows)]
    return list(filter(None, notes))


def table_text(table: Table, suffix: str) -> str:
    """The table as a file of this suffix, one of `SUFFIXES`; CSV has no notes."""
    lines = [table.head, *table.rows]
    if suffix == ".csv":
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(lines)
        return file.getvalue()
    if suffix == ".json":
        records = [dict(zip(table.head, row, strict=True)) for row in table.rows]
        content = {"rows": records, "notes": table.notes}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if suffix == ".tex":
        head, *rows = [" & ".join(cell.translate(LATEX) for cell in row) + r" \\" for row in lines]
        columns = "l" + "r" * (len(table.head) - 1)
        begin = [*(f"% {note}" for note in table.notes), rf"\begin{{tabular}}{{{columns}}}"]
        line, end = r"\hline", r"\end{tabular}"
        return "\n".join([*begin, line, head, line, *rows, line, end, ""])
    head, *rows = ["| " + " | ".join(c.replace("|", r"\|") for c in row) + " |" for row in lines]
    return "\n".join([head, "|" + "---|" * len(table.head), *rows, "", *table.notes, ""])


# --- a page about a sweep: what was run, differences beside the published ones, what holds --------

READING = (
    "Scores and differences: mean ± standard deviation over the seeds; one seed has no deviation. "
    "A difference is taken between runs of one seed. Interval: paired bootstrap of {samples:,} "
    "resamples of the sentences, which covers the choice of sentences and not that of seeds. A "
    f"published difference *{HOLDS}* where the interval excludes 0 on its side, or includes 0 if "
    f"it is 0; it *{OPPOSITE}* where the interval excludes it; else it is *{UNDECIDED}*."
)


def _page(path: Path, compared: Comparison) -> str:
    """The page in Markdown; `path` is that of the sweep file."""
    sweep, what_was_run = compared.sweep, _finished(compared.sweep, compared.rows)
    recipes = [run.recipe() for run in sweep.runs]
    lengths = {(r.train.max_steps, r.data.tokens_per_step) for r in recipes}
    if len(lengths) == 1:
        ((steps, tokens),) = lengths
        what_was_run += f" A run is {steps:,} steps of {tokens:,} tokens a side."
    parts = [f"# {sweep.title}", sweep.about, what_was_run]
    parts += [_page_table(compared), READING.format(samples=compared.samples)]
    parts += [correlation_note(compared.counts, sweep.published)]
    parts += [f"This page is written by `hf-vanilla compare {path.as_posix()} --page FILE`."]
    return "\n\n".join(filter(None, parts)) + "\n"


def _finished(sweep: Sweep, rows: FinishedRuns) -> str:
    """Rows and seeds that are finished, and those that are missing."""
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
    return "".join(text)


def _page_table(compared: Comparison) -> str:
    sweep = compared.sweep
    head = ["run", "seeds", "test BLEU", "difference", "95 % interval"]
    head += ["published", "difference", "the published difference"] if sweep.published else []
    rows = []
    for name, row in compared.differences.items():
        scores = [*map(bleu_of, compared.counts[name])]
        cells = [name, str(len(scores)), spread(scores, 2)]
        difference = row.difference
        if difference is None:
            cells += ["baseline" if name == compared.baseline else "no common seed", ""]
        else:
            interval = f"{difference.low:+.2f} to {difference.high:+.2f}"
            cells += [spread(row.of_seeds, 2, sign=True), interval]
        if sweep.published:
            value = sweep.published.get(name)
            shown = "" if row.published is None else f"{row.published:+.1f}"
            cells += ["" if value is None else f"{value:g}", shown, row.verdict]
        rows.append(cells)
    return table_text(Table(head, rows, []), ".md").rstrip("\n")
