# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The three stacks of AgentFormer (3.2): context encoder, future encoder, future decoder.

Shapes: B scenes, A agents, T observed steps, P predicted steps, N samples, L any number of steps,
D `d_model`, Z `latent_dim`.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from .attention_vanilla_agentformer import AgentDecoderLayer, AgentEncoderLayer, RolloutLayer
from .configuration_vanilla_agentformer import VanillaAgentFormerConfig
from .inputs_vanilla_agentformer import Observed, causal_steps, scene_mask
from .kernels_vanilla import VanillaDropout, at_least_float32
from .positions_vanilla import sinusoid

HEAD_STD = 0.01  # of the initial values of output and latent heads, as in the authors' code
SMALLEST_SPREAD = 1e-8  # added to the prior's standard deviation, as in the authors' code


@dataclass(frozen=True)
class Gaussian:
    """Independent normal distributions, one of Z numbers for each agent.

    Attributes:
        mean: `(..., Z)`.
        log_variance: `(..., Z)`.
    """

    mean: Tensor
    log_variance: Tensor

    def draw(self, noise: Tensor) -> Tensor:
        """A sample that depends differentiably on mean and variance; `noise` is N(0, 1)."""
        return self.mean + noise * (0.5 * self.log_variance).exp()

    def divergence(self, prior: "Gaussian") -> Tensor:
        """Kullback-Leibler divergence from `prior`, `(...)` nats per agent."""
        spread = (0.5 * prior.log_variance).exp() + SMALLEST_SPREAD
        shift = (self.mean - prior.mean) / spread
        ratio = (0.5 * self.log_variance).exp() / spread
        return (0.5 * (shift.square() + ratio.square()) - 0.5 - ratio.log()).sum(dim=-1)


