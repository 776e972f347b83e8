"""Pictures: what each target token looked at (3.2.3), and how a run went.

Shapes: S source, T target, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from .attentions import attentions
from .translation import load_translator


@dataclass(frozen=True, kw_only=True)
class PlotAttentionOptions:
    """Draw where a model looks while it translates a sentence."""

    model: str = field(metadata={"help": "model folder or Hub id"})
    sentence: str = field(metadata={"help": "source sentence"})
    output: str = field(default="attention.png", metadata={"help": "picture file, .png or .svg"})
    layer: int = field(default=-1, metadata={"help": "decoder layer from 0; -1: the last"})
    head: int | None = field(default=None, metadata={"help": "head from 0; default: mean of all"})
    overwrite: bool = field(default=False, metadata={"help": "replace an existing picture"})


def plot_attention(options: PlotAttentionOptions) -> Path:
    """Draw the cross-attention of one sentence and save it; returns the file.

    Raises:
        ValueError: layer or head does not exist, or the sentence is blank.
        OSError: the picture exists and `overwrite` is off.
    """
    output = Path(options.output)
    if output.exists() and not options.overwrite:
        raise FileExistsError(f"{output} exists: choose another name or add --overwrite")
    model, tokenizer = load_translator(options.model)
    seen = attentions(model, tokenizer, options.sentence)
    layers, heads = seen.cross.shape[:2]
    for name, value, count in (("layer", options.layer, layers), ("head", options.head, heads)):
        if value is not None and not -count <= value < count:
            raise ValueError(f"{name}={value}: the decoder has {count}, counted from 0")
    in_layer = seen.cross[options.layer]
    weights = in_layer.mean(dim=0) if options.head is None else in_layer[options.head]
    which = (
        "mean of all heads"
        if options.head is None
        else f"head {options.head % heads + 1} of {heads}"
    )
    title = f"Cross-attention, decoder layer {options.layer % layers + 1} of {layers}, {which}"
    save_heat_map(weights, seen.source, seen.target, title=title, path=output)
    return output


def save_heat_map(
    weights: Tensor, source: list[str], target: list[str], *, title: str, path: Path
) -> None:
    """Save `(T, S)` weights as a heat map, source tokens across and target tokens down.

    Raises:
        ImportError: matplotlib is not installed.
    """
    cell = 0.36  # inches, room for a rotated token
    longest = max(map(len, source + target)) * 0.1
    size = (len(source) * cell + longest + 2.2, len(target) * cell + longest + 1.2)
    figure = new_figure(size)
    axes = figure.subplots()
    picture = axes.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(source)), source, rotation=90)
    axes.set_yticks(range(len(target)), target)
    axes.set_xlabel("source token")
    axes.set_ylabel("target token being written")
    axes.set_title(title, fontsize=10, loc="left", wrap=True)
    figure.colorbar(picture, label="attention weight", shrink=0.8)
    figure.savefig(path, dpi=150)


def plot_curves(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Save a run's curves over its steps: loss, validation, BLEU, learning rate.

    A run without validation has no BLEU; its panel is left out.

    Args:
        entries: lines of `log.jsonl`; those of averaged checkpoints are not drawn.
        path: picture file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    entries = [entry for entry in entries if not entry.get("averaged_checkpoints")]
    panels: list[tuple[str, dict[str, str]]] = [
        (
            "nats per target token",
            {
                "loss": "training loss, smoothed targets",
                "train_nll": "training, plain",
                "validation_nll": "validation, plain",
            },
        ),
        ("BLEU", {"bleu": "validation"}),
        ("learning rate", {"learning_rate": ""}),
    ]
    panels = [
        (unit, names) for unit, names in panels if any(n in e for n in names for e in entries)
    ]
    figure = new_figure((7.0, 0.6 + 2.5 * max(len(panels), 1)))
    rows = figure.subplots(max(len(panels), 1), sharex=True, squeeze=False)[:, 0]
    for axes, (unit, names) in zip(rows, panels, strict=False):
        for name, label in names.items():
            points = [(e["step"], e[name]) for e in entries if name in e]
            few = "o-" if len(points) < 40 else "-"
            if points:
                axes.plot(*zip(*points, strict=True), few, markersize=3, linewidth=1.2, label=label)
        if unit == "nats per target token":  # it falls by factors
            axes.set_yscale("log", subs=[2, 5])
            for axis_side in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                axis_side("{x:g}")
        elif unit == "BLEU":  # from nothing, or a tenth of a point would fill the panel
            axes.set_ylim(bottom=0)
        axes.set_ylabel(unit)
        axes.grid(visible=True, which="both", alpha=0.25)
        if len(axes.lines) > 1:
            axes.legend(fontsize=8)
    rows[-1].set_xlabel("optimizer step")
    figure.savefig(path, dpi=150)


def new_figure(size: tuple[float, float]) -> Any:
    """An empty figure of `size` inches that needs no screen.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install 'hf-vanilla[plot]'") from None
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
