"""Beams read as places of one row say what they say when read alone."""

import pytest
import torch
from lively import PAD, V, lively_model, sources
from torch.testing import assert_close

from hf_vanilla.models.search_vanilla_decoder import SearchDecoder

# the same double-precision sums in another order
DOUBLE = {"rtol": 0, "atol": 1e-9}


@pytest.mark.parametrize("prompt", [1, 3])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_every_beam_reads_its_own_past_and_no_others(implementation, prompt):
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
        if step == 2:  # the first sentence leaves, the last takes its place
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
