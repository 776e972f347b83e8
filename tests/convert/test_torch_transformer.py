"""Models around torch.nn.Transformer to ours: the same logits, or an error with all reasons."""

import argparse
import math
from dataclasses import replace

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close
from transformers import AutoModelForSeq2SeqLM

from hf_vanilla.convert.torch_transformer import (
    TorchOptions,
    convert_torch,
    from_torch,
    torch_names,
)
from hf_vanilla.convert.weight_names import rename_to_ours, rename_to_theirs

# torch recommends another layout than the tutorial's
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")

CLOSE = {"rtol": 0, "atol": 1e-5}  # float32 sums in another order
PAD, START, END = 1, 2, 3
SOURCE = torch.tensor([[2, 7, 11, 13, 3], [2, 19, 3, PAD, PAD]])
TARGET = torch.tensor([[2, 5, 8, 9, 31, 6, 4], [2, 4, 6, PAD, PAD, PAD, PAD]])
OPTIONS = TorchOptions(
    input="model.pt",
    output="ours",
    heads=3,
    pad_token_id=PAD,
    decoder_start_token_id=START,
    eos_token_id=END,
)


class Words(nn.Module):
    """The tutorial keeps its table one level down."""

    def __init__(self, size, width):
        super().__init__()
        self.embedding = nn.Embedding(size, width)


class Places(nn.Module):
    """Its sinusoids: interleaved, in float32, with an axis for the batch."""

    def __init__(self, width):
        super().__init__()
        rates = torch.exp(-torch.arange(0, width, 2) * math.log(10000) / width)
        angles = torch.arange(0, 5000).reshape(5000, 1) * rates
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        self.register_buffer("pos_embedding", table.unsqueeze(-2))


class Tutorial(nn.Module):
    """The model of PyTorch's translation tutorial, with its names."""

    def __init__(self, *, is_normed=True, **changes):
        super().__init__()
        width = 12
        self.transformer = nn.Transformer(width, 3, 2, 4, 29, dropout=0.1, **changes)
        self.generator = nn.Linear(width, 37)
        self.src_tok_emb = Words(43, width)
        self.tgt_tok_emb = Words(37, width)
        self.positional_encoding = Places(width)
        if not is_normed:
            self.transformer.encoder.norm = self.transformer.decoder.norm = None
        with torch.no_grad():
            for weight in self.parameters():
                weight.add_(torch.randn_like(weight), alpha=0.2)

    def forward(self, source, target):
        sides = []
        for ids, words in ((source.T, self.src_tok_emb), (target.T, self.tgt_tok_emb)):
            table = self.positional_encoding.pos_embedding[: len(ids)]
            sides.append(words.embedding(ids) * math.sqrt(12) + table)
        length = target.shape[1]
        decoded = self.transformer(
            *sides,
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
        )
        return self.generator(decoded).transpose(0, 1)


@torch.no_grad()
def logits(model):
    """Logits at the real positions of both rows, concatenated."""
    if isinstance(model, nn.Module) and hasattr(model, "transformer"):
        found = model.eval()(SOURCE, TARGET)
    else:
        masks = {"attention_mask": SOURCE.ne(PAD).long()}
        found = model(input_ids=SOURCE, decoder_input_ids=TARGET, **masks).logits
    return found[TARGET.ne(PAD)]


def saved(content, tmp_path, **options):
    torch.save(content, tmp_path / "model.pt")
    names = {"input": str(tmp_path / "model.pt"), "output": str(tmp_path / "ours")}
    return replace(OPTIONS, **names, **options)


# --- the function ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_normed", [True, False], ids=["torch's norms", "as in the paper"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_logits_equal_theirs(is_normed, activation):
    theirs = Tutorial(is_normed=is_normed, activation=activation)
    options = replace(OPTIONS, activation_function=activation)
    ours = from_torch(theirs.state_dict(), options)
    assert ours.config.final_layer_norm == is_normed
    assert_close(logits(ours), logits(theirs), **CLOSE)


