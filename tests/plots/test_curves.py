"""The figure of training shows the points of the log, for one run and for several."""

import json
import math

import pytest
from PIL import Image

from hf_vanilla import VanillaConfig
from hf_vanilla.plots.curves import (
    PlotCurvesOptions,
    plot_curves,
    sample_lines,
    save_curves,
    smoothing_floor,
)
from hf_vanilla.text.options import MEASURES

ENTRIES = [
    {"step": 1, "loss": 5.0, "train_nll": 4.5, "learning_rate": 1e-4},
    {"step": 2, "loss": 4.0, "train_nll": 3.5, "learning_rate": 2e-4},
    {"step": 2, "validation_nll": 3.7, "bleu": 12.5, "exact_match": 0.0, "averaged_checkpoints": 0},
    {"step": 2, "validation_nll": 3.1, "bleu": 15.0, "exact_match": 3.0, "averaged_checkpoints": 2},
]
OTHER = [{"step": 3, "loss": 2.0}, {"step": 6, "loss": 1.5}]


def points(axes):
    return [line.get_xydata().tolist() for line in axes.lines]


@pytest.fixture
def panels(tmp_path, figures):
    """Draws runs; returns the panels as matplotlib has them."""

    def draw(**runs):
        save_curves(runs, tmp_path / "curves.png", MEASURES)
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
    # the unit of the axis alone would not name the measure, unless they are the same
    assert [text.get_text() for text in drawn[1].get_legend().get_texts()] == ["validation BLEU"]
    assert drawn[2].get_legend() is None
    assert drawn[1].get_ylim()[0] == 0
    assert drawn[0].figure.get_suptitle() == "Training: mine"
    assert all(tick == round(tick) for tick in drawn[-1].get_xticks())  # half a step has no label


def test_a_run_with_one_step_has_its_tick_once(panels):
    (loss,) = panels(mine=[{"step": 10, "loss": 0.7}])
    assert loss.get_xticks().tolist() == [9, 10, 11]  # those at the sides lie outside


def test_a_loss_below_zero_is_on_a_linear_scale(panels):
    entries = [{"step": 1, "loss": 0.7}, {"step": 2, "loss": -0.4}]  # as of a density
    (loss,) = panels(mine=entries)
    assert (loss.get_yscale(), loss.get_ylim()[0] < -0.4) == ("linear", True)


@pytest.mark.parametrize("score", [None, 0.0])
def test_a_run_without_a_score_has_no_empty_panel_for_it(panels, score):
    entries = [*ENTRIES[:2], {"step": 2, "validation_nll": 3.0}]
    if score is not None:  # nothing was translated right yet
        entries[2] |= {"bleu": score, "exact_match": score}
    labels = [axes.get_ylabel() for axes in panels(mine=entries)]
    assert labels == ["nats per target token", "learning rate"]


def test_bleu_and_exact_match_share_a_panel_from_zero(panels):
    entries = [{"step": s, "loss": 1.0, "bleu": 10.0 * s, "exact_match": 7.0 * s} for s in (1, 2)]
    _, scores = panels(mine=entries)
    assert points(scores) == [[[1, 10.0], [2, 20.0]], [[1, 7.0], [2, 14.0]]]
    assert scores.get_ylim()[0] == 0


def test_the_learning_rate_is_a_thin_strip_below(panels):
    heights = [axes.get_position().height for axes in panels(mine=ENTRIES)]
    assert heights[-1] < 0.5 * heights[0]


# --- sample translations ----------------------------------------------------------------------

REFERENCE = "ein Haus"


def validations(*translations):
    return [
        {
            "step": 50 * (number + 1),
            "validation_nll": 1.0,
            "samples": [{"source": "a house", "reference": REFERENCE, "translation": text}],
        }
        for number, text in enumerate(translations)
    ]


