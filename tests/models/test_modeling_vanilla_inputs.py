"""What a caller may hand in, and what is said of anything else: value, limit and remedy."""

import re
from itertools import product

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_vanilla import (
    VanillaConfig,
    VanillaEncoderModel,
    VanillaForCausalLM,
    VanillaForConditionalGeneration,
    VanillaForSequenceClassification,
    VanillaModel,
)
from hf_vanilla.models.pretrained_vanilla import CACHE_NAME
from hf_vanilla.models.stacks_vanilla import (
    VanillaEmbedding,
    check_mask,
    real_tokens,
    require_one,
)

B, S, T, D = 2, 5, 3, 12
SIZES = {
    "vocab_size": 43,
    "d_model": D,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
}
OWN_TABLES = {"decoder_vocab_size": 37, "share_encoder_decoder_embeddings": False}
READERS = [
    VanillaModel,
    VanillaForConditionalGeneration,
    VanillaEncoderModel,
    VanillaForSequenceClassification,
    VanillaForCausalLM,
]
PAIRS = READERS[:2]
EACH_READER = pytest.mark.parametrize("reader", READERS)
EACH_PAIR = pytest.mark.parametrize("reader", PAIRS)


def model_with(reader=VanillaForConditionalGeneration, **changes):
    return reader(VanillaConfig(**{**SIZES, **changes})).eval()


def words(rows, length):
    return torch.randint(2, 37, (rows, length))


def target_for(reader):
    """The other side of a pair, where the model wants one."""
    return {"decoder_input_ids": words(B, T)} if reader in PAIRS else {}


def said(*parts):
    return "(?s)" + ".*".join(re.escape(part) for part in parts)


# --- ids ---------------------------------------------------------------------------------------


def with_id(ids, value):
    ids[1, 2] = value
    return ids


OUTSIDE = (43, 2**40, -1, -100)


def test_a_source_id_outside_the_vocabulary_is_refused_with_its_range():
    for reader, value in product(READERS, OUTSIDE):
        ids = with_id(words(B, S), value)
        limits = f"from {ids.min()} to {ids.max()}"
        with pytest.raises(
            ValueError, match=said(limits, "the ids 0 to 42", "tokenizer", "resize")
        ):
            model_with(reader)(input_ids=ids, **target_for(reader))


def test_a_target_id_outside_the_vocabulary_is_refused_with_its_range():
    for reader, value in product(PAIRS, OUTSIDE):
        ids = with_id(words(B, T), value)
        limits = f"from {ids.min()} to {ids.max()}"
        with pytest.raises(ValueError, match=said(limits, "the ids 0 to 42", "resize")):
            model_with(reader)(input_ids=words(B, S), decoder_input_ids=ids)


def test_a_label_outside_the_vocabulary_is_refused_with_its_range():
    readers = [VanillaForConditionalGeneration, VanillaForCausalLM]
    values, places = (43, 2**40, -1, -99), (1, T - 1)
    for reader, value, place, training in product(readers, values, places, (True, False)):
        labels = words(B, T)
        labels[1, place] = value
        # all but the last are inputs of the decoder as well, which may be the first to notice
        message = rf"(labels|ids) from .*{value}.* the ids 0 to 42: use"
        with pytest.raises(ValueError, match=message):
            model_with(reader).train(training)(input_ids=words(B, T), labels=labels)


def test_each_side_has_the_limit_of_its_own_vocabulary():
    model = model_with(**OWN_TABLES)
    ids = with_id(words(B, T), 41)
    assert model(input_ids=ids, decoder_input_ids=words(B, T)).logits.shape == (B, T, 37)
    with pytest.raises(ValueError, match="the ids 0 to 36"):
        model(input_ids=words(B, T), decoder_input_ids=ids)
    with pytest.raises(ValueError, match=said("to 41", "the ids 0 to 36")):
        model(input_ids=words(B, T), labels=ids)


@pytest.mark.parametrize("reader", [VanillaForConditionalGeneration, VanillaForCausalLM])
def test_generation_refuses_an_id_outside_the_vocabulary_too(reader):
    with pytest.raises(ValueError, match="to 43, but the vocabulary has the ids 0 to 42"):
        model_with(reader).generate(with_id(words(B, S), 43), max_new_tokens=2)


def test_the_message_about_ids_names_range_limit_and_remedy():
    with pytest.raises(ValueError, match="token ids") as error:
        VanillaEmbedding(43, D, None)(torch.tensor([[3, -7], [91, 4]]))
    assert str(error.value) == (
        "token ids from -7 to 91, but the vocabulary has the ids 0 to 42: use the model's own "
        "tokenizer, or call resize_token_embeddings"
    )


# --- one input, and only one -------------------------------------------------------------------


