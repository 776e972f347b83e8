"""Figures of the paper's formulas: sinusoidal positions (3.5) and the learning rate (5.3).

Shapes: L positions, D `d_model`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from hf_vanilla.loading import load_saved
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.positions_vanilla import SinusoidalPositions
from hf_vanilla.options import Options, option
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.schedules import peak_learning_rate, share_of_peak

from .figures import check_output, figure_style, new_figure, save_figure, signed_colours

# d_model and warmup of the curves that most introductions to the paper show
KNOWN_SCHEDULES = ((512, 4000), (512, 8000), (256, 4000))
MOST_POINTS = 2000  # of a curve


@dataclass(frozen=True, kw_only=True)
class PlotPositionsOptions(Options):
    """Draw the table of positions and the similarity of its rows."""

    model: str | None = option(None, "model folder or Hub id; default: the paper's base model")
    d_model: int | None = option(None, "channels; default: the model's")
    layout: str | None = option(None, "interleaved or concatenated; default: the model's")
    frequencies: str | None = option(None, "paper or tensor2tensor; default: the model's")
    offset: int | None = option(None, "position of the first token; default: the model's")
    length: int = option(100, "positions drawn", at_least=2, at_most=MOST_POINTS)
    output: str = option("positions.png", "file of the figure, .png or .svg")
    theme: str = option("light", "light or dark background")
    overwrite: bool = option(False, "replace an existing file")


def plot_positions(options: PlotPositionsOptions) -> Path:
    """Draw the positions of a model, or of a config, and save them; returns the file.

    Raises:
        ValueError: a value is impossible, or the model's positions are no sinusoids.
        OSError: the model is not found, or the file exists and `overwrite` is off.
    """
    path = check_output(options.output, overwrite=options.overwrite, theme=options.theme)
    config = VanillaConfig() if options.model is None else _sinusoidal_config(options.model)
    given = {
        "d_model": options.d_model,
        "position_layout": options.layout,
        "position_frequencies": options.frequencies,
        "position_offset": options.offset,
    }
    kept = {n: getattr(config, n) if value is None else value for n, value in given.items()}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}  # they divide any width
    save_positions(VanillaConfig(**kept, **heads), path, length=options.length, theme=options.theme)
    return path


def _sinusoidal_config(name: str) -> VanillaConfig:
    config = load_saved(AutoConfig, name)
    if not isinstance(config, VanillaConfig):
        raise ValueError(f"{name} is a model of type {config.model_type!r}, not one of ours")
    if config.position_embedding_type != "sinusoidal":
        raise ValueError(f"{name} has {config.position_embedding_type} positions, no sinusoids")
    return config


def position_table(config: VanillaConfig, length: int) -> Tensor:
    """What the model adds to the embeddings of its first `length` tokens, `(L, D)` (3.5)."""
    return SinusoidalPositions(config)(length, 0, torch.empty(0))


def save_positions(
    config: VanillaConfig, path: Path, *, length: int = 100, theme: str = "light"
) -> None:
    """Save the table, the dot products of its rows, and three rows of those.

    A dot product is divided by D/2, its value for a row with itself.

    Args:
        config: with sinusoidal positions.
        path: file of the figure.
        length: positions drawn.
        theme: `"light"` or `"dark"`.
    """
    table = position_table(config, length)
    products = table @ table.T / (config.d_model / 2)  # (L, L)
    whole: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto"}
    with figure_style(theme) as colours:
        figure = new_figure((10, 8))
        panels = figure.subplot_mosaic([["table", "table"], ["products", "rows"]])
        axes = panels["table"]
        signed = signed_colours(colours)
        image = axes.imshow(table.numpy(), cmap=signed, vmin=-1, vmax=1, **whole)
        axes.set(
            title="The table: pairs of sine and cosine, slower from left to right",
            xlabel=f"channel of {config.d_model}",
            ylabel="position",
        )
        figure.colorbar(image, ax=axes, label="value", pad=0.01)
        axes = panels["products"]
        image = axes.imshow(products.numpy(), vmax=1, **whole)
        axes.set(
            title="Dot products of its rows: only the distance counts",
            xlabel="position",
            ylabel="position",
        )
        figure.colorbar(image, ax=axes, pad=0.02)
        _draw_rows(panels["rows"], products)
        figure.suptitle(
            f"Sinusoidal positions: d_model {config.d_model}, {config.position_layout}, "
            f"frequencies of {_source_of(config)}, offset {config.position_offset}"
        )
        save_figure(figure, path)


def _draw_rows(axes: Any, products: Tensor) -> None:
    """Three rows of the dot products `(L, L)`, each with its highest point named."""
    length = len(products)
    for position in (length // 8, length // 2, length - 1 - length // 8):
        axes.plot(products[position].numpy())
        label = f"position {position}"
        axes.annotate(label, (position, 1.01), ha="center", va="bottom", fontsize=8)
    axes.set(
        title="Three of these rows: near positions are alike",
        xlabel="position",
        ylabel="dot product / (d_model / 2)",
    )
    axes.margins(x=0.08, y=0.1)
    axes.grid(visible=True)


def _source_of(config: VanillaConfig) -> str:
    return "the paper" if config.position_frequencies == "paper" else config.position_frequencies


@dataclass(frozen=True, kw_only=True)
class PlotScheduleOptions(Options):
    """Draw the learning rate of recipes, or of any width and warmup."""

    recipe: list[str] = option([], "YAML files of recipes, a curve each")
    d_model: list[int] = option(
        [],
        "widths, a curve each; default: those of tensor2tensor's well-known figure",
        at_least=1,
    )
    warmup_steps: list[int] = option(
        [], "warmup of each width, or one for all; default: 4000", at_least=1
    )
    steps: int | None = option(
        None, "last step drawn; default: where the longest recipe ends", at_least=2
    )
    output: str = option("schedule.png", "file of the figure, .png or .svg")
    theme: str = option("light", "light or dark background")
    overwrite: bool = option(False, "replace an existing file")

    def __post_init__(self) -> None:
        super().__post_init__()
        widths, warmups = len(self.d_model), len(self.warmup_steps)
        if warmups > 1 and widths > 1 and warmups != widths:
            raise ValueError(
                f"{widths} values of d_model and {warmups} of warmup_steps: "
                "give as many of one as of the other, or one for all"
            )


@dataclass(frozen=True)
class Schedule:
    """One curve.

    Attributes:
        name: for the legend.
        peak: highest learning rate.
        warmup_steps: step of the peak.
        last_step: where training ends; None: not known.
        kind: a name of `hf_vanilla.training.schedules.SCHEDULES`.
    """

    name: str
    peak: float
    warmup_steps: int
    last_step: int | None = None
    kind: str = "inverse_sqrt"

    def rate(self, step: int) -> float:
        """The learning rate of one update, counted from 1."""
        return self.peak * share_of_peak(
            step, self.warmup_steps, schedule=self.kind, max_steps=self.last_step
        )


def plot_schedule(options: PlotScheduleOptions) -> Path:
    """Draw the learning rate over the steps and save it; returns the file.

    Raises:
        ValueError: a recipe or a value is impossible.
        OSError: a recipe cannot be read, or the file exists and `overwrite` is off.
    """
    path = check_output(options.output, overwrite=options.overwrite, theme=options.theme)
    schedules = [recipe_schedule(name) for name in options.recipe]
    pairs = _pairs(options.d_model, options.warmup_steps)
    if not schedules and not pairs:
        pairs = list(KNOWN_SCHEDULES)
    schedules += [paper_schedule(d_model, warmup) for d_model, warmup in pairs]
    save_schedules(schedules, path, steps=options.steps, theme=options.theme)
    return path


def _pairs(widths: Sequence[int], warmups: Sequence[int]) -> list[tuple[int, int]]:
    """Widths with their warmups; a single one goes with all of the other."""
    if not widths and not warmups:
        return []
    d_model, warmup_steps = KNOWN_SCHEDULES[0]
    widths, warmups = list(widths) or [d_model], list(warmups) or [warmup_steps]
    count = max(len(widths), len(warmups))
    filled = [side * (count // len(side)) for side in (widths, warmups)]
    return list(zip(*filled, strict=True))


def paper_schedule(d_model: int, warmup_steps: int) -> Schedule:
    """The schedule of 5.3 with the paper's peak."""
    name = f"d_model {d_model}, warmup {warmup_steps:,}"
    return Schedule(name, peak_learning_rate(d_model, warmup_steps), warmup_steps)


