# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""A scene as AgentFormer (2103.14023) sees it, and its stacks (3.2).

The stacks are context encoder, future encoder and future decoder. Positions are in time-major
order: position `t * A + a` is step t of agent a. Shapes: B scenes, A agents, T observed steps,
P predicted steps, N samples, L any number of steps, S key steps, D `d_model`, Z `latent_dim`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from .attention_vanilla_agentformer import AgentDecoderLayer, AgentEncoderLayer, RolloutLayer
from .configuration_vanilla_agentformer import VanillaAgentFormerConfig
from .inputs_vanilla_forecaster import observed_agents, observed_velocities
from .kernels_vanilla import VanillaDropout, at_least_float32, masked_mean, may_read
from .positions_vanilla import sinusoid

HEAD_STD = 0.01  # of the initial values of output and latent heads, as in the authors' code
SMALLEST_SPREAD = 1e-8  # added to the prior's standard deviation, as in the authors' code

# --- a scene of agents: only observed steps enter, so the future never changes an input ----------


@dataclass(frozen=True)
class Observed:
    """The observed part of a batch of scenes, in units inside the model.

    Attributes:
        positions: `(B, A, T, 2)` relative to the origin; 0 where not observed.
        is_observed: `(B, A, T)` bool.
        is_agent: `(B, A)` bool, False = padding.
        origin: `(B, 1, 1, 2)`.
        may_attend: `(B, A, A)` bool, whether agent i may see agent j; each sees itself.
    """

    positions: Tensor
    is_observed: Tensor
    is_agent: Tensor
    origin: Tensor
    may_attend: Tensor

    @property
    def is_complete(self) -> bool:
        """Whether every agent sees every step of every agent, so that no mask is needed."""
        if not may_read(self.is_observed):
            return False
        return bool(self.is_observed.all() & self.may_attend.all())

    def source_mask(self, queries: int) -> Tensor | None:
        """Who may attend to which observed steps, for so many query steps; None: all to all."""
        if self.is_complete:
            return None
        # steps of padding are keys too, for itself alone
        is_key = self.is_observed | ~self.is_agent.unsqueeze(-1)
        is_key = is_key.transpose(1, 2).flatten(1)  # (B, T A)
        return scene_mask(self, queries, self.positions.shape[2], is_key)


def scene_mask(past: Observed, queries: int, keys: int, is_key: Tensor | None = None) -> Tensor:
    """`(B, 1, L A, S A)` bool: who may attend to whom at every pair of steps.

    Args:
        past: the agents.
        queries: steps L.
        keys: steps S.
        is_key: `(B, S A)` bool, False = hidden from all; None: none is.
    """
    mask = past.may_attend.repeat(1, queries, keys)  # time-major: agents are the inner axis
    mask = mask if is_key is None else mask & is_key.unsqueeze(1)
    return mask.unsqueeze(1)


def read_observed(
    config: VanillaAgentFormerConfig,
    past_values: Tensor,
    past_observed_mask: Tensor | None,
    agent_mask: Tensor | None,
) -> Observed:
    """Check and centre the observed part of a batch.

    Args:
        config: steps, scale, origin and connections.
        past_values: `(B, A, T, 2)` positions in the world; anything where not observed.
        past_observed_mask: `(B, A, T)`, 1 = observed; None: all are.
        agent_mask: `(B, A)`, 1 = agent, 0 = padding; None: all are agents.

    Raises:
        ValueError: a shape does not fit, a value is not finite, a scene has no agent, or an agent's
            last step is not observed.
    """
    past, is_observed, is_agent, _ = observed_agents(
        config, past_values, past_observed_mask, agent_mask=agent_mask
    )
    past = past / config.position_scale
    counted = is_observed if config.origin_is_past_mean else is_observed[..., -1:]
    total = (past[:, :, -counted.shape[-1] :] * counted.unsqueeze(-1)).sum(dim=(1, 2))
    origin = (total / counted.sum(dim=(1, 2)).unsqueeze(-1)).view(-1, 1, 1, 2)
    may_attend = is_agent.unsqueeze(1).expand(-1, is_agent.shape[1], -1)
    if config.connection_distance:
        last = past[:, :, -1] * config.position_scale
        apart = (last.unsqueeze(2) - last.unsqueeze(1)).norm(dim=-1)  # (B, A, A)
        may_attend = may_attend & (apart <= config.connection_distance)
    itself = torch.eye(is_agent.shape[1], dtype=torch.bool, device=past.device)
    past = torch.where(is_observed.unsqueeze(-1), past - origin, 0)
    return Observed(past, is_observed, is_agent, origin, may_attend | itself)


