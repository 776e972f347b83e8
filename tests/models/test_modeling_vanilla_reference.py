"""The whole model equals the paper written out, in every option that changes what it computes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    ACTIVATIONS,
    ACTIVATIONS_WITH_WEIGHTS,
    fields_of,
    smoothed_loss,
    transformer,
)
from torch.testing import assert_close
from transformers.activations import ACT2FN

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

S, T = 7, 5
# double precision through at most five layers
DOUBLE = {"rtol": 0, "atol": 1e-9}

# every value that is tried of every field that changes the function; the first is the plain one
CHOICES = {
    "vocab_size": [17, 19],
    "decoder_vocab_size": [None, 23],
    "d_model": [12, 10, 6],
    "encoder_layers": [1, 2],
    "encoder_attention_heads": [3, 1, 2],
    "encoder_ffn_dim": [5, 11],
    "decoder_layers": [2, 1, 3],
    "decoder_attention_heads": [2, 1, 3],
    "decoder_ffn_dim": [7, 13],
    "head_dim": [None, 3, 7],
    "v_head_dim": [None, 2, 5],
    "activation_function": [*ACTIVATIONS, *ACTIVATIONS_WITH_WEIGHTS],
    "attention_bias": [False, True],
    "layer_norm_eps": [1e-6, 1e-5, 1e-2],
    "final_layer_norm": [False, True],
    "scale_embedding": [True, False],
    "zero_pad_embedding": [True, False],
    "max_position_embeddings": [61, S],
    "position_embedding_type": ["sinusoidal", "learned"],
    "position_layout": ["interleaved", "concatenated"],
    "position_frequencies": ["paper", "tensor2tensor"],
    "position_offset": [0, 2, 5],
    "label_smoothing": [0.1, 0.0, 0.3],
    "label_smoothing_type": ["non_target", "uniform", "non_target_non_pad"],
    "share_encoder_decoder_embeddings": [True, False],
    "tie_word_embeddings": [True, False],
    "lm_head_bias": [False, True],
    "pad_token_id": [0, 3, None],
    "decoder_start_token_id": [0, 2],
}
PLAIN = {name: choices[0] for name, choices in CHOICES.items()}
# the other fields, and why they are not drawn
APART = {
    "dropout": "chance, in training only; off here",
    "attention_dropout": "chance, in training only; off by default",
    "activation_dropout": "chance, in training only; off by default",
    "eos_token_id": "read by generate() alone",
    "bos_token_id": "read by nobody",
    "use_cache": "changes the work, not its result",
    "is_encoder_decoder": "has one value",
    "add_cross_attention": "read by the decoder alone",
}
# what these fields change is neither a shape nor a weight
WEIGHTLESS = {
    name: CHOICES[name]
    for name in (
        *("layer_norm_eps", "scale_embedding", "zero_pad_embedding"),
        *("position_layout", "position_frequencies"),
        *("position_offset", "label_smoothing", "label_smoothing_type"),
        *("pad_token_id", "decoder_start_token_id"),
    )
}
WEIGHTLESS["activation_function"] = list(ACTIVATIONS)


def changes_of(choices):
    return [(name, value) for name, values in choices.items() for value in values[1:]]


def config_with(**fields):
    """The config of these choices; where two exclude each other, the plainer one gives way."""
    fields = {**PLAIN, **fields}
    if fields["decoder_vocab_size"] is not None:
        fields["share_encoder_decoder_embeddings"] = False
    if fields["position_embedding_type"] == "learned":
        fields["position_offset"] = 0
    if fields["head_dim"] is None or fields["v_head_dim"] is None:
        for side in ("encoder", "decoder"):
            if fields["d_model"] % fields[f"{side}_attention_heads"]:
                fields[f"{side}_attention_heads"] = 2
    if fields["pad_token_id"] is None and fields["label_smoothing_type"] == "non_target_non_pad":
        fields["label_smoothing_type"] = "uniform"
    return VanillaConfig(**fields, dropout=0)


def double_model(config, implementation="eager"):
    """In training mode, so that the loss is smoothed; without dropout nothing else changes."""
    model = VanillaForConditionalGeneration(config).train().double()
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # biases start at zero, norms at one
            wide = name.endswith("fc1.bias")  # some activations bend only far from zero
            parameter.add_((5 if wide else 0.1) * torch.randn_like(parameter))
    return model


def sentences(lengths, size):
    """Random words of these lengths, none of them special."""
    return [torch.randint(4, size, (length,)).tolist() for length in lengths]


def block(rows, *, filling, side):
    """The sentences as one tensor, and where it holds words."""
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), filling), torch.zeros(len(rows), width).long()
    for number, words in enumerate(rows):
        place = slice(width - len(words), width) if side == "left" else slice(len(words))
        ids[number, place], mask[number, place] = torch.tensor(words), 1
    return ids, mask


def batch_of(config, sources, targets, *, sides=("right", "right"), has_mask=True):
    """Padded arguments of `forward`, as little as the config lets it find out by itself."""
    pad, start = config.pad_token_id, config.decoder_start_token_id
    filling = 0 if pad is None else pad
    source_ids, source_mask = block(sources, filling=filling, side=sides[0])
    labels, target_mask = block(targets, filling=-100, side=sides[1])
    arguments = {"input_ids": source_ids, "labels": labels}
    if has_mask or pad is None:
        arguments["attention_mask"] = source_mask
    if pad is None or sides[1] == "left":
        shifted = [[start, *words[:-1]] for words in targets]
        arguments["decoder_input_ids"], _ = block(shifted, filling=filling, side=sides[1])
    if sides[1] == "left":
        arguments["decoder_attention_mask"] = target_mask
    return arguments, target_mask == 1


def assert_equals_the_reference(model, sources, targets, **form):
    config = model.config
    arguments, is_real = batch_of(config, sources, targets, **form)
    found = model(**arguments)
    nats = 0.0
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        inputs = [config.decoder_start_token_id, *target[:-1]]
        logits = transformer(source, inputs, model.state_dict(), config)
        assert_close(found.logits[row, is_real[row]], logits, **DOUBLE)
        nats = nats + smoothed_loss(logits, target, config)
    assert_close(found.loss, nats / sum(map(len, targets)), **DOUBLE)


def test_every_field_that_changes_the_function_is_drawn():
    """A new field of the config belongs into `CHOICES` and `reference.py`, or into `APART`."""
    assert not CHOICES.keys() & APART.keys()
    assert CHOICES.keys() | APART.keys() == fields_of(VanillaConfig)


def test_the_reference_knows_every_activation_function():
    assert set(CHOICES["activation_function"]) == set(ACT2FN)


def test_the_plain_values_are_the_papers():
    sizes = {name for name in CHOICES if name.endswith(("_size", "_model", "_layers", "_heads"))}
    sizes |= {"encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings"}
    paper = VanillaConfig().to_dict()
    assert all(PLAIN[name] == paper[name] for name in CHOICES.keys() - sizes)


@pytest.mark.parametrize(("name", "value"), changes_of(CHOICES), ids=str)
def test_each_option_alone_equals_the_paper_written_out(name, value):
    config = config_with(**{name: value})
    assert getattr(config, name) == value
    sources = sentences((S, 2), config.vocab_size)
    targets = sentences((3, T), config.target_vocab_size)
    assert_equals_the_reference(double_model(config), sources, targets)


@pytest.mark.parametrize(("name", "value"), changes_of(WEIGHTLESS), ids=str)
def test_with_the_same_weights_each_option_computes_something_else(name, value):
    config = config_with(**{name: value})
    plain, changed = double_model(config_with()), double_model(config)
    changed.load_state_dict(plain.state_dict())
    rows = sentences((S, 2), config.vocab_size), sentences((3, T), config.vocab_size)
    losses = [model(**batch_of(model.config, *rows)[0]).loss for model in (plain, changed)]
    assert (losses[0] - losses[1]).abs() > 1e-7  # a hundred times what rounding explains


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    fields=st.fixed_dictionaries({name: st.sampled_from(CHOICES[name]) for name in CHOICES}),
    lengths=st.lists(st.tuples(st.integers(1, S), st.integers(1, T)), min_size=1, max_size=3),
    sides=st.tuples(*[st.sampled_from(["right", "left"])] * 2),
    has_mask=st.booleans(),
    implementation=st.sampled_from(["eager", "sdpa"]),
)
def test_each_sentence_of_a_batch_equals_the_paper_written_out(
    fields, lengths, sides, has_mask, implementation
):
    config = config_with(**fields)
    source_lengths, target_lengths = zip(*lengths, strict=True)
    assert_equals_the_reference(
        double_model(config, implementation),
        sentences(source_lengths, config.vocab_size),
        sentences(target_lengths, config.target_vocab_size),
        sides=sides,
        has_mask=has_mask,
    )