def test_a_transformer_without_biases_has_zeros():
    theirs = Tutorial(bias=False)
    ours = from_torch(theirs.state_dict(), OPTIONS)
    assert_close(logits(ours), logits(theirs), **CLOSE)
    weights = theirs.state_dict() | {"transformer.decoder.norm.bias": torch.zeros(12)}
    with pytest.raises(ValueError, match=r"missing: .*model\.decoder\.layers\.0\.fc1\.bias"):
        from_torch(weights, OPTIONS)


def test_shared_tables_stay_shared():
    theirs = Tutorial()
    theirs.src_tok_emb = theirs.tgt_tok_emb
    theirs.generator.weight = theirs.tgt_tok_emb.embedding.weight
    theirs.src_tok_emb.embedding.weight.data[PAD] = 0
    ours = from_torch(theirs.state_dict(), OPTIONS)
    config = ours.config
    assert config.share_encoder_decoder_embeddings
    assert config.tie_word_embeddings
    assert config.zero_pad_embedding
    assert ours.lm_head.weight is ours.model.encoder.embed_tokens.weight
    inside = SOURCE.clamp(max=36)
    expected = theirs.eval()(inside, TARGET)[0]
    found = ours(input_ids=inside, decoder_input_ids=TARGET).logits[0]
    assert_close(found, expected, **CLOSE)


def test_options_set_epsilon_and_embedding_scale():
    theirs = Tutorial(layer_norm_eps=1e-3)
    theirs.src_tok_emb.embedding.weight.data /= math.sqrt(12)
    theirs.tgt_tok_emb.embedding.weight.data /= math.sqrt(12)
    state = theirs.state_dict()
    ours = from_torch(state, replace(OPTIONS, layer_norm_eps=1e-3))
    assert_close(logits(ours), logits(theirs), **CLOSE)
    for name in ("src_tok_emb", "tgt_tok_emb"):
        state[f"{name}.embedding.weight"] = state[f"{name}.embedding.weight"] * math.sqrt(12)
    unscaled = replace(OPTIONS, layer_norm_eps=1e-3, scale_embedding=False)
    assert_close(logits(from_torch(state, unscaled)), logits(theirs), **CLOSE)


def test_config_fields_come_from_shapes_and_names():
    config = from_torch(Tutorial().state_dict(), OPTIONS).config
    assert (config.vocab_size, config.decoder_vocab_size, config.d_model) == (43, 37, 12)
    assert (config.encoder_layers, config.decoder_layers) == (2, 4)
    assert config.encoder_ffn_dim == config.decoder_ffn_dim == 29
    assert config.max_position_embeddings == 5000
    assert (config.position_layout, config.position_frequencies) == ("interleaved", "paper")
    assert config.dropout == config.attention_dropout == config.activation_dropout == 0.1


def test_a_round_trip_keeps_every_weight():
    state = Tutorial().state_dict()
    names = torch_names(OPTIONS)
    ours = from_torch(state, OPTIONS)
    back = rename_to_theirs(ours.state_dict(), names).weights
    state.pop("positional_encoding.pos_embedding")
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    assert not rename_to_ours(state, names).left_over


# --- the file ----------------------------------------------------------------------------------


def test_auto_classes_load_the_converted_folder(tmp_path):
    theirs = Tutorial()
    convert_torch(saved(theirs.state_dict(), tmp_path))
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert_close(logits(ours), logits(theirs), **CLOSE)
    generated = ours.generate(SOURCE, max_new_tokens=5)
    assert (generated[:, 0] == START).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "ours"]


def test_options_name_a_model_inside_a_larger_file(tmp_path, caplog):
    theirs = Tutorial()
    calls = {"transformer.": "", "src_tok_emb.embedding": "enc_words", "generator": "out.proj"}
    calls |= {"tgt_tok_emb.embedding": "dec_words"}
    state = {}
    for name, weight in theirs.state_dict().items():
        for old, new in calls.items():
            name = name.replace(old, new)
        state[f"module.{name}"] = weight
    del state["module.positional_encoding.pos_embedding"]
    options = saved(
        {"epoch": 3, "model": state},
        tmp_path,
        entry="model",
        prefix="module.",
        transformer="",
        source_embedding="enc_words",
        target_embedding="dec_words",
        output_projection="out.proj",
    )
    convert_torch(options)
    assert "assuming interleaved sinusoids (3.5); --positions gives another name" in caplog.text
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert_close(logits(ours), logits(theirs), **CLOSE)


