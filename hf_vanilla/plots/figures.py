"""What every picture shares: a figure without a screen, letters of any script, a whole file."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hf_vanilla.files import check_output_file, whole_file

logger = logging.getLogger(__name__)

SUFFIXES = (".png", ".svg")
DOTS_PER_INCH = 150
# a PNG of more dots takes gigabytes to draw
MOST_DOTS = 150_000_000
FONT = "DejaVu Sans"  # comes with matplotlib: Latin, Greek, Cyrillic, Arabic, Hebrew, arrows
# has a box for everything and a letter for nothing
NO_FONT = "Last Resort"


def check_picture(output: str | Path, *, overwrite: bool = False) -> Path:
    """The file of a picture, before any work is done for it.

    Raises:
        ValueError: its suffix names no kind of picture.
        OSError: its folder is missing, or it exists and `overwrite` is off.
        ImportError: matplotlib is not installed.
    """
    output = Path(output)
    if output.suffix.lower() not in SUFFIXES:
        raise ValueError(f"output={str(output)!r}: end it with {' or '.join(SUFFIXES)}")
    check_output_file(output, overwrite=overwrite)
    new_figure((1, 1))
    return output


def short_names(paths: Sequence[str]) -> list[str]:
    """The last parts of paths, or as much more as tells them apart.

    Raises:
        ValueError: a path is given twice.
    """
    twice = [path for place, path in enumerate(paths) if path in paths[:place]]
    if twice:
        raise ValueError(f"{twice[0]} is given twice")
    parts = [Path(path).parts for path in paths]
    for count in range(1, max(map(len, parts), default=0)):
        names = ["/".join(p[-count:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return list(paths)


def new_figure(size: tuple[float, float]) -> Any:
    """An empty figure of `size` inches that needs no screen.

    Raises:
        ValueError: it would be too large to draw.
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install 'hf-vanilla[plot]'") from None
    width, height = size
    if width * height * DOTS_PER_INCH**2 > MOST_DOTS:
        raise ValueError(
            f"the picture would be {width:.0f} x {height:.0f} inches: draw less of it, "
            "such as one layer, one head or a shorter sentence"
        )
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure as its suffix says, PNG or SVG, whole or not at all.

    Text is taken letter by letter as it stands, dollar signs too, from the fonts of this machine;
    letters that none of them has are written as their numbers.
    """
    _set_letters(figure)
    with whole_file(path) as unfinished:
        kind = path.suffix[1:].lower()
        figure.savefig(unfinished, format=kind, dpi=DOTS_PER_INCH, bbox_inches="tight")


def _set_letters(figure: Any) -> None:
    from matplotlib.text import Text

    both = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    for axis in both:
        axis.get_ticklabels(which="both")  # there are none before somebody asks
    texts = figure.findobj(Text)
    letters = {letter for text in texts for letter in text.get_text()} - {"\n"}
    families = _families(letters)
    for text in texts:
        text.set_parse_math(False)
        text.set_fontfamily(families)
    unknown = letters.difference(*map(_letters, families))
    if not unknown:
        return
    numbers = {ord(letter): f"⟨U+{ord(letter):04X}⟩" for letter in unknown}
    for axis in both:
        labels = [label.get_text() for label in axis.get_ticklabels()]
        if any(unknown & set(label) for label in labels):
            axis.set_ticks(axis.get_ticklocs(), [label.translate(numbers) for label in labels])
    for text in texts:
        text.set_text(text.get_text().translate(numbers))


def _families(letters: set[str]) -> list[str]:
    """Fonts that have the letters between them, matplotlib's own first."""
    families = [FONT]
    missing = {c for c in letters if c.isprintable()} - _letters(FONT)
    while missing:
        # the font with most of what is missing, without serifs where there is a choice
        best = max(_installed(), key=lambda name: (len(missing & _letters(name)), "Sans" in name))
        if not missing & _letters(best):
            shown = "".join(sorted(missing)[:20])
            logger.warning("no installed font has the letters %s: they become numbers", shown)
            break
        families.append(best)
        missing -= _letters(best)
    return families


def _installed() -> list[str]:
    """Names of the fonts of this machine, those that are new since matplotlib looked included."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {entry.fname for entry in fontManager.ttflist}
    for path in sorted(set(findSystemFonts()) - known):
        with suppress(OSError, RuntimeError):  # a file that is no font
            fontManager.addfont(path)
    return sorted({e.name for e in fontManager.ttflist if not e.name.startswith(NO_FONT)})


@cache
def _letters(family: str) -> frozenset[str]:
    """What a font has, in its upright form nearest to normal weight."""
    from matplotlib.font_manager import fontManager, get_font, weight_dict

    def distance(entry: Any) -> tuple[bool, int]:
        weight = weight_dict.get(entry.weight, entry.weight)  # a word or a number
        return entry.style != "normal", abs(weight - weight_dict["normal"])

    nearest = min((e for e in fontManager.ttflist if e.name == family), key=distance)
    return frozenset(map(chr, get_font(nearest.fname).get_charmap()))
