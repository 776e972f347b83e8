"""Beams that share one row of the KV cache get the logits they get when decoded alone."""

import copy
from types import SimpleNamespace

import pytest
import torch
from lively import PAD, V, lively_model, sources
from torch.testing import assert_close

from hf_vanilla.models import search_vanilla_decoder
from hf_vanilla.models.search_vanilla_decoder import (
    PADDED_STEPS_AT_ONCE,
    STEPS_AT_ONCE,
    BeamCache,
    GrowingLayer,
    SearchDecoder,
    can_capture,
)

B, H, K, W = 3, 2, 5, 7
ROOM = 32
EXACT = {"rtol": 0, "atol": 0}
# the same double-precision sums in another order
DOUBLE = {"rtol": 0, "atol": 1e-9}


@pytest.mark.parametrize("prompt", [1, 3])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_every_beam_attends_to_its_own_past_only(implementation, prompt):
    model = lively_model(attn_implementation=implementation)
    batch, beams = sources(5, 3, 7), 2
    states = model.get_encoder()(**batch).last_hidden_state
    decoder = SearchDecoder(model, states, batch["attention_mask"], beams=beams)
    start = torch.cat((torch.full((3, 1), PAD), torch.randint(2, V, (3, prompt - 1))), dim=1)
    logits = decoder.read_prompt(start)
    past = start.unsqueeze(1).expand(-1, beams, -1)  # (B, n, L)
    for step in range(4):
        expected = model(
            input_ids=batch["input_ids"].repeat_interleave(beams, dim=0),
            decoder_input_ids=past.flatten(0, 1),
        ).logits[:, -1]
        assert_close(logits, expected, **DOUBLE)
        if step == 2:  # drop the first sentence; the last takes its row
            rows = torch.tensor([2, 1])
            decoder.select(rows)
            past, batch = past[rows], {name: tensor[rows] for name, tensor in batch.items()}
        parents = torch.randint(beams, past.shape[:2])
        words = torch.randint(2, V, past.shape[:2])
        decoder.reorder(parents)
        past = past.gather(1, parents.unsqueeze(-1).expand_as(past))
        past = torch.cat((past, words.unsqueeze(-1)), dim=-1)
        logits = decoder.read(words)


@torch.no_grad()
def test_spare_slots_of_the_cache_in_bfloat16_change_no_logit():
    model, beams = lively_model().bfloat16(), 3
    batch = sources(5, 3, 7)
    states = model.get_encoder()(**batch).last_hidden_state
    decoder = SearchDecoder(model, states, batch["attention_mask"], beams=beams)
    decoder.read_prompt(torch.full((3, 1), PAD))
    past = torch.full((3, beams, 1), PAD)
    exact = copy.deepcopy(model).double()  # the same weights
    for step in range(2 * PADDED_STEPS_AT_ONCE + 1):
        if step == PADDED_STEPS_AT_ONCE:
            rows = torch.tensor([2, 1])
            decoder.select(rows)
            past, batch = past[rows], {name: tensor[rows] for name, tensor in batch.items()}
        parents = torch.randint(beams, past.shape[:2])
        decoder.reorder(parents)
        past = past.gather(1, parents.unsqueeze(-1).expand_as(past))
        past = torch.cat((past, torch.randint(2, V, (*past.shape[:2], 1))), dim=-1)
        logits = decoder.read(past[:, :, -1])
        given = {name: tensor.repeat_interleave(beams, dim=0) for name, tensor in batch.items()}
        expected = exact(**given, decoder_input_ids=past.flatten(0, 1)).logits[:, -1]
        assert (logits - expected).std() < 0.05 * expected.std()  # 8 bits of mantissa
    keys = decoder.cache.self_attention_cache.layers[0].keys
    assert keys.shape[2] == 3 * PADDED_STEPS_AT_ONCE * beams > 1 + (step + 1) * beams
    assert keys.is_contiguous()


@torch.no_grad()
def test_the_source_is_projected_once_for_all_beams():
    model, beams = lively_model(), 4
    batch = sources(5, 3)
    states = model.get_encoder()(**batch).last_hidden_state
    decoder = SearchDecoder(model, states, batch["attention_mask"], beams=beams)
    decoder.read_prompt(torch.full((2, 1), PAD))
    kept = decoder.cache.cross_attention_cache.layers[0].keys
    decoder.read(torch.full((2, beams), 5))
    assert decoder.cache.cross_attention_cache.layers[0].keys is kept
    assert kept.shape[:3] == (2, 2, 5)


# --- the cache ---------------------------------------------------------------------------------


def slots(count, rows=B):
    return torch.randn(rows, H, count, K), torch.randn(rows, H, count, W)


@pytest.mark.parametrize("mapped_bytes", [0, 2**20])
def test_a_cache_layer_returns_all_slots_also_after_it_has_grown(monkeypatch, mapped_bytes):
    monkeypatch.setattr(search_vanilla_decoder, "MAPPED_BYTES", mapped_bytes)
    layer, appended = GrowingLayer(1, None), []
    for count in (4, 1, ROOM, 3, 5 * ROOM, 1):
        appended.append(slots(count))
        found = layer.update(*appended[-1])
        for half in (0, 1):
            expected = torch.cat([each[half] for each in appended], dim=2)
            assert_close(found[half], expected, **EXACT)
    assert layer.get_seq_length() == 4 + 1 + 3 + 1 + 6 * ROOM


def test_appending_copies_nothing_while_there_is_room():
    layer = GrowingLayer(1, None)
    first, _ = layer.update(*slots(3))
    second, _ = layer.update(*slots(2))
    assert first.data_ptr() == second.data_ptr()