@EACH_READER
@pytest.mark.parametrize("count", ["both", "neither"])
def test_a_source_comes_as_ids_or_as_vectors(reader, count):
    both = {"input_ids": words(B, S), "inputs_embeds": torch.randn(B, S, D)}
    message = f"give exactly one of input_ids and inputs_embeds: {count} given"
    with pytest.raises(ValueError, match=message):
        model_with(reader)(**(both if count == "both" else {}), **target_for(reader))


@EACH_PAIR
@pytest.mark.parametrize("count", ["both", "neither"])
def test_a_target_comes_as_ids_or_as_vectors_under_its_own_names(reader, count):
    both = {"decoder_input_ids": words(B, T), "decoder_inputs_embeds": torch.randn(B, T, D)}
    message = f"give exactly one of decoder_input_ids and decoder_inputs_embeds: {count} given"
    message += ".*DataCollatorForSeq2Seq.tokenizer, model=model" * (count == "neither")
    with pytest.raises(ValueError, match=message):
        model_with(reader)(input_ids=words(B, S), **(both if count == "both" else {}))


@pytest.mark.parametrize(("ids", "vectors"), [(True, False), (False, True)])
def test_exactly_one_input_is_fine(ids, vectors):
    require_one("input_ids", words(B, S) if ids else None, torch.ones(1) if vectors else None)


# --- masks -------------------------------------------------------------------------------------

WRONG = ((2, 6), (2, 4), (1, 5), (3, 5), (5,), (2, 1, 5), (5, 2))


def test_a_mask_of_another_shape_than_the_source_is_refused_with_both():
    for reader, shape in product(READERS, WRONG):
        given = {"input_ids": words(B, S), "attention_mask": torch.ones(shape)}
        message = said("attention_mask has shape", str(shape), "(2, 5)", "1 for a real token")
        with pytest.raises(ValueError, match=message):
            model_with(reader)(**given, **target_for(reader))


def test_a_mask_of_another_shape_than_the_target_is_refused_under_its_own_name():
    for reader, shape in product(PAIRS, WRONG):
        given = {"input_ids": words(B, T), "decoder_input_ids": words(B, S)}
        message = said("decoder_attention_mask has shape", str(shape), "(2, 5)")
        with pytest.raises(ValueError, match=message):
            model_with(reader)(**given, decoder_attention_mask=torch.ones(shape))


def test_a_mask_of_another_shape_than_a_given_encoding_is_refused_too():
    for reader, shape in product(PAIRS, WRONG):
        model = model_with(reader)
        encoded = model.get_encoder()(input_ids=words(B, S))
        with pytest.raises(
            ValueError, match=said("attention_mask has shape", str(shape), "(2, 5)")
        ):
            model(
                encoder_outputs=encoded,
                attention_mask=torch.ones(shape),
                decoder_input_ids=words(B, T),
            )


def test_a_language_model_names_the_mask_of_its_source_as_its_caller_does():
    for shape in WRONG:
        model = model_with(VanillaForCausalLM, add_cross_attention=True)
        source = {"encoder_hidden_states": torch.randn(B, S, D)}
        message = said("encoder_attention_mask has shape", str(shape), "(2, 5)")
        with pytest.raises(ValueError, match=message):
            model(input_ids=words(B, T), **source, encoder_attention_mask=torch.ones(shape))


def test_with_a_cache_the_mask_includes_the_cached_tokens():
    model = model_with(VanillaForCausalLM)
    first = model(input_ids=words(B, S), use_cache=True)
    cached = {"past_key_values": first.past_key_values}
    with pytest.raises(ValueError, match=said("has shape (2, 3)", "(2, 8)")):
        model(input_ids=words(B, T), attention_mask=torch.ones(B, T), **cached)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.parametrize("kind", [VanillaForCausalLM, VanillaForConditionalGeneration])
def test_the_cache_has_its_names_of_all_supported_versions(kind, name):
    model, ids = model_with(kind), words(B, T)
    prefix = "" if kind is VanillaForCausalLM else "decoder_"
    source = {"input_ids": words(B, S)} if prefix else {}
    first = model(**source, **{f"{prefix}input_ids": ids[:, :2]}, use_cache=True)
    cached = {name: first[CACHE_NAME]}
    rest = model(**source, **{f"{prefix}input_ids": ids[:, 2:]}, **cached)
    whole = model(**source, **{f"{prefix}input_ids": ids})
    torch.testing.assert_close(torch.cat((first.logits, rest.logits), dim=1), whole.logits)
    both = dict.fromkeys(("cache", "past_key_values"), rest[CACHE_NAME])
    with pytest.raises(ValueError, match="one argument: give cache alone"):
        model(**source, **{f"{prefix}input_ids": ids}, **both)


@pytest.mark.parametrize(
    "mask",
    [
        None,
        torch.ones(B, S),
        torch.ones(B, S, dtype=torch.bool),
        torch.ones(1, 1, S, S),
        "a block mask of flex_attention",
    ],
    ids=lambda mask: type(mask).__name__,
)
def test_masks_that_fit_or_are_already_prepared_pass(mask):
    check_mask("attention_mask", mask, B, S)


