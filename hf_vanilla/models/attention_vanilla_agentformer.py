# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Agent-aware attention (AgentFormer, 2103.14023, 3.1), and the two layers of Figure 1 with it.

Positions are in time-major order: position `t * A + a` is step t of agent a.
Shapes: B batch, A agents, T query steps, S key steps, N samples, D `d_model`, H heads, K head
width.
"""

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache

from .attention_vanilla import VanillaAttention, split_heads
from .kernels_vanilla import at_least_float32
from .layers_vanilla import VanillaDecoderLayer, VanillaEncoderLayer
from .pretrained_vanilla import VanillaPreTrainedConfig


class AgentAwareAttention(VanillaAttention):
    """Attention with two pairs of query and key projections and one softmax.

    Scores between two steps of the same agent come from `own_q_proj` and `own_k_proj`, those
    between different agents from `q_proj` and `k_proj`. So agents differ without being numbered,
    and their order has no influence.

    Args:
        config: as of `VanillaAttention`; the attention implementation is not read.
        num_heads: h.
        layer_idx: index of the layer in the cache; needed only with a cache.
    """

    def __init__(
        self, config: VanillaPreTrainedConfig, num_heads: int, *, layer_idx: int | None = None
    ) -> None:
        super().__init__(config, num_heads, layer_idx=layer_idx)
        width, bias = num_heads * self.head_dim, config.attention_bias
        self.own_q_proj = nn.Linear(config.d_model, width, bias=bias)
        self.own_k_proj = nn.Linear(config.d_model, width, bias=bias)
        for projection in (self.own_q_proj, self.own_k_proj):
            # the authors initialize both as one d x 2d matrix
            projection.init_gain = (2 / 3) ** 0.5

    def forward(  # type: ignore[override]  # the number of agents is needed
        self,
        query_input: Tensor,
        key_input: Tensor,
        value_input: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        *,
        num_agents: int,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Attend from every step of every agent to the steps it may see.

        Several samples of one scene may share its keys: then there are N B queries for B keys, and
        the samples count as further query steps.

        Args:
            query_input: `(B, T A, D)`, or `(B N, T A, D)`.
            key_input: `(B, S A, D)`.
            value_input: `(B, S A, D)`.
            attention_mask: bool `(B or 1, 1, N T A, S A)`, True = may attend; every query may see
                at least one key. None: all.
            cache: as of `VanillaAttention`; common and own keys of each head follow each
                other in one entry of 2 H heads.
            num_agents: A.
            **kwargs: ignored.

        Returns:
            The shape of `query_input`, and the weights `(B, H, N T A, S A)`.

        Raises:
            ValueError: `num_agents` does not divide the positions.
        """
        is_known = isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(self.layer_idx)
        projected: list[Tensor] = []
        if not is_known:
            both = (self.k_proj(key_input), self.own_k_proj(key_input))
            keys = torch.cat([part.unflatten(-1, (-1, self.head_dim)) for part in both], dim=-1)
            projected = [keys.flatten(-2), self.v_proj(value_input)]  # (B, S A, 2 D)
        keys, value = self._keys_and_values(key_input, value_input, cache, projected)
        # (B, 2 H, S A, K); every other head, because torch multiplies these views without a copy
        common_key, own_key = keys[:, ::2], keys[:, 1::2]
        for name, length in {"queries": query_input.shape[1], "keys": value.shape[2]}.items():
            if num_agents < 1 or length % num_agents:
                raise ValueError(
                    f"num_agents={num_agents} does not divide the {length} {name}: pass every "
                    "agent at every step"
                )
        queries = query_input.reshape(value.shape[0], -1, query_input.shape[-1])  # (B, N T A, D)
        # scaled before the product: fewer numbers than scores
        query = split_heads(self.q_proj(queries) * self.scaling, self.head_dim)
        own_query = split_heads(self.own_q_proj(queries) * self.scaling, self.head_dim)
        scores = query @ common_key.transpose(-2, -1)  # (B, H, N T A, S A)
        scores = at_least_float32(with_own_scores(scores, own_query, own_key, num_agents))
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1).to(query.dtype)
        weights = nn.functional.dropout(weights, self.config.attention_dropout, self.training)
        attended = (weights @ value).transpose(1, 2).flatten(2)  # (B, N T A, D)
        return self.out_proj(attended).view(query_input.shape), weights


def with_own_scores(scores: Tensor, query: Tensor, key: Tensor, num_agents: int) -> Tensor:
    """Replace, in place, the scores between two steps of the same agent.

    Args:
        scores: `(B, H, T A, S A)`.
        query: `(B, H, T A, K)` own queries, scaled.
        key: `(B, H, S A, K)` own keys.
        num_agents: A.

    Returns:
        `scores`; while a model is exported, other memory.
    """
    if torch.compiler.is_exporting():  # ONNX has no writing to a diagonal
        itself = torch.eye(num_agents, dtype=torch.bool, device=key.device)
        steps = [part.shape[2] // num_agents for part in (query, key)]
        is_own = itself.repeat(*steps)  # (T A, S A)
        return torch.where(is_own, query @ key.transpose(-2, -1), scores)
    by_agent = (-1, num_agents)
    query = query.unflatten(2, by_agent).transpose(2, 3)  # (B, H, A, T, K)
    key = key.unflatten(2, by_agent).transpose(2, 3)  # (B, H, A, S, K)
    if query.shape[3] == 1:  # a step of a rollout: its many keys need not be turned around
        own = (key @ query.transpose(-2, -1)).transpose(-2, -1)  # (B, H, A, T, S)
    else:
        own = query @ key.transpose(-2, -1)
    blocks = scores.unflatten(3, by_agent).unflatten(2, by_agent)  # (B, H, T, A, S, A)
    blocks.diagonal(dim1=3, dim2=5).copy_(own.permute(0, 1, 3, 4, 2))
    return scores


class RolloutLayer(DynamicLayer):
    """A layer of a cache whose final length is known: new positions are written in place.

    Args:
        length: positions of the whole rollout.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.number = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Add keys `(B, 2 H, A, K)` and values `(B, H, A, K)`; views of all so far."""
        if not self.number:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.keys, self.values = (
                new.new_empty(*new.shape[:2], self.length, new.shape[-1])
                for new in (key_states, value_states)
            )
            self.is_initialized = True
        first, self.number = self.number, self.number + key_states.shape[-2]
        self.keys[:, :, first : self.number] = key_states
        self.values[:, :, first : self.number] = value_states
        return self.keys[:, :, : self.number], self.values[:, :, : self.number]

    def get_seq_length(self) -> int:
        """Positions so far."""
        return self.number


class AgentEncoderLayer(VanillaEncoderLayer):
    """An encoder layer with agent-aware self-attention; call it with `num_agents`."""

    def __init__(self, config: VanillaPreTrainedConfig) -> None:
        super().__init__(config)
        self.self_attn = AgentAwareAttention(config, config.encoder_attention_heads)


class AgentDecoderLayer(VanillaDecoderLayer):
    """A decoder layer with two agent-aware attentions; call it with `num_agents`."""

    def __init__(self, config: VanillaPreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx, is_causal=False)
        heads = config.decoder_attention_heads
        self.self_attn = AgentAwareAttention(config, heads, layer_idx=layer_idx)
        self.encoder_attn = AgentAwareAttention(config, heads, layer_idx=layer_idx)
