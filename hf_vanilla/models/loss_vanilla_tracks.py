# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Losses of the forecasters of single agents, in units of the world or in nats.

Shapes: B agents, P predicted steps, M modes.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .inputs_vanilla_forecaster import distances, per_known_step

LOWEST_TEMPERATURE = 1e-3


def mean_distance(
    predicted: Tensor,
    future_values: Tensor,
    is_observed: Tensor,
    *,
    num_items_in_batch: "Tensor | float | None" = None,
) -> Tensor:
    """Distance per observed future step, not squared.

    Args:
        predicted: `(B, P, 2)`.
        future_values: `(B, P, 2)`; anything where they are not observed.
        is_observed: `(B, P)` bool.
        num_items_in_batch: observed future steps of the optimizer step; None: of this call.
    """
    total = (distances(predicted, future_values) * is_observed).sum()
    return per_known_step(total, is_observed, num_items_in_batch)


def closest_mode_loss(  # noqa: PLR0913 - predicted and true futures, and how to weigh them
    trajectories: Tensor,
    mode_logits: Tensor,
    future_values: Tensor,
    is_observed: Tensor,
    *,
    score_weight: float,
    final_weight: float = 0.0,
    temperature: "Tensor | float | None" = None,
    num_items_in_batch: "Tensor | float | None" = None,
) -> Tensor:
    """Distance of the closest mode, and the cross-entropy of its score.

    Both are sums over observed future steps, divided by their number: an agent counts by the steps
    of its future that are known, and one without any counts nothing.

    Args:
        trajectories: `(B, M, P, 2)`.
        mode_logits: `(B, M)`.
        future_values: `(B, P, 2)`; anything where they are not observed.
        is_observed: `(B, P)` bool.
        score_weight: of the cross-entropy.
        final_weight: of the distance at the last step beside the mean over steps, also where the
            closest mode is determined.
        temperature: in units of the world. All modes are regressed, each with the softmax of minus
            its distance per step over the temperature as weight; from a high temperature that
            falls, no mode stays unused. None: only the closest mode is regressed.
        num_items_in_batch: observed future steps of the optimizer step; None: of this call.
    """
    per_step = distances(trajectories, future_values.unsqueeze(1))  # (B, M, P)
    per_mode = (per_step * is_observed.unsqueeze(1)).sum(dim=-1)  # (B, M)
    steps = is_observed.sum(dim=1)
    per_mode = per_mode + final_weight * per_step[..., -1] * (steps * is_observed[:, -1])[:, None]
    closest = per_mode.detach().argmin(dim=1)
    if temperature is None:
        regressed = per_mode.gather(1, closest.unsqueeze(1)).sum()
    else:
        distance = per_mode.detach() / steps.clamp(min=1).unsqueeze(1)
        lowest = torch.as_tensor(temperature, device=distance.device).clamp(min=LOWEST_TEMPERATURE)
        regressed = ((-distance / lowest).softmax(dim=1) * per_mode).sum()
    scores = cross_entropy(mode_logits.float(), closest, reduction="none") * steps
    total = regressed + score_weight * scores.sum()
    return per_known_step(total, is_observed, num_items_in_batch)


def mixture_nats(
    trajectories: Tensor, mode_logits: Tensor, spreads: Tensor, future_values: Tensor
) -> Tensor:
    """Negative log-likelihood of each step under a mixture of round Gaussians, `(B, P)` nats.

    Args:
        trajectories: `(B, M, P, 2)` means.
        mode_logits: `(B, M)`; their softmax are the weights.
        spreads: `(B, M, P)` standard deviation in each direction.
        future_values: `(B, P, 2)`.
    """
    squares = (trajectories - future_values.unsqueeze(1)).square().sum(dim=-1)  # (B, M, P)
    logs = -squares / (2 * spreads.square()) - 2 * spreads.log() - math.log(2 * math.pi)
    return -torch.logsumexp(mode_logits.log_softmax(dim=1).unsqueeze(-1) + logs, dim=1)
