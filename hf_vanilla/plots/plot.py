"""The pictures by name, and their one command line."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_vanilla.options import UsageError, check_names, parse_options

from .attention import PlotAttentionOptions, plot_attention
from .curves import PlotCurvesOptions, plot_curves
from .formulas import (
    PlotPositionsOptions,
    PlotScheduleOptions,
    plot_positions,
    plot_schedule,
)
from .length_bleu import PlotLengthBleuOptions, plot_length_bleu

# what draws it, and what it is told
PICTURES: dict[str, tuple[Callable[[Any], Path], type]] = {
    "attention": (plot_attention, PlotAttentionOptions),
    "positions": (plot_positions, PlotPositionsOptions),
    "schedule": (plot_schedule, PlotScheduleOptions),
    "curves": (plot_curves, PlotCurvesOptions),
    "length_bleu": (plot_length_bleu, PlotLengthBleuOptions),
}


def plot(choice: tuple[str, Any]) -> Path:
    """Draw what `read_plot` read; returns the file."""
    name, options = choice
    draw, _ = PICTURES[name]
    return draw(options)


def read_plot(arguments: Sequence[str]) -> tuple[str, Any]:
    """A picture and its options from a command line: the picture's name comes first.

    Raises:
        UsageError: there is no such picture, or an option is unknown or missing.
        ValueError: a value is impossible.
    """
    if arguments and arguments[0] in ("-h", "--help"):
        _print_help()
        sys.exit(0)
    if not arguments or arguments[0].startswith("-"):
        raise UsageError(f"missing: which picture; first comes one of {', '.join(PICTURES)}")
    name = arguments[0].replace("-", "_")
    check_names("pictures", {name: None}, PICTURES, error=UsageError)
    return name, parse_options(PICTURES[name][1], arguments[1:], chosen=arguments[0])


def _print_help() -> None:
    """The pictures, a line each."""
    lines = [
        f"  {name:12} {(kind.__doc__ or '').splitlines()[0]}"
        for name, (_, kind) in PICTURES.items()
    ]
    ArgumentParser(
        usage="%(prog)s PICTURE [options]; %(prog)s PICTURE --help",
        description="\n".join(["Draw a picture and save it as PNG or SVG:", "", *lines]),
        formatter_class=RawDescriptionHelpFormatter,
    ).print_help()
