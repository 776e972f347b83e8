"""Curves of training: the points of the log, for one run and for several."""

import json

import pytest
from PIL import Image

from hf_vanilla.plots.curves import PlotCurvesOptions, plot_curves, save_curves

ENTRIES = [
    {"step": 1, "loss": 5.0, "train_nll": 4.5, "learning_rate": 1e-4},
    {"step": 2, "loss": 4.0, "train_nll": 3.5, "learning_rate": 2e-4},
    {"step": 2, "validation_nll": 3.7, "bleu": 12.5, "averaged_checkpoints": 0},
    {"step": 2, "validation_nll": 3.1, "bleu": 15.0, "averaged_checkpoints": 2},
]
OTHER = [{"step": 3, "loss": 2.0}, {"step": 6, "loss": 1.5}]


def points(axes):
    return [line.get_xydata().tolist() for line in axes.lines]


@pytest.fixture
def panels(tmp_path, figures):
    """Draws runs; returns the panels as matplotlib has them."""

    def draw(**runs):
        save_curves(runs, tmp_path / "curves.png")
        with Image.open(tmp_path / "curves.png") as picture:
            picture.verify()
        return figures[-1].axes

    return draw


def test_the_curves_are_those_of_the_log_without_the_mean(panels):
    drawn = panels(mine=ENTRIES)
    assert [points(axes) for axes in drawn] == [
        [[[1, 5.0], [2, 4.0]], [[1, 4.5], [2, 3.5]], [[2, 3.7]]],
        [[[2, 12.5]]],
        [[[1, 1e-4], [2, 2e-4]]],
    ]
    assert [axes.get_yscale() for axes in drawn] == ["log", "linear", "linear"]
    assert drawn[0].get_legend() is not None
    assert drawn[1].get_ylim()[0] == 0
    assert drawn[0].figure.get_suptitle() == "Training: mine"


def test_a_run_without_validation_has_no_panel_for_bleu(panels):
    labels = [axes.get_ylabel() for axes in panels(mine=ENTRIES[:2])]
    assert labels == ["nats per target token", "learning rate"]


def test_a_run_that_told_nothing_leaves_an_empty_picture(panels):
    assert not [line for axes in panels(mine=[]) for line in axes.lines]


def test_several_runs_share_a_panel_for_each_measure(panels):
    drawn = panels(mine=ENTRIES, yours=OTHER)
    titles = [axes.get_title(loc="left") for axes in drawn]
    assert titles == [
        "training loss, smoothed targets",
        "training, plain",
        "validation, plain",
        "validation BLEU",
        "learning rate",
    ]
    assert points(drawn[0]) == [[[1, 5.0], [2, 4.0]], [[3, 2.0], [6, 1.5]]]
    names = [text.get_text() for text in drawn[0].get_legend().get_texts()]
    assert names == ["mine", "yours"]


def test_a_run_keeps_its_colour_where_another_tells_nothing(panels):
    drawn = panels(yours=OTHER, mine=ENTRIES)
    colours = {axes.lines[1].get_color() for axes in drawn}
    assert len(colours) == 1
    assert drawn[0].lines[0].get_color() not in colours


# --- from files --------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path):
    """Two folders with logs."""
    for name, entries in (("mine", ENTRIES), ("yours", OTHER)):
        (tmp_path / name).mkdir()
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        (tmp_path / name / "log.jsonl").write_text(text)
    return [str(tmp_path / "mine"), str(tmp_path / "yours" / "log.jsonl")]


def test_a_folder_or_its_log_may_be_given(runs, tmp_path, figures):
    output = str(tmp_path / "a.svg")
    assert str(plot_curves(PlotCurvesOptions(run=runs, output=output))) == output
    drawn = figures[0].axes[0]
    assert points(drawn) == [[[1, 5.0], [2, 4.0]], [[3, 2.0], [6, 1.5]]]
    names = [text.get_text() for text in drawn.get_legend().get_texts()]
    assert names == ["mine", "log.jsonl"]


def test_a_folder_without_a_log_is_told(tmp_path):
    options = PlotCurvesOptions(run=[str(tmp_path)], output=str(tmp_path / "a.png"))
    with pytest.raises(FileNotFoundError, match=r"log\.jsonl: no such file; give the folder of a"):
        plot_curves(options)


@pytest.mark.parametrize("text", ["", "{}\n", "no json\n", "[1]\n", "5\n", '{"step": 3}\n'])
def test_a_log_that_tells_nothing_is_told(tmp_path, text):
    (tmp_path / "log.jsonl").write_text(text)
    options = PlotCurvesOptions(run=[str(tmp_path)], output=str(tmp_path / "a.png"))
    with pytest.raises(ValueError, match=r"log\.jsonl tells of no step: there is nothing to draw"):
        plot_curves(options)
    assert not (tmp_path / "a.png").exists()
