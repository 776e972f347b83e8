"""The paper's decoding (6.1) in `generate()`: cache, one sentence or many, lengths."""

import pytest
import torch
from lively import EOS, PAD, V, assert_same_sentence, row_of, sources
from torch.testing import assert_close
from transformers import GenerationConfig

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

# a score is a float32 sum of some ten log probabilities
SCORES = {"rtol": 1e-5, "atol": 1e-5}
GREEDY_AND_BEAM = pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beam"])


@pytest.fixture
def model():
    return model_with()


def model_with(**changes):
    """Small, and in double precision, so that no two ways to compute a logit can break a tie."""
    config = VanillaConfig(
        **{
            "vocab_size": V,
            "d_model": 6,
            "encoder_layers": 1,
            "encoder_attention_heads": 3,
            "encoder_ffn_dim": 13,
            "decoder_layers": 2,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 11,
            **changes,
        }
    )
    model = VanillaForConditionalGeneration(config).eval().double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "_proj" in name:  # attention three times as strong: the source has more of a say
                weight.mul_(3)
    return model


# --- the cache ---------------------------------------------------------------------------------


KINDS = [
    {},
    {"position_embedding_type": "learned", "tie_word_embeddings": False},
    {"head_dim": 5, "v_head_dim": 2, "position_offset": 2},
]


