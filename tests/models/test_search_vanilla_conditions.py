"""Our search finds what transformers' finds; calls it does not serve go to transformers'."""

import copy
import math
import sys

import pytest
import torch
import transformers
from lively import EOS, PAD, V, lively_model, sources
from torch import nn
from torch.testing import assert_close
from transformers import LogitsProcessor, LogitsProcessorList, MaxTimeCriteria, StoppingCriteria
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import RepetitionPenaltyLogitsProcessor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models import search_vanilla_conditions
from hf_vanilla.models.attention_vanilla import eager_attention
from hf_vanilla.models.search_vanilla_conditions import can_search

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
        ways.append(not ways.plain and can_search(*args, **kwargs))
        return ways[-1]

    monkeypatch.setattr(search_vanilla_conditions, "can_search", watched)
    return ways


def both(model, ways, batch, **settings):
    """What the fast way finds, or would if it served, and what transformers' finds."""
    found = []
    for plain in (False, True):
        ways.plain = plain
        torch.manual_seed(5)
        found.append(model.generate(**batch, **copy.deepcopy(settings)))
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
    {"attn_implementation": "eager", "activation_function": "gelu"},
    {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23, "lm_head_bias": True},
]
SETTINGS = {
    "greedy": {"num_beams": 1},
    "two beams": {"num_beams": 2},
    "five beams, four returned": {"num_beams": 5, "num_return_sequences": 4},
    "as many as it can": {"num_beams": 4, "early_stopping": True},
    "transformers' own bound": {"num_beams": 4, "early_stopping": False},
    "power": {
        "num_beams": 3,
        "length_penalty_form": "power",
        "length_penalty": 2.5,
        "max_length": 13,
    },
    "short is good": {
        "num_beams": 3,
        "length_penalty_form": "power",
        "length_penalty": -1.0,
        "max_length": 17,
    },
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
        "prefix_allowed_tokens_fn": lambda batch, _: list(range(batch % 2, V)),
    },
    "a prompt": {"num_beams": 3, "decoder_input_ids": [PAD, 5, 6]},
    "a prompt, greedy": {"num_beams": 1, "decoder_input_ids": [PAD, 5, 6]},
    "storage that doubles": {
        "num_beams": 3,
        "suppress_tokens": [PAD, EOS],
        "max_tokens_beyond_source": 70,
    },
    "more beams than words": {"num_beams": 2 * V, "max_new_tokens": 6},
}


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=SETTINGS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_our_search_equals_transformers_search(ways, number, side):
    kind = KINDS[(number + (side == "left")) % len(KINDS)]
    model = lively_model(**{"attn_implementation": "sdpa", **kind})
    batch = sources(*torch.randint(1, 12, (5,)).tolist(), side=side)
    settings = dict(SETTINGS[list(SETTINGS)[number]])
    if prompt := settings.get("decoder_input_ids"):
        settings["decoder_input_ids"] = torch.tensor([prompt] * 5)
    fast, plain = both(model, ways, batch, **settings)
    assert torch.equal(fast, plain)
    assert_equal_records(*both(model, ways, batch, **settings, **RECORDS))
    assert ways == [True, False, True, False]


def test_float32_scores_of_both_searches_differ_by_rounding_alone(ways):
    model = lively_model().float()
    batch = sources(3, 11, 7, 5)
    fast, plain = both(model, ways, batch, **RECORDS)
    assert torch.equal(fast.sequences, plain.sequences)
    assert_close(fast.sequences_scores, plain.sequences_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_our_search_runs_in_half_precision_too(model, ways, dtype):
    found = model.to(dtype).generate(**sources(3, 7, 5), num_beams=3, max_new_tokens=11)
    assert ways == [True]
    assert ((found >= 0) & (found < V)).all()


class OneWordOften(nn.Linear):
    """A linear layer that somebody put in the place of torch's own."""

    def forward(self, states):
        logits = super().forward(states)
        logits[..., 7] += 1.5
        return logits


@GREEDY_AND_BEAM
def test_a_replaced_linear_layer_is_called(model, ways, num_beams):
    usual = model.generate(**sources(3, 7, 5), num_beams=num_beams)
    model.lm_head.__class__ = OneWordOften
    fast, plain = both(model, ways, sources(3, 7, 5), num_beams=num_beams)
    assert torch.equal(fast, plain)
    assert (fast == 7).sum() > (usual == 7).sum()
    assert ways == [True, True, False]


@GREEDY_AND_BEAM
def test_autocast_rounds_as_in_transformers_search(model, ways, num_beams):
    batch, model = sources(3, 7, 5), model.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fast, plain = both(model, ways, batch, num_beams=num_beams, **RECORDS)
        unseen = model.generate(**batch, num_beams=num_beams)
    assert len(fast.logits) > 3
    assert all(map(torch.equal, fast.logits, plain.logits))
    assert torch.equal(fast.sequences, plain.sequences)
    assert torch.equal(unseen, plain.sequences)


# --- sentences leave ---------------------------------------------------------------------------


def rows_read(model, batch, **settings):
    """Rows of each pass through the decoder's first layer, without a hook, which would be seen."""
    rows, projection = [], model.model.decoder.layers[0].self_attn.q_proj

    class Counted(type(projection)):
        def forward(self, hidden_states):
            rows.append(hidden_states.shape[0])
            return super().forward(hidden_states)

    projection.__class__ = Counted
    model.generate(**batch, **settings)
    return rows


@GREEDY_AND_BEAM
def test_finished_sentences_are_dropped_from_the_batch(model, num_beams):
    rows = rows_read(model, sources(3, 11, 7, 5, 2, 9), num_beams=num_beams)
    assert rows[0] == 6
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] < 6


