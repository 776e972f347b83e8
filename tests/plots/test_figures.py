"""What every picture shares: early refusals, letters of any script, no half-written file."""

import logging
import sys
import warnings

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from PIL import Image

from hf_vanilla.plots import figures as pictures
from hf_vanilla.plots.figures import check_picture, new_figure, save_picture, short_names

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
def test_a_kind_of_picture_nobody_knows_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=rf"{name}': end it with \.png or \.svg"):
        check_picture(tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.PNG"])
def test_the_known_kinds_are_taken(tmp_path, name):
    save_picture(labelled("a"), check_picture(tmp_path / name))
    assert (tmp_path / name).stat().st_size > 500


def test_a_missing_folder_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        check_picture(tmp_path / "nowhere" / "a.png")


def test_an_existing_picture_is_refused_unless_told(tmp_path):
    (tmp_path / "a.png").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"a\.png exists: .* --overwrite"):
        check_picture(tmp_path / "a.png")
    assert check_picture(tmp_path / "a.png", overwrite=True) == tmp_path / "a.png"


def test_without_matplotlib_the_message_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'hf-vanilla\[plot\]'"):
        check_picture(tmp_path / "a.png")


def test_a_picture_that_would_take_gigabytes_is_refused():
    with pytest.raises(ValueError, match="the picture would be 200 x 100 inches: draw less"):
        new_figure((200, 100))


# --- files -------------------------------------------------------------------------------------


def test_a_picture_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    def fail(_, path, **__):
        path.write_bytes(b"half")
        raise OSError("disk full")

    (tmp_path / "a.png").write_bytes(b"mine")
    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save_picture(labelled("a"), tmp_path / "a.png")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.png", b"mine")]


# --- letters -----------------------------------------------------------------------------------


@pytest.fixture
def forget_fonts():
    pictures._letters.cache_clear()
    yield
    pictures._letters.cache_clear()


@pytest.fixture
def only_own_font(monkeypatch, forget_fonts):
    own = [entry for entry in fontManager.ttflist if entry.name.startswith("DejaVu Sans")]
    monkeypatch.setattr(fontManager, "ttflist", own)
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", lambda: [])


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
    builder.setupNameTable({"familyName": "Rare", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


def test_a_letter_that_no_font_has_becomes_its_number(tmp_path, only_own_font, caplog):
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        save_picture(labelled(f"a{RARE}", "b", RARE), tmp_path / "a.svg")
    assert caplog.messages == [f"no installed font has the letters {RARE}: they become numbers"]
    texts = text_of(tmp_path / "a.svg")
    assert texts.count("a⟨U+13000⟩") == 2
    assert texts.count("⟨U+13000⟩") == texts.count("b") == 1


def test_a_letter_is_taken_from_the_font_that_has_it(tmp_path, only_own_font, monkeypatch, caplog):
    write_font(tmp_path / "rare.ttf")
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    files = [str(tmp_path / name) for name in ("broken.ttf", "rare.ttf")]
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", lambda: files)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        save_picture(labelled(RARE * 9), tmp_path / "a.svg")
        save_picture(labelled(RARE * 9), tmp_path / "a.png")
    assert not caplog.messages
    assert RARE * 9 in text_of(tmp_path / "a.svg")
    with Image.open(tmp_path / "a.png") as picture:
        picture.verify()


def test_a_letter_of_matplotlibs_own_font_asks_for_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "_installed", lambda: 1 / 0)
    save_picture(labelled("␣üñ", "⟨E6⟩", "Ж", "א", "ع", "→"), tmp_path / "a.png")


@pytest.mark.parametrize("label", ["$x$", r"$\frac$", "$5 or $6", "_a^b", "\\alpha"])
def test_text_is_never_taken_for_a_formula(tmp_path, label):
    save_picture(labelled(label), tmp_path / "a.svg")
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
