"""`VanillaConfig`: the paper's numbers by default, and no number that cannot be built."""

import importlib.util
import json
import runpy

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from hf_vanilla import (
    VanillaAgentFormerConfig,
    VanillaConfig,
    VanillaModel,
    VanillaTracksConfig,
    VanillaVitConfig,
)


def test_the_defaults_are_the_papers_base_model():
    config = VanillaConfig()
    assert (config.encoder_layers, config.decoder_layers) == (6, 6)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (8, 8)
    assert (config.d_model, config.encoder_ffn_dim, config.decoder_ffn_dim) == (512, 2048, 2048)
    assert config.head_widths(8) == (64, 64)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.1, 0, 0)
    assert (config.label_smoothing, config.activation_function) == (0.1, "relu")
    assert config.position_embedding_type == "sinusoidal"
    assert config.position_layout == "interleaved"
    assert (config.position_frequencies, config.position_offset) == ("paper", 0)
    assert config.scale_embedding
    assert config.share_encoder_decoder_embeddings
    assert config.tie_word_embeddings
    assert not config.attention_bias


REFUSED = [
    ({"d_model": 510}, r"d_model=510 is not a multiple of encoder_attention_heads=8.*head_dim"),
    ({"decoder_attention_heads": 7}, r"multiple of decoder_attention_heads=7.*v_head_dim"),
    ({"d_model": 511, "head_dim": 3, "v_head_dim": 5}, "d_model=511 is odd: make it even"),
    ({"vocab_size": 0}, r"vocab_size=0: give a positive number"),
    ({"d_model": -8}, r"d_model=-8: give a positive number"),
    ({"encoder_layers": 0}, r"encoder_layers=0: give a positive number"),
    ({"decoder_layers": -1}, r"decoder_layers=-1: give a positive number"),
    ({"encoder_attention_heads": 0}, r"encoder_attention_heads=0: give a positive number"),
    ({"decoder_attention_heads": -3}, r"decoder_attention_heads=-3: give a positive number"),
    ({"encoder_ffn_dim": 0}, r"encoder_ffn_dim=0: give a positive number"),
    ({"decoder_ffn_dim": 0}, r"decoder_ffn_dim=0: give a positive number"),
    ({"max_position_embeddings": 0}, r"max_position_embeddings=0: give a positive number"),
    ({"head_dim": 0}, r"head_dim=0: give a positive number"),
    ({"v_head_dim": -2}, r"v_head_dim=-2: give a positive number"),
    ({"position_offset": -1}, r"position_offset=-1: give 0 or more"),
    ({"layer_norm_eps": 0.0}, r"layer_norm_eps=0.0: give a positive number"),
    ({"dropout": 1.0}, r"dropout=1.0: give a rate from 0 up to, not including, 1"),
    ({"attention_dropout": -0.1}, r"attention_dropout=-0.1: give a rate from 0"),
    ({"activation_dropout": 2}, r"activation_dropout=2: give a rate from 0"),
    ({"label_smoothing": 1}, r"label_smoothing=1: give a rate from 0"),
    ({"label_smoothing": float("nan")}, r"label_smoothing=nan: give a rate from 0"),
    ({"activation_function": "rely"}, r"activation_function='rely': choose one of .*relu"),
    ({"position_embedding_type": "none"}, r"='none': choose one of sinusoidal, learned"),
    ({"position_layout": "mixed"}, r"='mixed': choose one of interleaved, concatenated"),
    ({"position_frequencies": "t2t"}, r"='t2t': choose one of paper, tensor2tensor"),
    ({"label_smoothing_type": "flat"}, r"='flat': choose one of non_target, uniform"),
    (
        {"decoder_vocab_size": 31_000},
        r"decoder_vocab_size=31000 is not vocab_size=37000.*embeddings=False",
    ),
    ({"pad_token_id": 37_000}, r"pad_token_id=37000: the vocabulary has the ids 0 to 36999"),
    ({"eos_token_id": -1}, r"eos_token_id=-1: the vocabulary has the ids 0 to 36999"),
    ({"eos_token_id": [1, 40_000]}, r"eos_token_id=40000: the vocabulary has the ids 0 to 36999"),
    ({"bos_token_id": 99_999}, r"bos_token_id=99999: the vocabulary has the ids 0 to 36999"),
    (
        {
            "decoder_start_token_id": 80,
            "decoder_vocab_size": 79,
            "share_encoder_decoder_embeddings": False,
        },
        r"decoder_start_token_id=80: the vocabulary has the ids 0 to 78",
    ),
    ({"d_model": "512"}, r"'d_model'.*expected int.*'512'"),
    ({"encoder_layers": 6.0}, r"'encoder_layers'.*expected int.*6\.0"),
]