class Remembers(LogitsProcessor):
    """Stateful, and dependent on the place in the batch and on every call before."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        scores[self.calls % len(scores), 3 + self.calls % 5] -= 1
        return scores


class EveryThird(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        place = torch.arange(len(input_ids))
        return (place + input_ids.shape[1]) % 7 == 0


OWN_RULES = {
    "processor": lambda: {"logits_processor": LogitsProcessorList([Remembers()])},
    "criterion": lambda: {"stopping_criteria": [EveryThird()]},
    "allowed words": lambda: SETTINGS["allowed words"],
    "source words": lambda: {"encoder_no_repeat_ngram_size": 2},
    "records": lambda: RECORDS,
}


@GREEDY_AND_BEAM
@pytest.mark.parametrize("name", OWN_RULES)
def test_no_sentence_is_dropped_where_a_rule_reads_the_whole_batch(model, name, num_beams):
    settings = {**OWN_RULES[name](), "num_beams": num_beams, "max_new_tokens": 9}
    assert set(rows_read(model, sources(3, 11, 7, 5, 2, 9), **settings)) == {6}


@GREEDY_AND_BEAM
@pytest.mark.parametrize("name", ["processor", "criterion"])
def test_a_rule_of_the_caller_gets_the_inputs_of_transformers_search(model, ways, name, num_beams):
    settings = {**OWN_RULES[name](), "num_beams": num_beams}
    fast, plain = both(model, ways, sources(3, 11, 7, 5), **settings)
    assert torch.equal(fast, plain)
    assert ways == [True, False]


def test_a_limit_in_time_ends_the_search(model, ways):
    found = model.generate(**sources(3, 7), stopping_criteria=[MaxTimeCriteria(0.0)])
    assert found.shape[1] == 2
    assert ways == [True]


# --- stepping aside ----------------------------------------------------------------------------


ASIDE = {
    "sampling": {"do_sample": True},
    "no cache": {"use_cache": False},
    "a cache of fixed size": {"cache_implementation": "static"},
    "attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "hidden states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "a prompt with padding": {
        "decoder_input_ids": torch.tensor([[PAD, PAD, 5], [PAD, 6, 7], [PAD, 8, 9]]),
        "decoder_attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1], [1, 1, 1]]),
    },
    "a cache of one's own": {
        "past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())
    },
}


@GREEDY_AND_BEAM
@pytest.mark.parametrize("name", ASIDE)
def test_what_our_search_cannot_do_runs_in_transformers_search(model, ways, name, num_beams):
    model.set_attn_implementation("eager")
    settings = {"max_new_tokens": 5, "num_beams": num_beams, **ASIDE[name]}
    fast, plain = both(model, ways, sources(3, 7, 5), **settings)
    first, second = (getattr(each, "sequences", each) for each in (fast, plain))
    assert torch.equal(first, second)
    assert ways == [False, False]


def hooked(model):
    model.model.decoder.layers[1].fc1.register_forward_hook(lambda *_: None)


def pre_hooked(model):
    model.lm_head.register_forward_pre_hook(lambda *_: None)


def given_another_forward(model):
    decoder = model.model.decoder
    decoder.forward = decoder.forward


def given_another_step(model):
    model.prepare_inputs_for_generation = model.prepare_inputs_for_generation


class Wrapped(nn.Module):
    """A layer behind another, whose parts have other names."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *args, **kwargs):
        return self.layer(*args, **kwargs)


def given_a_layer_of_ones_own(model):
    model.model.decoder.layers[1] = Wrapped(model.model.decoder.layers[1])


