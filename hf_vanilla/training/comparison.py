"""Compare the runs of a sweep: mean, standard deviation over seeds, paired bootstrap of BLEU."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean

import numpy as np

from hf_vanilla.families import validation_measures
from hf_vanilla.files import write_text
from hf_vanilla.options import Options, option, options_and_file

from .comparison_page import sweep_page
from .comparison_statistics import (
    FinishedRuns,
    SentenceCounts,
    counts_of_runs,
    paired_bootstrap,
    rank_correlation,
    spread,
)
from .comparison_table import SUFFIXES, Table, table_text
from .sweep_file import Sweep, read_sweep


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """Compare the finished runs of FILE, a sweep: mean, deviation, paired bootstrap."""

    baseline: str | None = option(None, "run that the others are compared to; default: the first")
    samples: int = option(1000, "resamples of the paired bootstrap", at_least=1)
    output: str | None = option(
        None, f"file for the table: {', '.join(SUFFIXES)}; default: stdout only"
    )
    page: str | None = option(
        None, "Markdown file for a page: what was run, and differences beside the published ones"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output is not None and Path(self.output).suffix not in SUFFIXES:
            raise ValueError(f"output={self.output!r}: its end is one of {', '.join(SUFFIXES)}")


def read_comparison(arguments: Sequence[str]) -> tuple[Path, CompareOptions]:
    """The file and the options of a command line.

    Raises:
        UsageError: there is not exactly one file, or an option is unknown.
    """
    return options_and_file(
        CompareOptions, arguments, "the YAML file of a sweep: hf-vanilla compare FILE"
    )


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
    rows = finished_runs(sweep)
    baseline = options.baseline or sweep.names[0]
    if baseline not in rows:
        raise ValueError(
            f"baseline={baseline!r}: no seed of it is finished; --baseline chooses another run"
        )
    files: dict[str, str] = {}
    if options.page:
        files[options.page] = sweep_page(path, sweep, rows, baseline, samples=options.samples)
    table = _table(sweep, rows, baseline, options)
    if options.output:
        files[options.output] = table_text(table, Path(options.output).suffix)
    for file, text in files.items():
        write_text(Path(file), text)
    return table_text(table, ".md").rstrip("\n")


def finished_runs(sweep: Sweep) -> FinishedRuns:
    """Finished runs and their records by name.

    Raises:
        ValueError: there is none.
    """
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
    rows: FinishedRuns,
    baseline: str,
    options: CompareOptions,
) -> Table:
    measures = validation_measures(sweep.task)
    measured = {name for runs in rows.values() for _, record in runs for name in record["values"]}
    columns = [name for name in measures if name in measured]
    head = ["run", "seeds", *(measures[name].label for name in columns)]
    tested = {} if sweep.test is None else counts_of_runs(rows, sweep.test)
    if tested:
        head += ["test BLEU", "difference (95 %)", "p"]
    if sweep.published:
        head += ["published", "difference"]
    lines, scores = [], {}
    for name, runs in rows.items():
        cells = [name, str(len(runs))]
        for measure in columns:
            values = [r["values"][measure] for _, r in runs if measure in r["values"]]
            cells.append(spread(values, measures[measure].precision) if values else "")
        if tested:
            every = np.arange(len(tested[name][0].counts))
            test_scores = [one.bleu(every) for one in tested[name]]
            scores[name] = mean(test_scores)
            cells += [spread(test_scores, 2), *_difference_cells(tested, name, baseline, options)]
        if sweep.published:
            cells += _published_cells(sweep, name, baseline)
        lines.append(cells)
    return Table(head, lines, _notes(sweep, baseline, scores, options))


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


def _notes(
    sweep: Sweep, baseline: str, scores: dict[str, float], options: CompareOptions
) -> list[str]:
    """What the numbers are, below the table."""
    notes = ["Mean ± standard deviation over the seeds."]
    if sweep.test is not None:
        from sacrebleu.metrics import BLEU

        bleu = BLEU(tokenize=sweep.test.tokenize, lowercase=sweep.test.lowercase, force=True)
        bleu.corpus_score(["a"], [["a"]])  # the signature needs the number of references
        notes.append(
            f"Differences to {baseline} and p: paired bootstrap of {options.samples} resamples, "
            f"by `{bleu.get_signature()}`."
        )
    both = [name for name in scores if name in sweep.published]
    if len(both) > 2:
        ours, theirs = [scores[n] for n in both], [sweep.published[n] for n in both]
        if (correlation := rank_correlation(ours, theirs)) is not None:
            notes.append(
                f"Rank correlation with the published scores: {correlation:.2f} (Spearman)."
            )
    return notes
