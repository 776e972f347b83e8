# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Futures of an agent as a mixture of Gaussians, its loss, and thinning by end points.

Shapes: R rows, K futures, P predicted steps, D width.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_forecaster import distances, known_future, known_positions, per_known_step
from .inputs_vanilla_scene import Rows
from .kernels_vanilla import at_least_float32

SAME_PROBABILITY = 1e-5  # a smaller difference may come from rounding, and decides nothing
SMALLEST_SPREAD = 0.1  # of velocity_std: a smaller one would let single steps rule the loss


@dataclass(frozen=True)
class Mixture:
    """Futures along the axes of each row.

    Attributes:
        means: `(R, K, P, 2)` positions.
        spreads: `(R, K, P, 2)` standard deviations along and across the heading.
        logits: `(R, K)`.
    """

    means: Tensor
    spreads: Tensor
    logits: Tensor

    def selected(self, index: Tensor, logits: Tensor) -> "Mixture":
        """Futures `(R, M)` of each row, with other logits."""
        wide = index[..., None, None].expand(-1, -1, *self.means.shape[2:])
        return Mixture(self.means.gather(1, wide), self.spreads.gather(1, wide), logits)


@dataclass(frozen=True)
class Truth:
    """The future of each row along its axes.

    Attributes:
        positions: `(R, P, 2)`, 0 where not known.
        is_known: `(R, P)` bool.
    """

    positions: Tensor
    is_known: Tensor


def numbers_per_future(config: VanillaSceneConfig) -> int:
    """How many numbers describe a future: two means and two spreads per step, and a logit."""
    return 4 * config.predicted_steps + 1


class MixtureHead(nn.Module):
    """One Linear for all futures, which differ by their seeds."""

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.projection = nn.Linear(config.d_model, numbers_per_future(config))

    def forward(self, states: Tensor, velocity: Tensor) -> Mixture:
        """The futures of states `(R, K, D)`; `velocity` `(R, 2)` is the last one."""
        return mixture(self.projection(self.layer_norm(states)), velocity)


def mixture(numbers: Tensor, velocity: Tensor) -> Mixture:
    """Futures from the numbers `(R, K, 4 P + 1)` of a head.

    A mean starts at the last velocity `(R, 2)`; the numbers say what changes about it.
    """
    numbers = at_least_float32(numbers)
    changes, raw, logits = numbers.split((*(numbers.shape[-1] // 2,) * 2, 1), dim=-1)
    moves = changes.unflatten(-1, (-1, 2)) + velocity[:, None, None]
    spreads = SMALLEST_SPREAD + softplus(raw.float()).unflatten(-1, (-1, 2))
    return Mixture(moves.cumsum(dim=2), spreads, logits.squeeze(-1))


def read_truth(
    config: VanillaSceneConfig,
    rows: Rows,
    future_values: Tensor,
    future_observed_mask: Tensor | None,
) -> Truth:
    """Check the future `(B, A, P, 2)` of a batch and turn it along the rows' axes.

    Raises:
        ValueError: a shape does not fit, or a known position is not finite.
    """
    known = known_future(config, future_values, future_observed_mask, rows.shape)
    known = known[rows.scene, rows.agent]
    future = known_positions("future", future_values[rows.scene, rows.agent], known)
    entered = rows.axes.enter(future - rows.axes.origin.unsqueeze(1))
    return Truth(torch.where(known.unsqueeze(-1), entered, 0), known)


def closest_future_loss(
    futures: Mixture,
    truth: Truth,
    *,
    score_weight: float,
    may_win: Tensor | None = None,
    num_items_in_batch: "Tensor | float | None" = None,
) -> Tensor:
    """Negative log-likelihood of the closest future in nats, and its class.

    The closest future has the smallest mean distance. Both parts are sums over known steps, divided
    by their number.

    Args:
        futures: of each row.
        truth: of each row.
        score_weight: of the cross-entropy of the closest future.
        may_win: `(R, K)` bool, futures that may count as the closest, one at least; None: all.
        num_items_in_batch: known future steps of the optimizer step; None: of this call.
    """
    per_mode = distances(futures.means, truth.positions.unsqueeze(1)) * truth.is_known.unsqueeze(1)
    error = per_mode.sum(dim=-1).detach()  # (R, K)
    error = error if may_win is None else error.masked_fill(~may_win, torch.inf)
    closest = error.argmin(dim=1)
    won = futures.selected(closest.unsqueeze(1), futures.logits)
    missed = (truth.positions.unsqueeze(1) - won.means) / won.spreads
    nats = missed.square() / 2 + won.spreads.log() + math.log(2 * math.pi) / 2
    likelihood = (nats.sum(dim=-1).squeeze(1) * truth.is_known).sum()
    steps = truth.is_known.sum(dim=1)
    scores = cross_entropy(futures.logits.float(), closest, reduction="none") * steps
    total = likelihood + score_weight * scores.sum()
    return per_known_step(total, truth.is_known, num_items_in_batch)


def thin(futures: Mixture, count: int, *, distance: float) -> Mixture:
    """Keep `count` futures whose end points differ (Wayformer, section 3).

    One future after another is kept: the one with the largest probability within `distance` of its
    end point, of what no kept one covers; of those that cover as much, the most probable. In the
    end each future's probability goes to the nearest kept one, so they still sum to 1. The paper
    leaves the details open.

    Args:
        futures: of each row.
        count: how many to keep.
        distance: of end points along the rows' axes.
    """
    if futures.logits.shape[1] <= count:
        return futures
    probabilities = futures.logits.float().softmax(dim=1)
    ends = futures.means[:, :, -1].float()
    apart = (ends.unsqueeze(2) - ends.unsqueeze(1)).norm(dim=-1)  # (R, K, K)
    is_near, left, kept = apart < distance, probabilities, []
    free = torch.ones_like(probabilities, dtype=torch.bool)
    row = torch.arange(ends.shape[0], device=ends.device)
    for _ in range(count):
        covered = torch.where(is_near, left.unsqueeze(1), 0).sum(dim=2).masked_fill(~free, -1)
        covers_most = covered >= covered.amax(dim=1, keepdim=True) - SAME_PROBABILITY
        best = torch.where(covers_most, probabilities, -1).argmax(dim=1)
        free = free.index_put((row, best), torch.zeros_like(free[:, 0]))
        left = torch.where(is_near[row, best], 0, left)
        kept.append(best)
    index = torch.stack(kept, dim=1)  # (R, count)
    owner = apart.gather(1, index.unsqueeze(-1).expand(-1, -1, ends.shape[1])).argmin(dim=1)
    masses = torch.zeros_like(index, dtype=probabilities.dtype)
    masses = masses.scatter_add(1, owner, probabilities)
    return futures.selected(index, masses.clamp(min=1e-9).log())
