"""The figures by name, and their one command line."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_vanilla.families import TASKS, load_part
from hf_vanilla.file_values import check_names
from hf_vanilla.options import HelpShown, UsageError, parse_options

# figures of no task -> import strings of the function that draws it and of its options
OF_NO_TASK: dict[str, tuple[str, str]] = {
    "curves": ("hf_vanilla.plots.curves:plot_curves", "hf_vanilla.plots.curves:PlotCurvesOptions"),
}


def all_figures() -> dict[str, tuple[str, str]]:
    """Every figure by name, with the import strings of its function and of its options."""
    of_tasks = {name: parts for entry in TASKS.values() for name, parts in entry.figures.items()}
    return OF_NO_TASK | of_tasks


def plot(choice: tuple[str, Any]) -> Path:
    """Draw what `read_plot` read; returns the file."""
    name, options = choice
    draw, _ = all_figures()[name]
    return load_part(draw)(options)


def read_plot(arguments: Sequence[str]) -> tuple[str, Any]:
    """A figure and its options from a command line: the figure's name comes first.

    Raises:
        UsageError: there is no such figure, or an option is unknown or missing.
        ValueError: a value is impossible.
    """
    if arguments and arguments[0] in ("-h", "--help"):
        raise HelpShown(_help_of_all())
    if not arguments or arguments[0].startswith("-"):
        raise UsageError(f"missing: which figure; first comes one of {', '.join(all_figures())}")
    name = arguments[0].replace("-", "_")
    check_names("figures", {name: None}, all_figures(), error=UsageError)
    return name, parse_options(
        load_part(all_figures()[name][1]), arguments[1:], chosen=arguments[0]
    )


def _help_of_all() -> ArgumentParser:
    """A parser whose help has the figures, a line each."""
    lines = [
        f"  {name:12} {(load_part(options).__doc__ or '').splitlines()[0]}"
        for name, (_, options) in all_figures().items()
    ]
    return ArgumentParser(
        usage="%(prog)s FIGURE [options]; %(prog)s FIGURE --help",
        description="\n".join(["Draw a figure and save it as PNG or SVG:", "", *lines]),
        formatter_class=RawDescriptionHelpFormatter,
    )
