"""Pictures of the paper's formulas show the paper's numbers."""

import math

import pytest

from hf_vanilla import VanillaConfig
from hf_vanilla.plots.formulas import (
    PlotPositionsOptions,
    PlotScheduleOptions,
    plot_positions,
    plot_schedule,
    position_table,
)


@pytest.fixture
def draw(tmp_path, figures):
    """Draws with options; returns the figure as matplotlib has it."""

    def drawn(plot, options, **changes):
        output = tmp_path / "a.png"
        plot(options(output=str(output), overwrite=True, **changes))
        assert output.read_bytes()[1:4] == b"PNG"
        return figures[-1]

    return drawn


# --- positions ---------------------------------------------------------------------------------


def test_the_table_holds_the_papers_sines_and_cosines(draw):
    figure = draw(plot_positions, PlotPositionsOptions, d_model=6, length=5)
    table = figure.axes[0].images[0].get_array()
    assert table.shape == (5, 6)
    for place in range(5):
        for pair in range(3):
            angle = place / 10_000 ** (2 * pair / 6)
            expected = [math.sin(angle), math.cos(angle)]
            shown = table[place, 2 * pair : 2 * pair + 2].tolist()
            assert shown == pytest.approx(expected, abs=1e-6)


def test_the_dot_product_of_two_places_is_told_by_their_distance(draw):
    figure = draw(plot_positions, PlotPositionsOptions, d_model=6, length=8)
    alike = figure.axes[1].images[0].get_array()
    angles = [3 / 10_000 ** (2 * pair / 6) for pair in range(3)]
    expected = sum(map(math.cos, angles)) / 3
    assert [alike[i, i + 3] for i in range(5)] == pytest.approx([expected] * 5, abs=1e-6)
    assert [alike[i, i] for i in range(8)] == pytest.approx([1] * 8, abs=1e-6)
    # rows of these: as the matrix has them
    first, middle, last = (line.get_ydata() for line in figure.axes[2].lines)
    for row, place in ((first, 1), (middle, 4), (last, 6)):
        assert list(row) == pytest.approx(list(alike[place]))


def test_layout_frequencies_and_offset_are_those_asked_for(draw):
    told = {"layout": "concatenated", "frequencies": "tensor2tensor", "offset": 2}
    figure = draw(plot_positions, PlotPositionsOptions, d_model=6, length=5, **told)
    table = figure.axes[0].images[0].get_array()
    angles = [(3 + 2) / 10_000 ** (pair / 2) for pair in range(3)]
    expected = [*map(math.sin, angles), *map(math.cos, angles)]
    assert list(table[3]) == pytest.approx(expected, abs=1e-6)
    title = "d_model 6, concatenated, frequencies of tensor2tensor, offset 2"
    assert title in figure.get_suptitle()


def test_positions_are_those_of_a_model_where_nothing_else_is_told(draw, tmp_path):
    own = {"d_model": 16, "position_layout": "concatenated", "position_offset": 2}
    config = VanillaConfig(**own)
    config.save_pretrained(tmp_path)
    figure = draw(plot_positions, PlotPositionsOptions, model=str(tmp_path), length=7)
    shown = figure.axes[0].images[0].get_array()
    assert (shown == position_table(config, 7).numpy()).all()
    figure = draw(plot_positions, PlotPositionsOptions, model=str(tmp_path), length=7, offset=0)
    assert "d_model 16, concatenated, frequencies of the paper, offset 0" in figure.get_suptitle()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"length": 1}, "length=1: give 2 to 2000 positions"),
        ({"d_model": 7}, "d_model=7 is odd"),
        ({"layout": "mixed"}, "position_layout='mixed': choose one of interleaved"),
        ({"frequencies": "mine"}, "position_frequencies='mine': choose one of"),
        ({"offset": -1}, "position_offset=-1: give 0 or more"),
    ],
    ids=str,
)
def test_impossible_positions_are_told(tmp_path, changes, told):
    with pytest.raises(Exception, match=told):
        plot_positions(PlotPositionsOptions(output=str(tmp_path / "a.png"), **changes))
    assert not list(tmp_path.iterdir())