def test_samples_of_a_few_validations_stand_below_the_curves(panels):
    entries = validations("e", "ei", "ein", "ein $", "ein Ha", "ein Hau", "a", REFERENCE, REFERENCE)
    shown = panels(mine=[*ENTRIES, *entries])[-1]
    lines = [text.get_text() for text in shown.texts]
    # places 1, 2.08, 4.33 and 9 of nine validations
    assert lines == [
        *("source", "a house", "step 50", "e", "step 100", "ei"),
        *("step 200", "ein $", "step 450", "✓ ein Haus"),
    ]
    green = {text.get_text() for text in shown.texts if text.get_color() == "#009e73"}
    assert green == {"step 450", "✓ ein Haus"}


def test_a_sample_that_is_wrong_at_the_end_has_its_reference():
    lines = sample_lines(validations("zwei"))
    assert lines == [("source", "a house"), ("step 50", "zwei"), ("reference", REFERENCE)]


def test_a_resumed_run_may_translate_more_sentences():
    first, second = validations("zwei", "ein Haus")
    more = {"source": "two", "reference": "zwei", "translation": "zwei"}
    second["samples"].append(more)
    assert sample_lines([first, second])[-2:] == [("source", "two"), ("step 100", "✓ zwei")]


def test_long_samples_are_cut_and_wide_characters_count_twice(panels):
    for character, columns in (("x", 88), ("漢", 44)):
        text = panels(mine=validations(character * 100))[-1].texts[3].get_text()
        assert text == character * columns + "…"


def test_several_runs_and_logs_without_samples_show_none(panels):
    for runs in ({"mine": ENTRIES}, {"mine": validations("a"), "yours": validations("b")}):
        assert not [text for axes in panels(**runs) for text in axes.texts]


# --- the smoothing floor ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["non_target", "uniform", "non_target_non_pad"])
def test_the_floor_is_the_loss_of_a_model_that_predicts_the_smoothed_target(kind):
    config = VanillaConfig(vocab_size=7, label_smoothing=0.3, label_smoothing_type=kind)
    # target token 3, padding 0
    shares = {
        "non_target": [0.05] * 3 + [0.7] + [0.05] * 3,
        "uniform": [0.3 / 7] * 3 + [0.7 + 0.3 / 7] + [0.3 / 7] * 3,
        "non_target_non_pad": [0.0] + [0.06] * 2 + [0.7] + [0.06] * 3,
    }[kind]
    expected = -sum(share * math.log(share) for share in shares if share)
    assert smoothing_floor(config) == pytest.approx(expected, rel=1e-12)


def test_the_floor_without_smoothing_is_zero():
    assert smoothing_floor(VanillaConfig(label_smoothing=0.0)) == 0


def test_the_floor_of_a_run_is_drawn_and_named(tmp_path, figures):
    config = VanillaConfig(vocab_size=7, label_smoothing=0.3)
    for name in ("mine", "plain"):
        (tmp_path / name).mkdir()
        text = "".join(json.dumps(entry) + "\n" for entry in ENTRIES)
        (tmp_path / name / "log.jsonl").write_text(text)
    config.save_pretrained(tmp_path / "mine")
    for name, lines in (("mine", 4), ("plain", 3)):
        output = str(tmp_path / f"{name}.png")
        plot_curves(PlotCurvesOptions(run=[str(tmp_path / name)], output=output))
        drawn = figures[-1].axes[0].lines
        assert len(drawn) == lines
    floor = figures[0].axes[0].lines[3]
    assert floor.get_ydata() == pytest.approx([smoothing_floor(config)] * 2)
    assert floor.get_label() == "smoothing floor: no smoothed loss can be lower"


def test_a_run_that_told_nothing_leaves_an_empty_picture(panels):
    assert not [line for axes in panels(mine=[]) for line in axes.lines]


def test_several_runs_share_a_panel_for_each_measure(panels):
    drawn = panels(mine=ENTRIES, yours=OTHER)
    titles = [axes.get_title(loc="left") for axes in drawn]
    assert titles == [
        "training loss (smoothed targets)",
        "training NLL",
        "validation NLL",
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
    with pytest.raises(ValueError, match=r"log\.jsonl has no entry of a step: there is"):
        plot_curves(options)
    assert not (tmp_path / "a.png").exists()
