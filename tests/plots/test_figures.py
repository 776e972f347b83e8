"""What every figure shares: early refusals, themes, characters of any script, complete files."""

import sys
import warnings

import matplotlib as mpl
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from PIL import Image

from hf_vanilla.plots.figures import (
    THEMES,
    check_output,
    figure_style,
    new_figure,
    save_figure,
    short_names,
)

RARE = "𓀀"  # a hieroglyph


def labelled(*labels):
    figure = new_figure((3, 2))
    axes = figure.subplots()
    axes.set_xticks(range(len(labels)), labels)
    axes.set_title(labels[0])
    return figure


def text_of(path):
    """Each text of an SVG; matplotlib writes it in a comment above its outlines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip()[5:-4] for line in lines if line.strip().startswith("<!-- ")]


# --- early refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.bmp", "a.jpg", "a", "png", "a.png.txt"])
def test_an_unknown_suffix_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=rf"{name} is to be a figure: end it with \.png or \.svg"):
        check_output(tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.PNG"])
def test_the_known_kinds_are_taken(tmp_path, name):
    save_figure(labelled("a"), check_output(tmp_path / name))
    assert (tmp_path / name).stat().st_size > 500


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        check_output(tmp_path / "nowhere" / "a.png")


def test_an_existing_file_is_refused_without_overwrite(tmp_path):
    (tmp_path / "a.png").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"a\.png exists: .* --overwrite"):
        check_output(tmp_path / "a.png")
    assert check_output(tmp_path / "a.png", overwrite=True) == tmp_path / "a.png"


def test_without_matplotlib_the_message_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"matplotlib: pip install -e '\.\[plot\]'"):
        check_output(tmp_path / "a.png")


def test_a_figure_that_would_take_gigabytes_is_refused():
    with pytest.raises(ValueError, match="the figure would be 200 x 100 inches: draw less"):
        new_figure((200, 100))


# --- themes ------------------------------------------------------------------------------------


def luminance(colour):
    """Relative luminance by WCAG 2, 0 for black, 1 for white."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", THEMES)
def test_text_and_curves_are_readable_on_their_background(name):
    theme = THEMES[name]
    assert contrast(theme.text, theme.background) > 12
    # WCAG asks 3 of graphics; the lighter colours of the palette come last and are rarely drawn
    assert all(contrast(colour, theme.background) > 3 for colour in theme.lines[:3])
    assert len(set(theme.lines)) == 6


@pytest.mark.parametrize("name", THEMES)
def test_a_figure_is_drawn_in_its_theme_in_full_colour(tmp_path, name):
    with figure_style(name):
        save_figure(labelled("a"), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.mode == "RGBA"  # no palette
        corner = picture.getpixel((0, 0))
    assert "#{:02x}{:02x}{:02x}".format(*corner[:3]) == THEMES[name].background


def test_an_unknown_theme_is_refused_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="theme='blue': choose one of light, dark"):
        check_output(tmp_path / "a.png", theme="blue")


def test_a_style_ends_with_its_block():
    before = dict(mpl.rcParams)
    with figure_style("dark"):
        assert mpl.rcParams["figure.facecolor"] == THEMES["dark"].background
    assert dict(mpl.rcParams) == before


# --- files -------------------------------------------------------------------------------------


def test_a_figure_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    def fail(_, path, **__):
        path.write_bytes(b"half")
        raise OSError("disk full")

    (tmp_path / "a.png").write_bytes(b"mine")
    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save_figure(labelled("a"), tmp_path / "a.png")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.png", b"mine")]


# --- characters --------------------------------------------------------------------------------


def write_font(path):
    """A font of one letter, a box."""
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for corner in ((100, 700), (800, 700), (800, 0)):
        pen.lineTo(corner)
    pen.closePath()
    builder = FontBuilder(1000)
    builder.setupGlyphOrder([".notdef", "rare"])
    builder.setupCharacterMap({ord(RARE): "rare"})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "rare": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (900, 0), "rare": (900, 100)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Unifont", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


def test_a_character_is_drawn_from_the_first_installed_font_that_has_it(tmp_path, monkeypatch):
    own = [entry for entry in fontManager.ttflist if entry.name.startswith("DejaVu Sans")]
    monkeypatch.setattr(fontManager, "ttflist", own)
    common = "␣üñЖאع→"
    with figure_style(), pytest.warns(UserWarning, match=r"Glyph 77824 .* missing from font"):
        save_figure(labelled(common, RARE), tmp_path / "a.png")
    write_font(tmp_path / "rare.ttf")
    fontManager.addfont(tmp_path / "rare.ttf")
    with figure_style(), warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(labelled(common, RARE), tmp_path / "a.svg")
    assert text_of(tmp_path / "a.svg").count(RARE) == 1


@pytest.mark.parametrize("label", ["$x$", r"$\frac$", "$5 or $6", "_a^b", "\\alpha"])
def test_text_is_never_taken_for_a_formula(tmp_path, label):
    with figure_style():
        save_figure(labelled(label), tmp_path / "a.svg")
    assert text_of(tmp_path / "a.svg").count(label) == 2


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([], []),
        (["runs/a"], ["a"]),
        (["runs/a", "runs/b/"], ["a", "b"]),
        (["x/a/log", "y/a/log", "y/b/log"], ["x/a/log", "y/a/log", "y/b/log"]),
        (["z/x/log", "z/y/log"], ["x/log", "y/log"]),
    ],
    ids=str,
)
def test_a_path_is_named_by_what_tells_it_apart(paths, names):
    assert short_names(paths) == names


def test_a_path_given_twice_is_refused():
    with pytest.raises(ValueError, match="runs/a is given twice"):
        short_names(["runs/a", "runs/b", "runs/a"])
