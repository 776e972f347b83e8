"""The whole model: against PyTorch's and the paper written out, and under every padding."""

import pytest
import torch
from theirs import causal, torch_transformer
from torch.testing import assert_close
from transformers.modeling_outputs import BaseModelOutput

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, VanillaModel

B, S, T = 3, 7, 5
EXACT = {"rtol": 0, "atol": 0}
# padding changes the order in which float32 sums run, not what they sum
PADDING = {"rtol": 0, "atol": 1e-5}
BOTH = pytest.mark.parametrize("implementation", ["eager", "sdpa"])


def words(rows, length, *, vocab_size=43):
    return torch.randint(2, vocab_size, (rows, length))


def with_lengths(ids, lengths, *, side="right"):
    """The ids with padding after (or before) their first `lengths` words, and their mask."""
    mask = torch.arange(ids.shape[1]) < torch.tensor(lengths).unsqueeze(1)
    mask = mask if side == "right" else mask.flip(1)
    return ids.masked_fill(~mask, 0), mask.long()


TORCH_SIZES = [
    {"d_model": 12, "heads": 3, "ffn": 29, "layers": (2, 3), "layer_norm_eps": 1e-6},
    {"d_model": 10, "heads": 5, "ffn": 13, "layers": (3, 1), "layer_norm_eps": 1e-5},
    {"d_model": 14, "heads": 1, "ffn": 17, "layers": (1, 4), "layer_norm_eps": 1e-3},
    {"d_model": 44, "heads": 11, "ffn": 7, "layers": (1, 2), "layer_norm_eps": 1e-6},
]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@BOTH
@pytest.mark.parametrize("sizes", TORCH_SIZES, ids=lambda sizes: f"d={sizes['d_model']}")
def test_logits_equal_torchs_transformer_within_1e_5(sizes, implementation):
    config = VanillaConfig(
        vocab_size=43,
        d_model=sizes["d_model"],
        encoder_layers=sizes["layers"][0],
        decoder_layers=sizes["layers"][1],
        encoder_attention_heads=sizes["heads"],
        decoder_attention_heads=sizes["heads"],
        encoder_ffn_dim=sizes["ffn"],
        decoder_ffn_dim=sizes["ffn"],
        layer_norm_eps=sizes["layer_norm_eps"],
        attention_bias=True,
    )
    model = VanillaForConditionalGeneration(config).eval()
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        for parameter in model.parameters():  # biases start at zero and norms at one
            parameter.add_(0.1 * torch.randn_like(parameter))
    source_ids, mask = with_lengths(words(B, S), (7, 4, 2))
    target_ids = words(B, T)
    theirs = torch_transformer(model)
    decoded = theirs(
        model.model.encoder.embed(source_ids, None, None),
        model.model.decoder.embed(target_ids, None, None),
        tgt_mask=causal(T),
        src_key_padding_mask=mask == 0,
        memory_key_padding_mask=mask == 0,
    )
    ours = model(input_ids=source_ids, attention_mask=mask, decoder_input_ids=target_ids)
    # the figure promised for this package; float32 with logits of size 1 to 10
    assert_close(ours.logits, model.lm_head(decoded), rtol=0, atol=1e-5)


@BOTH
@pytest.mark.parametrize("side", ["right", "left"])
def test_source_padding_never_changes_a_real_position(tiny_model, side, implementation):
    tiny_model.set_attn_implementation(implementation)
    source_ids, target_ids = words(B, S), words(B, T)
    alone = tiny_model(input_ids=source_ids, decoder_input_ids=target_ids)
    pads = torch.zeros(B, 4, dtype=torch.long)
    parts = (source_ids, pads) if side == "right" else (pads, source_ids)
    padded_ids = torch.cat(parts, dim=1)
    padded = tiny_model(
        input_ids=padded_ids, attention_mask=padded_ids.ne(0).long(), decoder_input_ids=target_ids
    )
    assert_close(padded.logits, alone.logits, **PADDING)
    real = slice(0, S) if side == "right" else slice(4, S + 4)
    states = padded.encoder_last_hidden_state[:, real]
    assert_close(states, alone.encoder_last_hidden_state, **PADDING)