def test_a_cache_without_its_dropped_sentences_goes_on_growing():
    cache, own, of_source = BeamCache(3), slots(3, 5), slots(4, 5)
    cache.self_attention_cache.update(*own, 0)
    cache.cross_attention_cache.update(*of_source, 0)
    cache.select(torch.tensor([0, 4, 2]))
    for half, before in (
        (cache.self_attention_cache, own),
        (cache.cross_attention_cache, of_source),
    ):
        assert_close(half.layers[0].keys, before[0][[0, 4, 2]], **EXACT)
        assert_close(half.layers[0].values, before[1][[0, 4, 2]], **EXACT)
    new = slots(2, 3)
    keys, _ = cache.self_attention_cache.update(*new, 0)
    assert_close(keys, torch.cat((own[0][[0, 4, 2]], new[0]), dim=2), **EXACT)


def test_storage_that_grows_leaves_dropped_sentences_out():
    cache = BeamCache(3)
    cache.self_attention_cache.update(*slots(3, 8), 0)
    cache.cross_attention_cache.update(*slots(5, 8), 0)
    cache.select(torch.tensor([0, 7]))
    for _ in range(40):
        cache.self_attention_cache.update(*slots(3, 2), 0)
    (layer,) = cache.self_attention_cache.layers
    for stored in (layer.stored_keys, layer.stored_values):
        assert stored.untyped_storage().nbytes() == stored.nbytes
        assert len(stored) == 2


def test_the_cache_per_beam_holds_the_slots_of_each_beams_own_past():
    cache, (keys, values) = BeamCache(3), slots(4, 1)
    cache.self_attention_cache.update(keys, values, 0)
    cache.cross_attention_cache.update(*slots(6, 1), 0)
    # one token of prompt, then one of three beams; the second beam continues the third
    past = torch.tensor([[[1, 1, 0, 0], [1, 0, 0, 1], [1, 0, 1, 0]]]).bool()
    found = cache.per_beam(past).self_attention_cache.layers[0]
    assert found.keys.shape == (3, H, 2, K)
    for beam, second in enumerate((1, 3, 2)):
        assert_close(found.keys[beam], keys[0][:, [0, second]], **EXACT)
        assert_close(found.values[beam], values[0][:, [0, second]], **EXACT)


class ReplayedStep:
    """A `StepGraph` without a GPU: what Python does in a step keeps the values of its capture."""

    captures = 0

    def __init__(self, step, tokens, position):
        type(self).captures += 1
        self.step, self.tokens, self.position = step, tokens.clone(), position.clone()
        self.slots = step.__self__.slots

    def __call__(self, tokens, position):
        self.tokens.copy_(tokens)
        self.position.copy_(position)
        decoder = self.step.__self__
        slots, decoder.slots = decoder.slots, self.slots
        for layer in decoder.cache.self_attention_cache.layers:
            layer.slots = self.slots - decoder.beams
        logits = self.step(self.tokens, self.position)
        decoder.slots = slots
        return logits.clone()


@pytest.fixture
def replayed(monkeypatch):
    monkeypatch.setattr(search_vanilla_decoder, "can_capture", lambda *_: True)
    monkeypatch.setattr(search_vanilla_decoder, "StepGraph", ReplayedStep)
    monkeypatch.setattr(ReplayedStep, "captures", 0)


@pytest.mark.parametrize("beams", [1, 4])
def test_captured_steps_find_the_same(replayed, monkeypatch, beams):
    model, batch = lively_model(), sources(5, 3, 7, 4, 6)
    settings = {
        "num_beams": beams,
        "max_length": 2 * STEPS_AT_ONCE + 9,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    captured = model.generate(**batch, **settings)
    assert ReplayedStep.captures > 0
    monkeypatch.undo()
    plain = model.generate(**batch, **settings)
    assert captured.sequences.tolist() == plain.sequences.tolist()
    for name in ("scores", "logits"):
        assert_close(getattr(captured, name), getattr(plain, name), **DOUBLE)
    caches = (output.past_key_values.self_attention_cache for output in (captured, plain))
    for mine, other in zip(*(cache.layers for cache in caches), strict=True):
        assert_close(mine.keys, other.keys, **DOUBLE)


@pytest.mark.parametrize("beams", [1, 4])
def test_captured_steps_drop_half_of_the_sentences_at_once(replayed, monkeypatch, beams):
    model, batch = lively_model(), sources(*range(2, 18))
    settings = {"num_beams": beams, "max_length": 40}
    kept = []
    select = SearchDecoder.select

    def recorded(decoder, rows):
        kept.append((len(decoder.mask), len(rows)))
        select(decoder, rows)

    monkeypatch.setattr(SearchDecoder, "select", recorded)
    captured = model.generate(**batch, **settings)
    assert kept
    assert all(2 * after <= before for before, after in kept)
    monkeypatch.undo()
    assert captured.tolist() == model.generate(**batch, **settings).tolist()


def test_hooks_and_autocast_prevent_the_capture_of_steps(monkeypatch):
    model, states = lively_model(), torch.empty(1)
    assert not can_capture(model, states)  # no GPU
    on_gpu = SimpleNamespace(device=torch.device("cuda"))
    assert can_capture(model, on_gpu)
    hook = model.model.decoder.layers[0].fc1.register_forward_hook(print)
    assert not can_capture(model, on_gpu)
    hook.remove()
    assert can_capture(model, on_gpu)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert not can_capture(model, on_gpu)
