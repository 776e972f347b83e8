# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The decoder as a search uses it: the beams of a sentence are so many places of one row.

They are queries over one set of keys, so the source's keys and values exist once per sentence, and
no step reorders or copies a cache; a mask tells each beam's own past.

Shapes: B sentences at the start, b of them still open, n beams, P prompt, S source, D `d_model`,
V vocabulary.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask

from .attention_vanilla import VanillaAttention, eager_attention, split_heads
from .layers_vanilla import VanillaDecoderLayer
from .positions_vanilla import LearnedPositions
from .stacks_vanilla import VanillaPreTrainedModel

# places that fit before storage must grow
FIRST_PLACES = 32
# sinusoids of so many places are computed at once
PLACES_AHEAD = 64


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


class SearchedDecoder:
    """The decoder as one search sees it: it is told the newest words and remembers the rest.

    Args:
        model: the whole model, `VanillaForConditionalGeneration`, in evaluation mode.
        encoder_hidden_states: `(B, S, D)`.
        attention_mask: `(B, S)`, 1 = real token; None: all are.
        beams: n.
        reuses_logits: each step may overwrite the logits of the last.
    """

    def __init__(
        self,
        model: VanillaPreTrainedModel,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None,
        beams: int,
        *,
        reuses_logits: bool = False,
    ) -> None:
        self.decoder = model.base_model.decoder
        self.lm_head = model.get_output_embeddings()
        self.encoder_hidden_states = encoder_hidden_states
        self.beams = beams
        self.cache = SearchCache(beams)
        self.places = 0
        self.positions: list[Tensor] = []  # of the next places, the nearest last
        # (b, n, slots), 0 for what a beam descends from, else -inf; None while there is one line
        self.mask: Tensor | None = None
        self.reuses_logits = reuses_logits
        self.logits, self.between = ReusedProduct(), ReusedProduct()
        self.source_masks = [
            create_bidirectional_mask(
                config=model.config,
                inputs_embeds=encoder_hidden_states.new_empty((len(encoder_hidden_states), n, 0)),
                attention_mask=attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            )
            for n in (1, beams)
        ]

    def read_prompt(self, input_ids: Tensor) -> Tensor:
        """Logits `(B * n, V)` after the prompt `(B, P)`, which is read once for all beams."""
        hidden_states = self.decoder.embed(input_ids, None, None)  # (B, P, D)
        source_mask = self.source_masks[0]
        length = input_ids.shape[1]
        if source_mask is not None:
            source_mask = source_mask.expand(-1, -1, length, -1)
        for layer in self.decoder.layers:
            hidden_states = layer(
                hidden_states,
                None,
                self.encoder_hidden_states,
                source_mask,
                past_key_values=self.cache,
            )
        hidden_states = hidden_states[:, -1:]
        self.places = length
        if self.beams > 1:
            self.mask = hidden_states.new_zeros((len(input_ids), self.beams, length))
        logits = self.lm_head(self.decoder.layer_norm(hidden_states))
        return logits.expand(-1, self.beams, -1).flatten(0, 1)

    def read(self, input_ids: Tensor) -> Tensor:
        """Logits `(b * n, V)` after one more word of each beam, `(b, n)`."""
        rows, beams = input_ids.shape
        decoder = self.decoder
        vectors = decoder.embed_tokens(input_ids) * decoder.embed_scale
        hidden_states = vectors + self._position(vectors)
        mask = None
        if self.mask is not None:
            itself = self.mask.new_full((beams, beams), float("-inf")).fill_diagonal_(0)
            self.mask = torch.cat((self.mask, itself.expand(rows, -1, -1)), dim=2)
            mask = self.mask.unsqueeze(1)  # (b, 1, n, slots)
        for layer in decoder.layers:
            hidden_states = read_by_layer(
                layer, hidden_states, mask, self.source_masks[1], self.cache, self.between
            )
        self.places += 1
        hidden_states = decoder.layer_norm(hidden_states).flatten(0, 1)
        if self.reuses_logits:
            return self.logits(self.lm_head, hidden_states)
        return self.lm_head(hidden_states)

    def follow(self, parents: Tensor) -> None:
        """Beam i of each sentence goes on where beam `parents[:, i]` was; `(b, n)` int64."""
        if self.mask is not None:
            index = parents.unsqueeze(-1).expand(-1, -1, self.mask.shape[-1])
            self.mask = self.mask.gather(1, index)

    def keep(self, rows: Tensor) -> None:
        """Go on with some sentences only, as `SearchCache.keep` says."""
        self.cache.keep(rows)
        # read at the first step only; from then on the layers look at its rows, not into them
        self.encoder_hidden_states = self.encoder_hidden_states[: len(rows)]
        self.source_masks = [None if mask is None else mask[rows] for mask in self.source_masks]
        self.mask = None if self.mask is None else self.mask[rows]

    def all_keys_and_values(self) -> EncoderDecoderCache:
        """The cache that transformers' own search would return."""
        if self.mask is not None:
            return self.cache.per_beam(self.mask == 0)
        keys = self.cache.self_attention_cache.layers[0].keys
        return self.cache.per_beam(keys.new_ones((len(keys), 1, keys.shape[2]), dtype=torch.bool))

    def _position(self, like: Tensor) -> Tensor:
        """Position of the newest words, `(D,)`."""
        if not self.positions:
            table = self.decoder.embed_positions
            ahead = 1 if isinstance(table, LearnedPositions) else PLACES_AHEAD  # it has an end
            self.positions = list(table(ahead, self.places, like).flip(0))
        return self.positions.pop()


