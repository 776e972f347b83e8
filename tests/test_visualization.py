"""Pictures of attention: true weights, tokens that can be read, a file that can be opened."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForSeq2SeqLM

from hf_vanilla import train_tokenizer, visualization
from hf_vanilla.visualization import (
    PlotAttentionOptions,
    cross_attention,
    plot_attention,
    plot_curves,
    readable_tokens,
    save_heat_map,
)

SENTENCE = "three one four"


@pytest.fixture(scope="module")
def seen(trained):
    return cross_attention(*trained, SENTENCE)


@pytest.fixture
def options(trained_run, tmp_path):
    def with_changes(**changes):
        default = {"sentence": SENTENCE, "output": str(tmp_path / "picture.png")}
        return PlotAttentionOptions(model=str(trained_run), **{**default, **changes})

    return with_changes


# --- weights -----------------------------------------------------------------------------------


def test_weights_have_a_place_for_every_layer_head_and_pair_of_tokens(seen, trained):
    config = trained[0].config
    assert seen.weights.shape == (
        config.decoder_layers,
        config.decoder_attention_heads,
        len(seen.target),
        len(seen.source),
    )
    assert len(seen.source) == len(trained[1](SENTENCE).input_ids)


def test_each_target_token_spreads_its_attention_over_the_source(seen):
    sums = seen.weights.sum(-1)
    assert seen.weights.min() >= 0
    # a softmax in float32
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)


def test_row_t_belongs_to_the_step_that_wrote_token_t(seen, trained):
    model, tokenizer = trained
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    generated = model.generate(**inputs)
    eager = AutoModelForSeq2SeqLM.from_pretrained(model.name_or_path, attn_implementation="eager")
    with torch.no_grad():
        outputs = eager.eval()(**inputs, decoder_input_ids=generated[:, :2], output_attentions=True)
    written = outputs.cross_attentions[0][0, :, -1]  # while the second token was being written
    # the prefix alone against the whole sentence: other matrix sizes, the same float32 sums
    torch.testing.assert_close(seen.weights[0, :, 1], written, rtol=0, atol=1e-5)


def test_the_tokens_are_those_of_the_translation_and_its_end(seen, trained):
    model, tokenizer = trained
    ids = model.generate(**tokenizer(SENTENCE, return_tensors="pt"))[0]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert seen.target[-1] == seen.source[-1] == "</s>"
    assert "".join(seen.target[:-1]) == text.replace(" ", "␣")
    assert "".join(seen.source[:-1]) == SENTENCE.replace(" ", "␣")


def test_the_models_attention_is_what_it_was_before(trained):
    model, tokenizer = trained
    before = model.config._attn_implementation
    cross_attention(model, tokenizer, SENTENCE)
    assert model.config._attn_implementation == before != "eager"


def test_the_models_attention_is_restored_after_a_failure_too(trained, monkeypatch):
    model, tokenizer = trained
    before = model.config._attn_implementation
    monkeypatch.setattr(type(model), "forward", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(model, "generate", lambda **_: torch.tensor([[0, 5, 1]]))
    with pytest.raises(ZeroDivisionError):
        cross_attention(model, tokenizer, SENTENCE)
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("sentence", ["", " ", "\n\t"], ids=repr)
def test_a_blank_sentence_is_refused(trained, sentence):
    with pytest.raises(ValueError, match="the sentence is blank"):
        cross_attention(*trained, sentence)


# --- tokens ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bytes_only():
    return train_tokenizer(["a"], vocab_size=258)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a b", ["a", "␣", "b", "</s>"]),
        ("a\n", ["a", "↵", "</s>"]),
        ("ü", ["⟨C3⟩", "⟨BC⟩", "</s>"]),
        ("漢", ["⟨E6⟩", "⟨BC⟩", "⟨A2⟩", "</s>"]),
        ("…", ["⟨E2⟩", "⟨80⟩", "⟨A6⟩", "</s>"]),
    ],
)
def test_spaces_are_visible_and_split_characters_are_bytes(bytes_only, text, tokens):
    assert readable_tokens(bytes_only, bytes_only(text).input_ids) == tokens


@pytest.mark.parametrize("code", [0x80, 0x7FF, 0xFFFF, 0x10FFFF], ids=hex)
def test_every_byte_of_a_split_character_has_its_number(bytes_only, code):
    shown = readable_tokens(bytes_only, bytes_only(chr(code)).input_ids[:-1])
    assert shown == [f"⟨{byte:02X}⟩" for byte in chr(code).encode()]


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
    expected = seen.weights[0].mean(0) if head is None else seen.weights[0, head]
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
