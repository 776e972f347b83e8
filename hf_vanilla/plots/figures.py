"""What every figure shares: style, fonts of any script, a complete file; all figures by name."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_vanilla.families import TASKS, load_part
from hf_vanilla.file_values import check_names
from hf_vanilla.files import check_output_file, whole_file
from hf_vanilla.options import HelpShown, UsageError, needs, parse_options

SUFFIXES = (".png", ".svg")
DOTS_PER_INCH = 150
# a PNG of more dots takes gigabytes to draw
MOST_DOTS = 150_000_000
# matplotlib takes each character from the first installed font that has it; its own font, with
# Latin, Greek, Cyrillic, Arabic, Hebrew and arrows, comes first and draws the same everywhere
FONTS = (
    "DejaVu Sans",
    "Noto Sans",
    *(f"Noto Sans CJK {region}" for region in ("SC", "TC", "JP", "KR")),
    *(f"Noto Sans {script}" for script in ("Devanagari", "Bengali", "Tamil", "Thai", "Georgian")),
    *("Source Han Sans", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback"),
    *("PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Arial Unicode MS"),  # macOS
    *("Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Nirmala UI", "Segoe UI"),  # Windows
    *("Noto Color Emoji", "Noto Emoji", "Symbola", "Unifont"),
)


@dataclass(frozen=True)
class Theme:
    """Colours of a figure for one kind of page.

    Attributes:
        background: of the whole figure.
        text: letters.
        faint: grid, frames and ticks.
        lines: of curves, in their order; told apart by readers with any kind of colour vision
            (the palette of Okabe and Ito).
        heat: matplotlib's colour map of weights, from 0 in a colour near the background.
    """

    background: str
    text: str
    faint: str
    lines: tuple[str, ...]
    heat: str


THEMES = {
    "light": Theme(
        background="#ffffff",
        text="#1f2328",
        faint="#c4cad0",
        lines=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
        heat="Blues",
    ),
    "dark": Theme(
        background="#14181d",
        text="#e6e9ec",
        faint="#474f58",
        lines=("#56b4e9", "#e69f00", "#2bc29b", "#e5a0c6", "#f0e442", "#e8743b"),
        heat="bone",
    ),
}


def check_output(
    output: str | Path,
    *,
    overwrite: bool = False,
    theme: str = "light",
    suffixes: Sequence[str] = SUFFIXES,
) -> Path:
    """Return the path of a figure's file; call it before any work is done for the figure.

    Raises:
        ValueError: the suffix names no format of a figure, or the theme is unknown.
        OSError: the folder is missing, or the file exists and `overwrite` is off.
        ImportError: matplotlib is not installed.
    """
    output = Path(output)
    if output.suffix.lower() not in suffixes:
        raise ValueError(f"{output} is to be a figure: end it with {' or '.join(suffixes)}")
    check_output_file(output, overwrite=overwrite)
    with figure_style(theme):
        new_figure((1, 1))
    return output


def short_names(paths: Sequence[str]) -> list[str]:
    """The last parts of paths, as few of them as make the names different.

    Raises:
        ValueError: a path is given twice.
    """
    twice = [path for index, path in enumerate(paths) if path in paths[:index]]
    if twice:
        raise ValueError(f"{twice[0]} is given twice")
    parts = [Path(path).parts for path in paths]
    for count in range(1, max(map(len, parts), default=0)):
        names = ["/".join(p[-count:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return list(paths)


def theme_of(name: str) -> Theme:
    """The colours of a theme.

    Raises:
        ValueError: there is no theme of this name.
    """
    if name not in THEMES:
        raise ValueError(f"theme={name!r}: choose one of {', '.join(THEMES)}")
    return THEMES[name]


@contextmanager
def figure_style(theme: str = "light") -> Iterator[Theme]:
    """Draw in one style inside the `with` block; yields the colours.

    Raises:
        ValueError: there is no theme of this name.
        ImportError: matplotlib is not installed.
    """
    colours = theme_of(theme)
    with needs("figures need matplotlib", "plot"):
        from matplotlib import rc_context
        from matplotlib.font_manager import fontManager
        from matplotlib.rcsetup import cycler
    installed = {entry.name for entry in fontManager.ttflist}
    kinds = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    with rc_context(
        {
            **dict.fromkeys(kinds, colours.background),
            **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), colours.text),
            **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), colours.text),
            **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), colours.faint),
            **{"grid.color": colours.faint, "grid.alpha": 0.5, "grid.linewidth": 0.6},
            **{"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True},
            **{"axes.titlesize": 10, "figure.titlesize": 12, "axes.labelsize": 9},
            **{"xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "legend.fontsize": 8.5},
            **{"legend.frameon": False, "lines.linewidth": 1.6},
            "font.family": [name for name in FONTS if name in installed],
            "text.parse_math": False,  # dollar signs are drawn as they stand
            "axes.prop_cycle": cycler(color=colours.lines),
            "image.cmap": colours.heat,
        }
    ):
        yield colours


def new_figure(size: tuple[float, float]) -> Any:
    """An empty figure of `size` inches that needs no screen; call it inside `figure_style`.

    Raises:
        ValueError: it would be too large to draw.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = size
    if width * height * DOTS_PER_INCH**2 > MOST_DOTS:
        raise ValueError(
            f"the figure would be {width:.0f} x {height:.0f} inches: draw less of it, "
            "such as one layer, one head or a shorter sentence"
        )
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format of its suffix, PNG or SVG, completely or not at all."""
    with whole_file(path) as unfinished:
        kind = path.suffix[1:].lower()
        figure.savefig(unfinished, format=kind, dpi=DOTS_PER_INCH, bbox_inches="tight")


@contextmanager
def saved_panels(
    path: Path, count: int, columns: int = 1, *, inches: float, title: str | None = None
) -> Iterator[Any]:
    """Draw on panels inside the `with` block, then save the figure.

    Args:
        path: file of the figure.
        count: how many panels.
        columns: of them in a row.
        inches: side of a panel.
        title: above the figure.

    Yields:
        `count` axes without ticks, row by row.
    """
    rows = -(-count // columns)
    with figure_style():
        figure = new_figure((columns * inches + 0.4, rows * (inches + 0.2) + 0.6))
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for panel in panels:
            panel.set_axis_off()
        if title is not None:
            figure.suptitle(title)
        yield panels[:count]
        save_figure(figure, path)


def show_image(panel: Any, image: Any, weights: Any = None) -> None:
    """An image in its pixels, and the weights of a grid over it as colour, `(R, K)`, by rows."""
    extent = (0, image.width, image.height, 0)
    panel.imshow(image, extent=extent, interpolation="nearest")
    if weights is not None:
        panel.imshow(weights, extent=extent, alpha=0.55, cmap="inferno", vmin=0)


# --- the figures by name, and their one command line ---------------------------------------------


def all_figures() -> dict[str, str]:
    """Every figure by name, with the import string of its function and its options."""
    figures = {"curves": "hf_vanilla.plots.curves:plot_curves:PlotCurvesOptions"}
    for entry in TASKS.values():
        figures |= entry.figures
    return figures


def plot(choice: tuple[str, Any]) -> Path:
    """Draw what `read_plot` read; returns the file."""
    name, options = choice
    draw, _ = load_part(all_figures()[name])
    return draw(options)


def read_plot(arguments: Sequence[str]) -> tuple[str, Any]:
    """A figure and its options from a command line: the figure's name comes first.

    Raises:
        UsageError: there is no such figure, or an option is unknown or missing.
        ValueError: a value is impossible.
    """
    figures = all_figures()
    if arguments and arguments[0] in ("-h", "--help"):
        lines = [
            f"  {name:12} {(load_part(parts)[1].__doc__ or '').splitlines()[0]}"
            for name, parts in figures.items()
        ]
        parser = ArgumentParser(
            usage="%(prog)s FIGURE [options]; %(prog)s FIGURE --help",
            description="\n".join(["Draw a figure and save it as PNG or SVG:", "", *lines]),
            formatter_class=RawDescriptionHelpFormatter,
        )
        raise HelpShown(parser)
    if not arguments or arguments[0].startswith("-"):
        raise UsageError(f"missing: which figure; first comes one of {', '.join(figures)}")
    name = arguments[0].replace("-", "_")
    check_names("plot", {name: None}, figures, error=UsageError)
    _, options = load_part(figures[name])
    return name, parse_options(options, arguments[1:], chosen=arguments[0])