def test_learned_positions_are_no_sinusoids(tmp_path):
    VanillaConfig(position_embedding_type="learned").save_pretrained(tmp_path)
    options = PlotPositionsOptions(model=str(tmp_path), output=str(tmp_path / "a.png"))
    with pytest.raises(ValueError, match="has learned positions, no sinusoids"):
        plot_positions(options)


def test_a_model_of_another_kind_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    options = PlotPositionsOptions(model=str(tmp_path), output=str(tmp_path / "a.png"))
    with pytest.raises(ValueError, match="is a model of type 'marian', not one of ours"):
        plot_positions(options)


def test_a_model_that_is_nowhere_is_told_in_one_line(tmp_path):
    options = PlotPositionsOptions(model="nobody/none", output=str(tmp_path / "a.png"))
    with pytest.raises(OSError, match="nobody/none: no such folder, and not found") as caught:
        plot_positions(options)
    assert "\n" not in str(caught.value)


# --- learning rates ----------------------------------------------------------------------------


def curve(line):
    return dict(zip(*(data.tolist() for data in line.get_data()), strict=True))


def test_the_known_picture_comes_without_options(draw):
    axes = draw(plot_schedule, PlotScheduleOptions).axes[0]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [
        "d_model 512, warmup 4,000: peak 0.0007",
        "d_model 512, warmup 8,000: peak 0.00049",
        "d_model 256, warmup 4,000: peak 0.00099",
    ]
    base = curve(axes.lines[0])
    # d_model ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5), by a calculator
    told = {1: 1.746928e-07, 4000: 6.987712e-04, 20_000: 3.125e-04}
    assert {step: base[step] for step in told} == pytest.approx(told, rel=1e-6)
    assert max(base.values()) == base[4000]


@pytest.mark.parametrize(
    ("widths", "warmups", "names"),
    [
        ([16], [], ["d_model 16, warmup 4,000"]),
        ([], [5], ["d_model 512, warmup 5"]),
        ([16, 32], [5], ["d_model 16, warmup 5", "d_model 32, warmup 5"]),
        ([16], [5, 7], ["d_model 16, warmup 5", "d_model 16, warmup 7"]),
        ([16, 32], [5, 7], ["d_model 16, warmup 5", "d_model 32, warmup 7"]),
    ],
)
def test_widths_and_warmups_make_curves_in_pairs(draw, widths, warmups, names):
    figure = draw(plot_schedule, PlotScheduleOptions, d_model=widths, warmup_steps=warmups)
    labels = [line.get_label().split(": peak")[0] for line in figure.axes[0].lines]
    assert labels == names


def test_a_recipe_is_drawn_with_its_own_peak_as_far_as_it_trains(draw, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "max_steps: 40\nwarmup_steps: 10\nlearning_rate: 0.002\nmodel: {d_model: 16}\n"
    )
    (tmp_path / "long.yaml").write_text("max_steps: 60\nwarmup_steps: 20\n")
    recipes = [str(tmp_path / name) for name in ("mine.yaml", "long.yaml")]
    axes = draw(plot_schedule, PlotScheduleOptions, recipe=recipes).axes[0]
    mine, long = map(curve, axes.lines)
    told = {5: 0.001, 10: 0.002, 40: 0.001}
    assert {step: mine[step] for step in told} == pytest.approx(told)
    assert (max(mine), max(long), axes.get_xlim()[1]) == (40, 60, 60)
    assert max(long.values()) == pytest.approx((512 * 20) ** -0.5)
    assert axes.lines[0].get_label() == "mine (d_model 16, warmup 10): peak 0.002"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"d_model": [0]}, "d_model=0: give a positive number"),
        ({"warmup_steps": [3, -1]}, "warmup_steps=-1: give a positive number"),
        ({"d_model": [1, 2], "warmup_steps": [1, 2, 3]}, "2 values of d_model and 3 of warmup_st"),
        ({"steps": 1}, "steps=1: give 2 or more"),
    ],
    ids=str,
)
def test_impossible_schedules_are_told(changes, told):
    with pytest.raises(ValueError, match=told):
        PlotScheduleOptions(**changes)
