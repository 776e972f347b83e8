"""Pictures of attention: the weights that were asked for, each where its tokens are."""

import numpy as np
import pytest
import torch
from PIL import Image

from hf_vanilla.text.attentions import Attentions, attentions
from hf_vanilla.text.plot import PlotAttentionOptions, plot_attention, save_attention

SENTENCE = "three one four"
L, H, S, T = 3, 2, 5, 4


@pytest.fixture
def options(trained_run, tmp_path):
    def with_changes(**changes):
        default = {"sentence": SENTENCE, "output": str(tmp_path / "picture.png")}
        return PlotAttentionOptions(model=str(trained_run), **{**default, **changes})

    return with_changes


@pytest.fixture
def seen():
    """Random weights of a model of 3 layers and 2 heads, no two alike."""
    return Attentions(
        source=["␣the", "␣lake", "$x$", "漢", "</s>"],
        target=["␣der", "␣See", "א", "</s>"],
        read=["<start>", "␣der", "␣See", "א"],
        encoder=torch.rand(L, H, S, S),
        decoder=torch.rand(L, H, T, T),
        cross=torch.rand(L, H, T, S),
        log_probs=torch.rand(T, 11),
        target_ids=[5, 6, 7, 1],
    )


@pytest.fixture
def drawn(seen, tmp_path, figures):
    """Draws the attention; returns the panels, the title and the tokens down and across."""

    def draw(**choice):
        save_attention(seen, tmp_path / "picture.png", **choice)
        figure = figures[-1]
        maps = [axes for axes in figure.axes if axes.images]  # all but the colour bar
        down, across = maps[0].get_yticklabels(), maps[-1].get_xticklabels()
        tokens = [[label.get_text() for label in side] for side in (down, across)]
        return maps, figure.get_suptitle(), tokens

    return draw


# --- which weights -----------------------------------------------------------------------------


def weights_of(axes):
    return torch.tensor(np.asarray(axes.images[0].get_array()))


@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
def test_the_last_layers_mean_is_drawn_unless_told(drawn, seen, kind):
    (axes,), title, _ = drawn(kind=kind)
    assert torch.equal(weights_of(axes), getattr(seen, kind)[2].mean(0))
    assert title.splitlines()[0].endswith(", layer 2 (0 to 2), mean of 2 heads")


@pytest.mark.parametrize(("layer", "head"), [("0", "1"), ("-3", "-1")])
def test_layer_and_head_choose_their_weights(drawn, seen, layer, head):
    (axes,), title, _ = drawn(layer=layer, head=head)
    assert torch.equal(weights_of(axes), seen.cross[0, 1])
    assert title.splitlines()[0] == "Cross-attention, layer 0 (0 to 2), head 1 (0 to 1)"


def test_tokens_of_a_word_have_one_bracket_and_a_line_joins_the_largest_weights(drawn, seen):
    (axes,), _, _ = drawn()
    is_bracket = [not line.get_clip_on() for line in axes.lines]
    path = next(line for line in axes.lines if line.get_marker() == "o")
    largest = seen.cross[2].mean(0).argmax(-1)[:-1]  # not of </s>
    assert path.get_xydata().tolist() == [[float(k), float(q)] for q, k in enumerate(largest)]
    ends = [np.ptp(line.get_xydata(), axis=0) for line in axes.lines]
    spans = [
        line.get_xydata()[:, int(down > across)].tolist()
        for line, (across, down), is_one in zip(axes.lines, ends, is_bracket, strict=True)
        if is_one
    ]
    # ␣der | ␣See א | </s>, and ␣the | ␣lake $x$ 漢 | </s>
    assert spans == [
        *([-0.4, 0.4], [0.6, 2.4], [2.6, 3.4]),
        *([-0.4, 0.4], [0.6, 3.4], [3.6, 4.4]),
    ]


def test_all_heads_of_a_layer_stand_side_by_side(drawn, seen):
    maps, title, _ = drawn(layer="1", head="all")
    assert [axes.get_title() for axes in maps] == ["head 0", "head 1"]
    for head, axes in enumerate(maps):
        assert torch.equal(weights_of(axes), seen.cross[1, head])
    assert title.splitlines()[0] == "Cross-attention, layer 1 (0 to 2)"


