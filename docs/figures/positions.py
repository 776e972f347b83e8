"""The sinusoidal positions (3.5): their table, the dot products of its rows, three rows of those.

    python docs/figures/positions.py --d_model 128 --length 60

Shapes: L positions, D `d_model`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import LinearSegmentedColormap
from torch import Tensor

from hf_vanilla.commands import run
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.positions_vanilla import SinusoidalPositions
from hf_vanilla.plots.figures import (
    THEMES,
    check_output,
    figure_style,
    new_figure,
    save_figure,
)

# colours of the lowest and the highest value; zero has the background's
ENDS = {"light": ("#00508a", "#b34700"), "dark": ("#56b4e9", "#e69f00")}


def main(options: argparse.Namespace) -> None:
    """Draw the positions of a width."""
    path = check_output(options.output, overwrite=True, theme=options.theme)
    if options.length < 8:
        raise ValueError(f"length={options.length}: give 8 or more")
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}  # they divide any width
    config = VanillaConfig(d_model=options.d_model, **heads)
    save_positions(config, path, length=options.length, theme=options.theme)
    print(path)


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """What is drawn, and where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d_model", type=int, default=512, help="channels, an even number")
    parser.add_argument("--length", type=int, default=100, help="positions drawn, 8 or more")
    parser.add_argument("--output", default="positions.png", help=".png or .svg, is replaced")
    parser.add_argument("--theme", default="light", choices=THEMES)
    return parser.parse_args(arguments)


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
    table = SinusoidalPositions(config)(length, 0, torch.empty(0))  # (L, D)
    products = table @ table.T / (config.d_model / 2)  # (L, L)
    style: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto"}
    with figure_style(theme) as colours:
        figure = new_figure((10, 8))
        panels = figure.subplot_mosaic([["table", "table"], ["products", "rows"]])
        axes = panels["table"]
        below_zero, above_zero = ENDS[theme]
        ends = (below_zero, colours.background, above_zero)
        signed = LinearSegmentedColormap.from_list("signed", ends)
        image = axes.imshow(table.numpy(), cmap=signed, vmin=-1, vmax=1, **style)
        axes.set(
            title="The table: pairs of sine and cosine, slower from left to right",
            xlabel=f"channel of {config.d_model}",
            ylabel="position",
        )
        figure.colorbar(image, ax=axes, label="value", pad=0.01)
        axes = panels["products"]
        image = axes.imshow(products.numpy(), vmax=1, **style)
        axes.set(
            title="Dot products of its rows: only the distance counts",
            xlabel="position",
            ylabel="position",
        )
        figure.colorbar(image, ax=axes, pad=0.02)
        _draw_rows(panels["rows"], products)
        figure.suptitle(
            f"Sinusoidal positions: d_model {config.d_model}, {config.position_layout}, "
            f"frequencies of {config.position_frequencies}, offset {config.position_offset}"
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


if __name__ == "__main__":
    run(main, read_options)