@GREEDY_AND_BEAM
def test_decoding_with_cache_equals_decoding_without_for_many_batches(num_beams):
    outputs = set()
    for number in range(30):
        model = model_with(**KINDS[number % 3])
        lengths = torch.randint(1, 8, (1 + number % 4,)).tolist()
        batch = sources(*lengths, side="left" if number % 5 == 0 else "right")
        limits = {"num_beams": num_beams, "max_new_tokens": 7}
        cached = model.generate(**batch, use_cache=True, **limits)
        plain = model.generate(**batch, use_cache=False, **limits)
        assert torch.equal(cached, plain)
        outputs.update(tuple(row) for row in cached.tolist())
    assert len(outputs) > 15  # the sentences did not all come out alike


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_cache_is_really_used(model, use_cache):
    lengths = []
    model.model.decoder.register_forward_pre_hook(
        lambda _, __, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    model.generate(
        **sources(5), num_beams=1, max_new_tokens=4, suppress_tokens=[EOS], use_cache=use_cache
    )
    assert lengths == ([1, 1, 1, 1] if use_cache else [1, 2, 3, 4])


def test_a_cache_of_fixed_size_decodes_the_same(model):
    batch = sources(3, 7)
    limits = {"num_beams": 1, "max_new_tokens": 9}
    growing = model.generate(**batch, **limits)
    fixed = model.generate(**batch, cache_implementation="static", **limits)
    assert torch.equal(fixed, growing)


# --- greedy ------------------------------------------------------------------------------------


def greedy_by_hand(model, batch, steps):
    """Always the likeliest word, the whole sentence so far read anew each time."""
    found = [model.config.decoder_start_token_id]
    while len(found) <= steps and found[-1] != EOS:
        logits = model(**batch, decoder_input_ids=torch.tensor([found]), use_cache=False).logits
        found.append(logits[0, -1].argmax().item())
    return found


@pytest.mark.parametrize("length", [1, 3, 11])
def test_one_beam_takes_the_most_probable_token_in_each_step(model, length):
    batch = sources(length)
    found = model.generate(**batch, num_beams=1, max_new_tokens=13)
    assert found[0].tolist() == greedy_by_hand(model, batch, 13)


# --- one sentence or many ----------------------------------------------------------------------


def decode(model, batch, **extra):
    return model.generate(**batch, output_scores=True, return_dict_in_generate=True, **extra)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("seed", range(5))
def test_a_padded_batch_decodes_as_its_sentences_do_alone(side, seed):
    torch.manual_seed(seed)
    model = model_with()
    batch = sources(2, 11, 5, 7, side=side)
    together = decode(model, batch)
    for row in range(4):
        alone = decode(model, row_of(batch, row))
        assert_same_sentence(together.sequences[row], alone.sequences[0])
        assert_close(together.sequences_scores[row], alone.sequences_scores[0], **SCORES)


def test_a_padded_batch_decodes_as_its_sentences_do_alone_when_none_ends(model):
    batch = sources(2, 5)
    together = decode(model, batch, suppress_tokens=[PAD, EOS])
    for row in range(2):
        alone = decode(model, row_of(batch, row), suppress_tokens=[PAD, EOS])
        assert_same_sentence(together.sequences[row], alone.sequences[0])
        assert_close(together.sequences_scores[row], alone.sequences_scores[0], **SCORES)


@GREEDY_AND_BEAM
def test_a_missing_mask_is_made_from_the_padding_tokens(model, num_beams):
    batch = sources(7, 2, 5)
    settings = {"num_beams": num_beams, "output_logits": True}
    expected = decode(model, batch, **settings)
    found = decode(model, {"input_ids": batch["input_ids"]}, **settings)
    assert torch.equal(found.sequences, expected.sequences)
    for logits, with_mask in zip(found.logits, expected.logits, strict=True):
        assert torch.equal(logits, with_mask)


@GREEDY_AND_BEAM
def test_a_row_of_only_padding_is_decoded_and_leaves_its_neighbours_alone(model, num_beams):
    batch = sources(7, 2, 5)
    batch["attention_mask"][1] = 0
    batch["input_ids"][1] = PAD
    found = decode(model, batch, num_beams=num_beams)
    assert ((found.sequences >= 0) & (found.sequences < V)).all()
    if num_beams > 1:
        assert found.sequences_scores.isfinite().all()
    for row in (0, 2):
        alone = model.generate(**row_of(batch, row), num_beams=num_beams)
        assert_same_sentence(found.sequences[row], alone[0])


# --- lengths -----------------------------------------------------------------------------------


def real_words(sequences):
    """Words of each row but the start; the model here never produces padding or an end."""
    return [(row[1:] > EOS).sum().item() for row in sequences]


@GREEDY_AND_BEAM
@pytest.mark.parametrize("has_mask", [True, False], ids=["mask", "no mask"])
def test_an_endless_sentence_stops_fifty_tokens_beyond_its_own_source(model, num_beams, has_mask):
    batch = sources(3, 11, 1)
    batch = batch if has_mask else {"input_ids": batch["input_ids"]}
    found = model.generate(**batch, num_beams=num_beams, suppress_tokens=[PAD, EOS])
    assert real_words(found) == [53, 61, 51]
    assert found.shape[1] == 1 + 61


def test_every_returned_beam_obeys_its_own_sentences_limit(model):
    found = model.generate(
        **sources(3, 7), num_beams=3, num_return_sequences=3, suppress_tokens=[PAD, EOS]
    )
    assert real_words(found) == [53] * 3 + [57] * 3


def test_sampling_obeys_the_limit_too(model):
    found = model.generate(
        **sources(3, 7),
        num_beams=1,
        do_sample=True,
        num_return_sequences=2,
        suppress_tokens=[PAD, EOS],
    )
    assert real_words(found) == [53, 53, 57, 57]


def test_a_source_given_as_vectors_has_a_length_too(model):
    batch = sources(3, 7)
    vectors = model.get_input_embeddings()(batch["input_ids"])
    found = model.generate(
        inputs_embeds=vectors,
        attention_mask=batch["attention_mask"],
        num_beams=1,
        suppress_tokens=[PAD, EOS],
    )
    assert real_words(found) == [53, 57]
    without_mask = model.generate(inputs_embeds=vectors, num_beams=1, suppress_tokens=[PAD, EOS])
    assert real_words(without_mask) == [57, 57]


def test_a_source_given_encoded_has_a_length_too(model):
    batch = sources(3, 7)
    encoded = model.get_encoder()(**batch)
    limits = {"num_beams": 1, "suppress_tokens": [PAD, EOS]}
    found = model.generate(
        encoder_outputs=encoded, attention_mask=batch["attention_mask"], **limits
    )
    assert torch.equal(found, model.generate(**batch, **limits))


def test_an_encoded_source_can_be_given_to_a_second_beam_search(model):
    batch = sources(3, 7)
    encoded = model.get_encoder()(**batch)
    states = encoded.last_hidden_state.clone()
    mask = batch["attention_mask"]
    first = model.generate(encoder_outputs=encoded, attention_mask=mask, num_beams=3)
    assert torch.equal(encoded.last_hidden_state, states)  # transformers repeats it in place
    second = model.generate(encoder_outputs=encoded, attention_mask=mask, num_beams=3)
    assert torch.equal(first, second)
    assert torch.equal(first, model.generate(**batch, num_beams=3))


@pytest.mark.parametrize(
    ("limit", "words"), [({"max_new_tokens": 7}, 7), ({"max_length": 7}, 6)], ids=str
)
@GREEDY_AND_BEAM
def test_a_limit_of_the_caller_goes_first(model, num_beams, limit, words):
    found = model.generate(
        **sources(3, 5), num_beams=num_beams, suppress_tokens=[PAD, EOS], **limit
    )
    assert real_words(found) == [words, words]


def test_a_longest_length_of_the_caller_does_not_stretch_a_short_sentence(model):
    limits = {"max_length": 60, "num_beams": 1, "suppress_tokens": [PAD, EOS]}
    assert real_words(model.generate(**sources(3, 11), **limits)) == [53, 59]


@pytest.mark.parametrize("form", ["argument", "config"])
def test_a_limit_of_the_call_counts_even_if_it_equals_that_placeholder(model, form):
    model.generation_config.max_length = 20
    limits = {"num_beams": 1, "suppress_tokens": [PAD, EOS], "max_length": 20}
    limits = limits if form == "argument" else {"generation_config": GenerationConfig(**limits)}
    assert real_words(model.generate(**sources(3), **limits)) == [19]


def test_a_limit_of_the_caller_may_also_be_longer(model):
    found = model.generate(**sources(3), num_beams=1, suppress_tokens=[PAD, EOS], max_new_tokens=67)
    assert real_words(found) == [67]


def test_the_constant_beyond_the_source_can_be_changed(model):
    model.generation_config.max_tokens_beyond_source = 5
    found = model.generate(**sources(3, 7), num_beams=2, suppress_tokens=[PAD, EOS])
    assert real_words(found) == [8, 12]


def test_a_prompt_does_not_count_as_new_tokens(model):
    prompt = torch.tensor([[PAD, 5, 6], [PAD, 7, 8]])
    found = model.generate(
        **sources(3, 7), decoder_input_ids=prompt, num_beams=2, suppress_tokens=[PAD, EOS]
    )
    assert torch.equal(found[:, :3], prompt)
    assert real_words(found[:, 2:]) == [53, 57]


@GREEDY_AND_BEAM
def test_learned_positions_end_a_sentence_before_they_run_out(num_beams):
    model = model_with(position_embedding_type="learned", max_position_embeddings=23)
    found = model.generate(**sources(3, 7), num_beams=num_beams, suppress_tokens=[PAD, EOS])
    assert real_words(found) == [22, 22]


def test_sinusoids_carry_a_sentence_beyond_the_longest_of_training():
    model = model_with(max_position_embeddings=23)
    found = model.generate(**sources(3), num_beams=1, suppress_tokens=[PAD, EOS])
    assert real_words(found) == [53]


def test_a_call_leaves_no_state_for_the_next(model):
    short, long = sources(3), sources(11)
    before = model.generation_config.to_dict()
    first = model.generate(**short, suppress_tokens=[PAD, EOS])
    assert real_words(model.generate(**long, suppress_tokens=[PAD, EOS])) == [61]
    assert torch.equal(model.generate(**short, suppress_tokens=[PAD, EOS]), first)
    assert model.generation_config.to_dict() == before
