# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""A scene of agents as AgentFormer sees it: origin, inputs, who may see whom.

Only observed steps enter the origin and the masks, so the future never changes an input.
Shapes: B scenes, A agents, T observed steps, P predicted steps, L query steps, S key steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .configuration_vanilla_agentformer import VanillaAgentFormerConfig
from .inputs_vanilla_forecaster import observed_agents, observed_velocities


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
        if torch.compiler.is_compiling():
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
