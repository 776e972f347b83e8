"""Figure of training: the metrics log of one run, or of several to compare."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

from hf_vanilla.families import DEFAULT_TASK, Measure, task_measures
from hf_vanilla.file_values import read_yaml
from hf_vanilla.files import read_json_lines
from hf_vanilla.loading import load_saved, read_settings
from hf_vanilla.models.configuration_vanilla import LABEL_SMOOTHING_TYPES, VanillaConfig
from hf_vanilla.options import Options, option

from .figures import Theme, check_output, figure_style, new_figure, save_figure, short_names

LOG_FILE = "log.jsonl"  # in the folder of a run
RECIPE_FILE = "recipe.yaml"  # beside it
RATE = Measure("learning rate", "learning rate")
SAMPLED_STEPS = 4  # validations whose sample translations are shown
SAMPLE_LINE, SAMPLE_POINTS = 0.17, 8  # inches of a line of a sample, size of its text
SAMPLE_COLUMNS = 88  # characters of a line; longer texts are cut
RIGHT = "✓ "  # in front of a translation equal to its reference
SOURCE, REFERENCE = "source", "reference"
Entries = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class PlotCurvesOptions(Options):
    """Draw loss, scores, learning rate and samples over the steps, for one run or several."""

    run: list[str] = option(text="folders of runs, or their log.jsonl")
    output: str = option("curves.png", "file of the figure, .png or .svg")
    theme: str = option("light", "light or dark background")
    overwrite: bool = option(False, "replace an existing file")


def plot_curves(options: PlotCurvesOptions) -> Path:
    """Draw the logs of runs and save them; returns the file.

    Raises:
        ValueError: a log has no entry of a step, or a run is named twice.
        OSError: a log is missing, or the file exists and `overwrite` is off.
    """
    path = check_output(options.output, overwrite=options.overwrite, theme=options.theme)
    runs, floors, measures = {}, {}, dict[str, Measure]()
    for name, run in zip(short_names(options.run), options.run, strict=True):
        log = Path(run) / LOG_FILE if Path(run).is_dir() else Path(run)
        if not log.is_file():
            raise FileNotFoundError(f"{log}: no such file; give the folder of a run")
        runs[name] = read_json_lines(log)
        floors[name] = floor_of_run(log.parent)
        recipe = log.parent / RECIPE_FILE
        task = read_yaml(recipe).get("task") if recipe.is_file() else None
        measures |= task_measures(task or DEFAULT_TASK)
        if not drawn_measures([runs[name]], measures):
            raise ValueError(f"{log} has no entry of a step: there is nothing to draw")
    save_curves(runs, path, measures, floors=floors, theme=options.theme)
    return path


def smoothing_floor(config: VanillaConfig) -> float:
    """The lowest loss that smoothed targets allow, in nats per target token (5.4).

    It is the entropy of the smoothed target: no model is below it, and one that predicts the
    smoothed target exactly is at it.
    """
    rate, vocab_size = config.label_smoothing, config.target_vocab_size
    others = vocab_size - LABEL_SMOOTHING_TYPES[config.label_smoothing_type]
    target = 1 - rate
    if config.label_smoothing_type == "uniform":  # the target has a share of the smoothing too
        target, others = target + rate / vocab_size, vocab_size - 1
    shares = ((1, target), (others, (1 - target) / others))
    return -sum(count * share * math.log(share) for count, share in shares if share)


def floor_of_run(folder: Path) -> float | None:
    """`smoothing_floor` of the text model's run in a folder; None without one or smoothing."""
    try:
        if read_settings(folder).get("model_type") != VanillaConfig.model_type:
            return None  # a family whose smoothing is another
        config = load_saved(VanillaConfig, folder)
    except (OSError, ValueError):
        return None
    return smoothing_floor(config) if config.label_smoothing else None


def drawn_measures(logs: Sequence[Entries], measures: Mapping[str, Measure]) -> dict[str, Measure]:
    """Entries that at least one of the logs has for a step; scores that are always 0 are not.

    Returns:
        Meaning by the name of the entry in the log.
    """
    named = {measure.log_name or name: measure for name, measure in measures.items()}
    named["learning_rate"] = RATE
    return {
        name: measure
        for name, measure in named.items()
        if any(
            value or measure.better != "higher"
            for entries in logs
            for _, value in _points(entries, name)
        )
    }


def save_curves(
    runs: Mapping[str, Entries],
    path: Path,
    measures: Mapping[str, Measure],
    *,
    floors: Mapping[str, float | None] | None = None,
    theme: str = "light",
) -> None:
    """Save curves over the steps of training: loss, validation, scores, learning rate.

    One run has a panel for each unit, and below them its sample translations at some validations;
    several have a panel for each measure, and a colour each. What no run has logged has no panel.
    Entries of averaged checkpoints are not drawn.

    Args:
        runs: lines of `log.jsonl` by name of the run.
        path: file of the figure.
        measures: meaning of the entries; see `hf_vanilla.families.task_measures`.
        floors: `smoothing_floor` of each run, drawn in the panel of its training loss.
        theme: `"light"` or `"dark"`.
    """
    drawn = drawn_measures(list(runs.values()), measures)
    panels: dict[str, dict[str, Measure]] = {}
    for name, measure in drawn.items():
        title = measure.unit if len(runs) == 1 else measure.label
        panels.setdefault(title, {})[name] = measure
    heights = [_height(next(iter(inside.values()))) for inside in panels.values()] or [1.0]
    lines = sample_lines(next(iter(runs.values()))) if len(runs) == 1 else []
    tall, below = 0.9 + 2.8 * sum(heights), SAMPLE_LINE * len(lines)
    with figure_style(theme) as colours:
        whole = new_figure((7.5, tall + below))
        figure, text = whole, None
        if lines:
            figure, text = whole.subfigures(2, 1, height_ratios=[tall, below])
        rows = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)
        for axes, (title, inside) in zip(rows[:, 0], panels.items(), strict=False):
            _draw_panel(axes, runs, inside, floors or {}, colours)
            if len(runs) > 1:
                axes.set_title(title, loc="left")
        rows[-1, 0].set_xlabel("optimizer step")
        figure.suptitle(f"Training: {next(iter(runs))}" if len(runs) == 1 else "Training")
        if text is not None:
            _write_samples(text, lines, colours)
        save_figure(whole, path)