def test_a_length_that_a_static_cache_counts_is_not_read_back():
    check_mask("attention_mask", torch.ones(B, S), B, torch.tensor(97))
    with pytest.raises(ValueError, match="attention_mask"):
        check_mask("attention_mask", torch.ones(B + 1, S), B, torch.tensor(97))


def test_a_mask_is_made_from_the_padding_where_there_is_any():
    config = VanillaConfig(**SIZES, pad_token_id=7)
    ids = torch.tensor([[7, 5, 0], [1, 7, 7]])
    assert real_tokens(config, ids, None).tolist() == [[0, 1, 1], [1, 0, 0]]
    assert real_tokens(VanillaConfig(**SIZES, pad_token_id=None), ids, None) is None
    assert real_tokens(config, None, None) is None


# --- sides that do not fit each other ----------------------------------------------------------


@pytest.mark.parametrize("shape", [(B, T + 1), (B, T - 1), (B + 1, T)])
def test_labels_of_another_shape_than_the_decoders_input_are_refused_with_both(shape):
    given = {"input_ids": words(B, S), "decoder_input_ids": words(B, T)}
    message = said(f"labels {shape}", "logits (2, 3, 43)", "give a label per position")
    with pytest.raises(ValueError, match=message):
        model_with()(**given, labels=words(*shape))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_target_of_another_number_of_rows_is_refused(rows):
    with pytest.raises(ValueError, match=f"2 sources, but {rows} targets: give one each"):
        model_with()(input_ids=words(B, S), decoder_input_ids=words(rows, T))


# --- lengths -----------------------------------------------------------------------------------


LEARNED = {"position_embedding_type": "learned", "max_position_embeddings": 5}


@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize("side", ["input_ids", "decoder_input_ids", "labels"])
def test_learned_positions_refuse_a_longer_sequence_with_their_limit(side, has_mask):
    given = {"input_ids": words(B, S), "labels": words(B, S)}
    if side == "decoder_input_ids":
        given = {"input_ids": words(B, S), "decoder_input_ids": words(B, S)}
    given[side] = words(B, 6)
    if has_mask:
        name = "attention_mask" if side == "input_ids" else "decoder_attention_mask"
        given[name] = torch.ones(B, 6)
    message = "a sequence of 6 tokens, but learned positions end at max_position_embeddings=5"
    with pytest.raises(ValueError, match=message):
        model_with(**LEARNED)(**given)


def test_learned_positions_take_the_longest_sequence_that_they_have():
    model = model_with(**LEARNED)
    assert model(input_ids=words(B, 5), labels=words(B, 5)).loss.isfinite()


def test_learned_positions_end_behind_a_cache_too():
    model = model_with(VanillaForCausalLM, **LEARNED)
    first = model(input_ids=words(B, 4), use_cache=True)
    model(input_ids=words(B, 1), past_key_values=first.past_key_values)
    with pytest.raises(ValueError, match="a sequence of 6 tokens"):
        model(input_ids=words(B, 1), past_key_values=first.past_key_values)


def test_sinusoids_have_no_longest_sequence():
    model = model_with(max_position_embeddings=5)
    assert model(input_ids=words(B, 7), labels=words(B, 11)).loss.isfinite()


# --- configs that lack what a call needs -------------------------------------------------------


def test_generation_without_a_start_token_is_refused_by_name():
    model = model_with(decoder_start_token_id=None)
    with pytest.raises(ValueError, match="`decoder_start_token_id` or `bos_token_id`"):
        model.generate(words(B, S), max_new_tokens=2)


def test_more_that_cannot_be_built_is_refused_by_value():
    cases = [
        ({"dropout": 1.5}, "dropout=1.5: give a rate from 0 up to, not including, 1"),
        ({"dropout": float("inf")}, "dropout=inf: give a rate"),
        ({"max_position_embeddings": -5}, "max_position_embeddings=-5: give a positive number"),
        ({"decoder_vocab_size": 0, "share_encoder_decoder_embeddings": False}, "=0: give a pos"),
        ({"decoder_start_token_id": 43}, "decoder_start_token_id=43: the vocabulary has the ids 0"),
        (
            {"position_embedding_type": "learned", "position_offset": 2},
            "position_offset=2: of sinusoids only",
        ),
        ({"vocab_size": 1, "eos_token_id": 0}, "a vocabulary of 1 leaves no token"),
        ({"pad_token_id": None, "label_smoothing_type": "non_target_non_pad"}, "needs a pad_tok"),
        ({"use_cache": "yes"}, "'use_cache'.*expected bool"),
        ({"layer_norm_eps": "tiny"}, "'layer_norm_eps'.*expected float"),
        ({"add_cross_attention": 3}, "'add_cross_attention'.*expected bool"),
    ]
    for changes, message in cases:
        with pytest.raises(StrictDataclassError, match="(?s)" + message):
            VanillaConfig(**{**SIZES, **changes})