@BOTH
@pytest.mark.parametrize("side", ["right", "left"])
def test_target_padding_never_changes_a_real_position(tiny_model, side, implementation):
    tiny_model.set_attn_implementation(implementation)
    source_ids, target_ids = words(B, S), words(B, T)
    alone = tiny_model(input_ids=source_ids, decoder_input_ids=target_ids).logits
    pads = torch.zeros(B, 2, dtype=torch.long)
    parts = (target_ids, pads) if side == "right" else (pads, target_ids)
    padded_ids = torch.cat(parts, dim=1)
    padded = tiny_model(
        input_ids=source_ids,
        decoder_input_ids=padded_ids,
        decoder_attention_mask=padded_ids.ne(0).long(),
    ).logits
    real = slice(0, T) if side == "right" else slice(2, T + 2)
    assert_close(padded[:, real], alone, **PADDING)


def test_token_ids_under_the_padding_change_nothing(tiny_model):
    source_ids, mask = with_lengths(words(B, S), (7, 4, 2))
    target_ids = words(B, T)
    other_ids = torch.where(mask == 1, source_ids, words(B, S))
    arguments = {"attention_mask": mask, "decoder_input_ids": target_ids}
    logits = [tiny_model(input_ids=ids, **arguments).logits for ids in (source_ids, other_ids)]
    assert_close(logits[0], logits[1], **EXACT)


@BOTH
def test_a_later_target_never_changes_an_earlier_logit(tiny_model, implementation):
    tiny_model.set_attn_implementation(implementation)
    source_ids, target_ids = words(B, S), words(B, T)
    before = tiny_model(input_ids=source_ids, decoder_input_ids=target_ids).logits
    changed = target_ids.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 41 + 2
    after = tiny_model(input_ids=source_ids, decoder_input_ids=changed).logits
    assert_close(after[:, :3], before[:, :3], **EXACT)
    assert (after[:, 3:] - before[:, 3:]).abs().amin(dim=(0, 1)).max() > 0


def test_every_source_token_reaches_every_logit(tiny_model):
    source_ids, target_ids = words(1, S), words(1, T)
    vectors = tiny_model.model.encoder.embed_tokens(source_ids).detach().requires_grad_()
    logits = tiny_model(inputs_embeds=vectors, decoder_input_ids=target_ids).logits
    for place in range(T):
        (gradient,) = torch.autograd.grad(logits[0, place].amax(), vectors, retain_graph=True)
        assert gradient.abs().sum(dim=-1).min() > 0


def test_a_missing_mask_is_made_from_the_padding_tokens(tiny_model):
    source_ids, mask = with_lengths(words(B, S), (7, 4, 2))
    arguments = {"input_ids": source_ids, "decoder_input_ids": words(B, T)}
    without, given_mask = tiny_model(**arguments), tiny_model(attention_mask=mask, **arguments)
    assert_close(without.logits, given_mask.logits, **EXACT)
    everything = tiny_model(attention_mask=torch.ones_like(mask), **arguments)
    assert not torch.allclose(everything.logits, without.logits)


@BOTH
def test_a_row_of_only_padding_stays_finite_and_leaves_its_neighbours_alone(
    tiny_model, implementation
):
    tiny_model.set_attn_implementation(implementation)
    source_ids, mask = with_lengths(words(B, S), (7, 0, 4))
    target_ids = words(B, T)
    outputs = tiny_model(input_ids=source_ids, attention_mask=mask, decoder_input_ids=target_ids)
    assert outputs.logits.isfinite().all()
    assert outputs.encoder_last_hidden_state.isfinite().all()
    others = tiny_model(
        input_ids=source_ids[[0, 2]],
        attention_mask=mask[[0, 2]],
        decoder_input_ids=target_ids[[0, 2]],
    )
    assert_close(outputs.logits[[0, 2]], others.logits, **PADDING)


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_row_of_only_padding_trains_in_half_precision(tiny_model, dtype, implementation):
    model = tiny_model.to(dtype).train()
    model.set_attn_implementation(implementation)
    source_ids, mask = with_lengths(words(B, S), (7, 0, 4))
    loss = model(input_ids=source_ids, attention_mask=mask, labels=words(B, T)).loss
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@BOTH
def test_a_target_row_of_only_padding_stays_finite(tiny_model, implementation):
    tiny_model.set_attn_implementation(implementation)
    target_ids, mask = with_lengths(words(B, T), (5, 0, 3))
    logits = tiny_model(
        input_ids=words(B, S), decoder_input_ids=target_ids, decoder_attention_mask=mask
    ).logits
    assert logits.isfinite().all()