# --- the stacks ----------------------------------------------------------------------------------


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

    def forward(self, inputs: Tensor) -> Tensor:
        """Tokens `(B, L A, D)` of inputs `(B, L, A, width)`."""
        vectors = self.projection(inputs.to(self.projection.weight.dtype))  # (B, L, A, D)
        steps = torch.arange(inputs.shape[1], device=inputs.device)
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
    """Linear layers, each followed by an activation; none where `widths` is empty."""

    def __init__(
        self, width: int, widths: list[int], activation: Callable[[Tensor], Tensor] = torch.relu
    ) -> None:
        inputs = [width, *widths]
        super().__init__(small_linear(a, b) for a, b in pairwise(inputs))
        self.width, self.activation = inputs[-1], activation

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`(..., width)` to `(..., widths[-1])`."""
        for layer in self:
            hidden_states = self.activation(layer(hidden_states))
        return hidden_states


class ContextEncoder(nn.Module):
    """All observed steps of all agents as one sequence."""

    def __init__(self, config: VanillaAgentFormerConfig) -> None:
        super().__init__()
        self.embedding = StepEmbedding(config, 4)
        self.layers = nn.ModuleList(AgentEncoderLayer(config) for _ in range(config.encoder_layers))

    def forward(self, past: Observed) -> tuple[Tensor, Tensor]:
        """`(B, T A, D)`, and the mean over each agent's observed steps, `(B, A, D)`."""
        agents, steps = past.positions.shape[1:3]
        mask = past.source_mask(steps)
        velocities, _ = observed_velocities(past.positions, past.is_observed)
        # the first step has the velocity of the second, as in the authors' code
        velocities = torch.cat((velocities[:, :, :1], velocities), dim=2)
        inputs = torch.cat((past.positions, velocities), dim=-1).transpose(1, 2)  # (B, T, A, 4)
        hidden_states = self.embedding(inputs)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, num_agents=agents)
        by_agent = hidden_states.unflatten(1, (steps, agents))
        return hidden_states, masked_mean(by_agent.transpose(1, 2), past.is_observed)


class FutureEncoder(nn.Module):
    """The posterior of each agent's latent, from the true future; used in training only."""

    def __init__(self, config: VanillaAgentFormerConfig) -> None:
        super().__init__()
        self.embedding = StepEmbedding(config, 4)
        layers = range(config.posterior_layers)
        self.layers = nn.ModuleList(AgentDecoderLayer(config, index) for index in layers)
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
        before = torch.cat((past.positions[:, :, -1:], future[:, :, :-1]), dim=2)
        was_known = torch.cat((past.is_agent.unsqueeze(-1), is_known[..., :-1]), dim=2)
        velocities = (future - before) * (is_known & was_known).unsqueeze(-1)
        inputs = torch.cat((future, velocities), dim=-1).transpose(1, 2)  # (B, P, A, 4)
        steps, agents = inputs.shape[1:3]
        mask, source_mask = None, past.source_mask(steps)
        if not (past.is_complete and is_known.all()):
            # an agent without any known step sees itself, so that no query is without a key
            is_key = is_known | ~is_known.any(dim=2, keepdim=True)
            mask = scene_mask(past, steps, steps, is_key.transpose(1, 2).flatten(1))
        hidden_states = self.embedding(inputs)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, context, source_mask, num_agents=agents)
        by_agent = hidden_states.unflatten(1, (steps, agents))
        pooled = self.hidden(masked_mean(by_agent.transpose(1, 2), is_known))
        return Gaussian(*at_least_float32(self.latent_head(pooled)).chunk(2, dim=-1))


class FutureDecoder(nn.Module):
    """The prior of each agent's latent, and the future that follows from latents, step by step."""

    def __init__(self, config: VanillaAgentFormerConfig) -> None:
        super().__init__()
        self.embedding = StepEmbedding(config, 2 + config.latent_dim)
        layers = range(config.decoder_layers)
        self.layers = nn.ModuleList(AgentDecoderLayer(config, index) for index in layers)
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
        number = torch.arange(steps, device=futures.device).repeat_interleave(agents)
        # no later steps; all agents of one step see each other
        mask = scene_mask(past, steps, steps) & (number.unsqueeze(1) >= number)
        if mask.shape[0] > 1:  # one scene broadcasts over its samples
            mask = mask.repeat_interleave(samples, dim=0)
        source_mask = past.source_mask(samples * steps)
        start = self._last(past, samples)
        before = torch.cat((start, futures[:, :, :-1]), dim=2)  # (B, N, P, A, 2)
        of_steps = latents.unsqueeze(2).expand(-1, -1, steps, -1, -1)
        hidden_states = self.embedding(torch.cat((before, of_steps), dim=-1).flatten(0, 1))
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, context, source_mask, num_agents=agents)
        return start + self.head(self.hidden(hidden_states)).view(futures.shape)

    @torch.no_grad()
    def _rollout(self, past: Observed, context: Tensor, latents: Tensor, steps: int) -> Tensor:
        """Positions `(B, N, P, A, 2)`; each step is computed once, with a KV cache."""
        samples, agents = latents.shape[1:3]
        own = Cache(layers=[RolloutLayer(steps * agents) for _ in self.layers])
        cache = EncoderDecoderCache(own, DynamicCache())
        source_mask = past.source_mask(samples)
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
            found.append(start + self.head(self.hidden(hidden_states)).view(start.shape))
        return torch.cat(found[1:], dim=2)

    def _last(self, past: Observed, samples: int) -> Tensor:
        """Last observed positions `(B, N, 1, A, 2)`."""
        return past.positions[:, None, None, :, -1].expand(-1, samples, -1, -1, -1)
