"""Random searches: `generate()` finds what transformers' own search finds, tokens and scores."""

import random

import pytest
import torch
from lively import EOS, PAD, V, lively_model, sources
from torch.testing import assert_close
from transformers.cache_utils import DynamicCache

from hf_vanilla.models import search_vanilla_conditions

# the same double-precision sums in another order, kept by `generate` in float32
SCORES = {"rtol": 1e-6, "atol": 1e-6}
MODELS = [
    {},
    {"position_embedding_type": "learned", "max_position_embeddings": 64},
    {"head_dim": 5, "v_head_dim": 2, "position_offset": 2, "final_layer_norm": True},
    {"attn_implementation": "eager", "activation_function": "gelu", "decoder_layers": 1},
    {"share_encoder_decoder_embeddings": False, "position_layout": "concatenated"},
]
PROCESSORS = [
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.3},
    {"suppress_tokens": [9, 7]},
    {"begin_suppress_tokens": [EOS, 5]},
    {"bad_words_ids": [[8], [10, 9]]},
    {"sequence_bias": [[[14], 2.0], [[14, 3], -3.0]]},
    {"forced_bos_token_id": 13},
    {"forced_eos_token_id": EOS},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_repetition_penalty": 1.5},
    {"exponential_decay_length_penalty": (3, 1.2)},
    {"renormalize_logits": True},
    {"remove_invalid_values": True},
    {"prefix_allowed_tokens_fn": lambda sentence, _: list(range(sentence % 3, V))},
]
LIMITS = [
    {"max_new_tokens": 1},
    {"max_new_tokens": 6},
    {"max_new_tokens": 12, "min_new_tokens": 4},
    {"max_length": 9},
    {"max_length": 14, "min_length": 5},
    {"max_tokens_beyond_source": 0},
    {"max_tokens_beyond_source": 5},
    {"max_tokens_beyond_source": 9, "max_length": 11},
]


def random_model(draw):
    model = lively_model(lm_head_bias=True, **draw.choice(MODELS))
    with torch.no_grad():  # from sentences that hardly end to sentences that end soon
        model.lm_head.bias[EOS] = draw.uniform(-2, 5)
    return model


def random_settings(draw):
    beams = draw.choice([1, 2, 3, 4, 6])
    settings = {"num_beams": beams, "eos_token_id": EOS, **draw.choice(LIMITS)}
    if beams > 1:
        settings |= {
            "num_return_sequences": draw.randint(1, beams),
            "early_stopping": draw.choice([True, False, "never"]),
            "length_penalty": draw.choice([0.0, 0.6, 1.0, 2.5, -1.0]),
            "length_penalty_form": draw.choice(["gnmt", "power"]),
        }
    for processor in draw.sample(PROCESSORS, draw.choice([0, 0, 1, 2])):
        settings |= processor
    if draw.random() < 0.3:
        settings["eos_token_id"] = draw.choice([[EOS, 9], [EOS, 4, 11], None])
    if settings["eos_token_id"] is None:  # transformers needs an end token for this one
        settings.pop("exponential_decay_length_penalty", None)
    return settings


def random_batch(draw):
    rows = draw.randint(1, 5)
    lengths = [draw.randint(1, 9) for _ in range(rows)]
    batch = sources(*lengths, side=draw.choice(["left", "right"]))
    if draw.random() < 0.3:
        prompt = torch.randint(2, V, (rows, draw.randint(1, 3)))
        if draw.random() < 0.7:
            prompt[:, 0] = PAD
        batch["decoder_input_ids"] = prompt
    return batch


def assert_both_searches_agree(seed, monkeypatch):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model, settings, batch = random_model(draw), random_settings(draw), random_batch(draw)
    records = {"return_dict_in_generate": True, "output_scores": True}
    ours = model.generate(**batch, **settings)
    recorded = model.generate(**batch, **settings, **records)
    with monkeypatch.context() as patch:
        patch.setattr(search_vanilla_conditions, "can_search", lambda *_: False)
        theirs = model.generate(**batch, **settings, **records)
    assert type(theirs.past_key_values.self_attention_cache) is DynamicCache
    # results beyond the finished hypotheses included, whose scores are about -1e9
    assert torch.equal(ours, theirs.sequences), (seed, settings)
    assert torch.equal(recorded.sequences, theirs.sequences), (seed, settings)
    assert len(recorded.scores) == len(theirs.scores), (seed, settings)
    if settings["num_beams"] > 1:
        assert_close(recorded.sequences_scores, theirs.sequences_scores, **SCORES)
        assert torch.equal(recorded.beam_indices, theirs.beam_indices), (seed, settings)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_sixty_random_searches_equal_transformers(first, monkeypatch):
    for seed in range(first, first + 20):
        assert_both_searches_agree(seed, monkeypatch)


def assert_dead_ends_agree(seed, monkeypatch):
    """The vocabulary is used up before the limit: every token is forbidden."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model, batch = random_model(draw), random_batch(draw)
    settings = {
        **random_settings(draw),
        "no_repeat_ngram_size": 1,
        "renormalize_logits": True,
        "eos_token_id": draw.choice([EOS, None]),
        "max_new_tokens": V + 3,
        "exponential_decay_length_penalty": None,
    }
    records = {"return_dict_in_generate": True, "output_scores": True}
    ours = model.generate(**batch, **settings, **records)
    with monkeypatch.context() as patch:
        patch.setattr(search_vanilla_conditions, "can_search", lambda *_: False)
        theirs = model.generate(**batch, **settings, **records)
    assert torch.equal(ours.sequences, theirs.sequences), (seed, settings)
    return any(scores.isnan().any() for scores in theirs.scores)


def test_a_dead_end_ends_as_in_transformers(monkeypatch):
    assert sum(assert_dead_ends_agree(seed, monkeypatch) for seed in range(20)) > 5


@pytest.mark.release
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_two_thousand_random_searches_equal_transformers(first, monkeypatch):
    for seed in range(first, first + 100):
        assert_both_searches_agree(seed, monkeypatch)
