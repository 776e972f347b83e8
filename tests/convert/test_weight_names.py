"""Tables of weight names, and one message with all weights that do not fit."""

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.convert.weight_names import (
    is_zero_at,
    load_renamed,
    rename_to_ours,
    rename_to_theirs,
)

EXACT = {"rtol": 0, "atol": 0}


def exact(found, expected):
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert_close(weight, expected[name], **EXACT)


@pytest.fixture
def own_names(tiny_model):
    """A table for a checkpoint that already has our names."""
    return {name: name for name in tiny_model.state_dict()}


# --- tables ------------------------------------------------------------------------------------


def test_a_word_in_braces_is_the_same_on_both_sides():
    weights = {"enc.3.norm.bias": torch.ones(2), "enc.11.norm.weight": torch.zeros(2)}
    renamed = rename_to_ours(weights, {"enc.{n}.norm.{kind}": "encoder.layers.{n}.ln.{kind}"})
    expected = {
        "encoder.layers.3.ln.bias": torch.ones(2),
        "encoder.layers.11.ln.weight": torch.zeros(2),
    }
    exact(renamed.weights, expected)


def test_a_word_in_braces_contains_no_dot():
    renamed = rename_to_ours({"enc.3.norm.bias": torch.ones(2)}, {"enc.{rest}": "e.{rest}"})
    assert renamed.left_over == ["enc.3.norm.bias"]


def test_one_weight_is_split_into_equal_parts_along_axis_0():
    whole = torch.arange(12.0).view(6, 2)
    renamed = rename_to_ours({"a.0.qkv": whole}, {"a.{n}.qkv": ("q.{n}", "k.{n}", "v.{n}")})
    exact(renamed.weights, {"q.0": whole[:2], "k.0": whole[2:4], "v.0": whole[4:]})
    assert all(part.untyped_storage().nbytes() == 16 for part in renamed.weights.values())


def test_an_uneven_split_is_a_problem():
    renamed = rename_to_ours({"qkv": torch.ones(7, 2)}, {"qkv": ("q", "k", "v")})
    assert renamed.problems == ["qkv (7, 2) cannot be split into 3 equal parts"]


def test_rename_to_theirs_inverts_rename_to_ours():
    names = {"{s}.{n}.in_{kind}": ("{s}.q.{n}.{kind}", "{s}.k.{n}.{kind}"), "out": "head"}
    weights = {
        "enc.0.in_weight": torch.randn(6, 5),
        "enc.0.in_bias": torch.randn(6),
        "dec.1.in_bias": torch.randn(4),
        "out": torch.randn(3, 2),
    }
    there = rename_to_ours(weights, names)
    back = rename_to_theirs(there.weights, names)
    assert [there.left_over, there.problems, back.left_over, back.problems] == [[], [], [], []]
    exact(back.weights, weights)


def test_a_missing_part_is_a_problem():
    names = {"in": ("q", "k", "v")}
    back = rename_to_theirs({"q": torch.ones(2), "v": torch.ones(2)}, names)
    assert back.problems == ["q + v: not all of the 3 parts are there"]
    assert not back.weights


def test_a_name_mapped_to_none_is_dropped():
    renamed = rename_to_ours({"enc.version": torch.ones(1)}, {"{side}.version": None})
    assert (renamed.weights, renamed.left_over, renamed.problems) == ({}, [], [])


def test_a_tied_weight_stored_twice_becomes_one():
    table = torch.randn(5, 3)
    names = {"{side}.embed": "shared"}
    exact(
        rename_to_ours({"enc.embed": table, "dec.embed": table.clone()}, names).weights,
        {"shared": table},
    )
    other = rename_to_ours({"enc.embed": table, "dec.embed": table + 1}, names)
    assert other.problems == ["enc.embed and dec.embed are tied in our model, but they differ"]


def test_rename_to_theirs_copies_a_weight_to_all_its_names():
    back = rename_to_theirs({"shared": torch.ones(2)}, {"enc.e": "shared", "dec.e": "shared"})
    exact(back.weights, {"enc.e": torch.ones(2), "dec.e": torch.ones(2)})


