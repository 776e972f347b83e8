"""Figures of attention weights (3.2.3): of one head, of the mean of all heads, or of each.

Shapes: S source, T target, H heads, L layers; a grid is `(rows, columns, queries, keys)`.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_vanilla.options import Options, option
from hf_vanilla.plots.figures import check_output, figure_style, new_figure, save_figure

from .attentions import CROSS, DECODER, ENCODER, Attentions, attentions, is_special, word_starts
from .loading import load_translator

EVERY, MEAN = "all", "mean"
# name, what a row is, what a column is
KINDS = {
    "cross": (CROSS, "target token being written", "source token attended to"),
    "encoder": (ENCODER, "source token that attends", "source token attended to"),
    "decoder": (DECODER, "target token being written", "target token attended to"),
}
LONGEST_LABEL = 24  # characters
GAP = 0.12  # inches between panels
BRACKET = 0.06  # inches from a panel to the brackets around the tokens of a word
PATH_NOTE = "line: largest weight of each row; it runs back where the order changes"


@dataclass(frozen=True, kw_only=True)
class PlotAttentionOptions(Options):
    """Draw the attention weights of a model while it translates a sentence."""

    model: str = option(text="model folder or Hub id")
    sentence: str = option(text="source sentence")
    translation: str | None = option(
        None, "translation that the model is forced to write; default: its own"
    )
    output: str = option("attention.png", "file of the figure, .png or .svg")
    kind: str = option("cross", "cross, encoder or decoder", choices=KINDS)
    layer: str = option("-1", "layer from 0, -1: the last; all: of each")
    head: str = option(MEAN, "head from 0; mean: of all; all: each in a panel")
    theme: str = option("light", "light or dark background")
    overwrite: bool = option(False, "replace an existing file")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, others in (("layer", (EVERY,)), ("head", (EVERY, MEAN))):
            value = getattr(self, name)
            if value not in others and not value.removeprefix("-").isdecimal():
                raise ValueError(f"{name}={value!r}: give a number from 0 or {' or '.join(others)}")


def plot_attention(options: PlotAttentionOptions) -> Path:
    """Translate a sentence and save its attention weights as a figure; returns the file.

    Raises:
        ValueError: layer or head does not exist, or the sentence has no tokens.
        OSError: the file cannot be written, or it exists and `overwrite` is off.
    """
    path = check_output(options.output, overwrite=options.overwrite, theme=options.theme)
    model, tokenizer = load_translator(options.model)
    seen = attentions(model, tokenizer, options.sentence, translation=options.translation)
    choice = {"kind": options.kind, "layer": options.layer, "head": options.head}
    save_attention(seen, path, **choice, theme=options.theme)
    return path


def save_attention(
    seen: Attentions,
    path: Path,
    *,
    kind: str = "cross",
    layer: str = "-1",
    head: str = MEAN,
    theme: str = "light",
) -> None:
    """Save the heat map of one head or of the mean of all, or a grid of heat maps.

    Args:
        seen: attention weights of one sentence.
        path: file of the figure.
        kind: `"cross"`, `"encoder"` or `"decoder"`.
        layer: number from 0, negative from the end, or `"all"`: a row for each.
        head: number from 0, negative from the end, `"mean"`, or `"all"`: a column for each.
        theme: `"light"` or `"dark"`.

    Raises:
        ValueError: there is no such layer or head, or too much to draw.
    """
    name, row_label, column_label = KINDS[kind]
    title, weights = name.capitalize(), seen.of(name)  # (L, H, queries, keys)
    layers, heads = weights.shape[:2]
    rows = _chosen("layer", layer, layers)
    columns = None if head == MEAN else _chosen("head", head, heads)
    grid = weights[rows]
    grid = grid.mean(dim=1, keepdim=True) if columns is None else grid[:, columns]
    layer_names = [f"layer {row}" for row in rows]
    head_names = [f"mean of {heads} heads"] if columns is None else [f"head {c}" for c in columns]
    if len(layer_names) == 1:
        title += f", {layer_names[0]} (0 to {layers - 1})"
    if len(head_names) == 1:
        title += f", {head_names[0]}" + ("" if columns is None else f" (0 to {heads - 1})")
    with figure_style(theme):
        save_heat_maps(
            grid,
            path,
            tokens=seen.tokens(name),
            labels=(row_label, column_label),
            title=title,
            names=(layer_names, head_names),
        )


def _chosen(name: str, value: str, count: int) -> list[int]:
    """The chosen layers or heads as indices from 0, as in the config and in transformers."""
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
    """Save `(rows, columns, queries, keys)` weights, one panel for each row and column.

    Call it inside `figure_style`. In a panel queries go down, keys across. Thin lines and brackets
    group the tokens of a word; a single panel has a line through the largest weight of each row.

    Args:
        grid: weights in [0, 1].
        path: file of the figure.
        tokens: of the queries, of the keys.
        labels: what a query is, what a key is.
        title: of the figure.
        names: of the rows, of the columns; not shown where there is only one.

    Raises:
        ValueError: there is too much to draw.
    """
    rows, columns, queries, keys = grid.shape
    is_one = rows == columns == 1
    cell, points = (0.3, 9) if is_one else (0.15, 6.5)  # inches of a token, size of its text
    panel = (keys * cell, queries * cell)
    width, height = columns * (panel[0] + GAP) - GAP, rows * (panel[1] + GAP) - GAP
    figure = new_figure((width, height))
    figure.set_layout_engine("none")  # sizes are known; titles and labels outside are saved too
    # one scale for all panels, up to the heaviest weight: a mean of heads is rarely near 1
    scale = {"vmin": 0, "vmax": max(float(grid.max()), 1e-6)}
    down, across = ([_short(token) for token in side] for side in tokens)
    slant = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    for row, column in product(range(rows), range(columns)):
        corner = (column * (panel[0] + GAP), height - row * (panel[1] + GAP) - panel[1])
        axes = _panel(figure, corner, panel)
        image = axes.imshow(grid[row, column].numpy(), **scale)
        _divide_words(axes, tokens)
        if is_one:  # C1: the second colour of the style
            places = grid[0, 0].argmax(-1)[: queries - is_special(tokens[0][-1])]
            axes.plot(places, range(len(places)), "o-", markersize=3, color="C1")
        axes.tick_params(length=0, pad=72 * BRACKET + 2)
        if row == 0 and columns > 1:
            axes.set_title(names[1][column], fontsize=8)
        if column == 0:
            axes.set_yticks(range(queries), down, fontsize=points)
            axes.set_ylabel(labels[0] if is_one else names[0][row], fontsize=8)
            _draw_brackets(axes.yaxis, tokens[0], -BRACKET / panel[0])
        if row == rows - 1:
            axes.set_xticks(range(keys), across, fontsize=points, **slant)
            axes.set_xlabel(labels[1] if is_one else "", fontsize=8)
            _draw_brackets(axes.xaxis, tokens[1], -BRACKET / panel[1])
    bar = _panel(figure, (width + 0.25, height - min(height, 2)), (0.14, min(height, 2)))
    figure.colorbar(image, cax=bar).set_label("attention weight", size=8)
    bar.tick_params(labelsize=8)
    # a panel of many may be too small for labels
    title += f"\n{PATH_NOTE if is_one else f'down: {labels[0]}, across: {labels[1]}'}"
    above = 1 + (0.12 if columns == 1 else 0.32) / height
    figure.suptitle(title, fontsize=10, y=above, va="bottom")
    save_figure(figure, path)


def _divide_words(axes: Any, tokens: tuple[list[str], list[str]]) -> None:
    """Draw thin lines between words on both axes, so that reordering shows as whole blocks."""
    for side, draw in zip(tokens, (axes.axhline, axes.axvline), strict=True):
        for first, _ in _words(side)[1:]:
            draw(first - 0.1, linewidth=0.5, color="0.6")


def _words(tokens: list[str]) -> list[list[float]]:
    """Ends of the bracket of each word, in units of a token; none where each token is a word."""
    starts = word_starts(tokens)
    if len(starts) == len(tokens):
        return []
    ends = [*starts[1:], len(tokens)]
    return [[first - 0.4, end - 0.6] for first, end in zip(starts, ends, strict=True)]


def _draw_brackets(axis: Any, tokens: list[str], offset: float) -> None:
    """A line beside the tokens of each word, at an offset from the panel in its units."""
    from matplotlib import rcParams
    from matplotlib.lines import Line2D

    axes, is_down = axis.axes, axis.axis_name == "y"
    place = axes.get_yaxis_transform() if is_down else axes.get_xaxis_transform()
    line = {"color": rcParams["text.color"], "linewidth": 1.0, "clip_on": False}
    for ends in _words(tokens):
        x, y = ([offset] * 2, ends) if is_down else (ends, [offset] * 2)
        axes.add_line(Line2D(x, y, transform=place, **line))


def _panel(figure: Any, corner: tuple[float, float], size: tuple[float, float]) -> Any:
    """Empty axes; `corner` is their lower left from that of the figure, both in inches."""
    width, height = figure.get_size_inches()
    (left, bottom), (wide, high) = corner, size
    axes = figure.add_axes((left / width, bottom / height, wide / width, high / height))
    axes.set(xticks=[], yticks=[])
    return axes


def _short(token: str) -> str:
    return token if len(token) <= LONGEST_LABEL else f"{token[: LONGEST_LABEL - 1]}…"
