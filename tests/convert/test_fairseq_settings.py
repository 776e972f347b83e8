"""Settings of a fairseq checkpoint: converted to our config, or named as a reason against it."""

import argparse

import fairseq_by_hand as theirs
import pytest
import torch

from hf_vanilla import VanillaConfig
from hf_vanilla.convert.fairseq_settings import (
    ACTIVATIONS,
    REFUSED,
    config_values,
    cut_positions,
    refusals,
    settings_of,
    sharing_of,
)


def test_args_and_a_nested_cfg_give_the_same_settings():
    said = theirs.settings()
    flat = settings_of({"args": argparse.Namespace(**said)})
    nested = settings_of({"args": None, "cfg": theirs.nested(said)})
    assert flat == said
    assert nested == {**said, "label_smoothing_type": "non_target"}


def test_a_cfg_may_contain_a_namespace():
    said = theirs.settings()
    config = {"model": argparse.Namespace(**said), "task": argparse.Namespace(source_lang="en")}
    assert settings_of({"cfg": config}) == {**said, "label_smoothing_type": "non_target"}


def test_a_checkpoint_without_settings_gives_none():
    assert settings_of({"model": {}}) == {}


def test_a_transformer_of_the_paper_has_no_faults():
    assert refusals(theirs.settings()) == []


def test_each_setting_that_must_be_off_is_a_fault():
    for name in REFUSED:
        (reason,) = refusals(theirs.settings(**{name: 2}))
        assert reason == f"{name}=2 ({REFUSED[name]})"


def test_a_fault_names_the_setting():
    cases = [
        ({"encoder_attention_heads": None}, "encoder_attention_heads is missing"),
        ({"decoder_embed_dim": 12}, "decoder_embed_dim=12 differs from encoder_embed_dim=24"),
        ({"decoder_output_dim": 13}, "decoder_output_dim=13 differs from encoder_embed_dim=24"),
        ({"decoder_learned_pos": True}, "decoder_learned_pos on one side only"),
        ({"encoder_learned_pos": True}, "encoder_learned_pos on one side only"),
        ({"activation_fn": "glu"}, "activation_fn='glu' is none of relu, "),
        ({"arch": "transformer_lm_big"}, "arch='transformer_lm_big' is not the transformer"),
        ({"arch": "lstm"}, "arch='lstm' is not the transformer"),
        ({"task": "multilingual_lm"}, "task='multilingual_lm' is not 'translation'"),
    ]
    for said, message in cases:
        (reason,) = refusals(theirs.settings(**said))
        assert reason.startswith(message)


def test_learned_positions_of_two_lengths_are_a_fault():
    both = {"encoder_learned_pos": True, "decoder_learned_pos": True}
    (reason,) = refusals(theirs.settings(**both, max_target_positions=54))
    assert "max_source_positions=53 differs from max_target_positions=54" in reason


def test_every_activation_is_valid_in_our_config():
    for activation in ACTIVATIONS:
        values = config_values(theirs.settings(activation_fn=activation))
        assert VanillaConfig(**values, vocab_size=11).activation_function == ACTIVATIONS[activation]


@pytest.mark.parametrize(
    ("said", "of_sides", "of_output"),
    [
        ({"share_all_embeddings": True}, True, True),
        ({}, False, True),
        ({"share_decoder_input_output_embed": False}, False, False),
    ],
)
def test_flags_decide_which_tables_are_shared(said, of_sides, of_output):
    shared = {"share_encoder_decoder_embeddings": of_sides, "tie_word_embeddings": of_output}
    assert sharing_of(theirs.settings(**said)) == shared


def test_learned_positions_lose_their_first_two_rows():
    table = torch.arange(14.0).reshape(7, 2)
    cut = cut_positions({"encoder.embed_positions.weight": table, "a": table})
    assert cut["encoder.embed_positions.weight"].tolist() == table[2:].tolist()
    assert cut["a"] is table


def test_the_older_name_of_the_activation_dropout_counts_where_the_newer_one_is_0():
    for newer, used in ((0.2, 0.2), (0.0, 0.1), (None, 0.1)):
        settings = theirs.settings(activation_dropout=newer, relu_dropout=0.1)
        assert config_values(settings)["activation_dropout"] == used


def test_label_smoothing_depends_on_the_criterion():
    plain = theirs.settings(criterion="cross_entropy")
    assert config_values(plain)["label_smoothing"] == 0
    assert config_values(theirs.settings())["label_smoothing"] == 0.2
