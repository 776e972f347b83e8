"""Keys and values are written once, in place, and can be given back in transformers' layout."""

import torch
from torch.testing import assert_close

from hf_vanilla.models.search_vanilla_decoder import BeamCache, GrowingLayer

B, H, K, W = 3, 2, 5, 7
ROOM = 32
EXACT = {"rtol": 0, "atol": 0}


def slots(count, rows=B):
    return torch.randn(rows, H, count, K), torch.randn(rows, H, count, W)


def test_a_layer_returns_all_that_was_appended_also_after_it_has_grown():
    layer, appended = GrowingLayer(ROOM), []
    for count in (4, 1, ROOM, 3, 5 * ROOM, 1):
        appended.append(slots(count))
        found = layer.update(*appended[-1])
        for half in (0, 1):
            expected = torch.cat([each[half] for each in appended], dim=2)
            assert_close(found[half], expected, **EXACT)
    assert layer.get_seq_length() == 4 + 1 + 3 + 1 + 6 * ROOM


def test_appending_copies_nothing_while_there_is_room():
    layer = GrowingLayer(ROOM)
    first, _ = layer.update(*slots(3))
    second, _ = layer.update(*slots(2))
    assert first.data_ptr() == second.data_ptr()


def test_sentences_leave_and_the_rest_goes_on():
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


def test_each_beam_gets_the_slots_it_descends_from():
    cache, (keys, values) = BeamCache(3), slots(4, 1)
    cache.self_attention_cache.update(keys, values, 0)
    cache.cross_attention_cache.update(*slots(6, 1), 0)
    # a prompt of one, then a place of three beams; the second beam comes from the third
    seen = torch.tensor([[[1, 1, 0, 0], [1, 0, 0, 1], [1, 0, 1, 0]]]).bool()
    found = cache.per_beam(seen).self_attention_cache.layers[0]
    assert found.keys.shape == (3, H, 2, K)
    for beam, second in enumerate((1, 3, 2)):
        assert_close(found.keys[beam], keys[0][:, [0, second]], **EXACT)
        assert_close(found.values[beam], values[0][:, [0, second]], **EXACT)