class ReusedProduct:
    """Outputs of linear layers, each written over the one before it.

    A new array of the size of all logits costs a CPU as much time as what is computed in it.
    """

    def __init__(self) -> None:
        self.storage: Tensor | None = None

    def __call__(self, linear: nn.Module, states: Tensor) -> Tensor:
        """Output `(m, out)` for `(m, in)`; only a layer of torch's own kind reuses the array."""
        is_cast = torch.is_autocast_enabled(states.device.type)
        if type(linear) is not nn.Linear or type(linear.weight) is not nn.Parameter or is_cast:
            return linear(states)
        weight, bias = linear.weight, linear.bias
        if self.storage is None or self.storage.shape[1] != len(weight):
            self.storage = states.new_empty((len(states), len(weight)))
        out = self.storage[: len(states)]
        if bias is None:
            return torch.mm(states, weight.t(), out=out)
        return torch.addmm(bias, states, weight.t(), out=out)


def read_by_layer(
    layer: VanillaDecoderLayer,
    hidden_states: Tensor,
    mask: Tensor | None,
    source_mask: Tensor | None,
    cache: SearchCache,
    between: ReusedProduct,
) -> Tensor:
    """`VanillaDecoderLayer.forward` for the newest words, when the source is in the cache.

    What training and recording need of it would take a quarter of a small model's time.

    Args:
        layer: in evaluation mode.
        hidden_states: `(b, n, D)`.
        mask: `(b, 1, n, slots)`, added to the scores; None: every slot counts.
        source_mask: `(b, 1, n, S)` in the form of the attention implementation; None: all.
        cache: grows by these words.
        between: where the feed-forward layers' inner values go.
    """
    own = layer.self_attn
    query = split_heads(own.q_proj(hidden_states), own.head_dim)
    keys, values = cache.self_attention_cache.update(
        split_heads(own.k_proj(hidden_states), own.head_dim),
        split_heads(own.v_proj(hidden_states), own.v_head_dim),
        own.layer_idx,
    )
    attended = own.out_proj(means_of_values(own, query, keys, values, mask))
    hidden_states = layer.self_attn_layer_norm(hidden_states + attended)

    cross = layer.encoder_attn
    source = cache.cross_attention_cache.layers[cross.layer_idx]
    query = split_heads(cross.q_proj(hidden_states), cross.head_dim)
    attended = cross.out_proj(
        means_of_values(cross, query, source.keys, source.values, source_mask)
    )
    hidden_states = layer.encoder_attn_layer_norm(hidden_states + attended)

    inner = between(layer.fc1, hidden_states.flatten(0, 1))
    is_relu = type(layer.activation_fn) is nn.ReLU
    inner = inner.relu_() if is_relu else layer.activation_fn(inner)
    fed = layer.fc2(inner).view_as(hidden_states)
    return layer.final_layer_norm(hidden_states + fed)


def means_of_values(
    module: VanillaAttention, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
) -> Tensor:
    """Attention by the model's implementation, `"eager"` or `"sdpa"`; heads side by side."""
    if module.config._attn_implementation == "eager":
        means, _ = eager_attention(module, query, keys, values, mask, scaling=module.scaling)
        return means.flatten(2)
    attended = nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=module.scaling
    )
    return attended.transpose(1, 2).flatten(2)