def recipe_schedule(path: str) -> Schedule:
    """The schedule that a recipe trains with.

    Raises:
        ValueError: the recipe is impossible.
        OSError: it cannot be read.
    """
    recipe = read_recipe(["--recipe", path])
    train, d_model = recipe.train, recipe.config().d_model
    peak = train.learning_rate or peak_learning_rate(d_model, train.warmup_steps)
    name = f"{Path(path).stem} (d_model {d_model}, warmup {train.warmup_steps:,})"
    return Schedule(name, peak, train.warmup_steps, train.max_steps, train.schedule)


def save_schedules(
    schedules: Sequence[Schedule], path: Path, *, steps: int | None = None, theme: str = "light"
) -> None:
    """Save the learning rate of each schedule over the steps; the legend names its peak.

    Args:
        schedules: a curve each, drawn to its last step at most.
        path: file of the figure.
        steps: last step drawn; None: the last of the longest recipe, or well beyond the warmups.
        theme: `"light"` or `"dark"`.
    """
    if steps is None:
        ends = [s.last_step for s in schedules if s.last_step is not None]
        steps = max(ends or [5 * s.warmup_steps // 2 for s in schedules])
    title = "Learning rate over the steps of training"
    if all(schedule.kind == "inverse_sqrt" for schedule in schedules):
        title = "Learning rate: linear warmup, then the inverse square root of the step (5.3)"
    with figure_style(theme):
        figure = new_figure((8, 4.5))
        axes = figure.subplots()
        for schedule in schedules:
            last = min(steps, schedule.last_step or steps)
            # the peak is a corner, which evenly spaced steps would cut
            drawn = {1, last, min(schedule.warmup_steps, last), *range(1, last, last // 500 + 1)}
            label = f"{schedule.name}: peak {schedule.peak:.2g}"
            axes.plot(sorted(drawn), [schedule.rate(step) for step in sorted(drawn)], label=label)
        axes.set(xlabel="optimizer step", ylabel="learning rate", ylim=(0, None), xlim=(0, steps))
        axes.set_title(title)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:.2g}")
        axes.grid(visible=True)
        axes.legend()
        save_figure(figure, path)
