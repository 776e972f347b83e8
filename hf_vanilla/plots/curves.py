"""Curves of training: the log of one run, or of several to compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_vanilla.files import read_json_lines

from .figures import check_picture, new_figure, save_picture, short_names

NATS, BLEU, RATE = "nats per target token", "BLEU", "learning rate"
# what a line of the log may hold: its unit, and what it is
LOG_FILE = "log.jsonl"  # in the folder of a run
MEASURES = {
    "loss": (NATS, "training loss, smoothed targets"),
    "train_nll": (NATS, "training, plain"),
    "validation_nll": (NATS, "validation, plain"),
    "bleu": (BLEU, "validation BLEU"),
    "learning_rate": (RATE, "learning rate"),
}
Entries = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class PlotCurvesOptions:
    """Draw how training went, for one run or several."""

    run: list[str] = field(metadata={"help": "folders of runs, or their log.jsonl"})
    output: str = field(default="curves.png", metadata={"help": "picture file, .png or .svg"})
    overwrite: bool = field(default=False, metadata={"help": "replace an existing picture"})


def plot_curves(options: PlotCurvesOptions) -> Path:
    """Draw the logs of runs and save them; returns the file.

    Raises:
        ValueError: a log tells nothing that can be drawn, or a run is named twice.
        OSError: a log is missing, or the picture exists and `overwrite` is off.
    """
    path = check_picture(options.output, overwrite=options.overwrite)
    runs = {}
    for name, run in zip(short_names(options.run), options.run, strict=True):
        log = Path(run) / LOG_FILE if Path(run).is_dir() else Path(run)
        if not log.is_file():
            raise FileNotFoundError(f"{log}: no such file; give the folder of a run")
        runs[name] = read_json_lines(log)
        if not drawn_measures([runs[name]]):
            raise ValueError(f"{log} tells of no step: there is nothing to draw")
    save_curves(runs, path)
    return path


def drawn_measures(logs: Sequence[Entries]) -> list[str]:
    """What at least one of the logs tells for a step."""
    return [name for name in MEASURES if any(_points(entries, name) for entries in logs)]


def save_curves(runs: Mapping[str, Entries], path: Path) -> None:
    """Save curves over the steps of training: loss, validation, BLEU, learning rate.

    One run has a panel for each unit; several have one for each measure, and a colour each. What
    no run tells has no panel. Entries of averaged checkpoints are not drawn.

    Args:
        runs: lines of `log.jsonl` by name of the run.
        path: picture file.
    """
    measures = drawn_measures(list(runs.values()))
    panels: dict[str, list[str]] = {}
    for name in measures:
        unit, meaning = MEASURES[name]
        panels.setdefault(unit if len(runs) == 1 else meaning, []).append(name)
    figure = new_figure((7.5, 0.9 + 2.4 * max(len(panels), 1)))
    rows = figure.subplots(max(len(panels), 1), sharex=True, squeeze=False)[:, 0]
    for axes, (title, names) in zip(rows, panels.items(), strict=False):
        for run, entries in runs.items():
            for name in names:
                label = run if len(runs) > 1 else MEASURES[name][1]
                _draw(axes, _points(entries, name), label)
        _set_scale(axes, MEASURES[names[0]][0])
        if len(runs) > 1:
            axes.set_title(title, fontsize=9, loc="left")
        if len(axes.lines) > 1:
            axes.legend(fontsize=8)
    rows[-1].set_xlabel("optimizer step")
    figure.suptitle(f"Training: {next(iter(runs))}" if len(runs) == 1 else "Training")
    save_picture(figure, path)


def _points(entries: Entries, name: str) -> list[tuple[int, float]]:
    return [
        (entry["step"], entry[name])
        for entry in entries
        if name in entry and "step" in entry and not entry.get("averaged_checkpoints")
    ]


def _draw(axes: Any, points: list[tuple[int, float]], label: str) -> None:
    if points:
        style = "o-" if len(points) < 40 else "-"
        axes.plot(*zip(*points, strict=True), style, markersize=3, linewidth=1.2, label=label)
    else:
        axes.plot([], [])  # the next run keeps its colour


def _set_scale(axes: Any, unit: str) -> None:
    if unit == NATS:  # it falls by factors
        axes.set_yscale("log", subs=[1, 1.5, 2, 3, 5, 7])
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter("{x:g}")
    elif unit == BLEU:  # from nothing, or a tenth of a point would fill the panel
        highest = max(max(line.get_ydata(), default=0) for line in axes.lines)
        axes.set_ylim(0, 1.05 * highest or 1)
    axes.set_ylabel(unit)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=True, which="both", alpha=0.25)
