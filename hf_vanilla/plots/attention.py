"""Pictures of attention: where a token looks (3.2.3), for one head, the mean, or all of them.

Shapes: S source, T target, H heads, L layers; a grid is `(rows, columns, queries, keys)`.
"""

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_vanilla.translation.attentions import Attentions, attentions
from hf_vanilla.translation.translator import load_translator

from .figures import check_picture, new_figure, save_picture

EVERY, MEAN = "all", "mean"
# title, what a row is, what a column is
KINDS = {
    "cross": ("Cross-attention", "target token being written", "source token looked at"),
    "encoder": ("Encoder self-attention", "source token that looks", "source token looked at"),
    "decoder": ("Decoder self-attention", "target token being written", "target token looked at"),
}
LONGEST_LABEL = 24  # letters
GAP = 0.12  # inches between panels


@dataclass(frozen=True, kw_only=True)
class PlotAttentionOptions:
    """Draw where a model looks while it translates a sentence."""

    model: str = field(metadata={"help": "model folder or Hub id"})
    sentence: str = field(metadata={"help": "source sentence"})
    translation: str | None = field(
        default=None,
        metadata={"help": "translation the model is made to write; default: its own"},
    )
    output: str = field(default="attention.png", metadata={"help": "picture file, .png or .svg"})
    kind: str = field(default="cross", metadata={"help": "cross, encoder or decoder"})
    layer: str = field(default="-1", metadata={"help": "layer from 0, -1: the last; all: of each"})
    head: str = field(
        default=MEAN, metadata={"help": "head from 0; mean: of all; all: each in a panel"}
    )
    overwrite: bool = field(default=False, metadata={"help": "replace an existing picture"})

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: choose one of {', '.join(KINDS)}")
        for name, words in (("layer", (EVERY,)), ("head", (EVERY, MEAN))):
            value = getattr(self, name)
            if value not in words and not value.removeprefix("-").isdecimal():
                raise ValueError(f"{name}={value!r}: give a number from 0 or {' or '.join(words)}")


def plot_attention(options: PlotAttentionOptions) -> Path:
    """Translate a sentence, draw what the model looked at and save it; returns the file.

    Raises:
        ValueError: layer or head does not exist, or there is nothing to look at.
        OSError: the picture cannot be written, or it exists and `overwrite` is off.
    """
    path = check_picture(options.output, overwrite=options.overwrite)
    model, tokenizer = load_translator(options.model)
    seen = attentions(model, tokenizer, options.sentence, translation=options.translation)
    save_attention(seen, path, kind=options.kind, layer=options.layer, head=options.head)
    return path


def save_attention(
    seen: Attentions, path: Path, *, kind: str = "cross", layer: str = "-1", head: str = MEAN
) -> None:
    """Save the heat map of one head or their mean, or a grid of them.

    Args:
        seen: of one sentence.
        path: picture file.
        kind: `"cross"`, `"encoder"` or `"decoder"`.
        layer: number from 0, negative from the end, or `"all"`: a row for each.
        head: number from 0, negative from the end, `"mean"`, or `"all"`: a column for each.

    Raises:
        ValueError: there is no such layer or head, or too much to draw.
    """
    title, row_label, column_label = KINDS[kind]
    weights = getattr(seen, kind)  # (L, H, queries, keys)
    layers, heads = weights.shape[:2]
    rows = _chosen("layer", layer, layers)
    columns = None if head == MEAN else _chosen("head", head, heads)
    grid = weights[rows]
    grid = grid.mean(dim=1, keepdim=True) if columns is None else grid[:, columns]
    places = [f"layer {row}" for row in rows]
    names = [f"mean of {heads} heads"] if columns is None else [f"head {c}" for c in columns]
    if len(places) == 1:
        title += f", {places[0]} (0 to {layers - 1})"
    if len(names) == 1:
        title += f", {names[0]}" + ("" if columns is None else f" (0 to {heads - 1})")
    save_heat_maps(
        grid,
        path,
        tokens=(seen.target if kind != "encoder" else seen.source, _keys(seen, kind)),
        labels=(row_label, column_label),
        title=title,
        names=(places, names),
    )


def _keys(seen: Attentions, kind: str) -> list[str]:
    return seen.read if kind == "decoder" else seen.source


def _chosen(name: str, value: str, count: int) -> list[int]:
    """Places of the layers or heads that are meant."""
    if value == EVERY:
        return list(range(count))
    if not -count <= int(value) < count:
        raise ValueError(f"{name}={value}: there are {count}, counted from 0")
    return [int(value) % count]


def save_heat_maps(
    grid: Tensor,
    path: Path,
    *,
    tokens: tuple[list[str], list[str]],
    labels: tuple[str, str],
    title: str,
    names: tuple[list[str], list[str]],
) -> None:
    """Save `(rows, columns, queries, keys)` weights: queries down, keys across, panel by panel.

    Args:
        grid: weights in [0, 1], one panel for each row and column.
        path: picture file.
        tokens: of the queries, of the keys.
        labels: what a query is, what a key is.
        title: above all.
        names: of the rows, of the columns; left out where there is one of either.

    Raises:
        ValueError: there is too much to draw.
    """
    rows, columns, queries, keys = grid.shape
    is_one = rows == columns == 1
    cell, points = (0.3, 9) if is_one else (0.15, 6.5)  # inches of a token, size of its text
    panel = (keys * cell, queries * cell)
    width, height = columns * (panel[0] + GAP) - GAP, rows * (panel[1] + GAP) - GAP
    figure = new_figure((width, height))
    figure.set_layout_engine("none")  # sizes are known, and what lies around is saved too
    # one scale for all panels, as dark as the heaviest: a mean of heads is rarely near 1
    scale = {"cmap": "Blues", "vmin": 0, "vmax": max(float(grid.max()), 1e-6)}
    down, across = ([_short(token) for token in side] for side in tokens)
    slant = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    for row, column in product(range(rows), range(columns)):
        corner = (column * (panel[0] + GAP), height - row * (panel[1] + GAP) - panel[1])
        axes = _panel(figure, corner, panel)
        picture = axes.imshow(grid[row, column].numpy(), **scale)
        axes.tick_params(length=2)
        if row == 0 and columns > 1:
            axes.set_title(names[1][column], fontsize=8)
        if column == 0:
            axes.set_yticks(range(queries), down, fontsize=points)
            axes.set_ylabel(labels[0] if is_one else names[0][row], fontsize=8)
        if row == rows - 1:
            axes.set_xticks(range(keys), across, fontsize=points, **slant)
            axes.set_xlabel(labels[1] if is_one else "", fontsize=8)
    bar = _panel(figure, (width + 0.25, height - min(height, 2)), (0.14, min(height, 2)))
    figure.colorbar(picture, cax=bar).set_label("attention weight", size=8)
    bar.tick_params(labelsize=8)
    if not is_one:  # a panel may be too small for them
        title += f"\ndown: {labels[0]}, across: {labels[1]}"
    figure.suptitle(
        title, fontsize=10, y=1 + (0.12 if columns == 1 else 0.32) / height, va="bottom"
    )
    save_picture(figure, path)


def _panel(figure: Any, corner: tuple[float, float], size: tuple[float, float]) -> Any:
    """Empty axes at so many inches from the lower left, of so many inches."""
    width, height = figure.get_size_inches()
    (left, bottom), (wide, high) = corner, size
    axes = figure.add_axes((left / width, bottom / height, wide / width, high / height))
    axes.set(xticks=[], yticks=[])
    return axes


def _short(token: str) -> str:
    return token if len(token) <= LONGEST_LABEL else f"{token[: LONGEST_LABEL - 1]}…"