def test_what_cannot_be_built_is_refused_by_value_with_a_remedy():
    for changes, message in REFUSED:
        with pytest.raises(StrictDataclassError, match="(?s)" + message):
            VanillaConfig(**changes)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("encoder_attention_heads", 3, "is not a multiple of encoder_attention_heads=3"),
     ("decoder_layers", 0, "decoder_layers=0: give a positive number")],
)  # fmt: skip
def test_a_field_that_was_set_later_is_refused_by_the_model(name, value, message):
    config = VanillaConfig(vocab_size=20, d_model=16)
    setattr(config, name, value)
    with pytest.raises(StrictDataclassError, match=message):
        VanillaModel(config)


def test_a_model_without_heads_is_refused_and_not_divided_by():
    for kind in (VanillaConfig, VanillaVitConfig, VanillaTracksConfig, VanillaAgentFormerConfig):
        with pytest.raises(StrictDataclassError, match="encoder_attention_heads=0"):
            kind(encoder_attention_heads=0)


def test_heads_need_not_divide_the_width_when_their_widths_are_given():
    config = VanillaConfig(d_model=34, encoder_attention_heads=3, head_dim=7, v_head_dim=5)
    assert config.head_widths(3) == (7, 5)


def test_an_odd_width_is_fine_with_learned_positions():
    changes = {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
    assert VanillaConfig(d_model=33, position_embedding_type="learned", **changes).d_model == 33


def test_a_rate_of_zero_may_be_written_without_a_point():
    assert VanillaConfig(dropout=0, label_smoothing=0).dropout == 0


def test_sides_without_a_common_table_may_have_vocabularies_of_their_own():
    config = VanillaConfig(
        vocab_size=53, decoder_vocab_size=71, share_encoder_decoder_embeddings=False
    )
    assert (config.vocab_size, config.target_vocab_size) == (53, 71)


def test_a_config_comes_back_from_json_as_it_went(tmp_path):
    config = VanillaConfig(
        vocab_size=53,
        decoder_vocab_size=71,
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=False,
        d_model=34,
        encoder_layers=2,
        encoder_attention_heads=3,
        encoder_ffn_dim=19,
        decoder_layers=5,
        decoder_attention_heads=7,
        decoder_ffn_dim=23,
        head_dim=11,
        v_head_dim=13,
        dropout=0,
        attention_dropout=0.25,
        activation_dropout=0.125,
        activation_function="gelu",
        attention_bias=True,
        layer_norm_eps=1e-5,
        scale_embedding=False,
        max_position_embeddings=97,
        position_layout="concatenated",
        position_frequencies="tensor2tensor",
        position_offset=2,
        label_smoothing=0.0625,
        label_smoothing_type="uniform",
        pad_token_id=3,
        eos_token_id=[4, 5],
        bos_token_id=6,
        decoder_start_token_id=7,
        use_cache=False,
    )
    config.save_pretrained(tmp_path)
    assert VanillaConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


def test_transformers_finds_width_heads_and_layers_under_its_own_names(tiny_config):
    assert tiny_config.hidden_size == tiny_config.d_model == 12
    assert tiny_config.num_attention_heads == tiny_config.encoder_attention_heads == 3
    assert tiny_config.num_hidden_layers == tiny_config.encoder_layers == 2
    tiny_config.num_hidden_layers = 7
    assert tiny_config.encoder_layers == 7


def test_a_head_width_that_is_left_out_reads_as_a_number_and_follows_the_config():
    config = VanillaConfig(d_model=24, encoder_attention_heads=3, decoder_attention_heads=2)
    assert (config.head_dim, config.v_head_dim) == (8, 8)
    # transformers asks a decoder's config for the widths of its cache
    assert config.get_text_config(decoder=True).head_dim == 12
    config.d_model = 36
    assert (config.head_dim, config.v_head_dim) == (12, 12)
    config.v_head_dim = 5
    assert (config.head_dim, config.v_head_dim) == (12, 5)


def test_a_head_width_that_is_left_out_stays_out_of_the_file(tmp_path):
    VanillaConfig(d_model=24, encoder_attention_heads=3, decoder_attention_heads=2).save_pretrained(
        tmp_path
    )
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (saved["head_dim"], saved["v_head_dim"]) == (None, None)
    loaded = VanillaConfig.from_pretrained(tmp_path)
    assert (loaded.head_widths(3), loaded.head_widths(2)) == ((8, 8), (12, 12))


def test_transformers_reads_the_shape_of_the_cache_from_the_config(tiny_model):
    ids = torch.tensor([[5, 6, 7, 1]])
    cache = tiny_model(input_ids=ids, decoder_input_ids=ids).past_key_values
    config = tiny_model.config.get_text_config(decoder=True)
    keys = cache.self_attention_cache.layers[0].keys  # (B, H, T, K)
    assert keys.shape[1::2] == (config.num_attention_heads, config.head_dim)


@pytest.mark.parametrize("version", ["4.57.1", "5.19.3"])
def test_an_older_transformers_is_refused_with_the_version_that_is_needed(version, monkeypatch):
    monkeypatch.setattr(transformers, "__version__", version)
    path = importlib.util.find_spec("hf_vanilla.models.configuration_vanilla").origin
    with pytest.raises(ImportError, match=f"transformers {version} is older than 5.20"):
        runpy.run_path(path)