# --- the check ---------------------------------------------------------------------------------


def test_load_renamed_loads_every_weight_exactly(tiny_model, tiny_config, own_names):
    other = VanillaForConditionalGeneration(tiny_config)
    load_renamed(other, rename_to_ours(tiny_model.state_dict(), own_names), origin="a file")
    exact(other.state_dict(), tiny_model.state_dict())


def test_one_of_several_tied_weights_is_enough(tiny_model, tiny_config, tmp_path, own_names):
    tiny_model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert len(stored) < len(tiny_model.state_dict())
    other = VanillaForConditionalGeneration(tiny_config)
    load_renamed(other, rename_to_ours(stored, {name: name for name in stored}), origin="a file")
    exact(other.state_dict(), tiny_model.state_dict())


def test_tied_weights_that_differ_are_an_error(tiny_model, own_names):
    weights = {**tiny_model.state_dict(), "lm_head.weight": torch.ones(43, 12)}
    message = (
        r"unclear: model\.shared\.weight and lm_head\.weight are tied in our model, but they differ"
    )
    with pytest.raises(ValueError, match=message):
        load_renamed(tiny_model, rename_to_ours(weights, own_names), origin="a file")


def test_one_message_names_all_left_over_missing_and_wrong_weights(tiny_model, own_names):
    weights = dict(tiny_model.state_dict())
    del weights["model.encoder.layers.0.fc1.bias"]
    del weights["model.decoder.layers.4.fc2.weight"]
    weights |= {
        "encoder.layer_norm.bias": torch.ones(12),
        "adaptive": torch.ones(3),
        "model.encoder.layers.1.fc1.bias": torch.ones(30),
        "model.encoder.layers.1.fc2.bias": torch.ones(12, dtype=torch.int64),
        "model.decoder.layers.0.fc2.bias": torch.ones(12, dtype=torch.float64),
        "model.decoder.layers.1.fc2.bias": torch.full((12,), torch.nan),
    }
    before = {name: weight.clone() for name, weight in tiny_model.state_dict().items()}
    renamed = rename_to_ours(weights, own_names)
    reasons = {"{side}.layer_norm.{kind}": "of a pre-norm model"}
    with pytest.raises(ValueError, match=r"model\.pt does not fit this architecture") as caught:
        load_renamed(tiny_model, renamed, origin="model.pt", reasons=reasons)
    message = str(caught.value)
    assert "left over: adaptive, encoder.layer_norm.bias (of a pre-norm model); " in message
    missing = "model.decoder.layers.4.fc2.weight, model.encoder.layers.0.fc1.bias"
    assert f"missing: {missing}; " in message
    assert "model.encoder.layers.1.fc1.bias (shape (30,), expected (29,))" in message
    assert "fc2.bias (dtype torch.int64, expected floating point)" in message
    assert (
        "fc2.bias (dtype torch.float64 does not convert to torch.float32 without loss)" in message
    )
    assert "layers.1.fc2.bias (it has NaN: the file is damaged, or its training failed)" in message
    exact(tiny_model.state_dict(), before)


def test_a_weight_without_a_target_is_left_over_under_its_own_name(tiny_model, own_names):
    names = {**own_names, "enc.{n}.bias": "model.encoder.layers.{n}.fc9.bias"}
    weights = {**tiny_model.state_dict(), "enc.0.bias": torch.ones(2)}
    with pytest.raises(ValueError, match=r"left over: enc\.0\.bias$"):
        load_renamed(tiny_model, rename_to_ours(weights, names), origin="a file")


def test_is_zero_at_needs_zeros_in_every_table():
    zeros, ones = torch.zeros(3, 2), torch.ones(3, 2)
    assert is_zero_at(1, zeros, zeros)
    assert not is_zero_at(1, zeros, ones)
    assert is_zero_at(None, ones)
    assert is_zero_at(9, ones)  # there is no such row: the config reports that
