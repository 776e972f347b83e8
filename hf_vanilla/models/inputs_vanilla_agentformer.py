# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""A scene of agents as AgentFormer sees it: origin, inputs, who may see whom, and the losses.

Only observed steps enter the origin and the masks, so the future never changes an input.
Shapes: B scenes, A agents, T observed steps, P predicted steps, L query steps, S key steps, N
samples.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .configuration_vanilla_agentformer import VanillaAgentFormerConfig
from .inputs_vanilla_forecaster import (
    known_future,
    known_positions,
    observed_agents,
    observed_velocities,
)
from .kernels_vanilla import may_read


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

    def step_inputs(self) -> Tensor:
        """Position and velocity of each observed step, `(B, T, A, 4)`.

        The first step has the velocity of the second, as in the authors' code. A velocity from or
        to nothing observed is 0.
        """
        velocities, _ = observed_velocities(self.positions, self.is_observed)
        velocities = torch.cat((velocities[:, :, :1], velocities), dim=2)
        return torch.cat((self.positions, velocities), dim=-1).transpose(1, 2)

    def future_inputs(self, future: Tensor, is_known: Tensor) -> Tensor:
        """Position and velocity of each future step, `(B, P, A, 4)`, 0 where not known.

        Args:
            future: `(B, A, P, 2)` positions relative to the origin; 0 where not known.
            is_known: `(B, A, P)` bool.
        """
        before = torch.cat((self.positions[:, :, -1:], future[:, :, :-1]), dim=2)
        was_known = torch.cat((self.is_agent.unsqueeze(-1), is_known[..., :-1]), dim=2)
        velocities = (future - before) * (is_known & was_known).unsqueeze(-1)
        return torch.cat((future, velocities), dim=-1).transpose(1, 2)

    def observed_keys(self) -> Tensor:
        """`(B, T A)` bool: which observed steps are keys; those of padding only for itself."""
        is_key = self.is_observed | ~self.is_agent.unsqueeze(-1)
        return is_key.transpose(1, 2).flatten(1)


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


def causal_steps(mask: Tensor, steps: int) -> Tensor:
    """A mask `(B, 1, P A, P A)` without later steps; all agents of one step see each other."""
    number = torch.arange(steps, device=mask.device).repeat_interleave(mask.shape[-1] // steps)
    return mask & (number.unsqueeze(1) >= number)


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


# --- losses of both stages, per agent, in squared units inside the model and nats ---------------

# Each is a sum over agents, divided by their number in the optimizer step. For a batch of one scene
# they are the authors' losses; they divide by the agents of one scene, which is a step of theirs.


@dataclass(frozen=True)
class JointErrors:
    """What futures are compared with.

    Attributes:
        future: `(B, A, P, 2)` relative to the origin; 0 where not known.
        is_known: `(B, A, P)` bool; False for padding.
        is_agent: `(B, A)` bool.
        divisor: `()` agents of the optimizer step.
    """

    future: Tensor
    is_known: Tensor
    is_agent: Tensor
    divisor: Tensor

    def squared_errors(self, futures: Tensor) -> Tensor:
        """Squared distances of `(B, N, P, A, 2)`, summed over known steps: `(B, N, A)`."""
        truth = self.future.transpose(1, 2).unsqueeze(1)  # (B, 1, P, A, 2)
        apart = (futures - truth).square().sum(dim=-1)
        return (apart * self.is_known.transpose(1, 2).unsqueeze(1)).sum(dim=2)

    def reconstruction(self, futures: Tensor) -> Tensor:
        """Squared error of the only sample of `(B, 1, P, A, 2)`."""
        return self.squared_errors(futures).sum() / self.divisor

    def closest(self, futures: Tensor) -> Tensor:
        """Squared error of each agent's closest sample of `(B, N, P, A, 2)`."""
        return self.squared_errors(futures).amin(dim=1).sum() / self.divisor

    def closest_together(self, futures: Tensor) -> Tensor:
        """Squared error of the sample that is closest for all agents of a scene together."""
        return self.squared_errors(futures).sum(dim=2).amin(dim=1).sum() / self.divisor

    def needed_samples(self, futures: Tensor, *, together: bool) -> Tensor:
        """Numbers of the samples that a loss depends on, `(B, M)`, of `(B, N, P, A, 2)`.

        They are the closest ones of the agents, and with `together` the closest one of all agents
        of a scene. M is that of the scene with most of them; other scenes have further samples.
        """
        errors = self.squared_errors(futures)  # (B, N, A)
        closest = errors.argmin(dim=1)  # (B, A)
        agents = torch.zeros_like(errors[..., 0]).scatter_add(1, closest, self.is_agent.to(errors))
        if together:
            agents.scatter_(1, errors.sum(dim=2).argmin(dim=1, keepdim=True), 1.0)
        return agents.topk(int((agents > 0).sum(dim=1).max()), dim=1).indices

    def divergence(self, nats: Tensor, floor: float) -> Tensor:
        """Divergences `(B, A)`; where a scene's mean is below the floor, that has no gradient."""
        agents = self.is_agent.sum(dim=1)
        means = (nats * self.is_agent).sum(dim=1) / agents.clamp(min=1)
        return (means.clamp(min=floor) * agents).sum() / self.divisor

    def similarity(self, futures: Tensor, scale: float) -> Tensor:
        """Mean over pairs of samples of `exp(-squared distance / scale)`, `(B, N, P, A, 2)`.

        The distance is over all steps. 0 for a single sample.
        """
        samples = futures.shape[1]
        first, second = torch.triu_indices(samples, samples, 1, device=futures.device)
        if not len(first):
            return futures.sum() * 0
        apart = (futures[:, first] - futures[:, second]).square().sum(dim=(2, 4))  # (B, pairs, A)
        likeness = (-apart / scale).exp().mean(dim=1)  # (B, A)
        return (likeness * self.is_agent).sum() / self.divisor


def read_future(
    config: VanillaAgentFormerConfig,
    past: Observed,
    future_values: Tensor,
    future_observed_mask: Tensor | None,
    *,
    num_items_in_batch: "Tensor | float | None" = None,
    **kwargs: Any,
) -> JointErrors:
    """Check and centre the future of a batch; arguments as of the models.

    Raises:
        ValueError: a shape does not fit, or a value is not finite.
    """
    shape = past.is_agent.shape
    is_known = known_future(config, future_values, future_observed_mask, shape)
    is_known = is_known & past.is_agent.unsqueeze(-1)
    future = known_positions("future", future_values, is_known) / config.position_scale
    future = torch.where(is_known.unsqueeze(-1), future - past.origin, 0)
    count = past.is_agent.sum() if num_items_in_batch is None else num_items_in_batch
    divisor = torch.as_tensor(count, device=future.device).clamp(min=1)
    return JointErrors(future, is_known, past.is_agent, divisor)
