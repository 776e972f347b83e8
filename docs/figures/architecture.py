"""Figure 1 of the paper with the widths and counts of a config (3.1).

python docs/figures/architecture.py
python docs/figures/architecture.py --model runs/mine --output mine.svg
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from hf_vanilla.commands import run
from hf_vanilla.loading import load_saved
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.plots.figures import (
    THEMES,
    Theme,
    check_output,
    figure_style,
    new_figure,
    save_figure,
)

# of the drawing, in units of a hundredth of an inch
WIDTH, BOX, GAP, NARROW, TALL = 286, 230, 22, 22, 50
LEFT, RIGHT = 0, 370  # left edges of encoder and decoder


@dataclass(frozen=True)
class Box:
    """One sublayer of the drawing.

    Attributes:
        name: first line, as in the paper.
        size: second line, its widths; empty for none.
        colour: index of its colour in the theme.
        reads_encoder: whether keys and values come from the encoder.
    """

    name: str
    size: str
    colour: int
    reads_encoder: bool = False


def main(options: argparse.Namespace) -> None:
    """Draw the architecture of a model, or of the paper's base model."""
    path = check_output(options.output, overwrite=True, theme=options.theme)
    config = load_saved(AutoConfig, options.model) if options.model else VanillaConfig()
    if type(config) is not VanillaConfig:
        raise ValueError(
            f"{options.model} is a model of type {config.model_type!r}: give a translator"
        )
    save_architecture(config, path, theme=options.theme)
    print(path)


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """What is drawn, and where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="model folder or Hub id; default: the paper's base model")
    parser.add_argument("--output", default="architecture.png", help=".png or .svg, is replaced")
    parser.add_argument("--theme", default="light", choices=THEMES)
    return parser.parse_args(arguments)


def parameter_count(config: VanillaConfig) -> int:
    """Parameters of a model of this config; tied weights count once."""
    with torch.device("meta"):
        return VanillaForConditionalGeneration(config).num_parameters()


def encoder_boxes(config: VanillaConfig) -> list[Box]:
    """Sublayers of one encoder layer, from the bottom."""
    heads = config.encoder_attention_heads
    return [
        Box("Multi-head attention", _heads(config, heads), 0),
        Box("Feed forward", _feed_forward(config, config.encoder_ffn_dim), 2),
    ]


def decoder_boxes(config: VanillaConfig) -> list[Box]:
    """Sublayers of one decoder layer, from the bottom."""
    heads = _heads(config, config.decoder_attention_heads)
    ffn = _feed_forward(config, config.decoder_ffn_dim)
    return [
        Box("Masked multi-head attention", heads, 0),
        Box("Multi-head attention", heads, 0, reads_encoder=True),
        Box("Feed forward", ffn, 2),
    ]


def _heads(config: VanillaConfig, heads: int) -> str:
    key_width, value_width = config.head_widths(heads)
    return f"{heads} heads of {key_width}" + (
        "" if key_width == value_width else f", values of {value_width}"
    )


def _feed_forward(config: VanillaConfig, inner: int) -> str:
    return f"{config.d_model:,} → {inner:,} → {config.d_model:,}"


def save_architecture(config: VanillaConfig, path: Path, *, theme: str = "light") -> None:
    """Save Figure 1 of the paper with the numbers of a config.

    Args:
        config: of an encoder-decoder.
        path: file of the figure.
        theme: `"light"` or `"dark"`.
    """
    target = config.target_vocab_size
    tied = "tied to the embedding" if config.tie_word_embeddings else "a matrix of its own"
    with figure_style(theme) as colours:
        figure = new_figure((7.2, 6.9))
        axes = figure.subplots()
        drawing = _Drawing(axes, colours)
        top = drawing.stack(LEFT, "Inputs", config.vocab_size, config, encoder_boxes(config))
        drawing.count(LEFT - 8, config.encoder_layers, ha="right")
        drawing.end_of_encoder = top
        top = drawing.stack(
            RIGHT, "Outputs\n(shifted right)", target, config, decoder_boxes(config)
        )
        drawing.count(RIGHT + WIDTH + 8, config.decoder_layers, ha="left")
        top = drawing.box(RIGHT, top + GAP, Box("Linear", f"{config.d_model:,} → {target:,}", 3))
        axes.text(RIGHT + WIDTH - 18, top - TALL / 2, tied, va="center", fontsize=7.5)
        top = drawing.box(RIGHT, top + GAP, Box("Softmax", "", 1))
        drawing.arrow((RIGHT + WIDTH / 2, top), (RIGHT + WIDTH / 2, top + GAP))
        middle = RIGHT + WIDTH / 2
        axes.text(middle, top + GAP + 4, "Output probabilities", ha="center", va="bottom")
        axes.set(xlim=(-55, RIGHT + WIDTH + 85), ylim=(-45, top + GAP + 25), aspect="equal")
        axes.axis("off")
        figure.suptitle(
            f"The Transformer: d_model {config.d_model:,}, {parameter_count(config):,} parameters"
        )
        save_figure(figure, path)


class _Drawing:
    """Boxes and arrows on axes; every method returns the height that it reached."""

    def __init__(self, axes: Any, theme: Theme) -> None:
        self.axes, self.theme = axes, theme
        self.last_top = 0.0
        self.middle_of_layers = 0.0
        self.end_of_encoder = 0.0

    def stack(
        self, left: float, what: str, vocab_size: int, config: VanillaConfig, boxes: list[Box]
    ) -> float:
        """Embedding, positions and one layer, from the bottom."""
        middle = left + WIDTH / 2
        self.axes.text(middle, -6, what, ha="center", va="top")
        self.arrow((middle, -2), (middle, GAP))
        sizes = f"{vocab_size:,} x {config.d_model:,}"
        top = self.box(left, GAP, Box("Embedding", sizes, 1), arrow=False)
        is_sinusoidal = config.position_embedding_type == "sinusoidal"
        positions = "sines and cosines" if is_sinusoidal else "learned"
        top = self.box(left, top + GAP, Box("+ positions", positions, 4))
        bottom = top + 1.2 * GAP
        top = bottom + 6
        for box in boxes:
            top = self.sublayer(left, top, box)
        self.frame(left, bottom, top + 8)
        self.middle_of_layers = (bottom + top) / 2
        if config.final_layer_norm:
            top = self.box(left, top + GAP + 8, Box("Norm", f"{config.d_model:,}", 5))
        return top + 8

    def sublayer(self, left: float, bottom: float, box: Box) -> float:
        """One sublayer with its residual connection and its norm."""
        middle = left + WIDTH / 2
        start = bottom + 4
        if box.reads_encoder:
            self.from_encoder(left, bottom + GAP + TALL / 2)
        top = self.box(left, bottom + GAP, box)
        norm = self.box(left, top + 10, Box("Add & norm", "", 5))
        side = left + WIDTH - 12
        line = {"color": self.theme.text, "linewidth": 0.9}
        self.axes.plot([middle, side, side], [start, start, norm - NARROW / 2], **line)
        self.arrow((side, norm - NARROW / 2), (middle + BOX / 2, norm - NARROW / 2))
        return norm

    def from_encoder(self, left: float, height: float) -> None:
        """Keys and values from the top of the encoder to the middle of a box."""
        start, between = LEFT + WIDTH / 2, (LEFT + WIDTH + RIGHT) / 2
        top = self.end_of_encoder + GAP
        line = {"color": self.theme.text, "linewidth": 0.9}
        across = [start, start, between, between]
        self.axes.plot(across, [self.end_of_encoder - 8, top, top, height], **line)
        self.arrow((between, height), (left + (WIDTH - BOX) / 2, height))
        label = "keys and values"
        self.axes.text(
            (start + between) / 2, top + 3, label, ha="center", va="bottom", fontsize=7.5
        )

    def box(self, left: float, bottom: float, box: Box, *, arrow: bool = True) -> float:
        """One box with its text, and the arrow that leads into it from below."""
        from matplotlib.patches import FancyBboxPatch

        height = TALL if box.size else NARROW
        middle, edge = left + WIDTH / 2, self.theme.lines[box.colour]
        corner = (left + (WIDTH - BOX) / 2, bottom)
        patch = FancyBboxPatch(corner, BOX, height, boxstyle="round,pad=0,rounding_size=5")
        patch.set(edgecolor=edge, facecolor=f"{edge}33")
        self.axes.add_patch(patch)
        text = f"{box.name}\n{box.size}" if box.size else box.name
        self.axes.text(middle, bottom + height / 2, text, ha="center", va="center", fontsize=8.5)
        if arrow:
            self.arrow((middle, self.last_top), (middle, bottom))
        self.last_top = bottom + height
        return self.last_top

    def frame(self, left: float, bottom: float, top: float) -> None:
        """The frame around one layer."""
        from matplotlib.patches import FancyBboxPatch

        patch = FancyBboxPatch(
            (left, bottom), WIDTH, top - bottom, boxstyle="round,pad=0,rounding_size=8"
        )
        patch.set(edgecolor=self.theme.faint, facecolor="none", zorder=0)
        self.axes.add_patch(patch)

    def count(self, edge: float, layers: int, *, ha: str) -> None:
        """How many times the framed layer is repeated."""
        self.axes.text(edge, self.middle_of_layers, f"{layers} x", ha=ha, va="center", fontsize=12)

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A straight arrow."""
        properties = {"arrowstyle": "-|>", "color": self.theme.text, "linewidth": 0.9}
        style = {**properties, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8}
        self.axes.annotate("", xy=end, xytext=start, arrowprops=style)


if __name__ == "__main__":
    run(main, read_options)