def given_an_attention_of_ones_own(model):
    attention = model.model.decoder.layers[1].encoder_attn
    attention.__class__ = type("Other", (type(attention),), {})


def made_a_subclass(model):
    class Other(VanillaForConditionalGeneration):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    model.__class__ = Other


def made_a_subclass_with_another_step(model):
    class Other(VanillaForConditionalGeneration):
        def prepare_inputs_for_generation(self, *args, **kwargs):
            return super().prepare_inputs_for_generation(*args, **kwargs)

    model.__class__ = Other


def spread(model):
    model.hf_device_map = {"": "cpu"}


def training(model):
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.config.attention_dropout = 0.0


CHANGES = [
    hooked,
    pre_hooked,
    given_another_forward,
    given_another_step,
    given_a_layer_of_ones_own,
    given_an_attention_of_ones_own,
    made_a_subclass,
    made_a_subclass_with_another_step,
    spread,
    training,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_runs_in_transformers_search(model, ways, change):
    batch = sources(3, 7, 5)
    expected = model.generate(**batch, max_new_tokens=5)
    change(model)
    assert torch.equal(model.generate(**batch, max_new_tokens=5), expected)
    assert ways[0] is True
    assert True not in ways[1:]


def test_recording_attentions_once_does_not_slow_what_follows(model, ways):
    model.set_attn_implementation("eager")
    record = {"output_attentions": True, "return_dict_in_generate": True}
    model.generate(**sources(3), max_new_tokens=2, **record)
    model.generate(**sources(3), max_new_tokens=2)
    assert ways == [False, True]


# --- odd input ---------------------------------------------------------------------------------


@GREEDY_AND_BEAM
def test_a_batch_of_nothing_but_padding_has_a_result(model, ways, num_beams):
    ids = torch.full((2, 5), PAD)
    fast, plain = both(model, ways, {"input_ids": ids}, num_beams=num_beams)
    assert torch.equal(fast, plain)
    assert ways == [True, False]
    assert ((fast >= 0) & (fast < V)).all()


@pytest.mark.parametrize("words", [1_000, pytest.param(10_000, marks=pytest.mark.release)])
@GREEDY_AND_BEAM
def test_a_very_long_source_leaves_its_short_neighbour_alone(num_beams, words):
    model = lively_model(d_model=6, encoder_attention_heads=1, decoder_attention_heads=1)
    settings = {"num_beams": num_beams, "max_new_tokens": 5}
    torch.manual_seed(5)
    batch = sources(words, 5)
    found = model.generate(**batch, **settings)
    short = {name: tensor[1:, :5] for name, tensor in batch.items()}
    alone = model.generate(**short, **settings)
    assert torch.equal(found[1, : alone.shape[1]], alone[0])


def test_learned_positions_refuse_a_source_beyond_their_last():
    model = lively_model(position_embedding_type="learned", max_position_embeddings=23)
    with pytest.raises(ValueError, match="a sequence of 29 tokens, but learned positions end at"):
        model.generate(**sources(29, 3))


@pytest.mark.parametrize("num_beams", [V + 1, 5 * V])
def test_more_beams_than_tokens_find_distinct_sentences(model, ways, num_beams):
    settings = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_new_tokens": 3}
    fast, plain = both(model, ways, sources(5), **settings)
    assert torch.equal(fast, plain)
    assert len({tuple(row) for row in fast.tolist()}) == num_beams


# --- results at the limits, NaN, and calls that cannot be searched -------------------------------


@GREEDY_AND_BEAM
def test_dropout_switched_on_by_hand_works_at_every_token(model, num_beams):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
            module.train()
    assert not model.training
    settings = {"num_beams": num_beams, "max_new_tokens": 9, "suppress_tokens": [PAD, EOS]}
    found = {tuple(model.generate(**sources(5), **settings)[0].tolist()) for _ in range(5)}
    assert len(found) > 1
    # the first tokens alone differ, if only the prompt is read with dropout
    batch, seen = sources(7), set()
    prompt = torch.tensor([[PAD, 5, 6, 7]])
    first = model.generate(**batch, decoder_input_ids=prompt, **settings)[0].tolist()
    for _ in range(5):
        again = torch.tensor([first[:8]])
        seen.add(tuple(model.generate(**batch, decoder_input_ids=again, **settings)[0].tolist()))
    assert len(seen) > 1


@GREEDY_AND_BEAM
def test_a_repetition_penalty_with_a_prompt_length_per_row_keeps_every_row(model, num_beams):
    batch, rows = sources(3, 11, 7, 5), 4 * num_beams

    def searched():
        ignored = torch.arange(rows) % 3
        try:
            processor = RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=ignored)
        except ValueError as error:  # 5.20 takes one length for all rows
            if not transformers.__version__.startswith("5.20."):
                raise
            pytest.skip(str(error))
        settings = {"num_beams": num_beams, "logits_processor": [processor]}
        return model.generate(**batch, **settings)

    found = searched()
    model.register_forward_hook(lambda *_: None)  # transformers' search
    assert torch.equal(found, searched())


