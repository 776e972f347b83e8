# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The keys and values of a search: written once, in place, and shared by the beams of a sentence.

A sentence has one row. A slot of it holds the keys and values of one token: first the tokens of the
prompt, which all beams share, then n slots for each later place, one per beam. No beam's past is
ever moved; which slots a beam descends from is told by a mask.

Shapes: B sentences, H heads, n beams, K head width, L tokens.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

# places that fit before storage must grow
FIRST_PLACES = 32


class GrowingLayer(DynamicLayer):
    """One layer's keys and values in storage that doubles when it is full.

    `keys` and `values` are views of what is filled, `(B, H, slots, K)`.

    Args:
        slots: room at first.
    """

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.first_slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append the slots `(B, H, new, K)`; keys and values of all slots so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.slots = 0
            self.stored = [
                states.new_empty((*states.shape[:2], self.first_slots, states.shape[3]))
                for states in (key_states, value_states)
            ]
        begin, self.slots = self.slots, self.slots + key_states.shape[2]
        while self.stored[0].shape[2] < self.slots:
            self.stored = [doubled(stored, begin) for stored in self.stored]
        rows = key_states.shape[0]
        for stored, states in zip(self.stored, (key_states, value_states), strict=True):
            stored[:rows, :, begin : self.slots] = states
        self.keys, self.values = (stored[:rows, :, : self.slots] for stored in self.stored)
        return self.keys, self.values


def doubled(stored: Tensor, filled: int) -> Tensor:
    """Storage of twice as many slots, with the first `filled` of the old one."""
    rows, heads, slots, width = stored.shape
    larger = stored.new_empty((rows, heads, 2 * slots, width))
    larger[:, :, :filled] = stored[:, :, :filled]
    return larger


class SearchCache(EncoderDecoderCache):
    """The cache of one search: a row per sentence, whatever the number of its beams.

    Args:
        beams: n.
    """

    def __init__(self, beams: int) -> None:
        make_layer: Any = partial(GrowingLayer, FIRST_PLACES * beams)
        super().__init__(Cache(layer_class_to_replicate=make_layer), DynamicCache())

    def keep(self, rows: Tensor) -> None:
        """Let sentences leave: row i becomes what row `rows[i]` was.

        Only rows that change are copied.

        Args:
            rows: `(b,)` int64, b <= B; each either its own place or one behind the first b.
        """
        holes = (rows != torch.arange(len(rows), device=rows.device)).nonzero().flatten()
        fillers = rows[holes]
        for cache in (self.self_attention_cache, self.cross_attention_cache):
            for layer in cache.layers:
                for states in (layer.keys, layer.values):
                    states[holes] = states[fillers]
                layer.keys, layer.values = layer.keys[: len(rows)], layer.values[: len(rows)]

    def per_beam(self, seen: Tensor) -> EncoderDecoderCache:
        """The same in transformers' own layout: a row per beam, a place per token.

        Args:
            seen: `(B, n, slots)` bool, the slots each beam descends from, L in each row.
        """
        rows, beams = seen.shape[:2]
        slots = seen.nonzero()[:, 2].view(rows, 1, -1, 1)  # (B, 1, n * L, 1)
        own, of_source = DynamicCache(), DynamicCache()
        for index, layer in enumerate(self.self_attention_cache.layers):
            of_beams = (
                states.gather(2, slots.expand(-1, states.shape[1], -1, states.shape[3]))
                .unflatten(2, (beams, -1))
                .transpose(1, 2)
                .flatten(0, 1)  # (B * n, H, L, K)
                for states in (layer.keys, layer.values)
            )
            own.update(*of_beams, index)
        for index, layer in enumerate(self.cross_attention_cache.layers):
            repeated = (s.repeat_interleave(beams, dim=0) for s in (layer.keys, layer.values))
            of_source.update(*repeated, index)
        return EncoderDecoderCache(own, of_source)