def test_all_layers_and_heads_make_a_grid(drawn, seen):
    maps, title, _ = drawn(layer="all", head="all")
    assert len(maps) == L * H
    for place, axes in enumerate(maps):
        assert torch.equal(weights_of(axes), seen.cross[place // H, place % H])
    assert [axes.get_ylabel() for axes in maps[::H]] == ["layer 0", "layer 1", "layer 2"]
    assert title.splitlines() == [
        "Cross-attention",
        "down: target token being written, across: source token attended to",
    ]


def test_one_head_of_all_layers(drawn, seen):
    maps, title, _ = drawn(layer="all", head="1")
    for layer, axes in enumerate(maps):
        assert torch.equal(weights_of(axes), seen.cross[layer, 1])
    assert title.startswith("Cross-attention, head 1 (0 to 1)\n")


def test_panels_share_one_scale_that_ends_at_the_heaviest_weight(drawn, seen):
    maps, _, _ = drawn(layer="all", head="all")
    limits = {axes.images[0].get_clim() for axes in maps}
    assert limits == {(0, float(seen.cross.max()))}


# --- tokens and labels -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "down", "across", "labels"),
    [
        ("cross", "target", "source", ("target token being written", "source token attended to")),
        ("encoder", "source", "source", ("source token that attends", "source token attended to")),
        ("decoder", "target", "read", ("target token being written", "target token attended to")),
    ],
)
def test_tokens_stand_at_their_rows_and_columns(drawn, seen, kind, down, across, labels):
    maps, _, tokens = drawn(kind=kind)
    shown = [list(getattr(seen, name)) for name in (down, across)]
    # where no font has it, the character becomes its number
    tokens = [[token.replace("⟨U+6F22⟩", "漢") for token in side] for side in tokens]
    assert tokens == shown
    assert weights_of(maps[0]).shape == tuple(map(len, shown))
    assert (maps[0].get_ylabel(), maps[0].get_xlabel()) == labels


def test_a_long_token_is_cut(seen, drawn):
    seen.source[1] = "Donaudampfschifffahrtsgesellschaft"
    assert drawn()[2][1][1] == "Donaudampfschifffahrtsg…"


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, S - 1), (T - 1, 0), (T - 1, S - 1)])
def test_the_dark_field_of_the_picture_is_the_heavy_weight(tmp_path, seen, row, column):
    seen.cross.zero_()
    seen.cross[2, :, row, column] = 1.0
    save_attention(seen, tmp_path / "one.png")
    with Image.open(tmp_path / "one.png") as opened:
        pixels = np.asarray(opened.convert("RGB")).astype(int)
    darkest, lightest = [8, 48, 107], [247, 251, 255]  # the ends of matplotlib's Blues
    # the colour bar has both too, but of one field less than a tenth
    dark, light = (
        np.median(np.argwhere(np.abs(pixels - colour).sum(-1) < 12), axis=0)
        for colour in (darkest, lightest)
    )
    assert (dark > light).tolist() == [row > 0, column > 0]


def test_a_sentence_too_long_to_draw_is_refused(tmp_path):
    words = ["word"] * 400
    weights = (torch.zeros(6, 8, 400, 400) for _ in range(3))
    seen = Attentions(words, words, words, *weights, torch.zeros(400, 2), [0] * 400)
    with pytest.raises(ValueError, match="inches: draw less of it"):
        save_attention(seen, tmp_path / "a.png", layer="all", head="all")


# --- from a model ------------------------------------------------------------------------------


def test_the_picture_of_a_sentence_is_that_of_its_attention(options, trained, figures):
    path = plot_attention(options(layer="0", head="1"))
    expected = attentions(*trained, SENTENCE).cross[0, 1]
    assert torch.equal(weights_of(figures[0].axes[0]), expected)
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 200


def test_a_translation_may_be_forced(options, figures):
    plot_attention(options(translation="neun"))
    labels = [label.get_text() for label in figures[0].axes[0].get_yticklabels()]
    assert "".join(labels) == "neun</s>"


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


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layer": "1"}, "layer=1: there are 1, counted from 0"),
        ({"layer": "-2"}, "layer=-2"),
        ({"head": "2"}, "head=2: there are 2"),
        ({"head": "-3"}, "head=-3"),
    ],
    ids=str,
)
def test_a_layer_or_head_that_is_not_there_is_refused(options, choice, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        plot_attention(options(**choice))
    assert not (tmp_path / "picture.png").exists()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"kind": "self"}, "kind='self': choose one of cross, encoder, decoder"),
        ({"layer": "mean"}, "layer='mean': give a number from 0 or all"),
        ({"head": "two"}, "head='two': give a number from 0 or all or mean"),
        ({"head": "1.5"}, r"head='1\.5'"),
        ({"head": ""}, "head=''"),
    ],
    ids=str,
)
def test_a_choice_nobody_knows_is_refused_before_any_work(choice, message):
    with pytest.raises(ValueError, match=message):
        PlotAttentionOptions(model="nowhere", sentence="a", **choice)