def test_vectors_instead_of_ids_give_the_same_logits(tiny_model):
    source_ids, mask = with_lengths(words(B, S), (7, 4, 2))
    target_ids = words(B, T)
    by_ids = tiny_model(input_ids=source_ids, attention_mask=mask, decoder_input_ids=target_ids)
    by_vectors = tiny_model(
        inputs_embeds=tiny_model.get_input_embeddings()(source_ids),
        attention_mask=mask,
        decoder_inputs_embeds=tiny_model.model.decoder.embed_tokens(target_ids),
    )
    assert_close(by_vectors.logits, by_ids.logits, **EXACT)


@pytest.mark.parametrize("form", ["output", "tuple", "list"])
def test_a_given_encoding_is_used_in_place_of_the_source(tiny_model, form):
    source_ids, mask = with_lengths(words(B, S), (7, 4, 2))
    arguments = {"attention_mask": mask, "decoder_input_ids": words(B, T)}
    expected = tiny_model(input_ids=source_ids, **arguments)
    encoded = tiny_model.model.encoder(input_ids=source_ids, attention_mask=mask)
    assert isinstance(encoded, BaseModelOutput)
    forms = {"output": encoded, "tuple": encoded.to_tuple(), "list": list(encoded.to_tuple())}
    encoded = forms[form]
    actual = tiny_model(encoder_outputs=encoded, **arguments)
    assert_close(actual.logits, expected.logits, **EXACT)
    assert_close(actual.encoder_last_hidden_state, expected.encoder_last_hidden_state, **EXACT)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("has_both", [True, False], ids=["both", "neither"])
def test_ids_and_vectors_together_or_neither_are_refused(tiny_model, side, has_both):
    ids = words(B, T)
    vectors = tiny_model.get_input_embeddings()(ids)
    both = {"input_ids": ids, "inputs_embeds": vectors}
    if side == "decoder":
        both = {f"decoder_{name}": value for name, value in both.items()}
    other_side = {"decoder_input_ids": ids} if side == "encoder" else {"input_ids": ids}
    with pytest.raises(ValueError, match=r"give exactly one of .*input_ids and .*inputs_embeds"):
        tiny_model(**(both if has_both else {}), **other_side)


def test_the_bare_model_returns_the_states_under_the_logits(tiny_model):
    bare = VanillaModel(tiny_model.config).eval()
    bare.load_state_dict(tiny_model.model.state_dict())
    arguments = {"input_ids": words(B, S), "decoder_input_ids": words(B, T)}
    states = bare(**arguments).last_hidden_state
    assert states.shape == (B, T, 12)
    assert_close(tiny_model.lm_head(states), tiny_model(**arguments).logits, **EXACT)


def test_a_decoder_without_a_source_is_a_language_model(tiny_model):
    decoder, ids = tiny_model.model.decoder, words(B, T)
    states = decoder(input_ids=ids, use_cache=False).last_hidden_state
    first = decoder(input_ids=ids[:, :3], use_cache=True)
    rest = decoder(input_ids=ids[:, 3:], past_key_values=first.past_key_values)
    word_by_word = torch.cat((first.last_hidden_state, rest.last_hidden_state), dim=1)
    assert_close(word_by_word, states, **PADDING)
