"""A sentence is translated token by token, with its cross-attention, as a GIF (3.2.3).

    python docs/figures/animation.py
    python docs/figures/animation.py --model runs/mine --sentence "Two men are at a stove."

Shapes: S source, T target, H heads.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from hf_vanilla.commands import run
from hf_vanilla.files import whole_file
from hf_vanilla.plots.figures import THEMES, Theme, check_output, figure_style, new_figure
from hf_vanilla.text.attentions import SPACE, Attentions, attentions
from hf_vanilla.text.loading import demo_model, load_translator

SENTENCE = "seven hundred forty-two thousand three hundred nineteen"
SECONDS, LAST_SECONDS = 0.9, 2.7  # that a token, and the whole translation, are shown
SIZE = (8.4, 2.7)  # inches
DOTS_PER_INCH = 100
COLOURS = 48  # of the file
GAP, WIDEST = 16, 804  # between tokens and of a row, in dots
LIGHTEST = 0.04  # weight of the lightest line


def main(options: argparse.Namespace) -> None:
    """Translate a sentence and save each step as a frame."""
    path = check_output(options.output, overwrite=True, theme=options.theme, suffixes=(".gif",))
    model, tokenizer = load_translator(options.model or demo_model())
    seen = attentions(model, tokenizer, options.sentence)
    with figure_style(options.theme) as theme:
        frames = frames_of(seen, theme)
    seconds = [SECONDS] * (len(frames) - 1) + [LAST_SECONDS]
    save_frames(frames, path, seconds)
    print(path)


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """What is drawn, and where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="model folder or Hub id; default: the package's model")
    parser.add_argument("--sentence", default=SENTENCE, help="source sentence")
    parser.add_argument("--output", default="translating.gif", help=".gif, is replaced")
    parser.add_argument("--theme", default="light", choices=THEMES)
    return parser.parse_args(arguments)


def frames_of(seen: Attentions, theme: Theme) -> list[Image.Image]:
    """A picture before the first token, one for each token, and one of all; call it in a style.

    Args:
        seen: attention weights of one sentence.
        theme: colours.

    Raises:
        ValueError: the sentence or its translation is too long for one row.
    """
    weights = seen.cross[-1].mean(dim=0)  # (T, S)
    shown: list[int | None] = [None, *range(len(seen.target)), len(seen.target)]
    frames = []
    for step in shown:
        figure = new_figure(SIZE)
        figure.set_layout_engine("none")
        figure.set_dpi(DOTS_PER_INCH)
        _draw(figure, seen, weights, theme, step)
        figure.canvas.draw()
        frames.append(Image.frombuffer("RGBA", *_pixels(figure)).convert("RGB"))
    return frames


def _pixels(figure: Any) -> tuple[tuple[int, int], bytes]:
    return figure.canvas.get_width_height(), bytes(figure.canvas.buffer_rgba())


def _draw(figure: Any, seen: Attentions, weights: Tensor, theme: Theme, step: int | None) -> None:
    """One frame: the tokens until `step` and their lines; None: no token yet.

    Args:
        figure: empty.
        seen: tokens of both sides.
        weights: `(T, S)`.
        theme: colours.
        step: index of the newest token; the number of tokens: all of them, none is new.
    """
    wide, high = (round(inches * DOTS_PER_INCH) for inches in SIZE)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, wide), ylim=(0, high))
    axes.set_axis_off()
    top, bottom = high - 40, 40
    of_source = _row(axes, seen.source, top, [theme.text] * len(seen.source))
    last = -1 if step is None else step
    is_over = last == len(seen.target)
    colours = [_colour(theme, t, last) for t in range(len(seen.target))]
    of_target = _row(axes, seen.target, bottom, colours)
    for t in range(min(last + 1, len(seen.target))):
        is_new = t == last
        for s in torch.nonzero(weights[t] > LIGHTEST).flatten().tolist():
            weight = float(weights[t, s])
            axes.plot(
                *_curve((of_source[s], top - 20), (of_target[t], bottom + 20)),
                color=theme.lines[1] if is_new else theme.lines[0],
                linewidth=0.5 + 4 * weight,
                alpha=weight if is_new or is_over else weight / 3,
                solid_capstyle="butt",
            )


def _colour(theme: Theme, token: int, last: int) -> str:
    """Of a token of the translation: new, written, or not yet there."""
    if token == last:
        return theme.lines[1]
    return theme.text if token < last else theme.background


def _row(axes: Any, tokens: Sequence[str], y: float, colours: Sequence[str]) -> list[float]:
    """Write tokens side by side around the middle; returns the middle of each.

    Raises:
        ValueError: they are wider than the figure.
    """
    renderer = axes.figure.canvas.get_renderer()
    texts = [
        axes.text(0, y, token.removeprefix(SPACE), fontsize=12, ha="center", va="center", color=c)
        for token, c in zip(tokens, colours, strict=True)
    ]
    for text in texts:
        text.set_parse_math(False)
    widths = [text.get_window_extent(renderer).width + GAP for text in texts]
    if sum(widths) > WIDEST:
        raise ValueError(
            f"{len(tokens)} tokens are {sum(widths):.0f} dots wide, and {WIDEST} fit into a row: "
            "give a shorter sentence"
        )
    x, middles = (SIZE[0] * DOTS_PER_INCH - sum(widths)) / 2, []
    for text, width in zip(texts, widths, strict=True):
        middles.append(x + width / 2)
        text.set_x(middles[-1])
        x += width
    return middles


def _curve(start: tuple[float, float], end: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Points of a smooth line that leaves both ends vertically."""
    share = torch.linspace(0, 1, 33)
    smooth = share**2 * (3 - 2 * share)
    return start[0] + (end[0] - start[0]) * smooth, start[1] + (end[1] - start[1]) * share


def save_frames(frames: Sequence[Image.Image], path: Path, seconds: Sequence[float]) -> None:
    """Write frames as a GIF file that repeats, completely or not at all.

    Args:
        frames: of equal size.
        path: of the file.
        seconds: that each frame is shown.
    """
    width, height = frames[0].size
    together = Image.new("RGB", (width, height * len(frames)))
    for index, frame in enumerate(frames):
        together.paste(frame, (0, index * height))
    palette = together.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE)
    few = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    with whole_file(path) as unfinished:
        few[0].save(
            unfinished,
            "GIF",
            save_all=True,
            append_images=few[1:],
            duration=[round(1000 * each) for each in seconds],
            loop=0,
            optimize=True,
        )


if __name__ == "__main__":
    run(main, read_options)
