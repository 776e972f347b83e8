# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Losses of both stages of AgentFormer, per agent, in squared units inside the model and nats.

Each is a sum over agents, divided by their number in the optimizer step. For a batch of one scene
they are the authors' losses; they divide by the agents of one scene, which is a step of theirs.

Shapes: B scenes, A agents, N samples, P predicted steps.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .configuration_vanilla_agentformer import VanillaAgentFormerConfig
from .inputs_vanilla_agentformer import Observed
from .inputs_vanilla_forecaster import known_future, known_positions


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
