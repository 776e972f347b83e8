# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The decoder as a search uses it: the beams of a sentence are so many places of one row.

They are queries over one set of keys, so the source's keys and values exist once per sentence, and
no step reorders or copies a cache; a mask tells each beam's own past.

Shapes: B sentences at the start, b of them still open, n beams, P prompt, S source, D `d_model`,
V vocabulary.
"""

import torch
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask

from .cache_vanilla import SearchCache
from .stacks_vanilla import VanillaPreTrainedModel


class SearchedDecoder:
    """The decoder as one search sees it: it is told the newest words and remembers the rest.

    Args:
        model: the whole model, `VanillaForConditionalGeneration`.
        encoder_hidden_states: `(B, S, D)`.
        attention_mask: `(B, S)`, 1 = real token; None: all are.
        beams: n.
    """

    def __init__(
        self,
        model: VanillaPreTrainedModel,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None,
        beams: int,
    ) -> None:
        self.decoder = model.base_model.decoder
        self.lm_head = model.get_output_embeddings()
        self.encoder_hidden_states = encoder_hidden_states
        self.beams = beams
        self.cache = SearchCache()
        self.places = 0
        # (b, n, slots) bool: what each beam descends from; None while there is but one line
        self.seen: Tensor | None = None
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
        mask = self.source_masks[0]
        length = input_ids.shape[1]
        if mask is not None:
            mask = mask.expand(-1, -1, length, -1)
        hidden_states = self._through_layers(hidden_states, None, mask)[:, -1:]
        self.places = length
        if self.beams > 1:
            shape = (len(input_ids), self.beams, length)
            self.seen = torch.ones(shape, dtype=torch.bool, device=input_ids.device)
        logits = self.lm_head(self.decoder.layer_norm(hidden_states))
        return logits.expand(-1, self.beams, -1).flatten(0, 1)

    def read(self, input_ids: Tensor) -> Tensor:
        """Logits `(b * n, V)` after one more word of each beam, `(b, n)`."""
        rows, beams = input_ids.shape
        embedded = self.decoder.embed(input_ids.reshape(-1, 1), None, None, self.places)
        mask = None
        if self.seen is not None:
            itself = torch.eye(beams, dtype=torch.bool, device=input_ids.device)
            self.seen = torch.cat((self.seen, itself.expand(rows, -1, -1)), dim=2)
            # as a float, or each layer would make it one
            mask = torch.zeros(self.seen.shape, dtype=embedded.dtype, device=embedded.device)
            mask = mask.masked_fill_(~self.seen, float("-inf")).unsqueeze(1)  # (b, 1, n, slots)
        hidden_states = self._through_layers(
            embedded.view(rows, beams, -1), mask, self.source_masks[1]
        )
        self.places += 1
        return self.lm_head(self.decoder.layer_norm(hidden_states)).flatten(0, 1)

    def follow(self, parents: Tensor) -> None:
        """Beam i of each sentence goes on where beam `parents[:, i]` was; `(b, n)` int64."""
        if self.seen is not None:
            index = parents.unsqueeze(-1).expand(-1, -1, self.seen.shape[-1])
            self.seen = self.seen.gather(1, index)

    def keep(self, rows: Tensor) -> None:
        """Go on with some sentences only, as `SearchCache.keep` says."""
        self.cache.keep(rows)
        # read at the first step only; from then on the layers look at its rows, not into them
        self.encoder_hidden_states = self.encoder_hidden_states[: len(rows)]
        self.source_masks = [None if mask is None else mask[rows] for mask in self.source_masks]
        self.seen = None if self.seen is None else self.seen[rows]

    def all_keys_and_values(self) -> EncoderDecoderCache:
        """The cache that transformers' own search would return."""
        seen = self.seen
        if seen is None:
            keys = self.cache.self_attention_cache.layers[0].keys
            seen = keys.new_ones((len(keys), 1, keys.shape[2]), dtype=torch.bool)
        return self.cache.per_beam(seen)

    def _through_layers(
        self, hidden_states: Tensor, mask: Tensor | None, source_mask: Tensor | None
    ) -> Tensor:
        for layer in self.decoder.layers:
            hidden_states = layer(
                hidden_states,
                mask,
                self.encoder_hidden_states,
                source_mask,
                past_key_values=self.cache,
            )
        return hidden_states
