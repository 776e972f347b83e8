"""Pictures of the paper's formulas: sinusoidal positions (3.5) and the learning rate (5.3).

Shapes: L positions, D `d_model`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.positions_vanilla import SinusoidalPositions
from hf_vanilla.recipes.recipe import read_recipe
from hf_vanilla.recipes.schedules import peak_learning_rate, share_of_peak

from .figures import check_picture, new_figure, save_picture

# d_model and warmup of the curves that most introductions to the paper show
KNOWN_SCHEDULES = ((512, 4000), (512, 8000), (256, 4000))
MOST_POINTS = 2000  # of a curve


@dataclass(frozen=True, kw_only=True)
class PlotPositionsOptions:
    """Draw the table of positions and how alike its rows are."""

    model: str | None = field(
        default=None, metadata={"help": "model folder or Hub id; default: the paper's base model"}
    )
    d_model: int | None = field(default=None, metadata={"help": "channels; default: the model's"})
    layout: str | None = field(
        default=None, metadata={"help": "interleaved or concatenated; default: the model's"}
    )
    frequencies: str | None = field(
        default=None, metadata={"help": "paper or tensor2tensor; default: the model's"}
    )
    offset: int | None = field(
        default=None, metadata={"help": "place of the first token; default: the model's"}
    )
    length: int = field(default=100, metadata={"help": "positions drawn"})
    output: str = field(default="positions.png", metadata={"help": "picture file, .png or .svg"})
    overwrite: bool = field(default=False, metadata={"help": "replace an existing picture"})

    def __post_init__(self) -> None:
        if not 2 <= self.length <= MOST_POINTS:
            raise ValueError(f"length={self.length}: give 2 to {MOST_POINTS} positions")


def plot_positions(options: PlotPositionsOptions) -> Path:
    """Draw the positions of a model, or of a config, and save them; returns the file.

    Raises:
        ValueError: a value is impossible, or the model's positions are no sinusoids.
        OSError: the model is not found, or the picture exists and `overwrite` is off.
    """
    path = check_picture(options.output, overwrite=options.overwrite)
    config = VanillaConfig() if options.model is None else _sinusoidal_config(options.model)
    told = {
        "d_model": options.d_model,
        "position_layout": options.layout,
        "position_frequencies": options.frequencies,
        "position_offset": options.offset,
    }
    kept = {name: getattr(config, name) if value is None else value for name, value in told.items()}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}  # they divide any width
    save_positions(VanillaConfig(**kept, **heads), path, length=options.length)
    return path


def _sinusoidal_config(name: str) -> VanillaConfig:
    try:
        config = AutoConfig.from_pretrained(name)
    except OSError as error:
        raise OSError(f"{name}: no config found: {str(error).splitlines()[0]}") from None
    if not isinstance(config, VanillaConfig):
        raise ValueError(f"{name} is a model of type {config.model_type!r}, not one of ours")
    if config.position_embedding_type != "sinusoidal":
        raise ValueError(f"{name} has {config.position_embedding_type} positions, no sinusoids")
    return config


def position_table(config: VanillaConfig, length: int) -> Tensor:
    """What the model adds to the embeddings of its first `length` tokens, `(L, D)` (3.5)."""
    return SinusoidalPositions(config)(length, 0, torch.empty(0))


def save_positions(config: VanillaConfig, path: Path, *, length: int = 100) -> None:
    """Save the table, the dot products of its rows, and three rows of those.

    A dot product is divided by D/2, its value for a row with itself.

    Args:
        config: with sinusoidal positions.
        path: picture file.
        length: positions drawn.
    """
    table = position_table(config, length)
    alike = table @ table.T / (config.d_model / 2)  # (L, L)
    figure = new_figure((10, 8))
    panels = figure.subplot_mosaic([["table", "table"], ["products", "rows"]])
    table_axes, products, rows = (panels[name] for name in ("table", "products", "rows"))
    whole: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto"}
    drawn = table_axes.imshow(table.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, **whole)
    table_axes.set(title="The table", xlabel=f"channel of {config.d_model}", ylabel="position")
    figure.colorbar(drawn, ax=table_axes, label="value", pad=0.01)
    drawn = products.imshow(alike.numpy(), vmax=1, **whole)
    told = "dot product / (d_model / 2)"
    products.set(title=f"Its rows: {told}", xlabel="position", ylabel="position")
    figure.colorbar(drawn, ax=products, pad=0.02)
    for place in (length // 8, length // 2, length - 1 - length // 8):
        rows.plot(alike[place].numpy(), linewidth=1.4)
        rows.annotate(f"position {place}", (place, 1.01), ha="center", va="bottom", fontsize=8)
    rows.set(title="Three rows of these", xlabel="position", ylabel=told)
    rows.margins(x=0.08, y=0.1)
    rows.grid(visible=True, alpha=0.25)
    figure.suptitle(
        f"Sinusoidal positions: d_model {config.d_model}, {config.position_layout}, "
        f"frequencies of {_source_of(config)}, offset {config.position_offset}"
    )
    save_picture(figure, path)


def _source_of(config: VanillaConfig) -> str:
    return "the paper" if config.position_frequencies == "paper" else config.position_frequencies


@dataclass(frozen=True, kw_only=True)
class PlotScheduleOptions:
    """Draw the learning rate of recipes, or of any width and warmup."""

    recipe: list[str] = field(
        default_factory=list, metadata={"help": "YAML files of recipes, a curve each"}
    )
    d_model: list[int] = field(
        default_factory=list,
        metadata={"help": "widths, a curve each; default: those of tensor2tensor's known picture"},
    )
    warmup_steps: list[int] = field(
        default_factory=list,
        metadata={"help": "warmup of each width, or one for all; default: 4000"},
    )
    steps: int | None = field(
        default=None, metadata={"help": "last step drawn; default: where the longest recipe ends"}
    )
    output: str = field(default="schedule.png", metadata={"help": "picture file, .png or .svg"})
    overwrite: bool = field(default=False, metadata={"help": "replace an existing picture"})

    def __post_init__(self) -> None:
        for name in ("d_model", "warmup_steps"):
            for value in getattr(self, name):
                if value < 1:
                    raise ValueError(f"{name}={value}: give a positive number")
        widths, warmups = len(self.d_model), len(self.warmup_steps)
        if warmups > 1 and widths > 1 and warmups != widths:
            raise ValueError(
                f"{widths} values of d_model and {warmups} of warmup_steps: "
                "give as many of one as of the other, or one for all"
            )
        if self.steps is not None and self.steps < 2:
            raise ValueError(f"steps={self.steps}: give 2 or more")


@dataclass(frozen=True)
class Schedule:
    """One curve.

    Attributes:
        name: for the legend.
        peak: highest learning rate.
        warmup_steps: step of the peak.
        last_step: where training ends; None: it is not told.
    """

    name: str
    peak: float
    warmup_steps: int
    last_step: int | None = None


def plot_schedule(options: PlotScheduleOptions) -> Path:
    """Draw the learning rate over the steps and save it; returns the file.

    Raises:
        ValueError: a recipe or a value is impossible.
        OSError: a recipe cannot be read, or the picture exists and `overwrite` is off.
    """
    path = check_picture(options.output, overwrite=options.overwrite)
    schedules = [recipe_schedule(name) for name in options.recipe]
    pairs = _pairs(options.d_model, options.warmup_steps)
    if not schedules and not pairs:
        pairs = list(KNOWN_SCHEDULES)
    schedules += [paper_schedule(d_model, warmup) for d_model, warmup in pairs]
    save_schedules(schedules, path, steps=options.steps)
    return path


def _pairs(widths: Sequence[int], warmups: Sequence[int]) -> list[tuple[int, int]]:
    """Widths with their warmups; of which there is one, it goes with all."""
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
    return Schedule(name, peak, train.warmup_steps, train.max_steps)


def save_schedules(schedules: Sequence[Schedule], path: Path, *, steps: int | None = None) -> None:
    """Save the learning rate of each schedule over the steps, with its peak told.

    Args:
        schedules: a curve each, drawn to its last step at most.
        path: picture file.
        steps: last step drawn; None: the last of the longest recipe, or well beyond the warmups.
    """
    if steps is None:
        ends = [s.last_step for s in schedules if s.last_step is not None]
        steps = max(ends or [5 * s.warmup_steps // 2 for s in schedules])
    figure = new_figure((8, 4.5))
    axes = figure.subplots()
    for schedule in schedules:
        last = min(steps, schedule.last_step or steps)
        # the peak is a corner, which evenly spaced steps would cut
        drawn = {1, last, min(schedule.warmup_steps, last), *range(1, last, last // 500 + 1)}
        points = [
            (s, schedule.peak * share_of_peak(s, schedule.warmup_steps)) for s in sorted(drawn)
        ]
        label = f"{schedule.name}: peak {schedule.peak:.2g}"
        axes.plot(*zip(*points, strict=True), linewidth=1.6, label=label)
    axes.set(xlabel="optimizer step", ylabel="learning rate", ylim=(0, None), xlim=(0, steps))
    axes.set_title("Learning rate: linear warmup, then the inverse square root of the step (5.3)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:.2g}")
    axes.grid(visible=True, alpha=0.25)
    axes.legend(fontsize=9)
    save_picture(figure, path)