class StepEmbedding(nn.Module):
    """Steps of agents as tokens: a Linear, then another over it and the sinusoid of its step.

    The sinusoid is concatenated, not added as in 3.5 of the 2017 paper.

    Args:
        config: read for `d_model` and `dropout`.
        width: numbers per step and agent.
    """

    def __init__(self, config: VanillaAgentFormerConfig, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(width, config.d_model)
        self.time_projection = nn.Linear(2 * config.d_model, config.d_model)
        self.dropout = VanillaDropout(config.dropout)

    def forward(self, inputs: Tensor, first: int = 0) -> Tensor:
        """Tokens `(B, L A, D)` of inputs `(B, L, A, width)`, whose steps count from `first`."""
        vectors = self.projection(inputs.to(self.projection.weight.dtype))  # (B, L, A, D)
        steps = torch.arange(first, first + inputs.shape[1], device=inputs.device)
        code = sinusoid(steps, vectors.shape[-1]).to(vectors.dtype)
        code = code.view(1, len(steps), 1, -1).expand_as(vectors)
        return self.dropout(self.time_projection(torch.cat((vectors, code), dim=-1))).flatten(1, 2)

    def rollout_parts(self, fixed: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Both projections as one, for inputs that are the same at every step but for the first.

        Nothing lies between the projections, so a token is `inputs @ weight + constant + code[t]`.

        Args:
            fixed: `(..., F)` the last numbers of an input.
            steps: L.

        Returns:
            `(width - F, D)`, `(..., D)` and `(L, D)`.
        """
        width, outer = self.projection.out_features, self.time_projection.weight
        fixed = fixed.to(outer.dtype)
        first = self.projection.in_features - fixed.shape[-1]
        weight = (outer[:, :width] @ self.projection.weight[:, :first]).T
        inner = fixed @ self.projection.weight[:, first:].T + self.projection.bias
        constant = inner @ outer[:, :width].T + self.time_projection.bias
        code = sinusoid(torch.arange(steps, device=fixed.device), width).to(fixed.dtype)
        return weight, constant, code @ outer[:, width:].T


def small_linear(inputs: int, outputs: int) -> nn.Linear:
    """A Linear that starts near zero."""
    layer = nn.Linear(inputs, outputs)
    layer.init_std = HEAD_STD  # type: ignore[assignment]  # a module takes any
    return layer


class HiddenLayers(nn.ModuleList):
    """Linear layers, each followed by a ReLU; none where `widths` is empty."""

    def __init__(self, width: int, widths: list[int]) -> None:
        inputs = [width, *widths]
        super().__init__(small_linear(a, b) for a, b in pairwise(inputs))
        self.width = inputs[-1]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`(..., width)` to `(..., widths[-1])`."""
        for layer in self:
            hidden_states = layer(hidden_states).relu()
        return hidden_states


class ContextEncoder(nn.Module):
    """All observed steps of all agents as one sequence."""

    def __init__(self, config: VanillaAgentFormerConfig) -> None:
        super().__init__()
        self.embedding = StepEmbedding(config, 4)
        layers = [AgentEncoderLayer(config) for _ in range(config.encoder_layers)]
        self.layers = nn.ModuleList(layers)

    def forward(self, past: Observed) -> tuple[Tensor, Tensor]:
        """`(B, T A, D)`, and the mean over each agent's observed steps, `(B, A, D)`."""
        steps, agents = past.positions.shape[2], past.positions.shape[1]
        mask = None
        if not past.is_complete:
            mask = scene_mask(past, steps, steps, past.observed_keys())
        hidden_states = self.embedding(past.step_inputs())
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, num_agents=agents)
        by_agent = hidden_states.unflatten(1, (steps, agents))
        return hidden_states, mean_of_steps(by_agent, past.is_observed)


class FutureEncoder(nn.Module):
    """The posterior of each agent's latent, from the true future; used in training only."""

    def __init__(self, config: VanillaAgentFormerConfig) -> None:
        super().__init__()
        self.embedding = StepEmbedding(config, 4)
        layers = [AgentDecoderLayer(config, index) for index in range(config.posterior_layers)]
        self.layers = nn.ModuleList(layers)
        self.hidden = HiddenLayers(config.d_model, config.head_dims)
        self.latent_head = small_linear(self.hidden.width, 2 * config.latent_dim)

    def forward(
        self, past: Observed, context: Tensor, future: Tensor, is_known: Tensor
    ) -> Gaussian:
        """The posterior, Z numbers for each agent.

        Args:
            past: the observed part.
            context: `(B, T A, D)` of the context encoder.
            future: `(B, A, P, 2)` positions relative to the origin; 0 where not known.
            is_known: `(B, A, P)` bool.
        """
        inputs = past.future_inputs(future, is_known)  # (B, P, A, 4)
        steps, agents = inputs.shape[1:3]
        mask = source_mask = None
        if not (past.is_complete and is_known.all()):
            # an agent without any known step sees itself, so that no query is without a key
            is_key = is_known | ~is_known.any(dim=2, keepdim=True)
            mask = scene_mask(past, steps, steps, is_key.transpose(1, 2).flatten(1))
            source_mask = scene_mask(past, steps, past.positions.shape[2], past.observed_keys())
        hidden_states = self.embedding(inputs)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, context, source_mask, num_agents=agents)
        by_agent = hidden_states.unflatten(1, (steps, agents))
        pooled = self.hidden(mean_of_steps(by_agent, is_known))
        return Gaussian(*at_least_float32(self.latent_head(pooled)).chunk(2, dim=-1))