def test_results_beyond_the_finished_hypotheses_are_those_of_transformers(model, ways):
    # with this limit and no end, nothing finishes before the last step
    batch = sources(3, 7)
    for settings in (
        {"num_beams": 4, "num_return_sequences": 4, "min_new_tokens": 3, "max_time": 0.0},
        {"num_beams": 5, "num_return_sequences": 5, "max_new_tokens": 1, "eos_token_id": EOS},
        {"num_beams": 4, "num_return_sequences": 4, "stopping_criteria": [EveryThird()]},
    ):
        fast, plain = both(model, ways, batch, **settings, **RECORDS)
        assert torch.equal(fast.sequences, plain.sequences)
        assert torch.equal(fast.beam_indices, plain.beam_indices)


@GREEDY_AND_BEAM
def test_nan_logits_name_the_step(model, num_beams):
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(ValueError, match=r"logits are NaN at step 1: a weight is"):
        model.generate(**sources(3, 7), num_beams=num_beams)


@GREEDY_AND_BEAM
def test_nan_from_a_processor_names_its_step(model, num_beams):
    class Breaks(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores * float("nan") if input_ids.shape[1] == 3 else scores

    settings = {"num_beams": num_beams, "logits_processor": [Breaks()], "min_new_tokens": 5}
    with pytest.raises(ValueError, match="logits are NaN at step 3"):
        model.generate(**sources(3, 7), **settings)


def test_a_search_in_which_nothing_ends_has_a_result(model):
    """All scores are -inf, so that no hypothesis ever counts as finished."""

    class Never(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return torch.full_like(scores, float("-inf"))

    settings = {"num_beams": 3, "max_new_tokens": 4, "logits_processor": [Never()]}
    assert len(model.generate(**sources(3, 7), **settings)) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_beams": 0}, "num_beams=0: give 1 for greedy search, or a larger whole number"),
        ({"num_beams": 2.5}, "num_beams=2.5: give 1 for greedy search, or a larger whole number"),
        ({"length_penalty": math.nan}, "length_penalty=nan: give a finite number"),
        ({"num_beams": "4"}, "num_beams='4': give 1 for greedy search, or a larger whole number"),
        ({"length_penalty": "1"}, "length_penalty='1': give a finite number"),
        ({"max_tokens_beyond_source": "9"}, "max_tokens_beyond_source='9': give a whole number"),
        ({"input_ids": torch.tensor([3, 4])}, r"input_ids has shape \(2,\): give \(batch, length"),
        ({"input_ids": torch.zeros(0, 5).long()}, r"input_ids has shape \(0, 5\): give \(batch"),
        ({"input_ids": torch.zeros(2, 0).long()}, r"input_ids has shape \(2, 0\): give \(batch"),
        ({"decoder_input_ids": torch.tensor([0])}, r"decoder_input_ids has shape \(1,\): give"),
    ],
    ids=str,
)
def test_a_call_that_cannot_be_searched_is_refused_in_one_line(model, given, message):
    with pytest.raises(ValueError, match=message) as error:
        model.generate(**{"input_ids": torch.tensor([[3, 4, 1]]), **given})
    assert "\n" not in str(error.value)


@GREEDY_AND_BEAM
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_search_attends_by_the_models_implementation(
    model, ways, monkeypatch, implementation, num_beams
):
    model.set_attn_implementation(implementation)
    calls = []
    for name, attend in (("eager", eager_attention), ("sdpa", ALL_ATTENTION_FUNCTIONS["sdpa"])):

        def counted(*args, name=name, attend=attend, **kwargs):
            calls.append(name)
            return attend(*args, **kwargs)

        if name == "eager":
            module = sys.modules["hf_vanilla.models.attention_vanilla"]
            monkeypatch.setattr(module, "eager_attention", counted)
        else:
            monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", counted)
    model.generate(**sources(3, 7), num_beams=num_beams, max_new_tokens=3, min_new_tokens=3)
    assert ways == [True]
    # one encoder layer, then two attentions in each of two decoder layers, three times
    assert calls == [implementation] * (1 + 3 * 2 * 2)
