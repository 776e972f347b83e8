"""The graphs of a translator: the encoder, and one step of the decoder for all beams.

Both call the model's own layers. As in `models/search_vanilla_decoder.py`, the beams of a sentence
are queries of one row of the KV cache, so no step reorders or copies the cache of a beam.

Shapes: B sentences, n beams, S source, C slots of the cache, D `d_model`, H heads, K head width,
V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from hf_vanilla.models.attention_vanilla import split_heads
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration

LOWEST = -1e9  # added to the score of a slot that may not be attended to
PLAIN = "plain"


def plain_attention(  # noqa: PLR0913 - transformers' attention interface
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float = 1.0,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention (3.2.1) in few operators; the mask is added to the scores."""
    scores = (query * scaling) @ key.transpose(-2, -1)  # (B, H, T, S)
    if attention_mask is not None:
        scores = scores + attention_mask
    return (scores.softmax(dim=-1) @ value).transpose(1, 2), None


AttentionInterface.register(PLAIN, plain_attention)


class EncoderGraph(nn.Module):
    """Source ids to states, and to the source's keys and values for each layer of the decoder.

    Args:
        model: of the translator.
        has_cache: False for the states alone.
    """

    def __init__(self, model: VanillaForConditionalGeneration, *, has_cache: bool = True) -> None:
        super().__init__()
        self.encoder: Any = model.model.encoder
        self.layers: Any = model.model.decoder.layers if has_cache else []

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Encode `(B, S)` ids with their mask `(B, S)`, 1 = real token.

        Returns:
            States `(B, S, D)`; then of each layer keys and values `(B, H, S, K)`.
        """
        hidden_states = self.encoder.embed(input_ids, None, attention_mask)
        mask = source_mask(attention_mask)
        for layer in self.encoder.layers:
            hidden_states = layer(hidden_states, mask)
        hidden_states = self.encoder.layer_norm(hidden_states)
        keys_and_values = []
        for layer in self.layers:
            of_source = layer.encoder_attn
            keys_and_values += [
                split_heads(of_source.k_proj(hidden_states), of_source.head_dim),
                split_heads(of_source.v_proj(hidden_states), of_source.v_head_dim),
            ]
        return hidden_states, *keys_and_values


class DecoderGraph(nn.Module):
    """One more token of each beam, to the best next ones.

    Args:
        model: of the translator.
        forbidden: token ids that are never predicted.
        is_renormalized: whether their probability goes to the other tokens.
    """

    def __init__(
        self,
        model: VanillaForConditionalGeneration,
        forbidden: list[int],
        *,
        is_renormalized: bool = False,
    ) -> None:
        super().__init__()
        self.decoder: Any = model.model.decoder
        self.lm_head: Any = model.lm_head
        self.is_renormalized = is_renormalized
        self.bias: Tensor | None
        self.register_buffer("bias", None)
        if forbidden:
            self.bias = torch.zeros(model.config.target_vocab_size)
            self.bias[forbidden] = LOWEST

    def forward(
        self,
        input_ids: Tensor,
        position: Tensor,
        beam_mask: Tensor,
        attention_mask: Tensor,
        source: list[Tensor],
        past: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """One step.

        Args:
            input_ids: `(B, n)` int64.
            position: `(1,)` int64, tokens before these.
            beam_mask: `(B, n, C + n)`, 0 for the slots of a beam's own past, else `LOWEST`.
            attention_mask: `(B, S)`, 1 = real token of the source.
            source: keys and values of the source for each layer, `(B, H, S, K)`.
            past: keys and values of earlier steps for each layer, `(B, H, C, K)`.

        Returns:
            Log-probabilities `(B, n, 2n)` of the best next tokens, best first, and their ids; then
            `past` with the new slots, `(B, H, C + n, K)`.
        """
        vectors = self.decoder.embed_tokens(input_ids) * self.decoder.embed_scale
        hidden_states = vectors + self.decoder.embed_positions(1, position, vectors)  # (B, n, D)
        cache = EncoderDecoderCache(cache_of(past), cache_of(source))
        for layer in self.decoder.layers:
            hidden_states = layer(
                hidden_states,
                beam_mask.unsqueeze(1),
                hidden_states,  # not read: the cache has the source's keys and values
                source_mask(attention_mask),
                past_key_values=cache,
            )
        logits = self.lm_head(self.decoder.layer_norm(hidden_states))  # (B, n, V)
        if self.bias is not None and self.is_renormalized:
            logits = logits + self.bias
        log_probs = logits.log_softmax(-1)  # ReduceLogSumExp takes several times as long
        if self.bias is not None and not self.is_renormalized:
            log_probs = log_probs + self.bias
        best, tokens = log_probs.topk(2 * input_ids.shape[1])
        own = cache.self_attention_cache.layers
        present = [states for layer in own for states in (layer.keys, layer.values)]
        return best, tokens, *present


def source_mask(attention_mask: Tensor) -> Tensor:
    """What is added to the scores of source tokens, `(B, 1, 1, S)`; from `(B, S)`, 1 = real."""
    return ((1 - attention_mask) * LOWEST)[:, None, None, :]


def cache_of(keys_and_values: list[Tensor]) -> Cache:
    """A cache with the keys and values of each layer, given in turn."""
    cache = DynamicCache()
    pairs = zip(keys_and_values[::2], keys_and_values[1::2], strict=True)
    for index, (keys, values) in enumerate(pairs):
        cache.update(keys, values, index)
    return cache
