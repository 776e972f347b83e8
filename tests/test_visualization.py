"""Pictures of attention: true weights, tokens that can be read, a file that can be opened."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from hf_vanilla import visualization
from hf_vanilla.attentions import attentions
from hf_vanilla.visualization import (
    PlotAttentionOptions,
    plot_attention,
    plot_curves,
    save_heat_map,
)

SENTENCE = "three one four"


@pytest.fixture(scope="module")
def seen(trained):
    return attentions(*trained, SENTENCE)


@pytest.fixture
def options(trained_run, tmp_path):
    def with_changes(**changes):
        default = {"sentence": SENTENCE, "output": str(tmp_path / "picture.png")}
        return PlotAttentionOptions(model=str(trained_run), **{**default, **changes})

    return with_changes


# --- the picture -------------------------------------------------------------------------------


def test_the_picture_can_be_opened_and_is_not_blank(options):
    path = plot_attention(options())
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("RGB"))
    assert min(pixels.shape[:2]) > 200
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
    assert not list(path.parent.glob("*.partial"))


def test_a_dark_field_of_the_picture_is_a_heavy_weight(tmp_path):
    weights = torch.zeros(2, 3)
    weights[1, 2] = 1.0
    picture = tmp_path / "one.png"
    save_heat_map(weights, ["a", "b", "c"], ["x", "y"], title="one", path=picture)
    with Image.open(picture) as opened:
        pixels = np.asarray(opened.convert("RGB")).astype(int)
    darkest = np.array([8, 48, 107])  # the end of matplotlib's Blues
    is_dark = np.abs(pixels - darkest).sum(-1) < 12
    assert is_dark.mean() > 0.01


def test_a_drawing_may_be_a_vector_file(options, tmp_path):
    path = plot_attention(options(output=str(tmp_path / "picture.svg")))
    assert "<svg" in path.read_text(encoding="utf-8")


def test_an_existing_picture_is_refused_and_left_as_it_was(options, tmp_path):
    (tmp_path / "picture.png").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"picture\.png exists: .* --overwrite"):
        plot_attention(options())
    assert (tmp_path / "picture.png").read_bytes() == b"mine"
    plot_attention(options(overwrite=True))
    assert (tmp_path / "picture.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (-1, -2), (-1, None)])
def test_layer_and_head_choose_their_weights(options, seen, monkeypatch, layer, head):
    drawn = {}
    monkeypatch.setattr(
        "hf_vanilla.visualization.save_heat_map",
        lambda weights, *_, title, **__: drawn.update(weights=weights, title=title),
    )
    plot_attention(options(layer=layer, head=head))
    expected = seen.cross[0].mean(0) if head is None else seen.cross[0, head]
    assert torch.equal(drawn["weights"], expected)
    assert "layer 1 of 1" in drawn["title"]
    assert ("mean of all heads" if head is None else f"head {head % 2 + 1} of 2") in drawn["title"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layer": 1}, "layer=1: the decoder has 1, counted from 0"),
        ({"layer": -2}, "layer=-2"),
        ({"head": 2}, "head=2: the decoder has 2"),
        ({"head": -3}, "head=-3"),
    ],
    ids=str,
)
def test_a_layer_or_head_that_is_not_there_is_refused(options, choice, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        plot_attention(options(**choice))
    assert not (tmp_path / "picture.png").exists()


def test_a_kind_of_picture_nobody_knows_is_refused(options, tmp_path):
    with pytest.raises(ValueError, match="bmpx"):
        plot_attention(options(output=str(tmp_path / "picture.bmpx")))


def test_without_matplotlib_the_message_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'hf-vanilla\[plot\]'"):
        save_heat_map(torch.ones(1, 1), ["a"], ["b"], title="", path=tmp_path / "x.png")


# --- curves ------------------------------------------------------------------------------------


def drawn(entries, tmp_path, monkeypatch):
    """The panels of a run's curves, as matplotlib has them."""
    figures = []
    make = visualization.new_figure
    monkeypatch.setattr(
        visualization, "new_figure", lambda size: figures.append(make(size)) or figures[-1]
    )
    plot_curves(entries, tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        picture.verify()
    return figures[0].axes


ENTRIES = [
    {"step": 1, "loss": 5.0, "train_nll": 4.5, "learning_rate": 1e-4},
    {"step": 2, "loss": 4.0, "train_nll": 3.5, "learning_rate": 2e-4},
    {"step": 2, "validation_nll": 3.7, "bleu": 12.5, "averaged_checkpoints": 0},
    {"step": 2, "validation_nll": 3.1, "bleu": 15.0, "averaged_checkpoints": 2},
]


def test_the_curves_are_those_of_the_log_without_the_mean(tmp_path, monkeypatch):
    panels = drawn(ENTRIES, tmp_path, monkeypatch)
    points = [[line.get_xydata().tolist() for line in axes.lines] for axes in panels]
    assert points == [
        [[[1, 5.0], [2, 4.0]], [[1, 4.5], [2, 3.5]], [[2, 3.7]]],
        [[[2, 12.5]]],
        [[[1, 1e-4], [2, 2e-4]]],
    ]
    assert [axes.get_yscale() for axes in panels] == ["log", "linear", "linear"]
    assert panels[0].get_legend() is not None


def test_a_run_without_validation_has_no_panel_for_bleu(tmp_path, monkeypatch):
    panels = drawn(ENTRIES[:2], tmp_path, monkeypatch)
    assert [axes.get_ylabel() for axes in panels] == ["nats per target token", "learning rate"]


def test_a_run_that_told_nothing_leaves_an_empty_picture(tmp_path, monkeypatch):
    assert not [line for axes in drawn([], tmp_path, monkeypatch) for line in axes.lines]
