"""The figures by name, and their one command line."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_vanilla.images.plot import PlotPatchesOptions, plot_patches
from hf_vanilla.objects.plot import PlotObjectsOptions, plot_objects
from hf_vanilla.options import UsageError, check_names, parse_options
from hf_vanilla.text.animation import PlotAnimationOptions, plot_animation
from hf_vanilla.text.length_bleu import PlotLengthBleuOptions, plot_length_bleu
from hf_vanilla.text.plot import PlotAttentionOptions, plot_attention
from hf_vanilla.tracks.plot import PlotTracksOptions, plot_tracks

from .architecture import PlotArchitectureOptions, plot_architecture
from .curves import PlotCurvesOptions, plot_curves
from .formulas import (
    PlotPositionsOptions,
    PlotScheduleOptions,
    plot_positions,
    plot_schedule,
)

# the function that draws it, and its options
FIGURES: dict[str, tuple[Callable[[Any], Path], type]] = {
    "architecture": (plot_architecture, PlotArchitectureOptions),
    "attention": (plot_attention, PlotAttentionOptions),
    "positions": (plot_positions, PlotPositionsOptions),
    "schedule": (plot_schedule, PlotScheduleOptions),
    "curves": (plot_curves, PlotCurvesOptions),
    "length_bleu": (plot_length_bleu, PlotLengthBleuOptions),
    "objects": (plot_objects, PlotObjectsOptions),
    "patches": (plot_patches, PlotPatchesOptions),
    "tracks": (plot_tracks, PlotTracksOptions),
    "animation": (plot_animation, PlotAnimationOptions),
}


def plot(choice: tuple[str, Any]) -> Path:
    """Draw what `read_plot` read; returns the file."""
    name, options = choice
    draw, _ = FIGURES[name]
    return draw(options)


def read_plot(arguments: Sequence[str]) -> tuple[str, Any]:
    """A figure and its options from a command line: the figure's name comes first.

    Raises:
        UsageError: there is no such figure, or an option is unknown or missing.
        ValueError: a value is impossible.
    """
    if arguments and arguments[0] in ("-h", "--help"):
        _print_help()
        sys.exit(0)
    if not arguments or arguments[0].startswith("-"):
        raise UsageError(f"missing: which figure; first comes one of {', '.join(FIGURES)}")
    name = arguments[0].replace("-", "_")
    check_names("figures", {name: None}, FIGURES, error=UsageError)
    return name, parse_options(FIGURES[name][1], arguments[1:], chosen=arguments[0])


def _print_help() -> None:
    """The figures, a line each."""
    lines = [
        f"  {name:12} {(kind.__doc__ or '').splitlines()[0]}" for name, (_, kind) in FIGURES.items()
    ]
    ArgumentParser(
        usage="%(prog)s FIGURE [options]; %(prog)s FIGURE --help",
        description="\n".join(["Draw a figure and save it as PNG or SVG:", "", *lines]),
        formatter_class=RawDescriptionHelpFormatter,
    ).print_help()