def test_safetensors_are_converted(tmp_path):
    theirs = Tutorial()
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    options = saved({}, tmp_path)
    convert_torch(replace(options, input=str(tmp_path / "model.safetensors")))
    bias = load_file(tmp_path / "ours" / "model.safetensors")["lm_head.bias"]
    assert torch.equal(bias, theirs.generator.bias)


# --- refusals ----------------------------------------------------------------------------------


def refusal(content, tmp_path, **options):
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ValueError, match=r".") as caught:
        convert_torch(saved(content, tmp_path, **options))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({*before, "model.pt"})
    return str(caught.value)


def test_one_message_names_all_reasons(tmp_path):
    state = Tutorial().state_dict()
    del state["transformer.encoder.layers.1.linear2.bias"]
    del state["transformer.decoder.norm.weight"]
    state["adapter.weight"] = torch.ones(3)
    state["transformer.encoder.layers.0.norm1.weight"] = torch.ones(13)
    state["positional_encoding.pos_embedding"] = torch.randn(50, 1, 12)
    message = refusal(state, tmp_path)
    assert (
        "model.pt does not fit this architecture; left over: adapter.weight; missing: " in message
    )
    assert "missing: model.decoder.layer_norm.weight, model.encoder.layers.1.fc2.bias; " in message
    assert "transformer.encoder.layers.0.norm1.weight (shape (13,), expected (12,))" in message
    assert "positional_encoding.pos_embedding (50, 12) is not sinusoidal" in message


def test_a_final_norm_on_one_stack_only_is_an_error(tmp_path):
    theirs = Tutorial()
    theirs.transformer.encoder.norm = None
    message = refusal(theirs.state_dict(), tmp_path)
    assert "missing: model.encoder.layer_norm.bias, model.encoder.layer_norm.weight" in message


def test_another_architecture_is_an_error_with_its_weights(tmp_path):
    other = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    message = refusal(other.state_dict(), tmp_path)
    assert "has no matrix src_tok_emb.embedding.weight, tgt_tok_emb.embedding.weight, " in message
    assert "it has 0.weight, 1.bias, 1.weight: give names with" in message


def test_a_wrong_name_is_an_error_with_the_existing_names(tmp_path):
    message = refusal(Tutorial().state_dict(), tmp_path, transformer="net", output_projection="out")
    assert "no matrix out.weight, net.encoder.layers.0.linear1.weight, net.decoder" in message
    assert "generator.weight, positional_encoding.pos_embedding" in message
    assert "transformer: give" in message


def test_a_file_that_is_no_state_dict_is_an_error(tmp_path):
    message = refusal({"epoch": 3, "model": {}}, tmp_path)
    assert "is not a state dict; it contains epoch, model: name the state dict with" in message
    message = refusal({"epoch": 3, "model": {}}, tmp_path, entry="state")
    assert "has no entry 'state'; it contains epoch, model" in message
    assert "it contains a Tensor" in refusal(torch.ones(2), tmp_path)


def test_a_file_with_other_classes_needs_trust_pickle(tmp_path):
    theirs = Tutorial()
    content = {"model": theirs.state_dict(), "args": argparse.Namespace(lr=1)}
    assert "argparse.Namespace" in refusal(content, tmp_path, entry="model")
    convert_torch(saved(content, tmp_path, entry="model", trust_pickle=True))
    assert (tmp_path / "ours").is_dir()


def test_an_incomplete_file_is_an_error(tmp_path):
    options = saved(Tutorial().state_dict(), tmp_path)
    content = (tmp_path / "model.pt").read_bytes()
    (tmp_path / "model.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="is incomplete or no checkpoint"):
        convert_torch(options)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "d_model=12 is not a multiple of encoder_attention_heads=5"),
        ({"pad_token_id": 40}, "pad_token_id=40: the vocabulary has the ids"),
        ({"activation_function": "rleu"}, "activation_function='rleu': choose one of"),
    ],
    ids=["heads", "pad", "activation"],
)
def test_invalid_options_are_an_error(tmp_path, options, message):
    with pytest.raises(StrictDataclassError, match=message):
        convert_torch(saved(Tutorial().state_dict(), tmp_path, **options))
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