def sample_lines(entries: Entries) -> list[tuple[str, str]]:
    """The sample translations of a run, line by line: a label and a text.

    Each sample is its source, a translation for each of up to `SAMPLED_STEPS` validations, whose
    label is the step, and the reference, unless the last translation is equal to it. Shown are the
    first validation, the last, and between them those nearest to equal steps in the logarithm,
    since most is learned early.
    """
    logged = [e for e in entries if e.get("samples") and not e.get("averaged_checkpoints")]
    if not logged:
        return []
    last = math.log(len(logged))
    places = {round(math.exp(last * i / (SAMPLED_STEPS - 1))) - 1 for i in range(SAMPLED_STEPS)}
    shown = [logged[place] for place in sorted(places)]
    lines = []
    for number, sample in enumerate(shown[-1]["samples"]):
        lines.append((SOURCE, sample["source"]))
        for entry in shown:
            if number >= len(entry["samples"]):
                continue  # fewer sentences were translated then
            text = entry["samples"][number]["translation"]
            mark = RIGHT if text == sample["reference"] else ""
            lines.append((f"step {entry['step']:,}", f"{mark}{text}"))
        if sample["translation"] != sample["reference"]:
            lines.append((REFERENCE, sample["reference"]))
    return lines


def _write_samples(figure: Any, lines: Sequence[tuple[str, str]], colours: Theme) -> None:
    """The lines of `sample_lines` below the curves; right translations are green."""
    axes = figure.subplots()
    axes.set(xlim=(0, 7.5), ylim=(len(lines) - 0.5, -1))
    axes.axis("off")
    green = colours.lines[2]
    for row, (label, text) in enumerate(lines):
        style: dict[str, Any] = {"fontsize": SAMPLE_POINTS, "clip_on": True, "in_layout": False}
        if label in (SOURCE, REFERENCE):
            style["weight"] = "bold"
        elif text.startswith(RIGHT):
            style["color"] = green
        axes.text(0.75, row, label, ha="right", **style)
        axes.text(0.85, row, _cut(text, SAMPLE_COLUMNS), **style)


def _cut(text: str, longest: int) -> str:
    """A text of at most so many columns; a Chinese, Japanese or Korean character takes two."""
    columns = list(accumulate(2 if east_asian_width(c) in "WF" else 1 for c in text))
    if not columns or columns[-1] <= longest:
        return text
    return text[: bisect_right(columns, longest)] + "…"


def _height(measure: Measure) -> float:
    """Relative height of a panel; the learning rate is a thin strip."""
    if measure is RATE:
        return 0.35
    return 0.8 if measure.better == "higher" else 1.0


def _draw_panel(
    axes: Any,
    runs: Mapping[str, Entries],
    measures: Mapping[str, Measure],
    floors: Mapping[str, float | None],
    colours: Theme,
) -> None:
    """The curves of one panel, the floor of smoothed losses, axes and legend."""
    for run, entries in runs.items():
        for name, measure in measures.items():
            points = _points(entries, name)
            style = "o-" if len(points) < 40 else "-"
            title = run if len(runs) > 1 else measure.label
            if points:
                axes.plot(*zip(*points, strict=True), style, markersize=3, label=title)
            else:
                axes.plot([], [])  # the next run keeps its colour
    first = next(iter(measures.values()))
    _set_scale(axes, first)
    if "loss" in measures:
        for index, floor in enumerate(sorted({floor for floor in floors.values() if floor})):
            label = None if index else "smoothing floor: no smoothed loss can be lower"
            axes.axhline(floor, linestyle=":", linewidth=1.2, color=colours.text, label=label)
    if len(axes.lines) > 1 or first.label != first.unit:  # a unit alone does not name its measure
        axes.legend()


def _points(entries: Entries, name: str) -> list[tuple[int, float]]:
    return [
        (entry["step"], entry[name])
        for entry in entries
        if name in entry and "step" in entry and not entry.get("averaged_checkpoints")
    ]


def _set_scale(axes: Any, measure: Measure) -> None:
    values = [value for line in axes.lines for value in line.get_ydata()]
    if measure is RATE:
        axes.set_ylim(0, None)
        axes.yaxis.set_major_formatter("{x:g}")
    elif measure.better == "higher":  # from 0: otherwise a tenth of a point could fill the panel
        axes.set_ylim(0, 1.05 * max(values, default=0) or 1)
    elif not any(value <= 0 for value in values):  # losses fall by factors; a density's can be < 0
        axes.set_yscale("log", subs=[1, 1.5, 2, 3, 5, 7])
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter("{x:g}")
    axes.set_ylabel(measure.unit)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.grid(visible=True, which="both")