class FutureDecoder(nn.Module):
    """The prior of each agent's latent, and the future that follows from latents, step by step."""

    def __init__(self, config: VanillaAgentFormerConfig) -> None:
        super().__init__()
        self.embedding = StepEmbedding(config, 2 + config.latent_dim)
        layers = [AgentDecoderLayer(config, index) for index in range(config.decoder_layers)]
        self.layers = nn.ModuleList(layers)
        self.hidden = HiddenLayers(config.d_model, config.head_dims)
        self.head = small_linear(self.hidden.width, 2)
        self.prior_head = small_linear(config.d_model, 2 * config.latent_dim)

    def prior(self, agent_context: Tensor) -> Gaussian:
        """The prior of latents from each agent's context `(B, A, D)`."""
        return Gaussian(*at_least_float32(self.prior_head(agent_context)).chunk(2, dim=-1))

    def forward(self, past: Observed, context: Tensor, latents: Tensor, steps: int) -> Tensor:
        """Positions `(B, N, P, A, 2)` relative to the origin.

        No gradient flows from a step's input to the step before it, so training needs the rollout
        without gradients, and then one pass over all steps at once.

        Args:
            past: the observed part.
            context: `(B, T A, D)` of the context encoder.
            latents: `(B, N, A, Z)`.
            steps: P.
        """
        futures = self._rollout(past, context, latents, steps)
        if not torch.is_grad_enabled():
            return futures
        return self.one_pass(past, context, latents, futures)

    def one_pass(self, past: Observed, context: Tensor, latents: Tensor, futures: Tensor) -> Tensor:
        """The same positions with their gradient, from the positions of a rollout.

        Args:
            past: the observed part.
            context: `(B, T A, D)` of the context encoder.
            latents: `(B, N, A, Z)`.
            futures: `(B, N, P, A, 2)` relative to the origin, of these latents.
        """
        (samples, agents), steps = latents.shape[1:3], futures.shape[2]
        mask = causal_steps(scene_mask(past, steps, steps), steps)
        if mask.shape[0] > 1:  # one scene broadcasts over its samples
            mask = mask.repeat_interleave(samples, dim=0)
        source_mask = self._source_mask(past, samples * steps)
        start = self._last(past, samples)
        before = torch.cat((start, futures[:, :, :-1]), dim=2)  # (B, N, P, A, 2)
        hidden_states = self._tokens(before, latents, 0)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, context, source_mask, num_agents=agents)
        return start + self._changes(hidden_states, futures.shape)

    @torch.no_grad()
    def _rollout(self, past: Observed, context: Tensor, latents: Tensor, steps: int) -> Tensor:
        """Positions `(B, N, P, A, 2)`; each step is computed once, with a KV cache."""
        samples, agents = latents.shape[1:3]
        own = Cache(layers=[RolloutLayer(steps * agents) for _ in self.layers])
        cache = EncoderDecoderCache(own, DynamicCache())
        source_mask = self._source_mask(past, samples)
        start = self._last(past, samples)
        found = [start]
        weight, constant, code = self.embedding.rollout_parts(latents.flatten(0, 1), steps)
        for number in range(steps):
            mask = None
            if source_mask is not None:
                mask = scene_mask(past, 1, number + 1).repeat_interleave(samples, dim=0)
            before = found[-1].flatten(0, 2).to(weight.dtype)
            tokens = before @ weight + constant + code[number]
            hidden_states = self.embedding.dropout(tokens)  # (B N, A, D)
            for layer in self.layers:
                hidden_states = layer(
                    hidden_states, mask, context, source_mask, cache, num_agents=agents
                )
            found.append(start + self._changes(hidden_states, start.shape))
        return torch.cat(found[1:], dim=2)

    def _source_mask(self, past: Observed, queries: int) -> Tensor | None:
        if past.is_complete:
            return None
        return scene_mask(past, queries, past.positions.shape[2], past.observed_keys())

    def _last(self, past: Observed, samples: int) -> Tensor:
        """Last observed positions `(B, N, 1, A, 2)`."""
        return past.positions[:, None, None, :, -1].expand(-1, samples, -1, -1, -1)

    def _tokens(self, before: Tensor, latents: Tensor, first: int) -> Tensor:
        """Tokens `(B N, L A, D)` of the positions `(B, N, L, A, 2)` before each step."""
        latents = latents.unsqueeze(2).expand(-1, -1, before.shape[2], -1, -1)
        return self.embedding(torch.cat((before, latents), dim=-1).flatten(0, 1), first)

    def _changes(self, hidden_states: Tensor, shape: torch.Size) -> Tensor:
        """Displacements from the last observed position, `(B, N, L, A, 2)`."""
        return self.head(self.hidden(hidden_states)).view(shape)


def mean_of_steps(by_agent: Tensor, is_known: Tensor) -> Tensor:
    """Mean `(B, A, D)` over the known steps `(B, A, L)` of `(B, L, A, D)`; 0 without any."""
    weight = is_known.transpose(1, 2).unsqueeze(-1).to(by_agent.dtype)  # (B, L, A, 1)
    return (by_agent * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
