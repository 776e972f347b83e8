"""The fast search finds what transformers' own search finds, and steps aside where it must."""

import copy
import sys

import pytest
import torch
from lively import EOS, PAD, V, lively_model, sources
from torch import nn
from torch.testing import assert_close
from transformers import LogitsProcessor, LogitsProcessorList, MaxTimeCriteria, StoppingCriteria
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.fast_search_vanilla import fast_search

# the same double-precision sums in another order, kept by `generate` in float32
SCORES = {"rtol": 1e-6, "atol": 1e-6}
GREEDY_AND_BEAM = pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beam"])
RECORDS = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
}


@pytest.fixture
def model():
    return lively_model()


@pytest.fixture
def ways(monkeypatch):
    """For each search, whether it went the fast way; `ways.plain = True` forbids it."""

    class Ways(list):
        plain = False

    ways = Ways()

    def watched(*args, **kwargs):
        found = None if ways.plain else fast_search(*args, **kwargs)
        ways.append(found is not None)
        return found

    module = sys.modules[VanillaForConditionalGeneration.__module__]
    monkeypatch.setattr(module, "fast_search", watched)
    return ways


def both(model, ways, batch, **settings):
    """What the two ways find; settings that remember something are made anew by a function."""
    found = []
    for plain in (False, True):
        ways.plain = plain
        made = {
            name: value() if name.endswith("_maker") else value for name, value in settings.items()
        }
        made = {name.removesuffix("_maker"): value for name, value in made.items()}
        torch.manual_seed(5)
        found.append(model.generate(**batch, **made))
    assert ways[-1] is False
    return found


def assert_equal_records(fast, plain):
    assert fast.keys() == plain.keys()
    assert torch.equal(fast.sequences, plain.sequences)
    for name in ("scores", "logits"):
        for ours, theirs in zip(fast[name], plain[name], strict=True):
            assert_close(ours, theirs, **SCORES)
    if "beam_indices" in plain:
        assert torch.equal(fast.beam_indices, plain.beam_indices)
        assert_close(fast.sequences_scores, plain.sequences_scores, **SCORES)
    halves = ("self_attention_cache", "cross_attention_cache")
    for half in halves:
        ours, theirs = (getattr(each.past_key_values, half).layers for each in (fast, plain))
        for layer, expected in zip(ours, theirs, strict=True):
            assert_close(layer.keys, expected.keys, rtol=0, atol=1e-9)
            assert_close(layer.values, expected.values, rtol=0, atol=1e-9)
    assert fast.past_key_values.is_updated == plain.past_key_values.is_updated


# --- equal -------------------------------------------------------------------------------------

KINDS = [
    {},
    {"position_embedding_type": "learned"},
    {"head_dim": 5, "v_head_dim": 2, "position_offset": 2, "final_layer_norm": True},
    {"attn_implementation": "eager"},
    {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23, "lm_head_bias": True},
]
SETTINGS = {
    "greedy": {"num_beams": 1},
    "two beams": {"num_beams": 2},
    "five beams, four returned": {"num_beams": 5, "num_return_sequences": 4},
    "as many as it can": {"num_beams": 4, "early_stopping": True},
    "transformers' own bound": {"num_beams": 4, "early_stopping": False},
    "power": {"num_beams": 3, "length_penalty_form": "power", "length_penalty": 2.5},
    "short is good": {"num_beams": 3, "length_penalty_form": "power", "length_penalty": -1.0},
    "a limit for all": {"num_beams": 3, "max_new_tokens": 4},
    "one word": {"num_beams": 3, "max_length": 1},
    "two ends": {"num_beams": 3, "eos_token_id": [EOS, 9]},
    "no end": {"num_beams": 3, "eos_token_id": None, "max_new_tokens": 7},
    "no end, greedy": {"num_beams": 1, "eos_token_id": None, "max_new_tokens": 7},
    "rules": {"num_beams": 3, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
    "rules, greedy": {"num_beams": 1, "repetition_penalty": 1.3, "suppress_tokens": [9, 7]},
    "an end forced": {"num_beams": 3, "forced_eos_token_id": EOS, "max_new_tokens": 5},
    "source words": {"num_beams": 3, "encoder_no_repeat_ngram_size": 1},
    "allowed words": {
        "num_beams": 2,
        "prefix_allowed_tokens_fn": lambda batch, _: range(batch % 2, V),
    },
    "a prompt": {"num_beams": 3, "decoder_input_ids": [PAD, 5, 6]},
    "a prompt, greedy": {"num_beams": 1, "decoder_input_ids": [PAD, 5, 6]},
    "a long search": {"num_beams": 3, "suppress_tokens": [PAD, EOS]},
    "more beams than words": {"num_beams": 2 * V, "max_new_tokens": 6},
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_both_ways_find_the_same(ways, name, kind):
    for seed, side in enumerate(("right", "left", "right")):
        torch.manual_seed(seed)
        model = lively_model(**{"attn_implementation": "sdpa", **kind})
        batch = sources(*torch.randint(1, 12, (5,)).tolist(), side=side)
        settings = dict(SETTINGS[name])
        if prompt := settings.get("decoder_input_ids"):
            settings["decoder_input_ids"] = torch.tensor([prompt] * 5)
        fast, plain = both(model, ways, batch, **settings)
        assert torch.equal(fast, plain)
        assert_equal_records(*both(model, ways, batch, **settings, **RECORDS))
        assert ways[-4:] == [True, False, True, False]


def test_float32_scores_of_both_ways_differ_by_rounding_alone(ways):
    model = lively_model().float()
    batch = sources(3, 11, 7, 5)
    fast, plain = both(model, ways, batch, **RECORDS)
    assert torch.equal(fast.sequences, plain.sequences)
    assert_close(fast.sequences_scores, plain.sequences_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_goes_the_fast_way_too(model, ways, dtype):
    found = model.to(dtype).generate(**sources(3, 7, 5), num_beams=3, max_new_tokens=11)
    assert ways == [True]
    assert ((found >= 0) & (found < V)).all()
