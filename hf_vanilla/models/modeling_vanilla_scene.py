# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Wayformer (2207.05844): futures of agents from the agents and lanes around them.

Shapes: B scenes, A agents, T observed steps, P predicted steps, K futures, R rows (agents to
forecast), D `d_model`.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, smooth_l1_loss, softplus
from transformers.utils import ModelOutput
from transformers.utils.output_capturing import capture_outputs

from .configuration_vanilla_scene import OPTIONAL_INPUTS, VanillaSceneConfig
from .inputs_vanilla_forecaster import TrueFuture, distances, known_part, per_known_step
from .kernels_vanilla import at_least_float32
from .layers_vanilla import CROSS_ATTENTIONS, decoder_layers
from .pretrained_vanilla import VanillaPreTrainedModel
from .rows_vanilla_scene import Rows, read_rows
from .stacks_vanilla_scene import Fusion, SceneTokens, read_by_seeds

SMALLEST_SPREAD = 0.1  # of velocity_std: a smaller one would let single steps rule the loss


@dataclass(frozen=True)
class Mixture:
    """Futures along the axes of each row.

    Attributes:
        means: `(R, K, P, 2)` positions.
        spreads: `(R, K, P, 2)` standard deviations along and across the heading; None: there are
            none, and the loss is Huber's.
        logits: `(R, K)`.
    """

    means: Tensor
    spreads: Tensor | None
    logits: Tensor

    def selected(self, index: Tensor, logits: Tensor) -> "Mixture":
        """Futures `(R, M)` of each row, with other logits."""
        wide = index[..., None, None].expand(-1, -1, *self.means.shape[2:])
        spreads = None if self.spreads is None else self.spreads.gather(1, wide)
        return Mixture(self.means.gather(1, wide), spreads, logits)


class MixtureHead(nn.Module):
    """One Linear for all futures, which differ by their seeds."""

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        # two means and two spreads per step, and a logit
        self.projection = nn.Linear(config.d_model, 4 * config.predicted_steps + 1)

    def forward(self, states: Tensor, velocity: Tensor) -> Mixture:
        """The futures of states `(R, K, D)`.

        A mean starts at the last velocity `(R, 2)`; the numbers say what changes about it.
        """
        numbers = at_least_float32(self.projection(self.layer_norm(states)))  # (R, K, 4 P + 1)
        changes, raw, logits = numbers.split((*(numbers.shape[-1] // 2,) * 2, 1), dim=-1)
        moves = changes.unflatten(-1, (-1, 2)) + velocity[:, None, None]
        spreads = SMALLEST_SPREAD + softplus(raw).unflatten(-1, (-1, 2))
        return Mixture(moves.cumsum(dim=2), spreads, logits.squeeze(-1))


def read_truth(
    config: VanillaSceneConfig,
    rows: Rows,
    future_values: Tensor,
    future_observed_mask: Tensor | None,
) -> TrueFuture:
    """Check the future `(B, A, P, 2)` of a batch and turn it along the rows' axes.

    Raises:
        ValueError: a shape does not fit, or a known position is not finite.
    """
    is_row = rows.spread(rows.is_focal.long())  # (B, A)
    future, known = known_part(config, "future", future_values, future_observed_mask, is_row)
    future, known = future[rows.scene, rows.agent], known[rows.scene, rows.agent]
    entered = rows.axes.enter(future - rows.axes.origin.unsqueeze(1))
    return TrueFuture(torch.where(known.unsqueeze(-1), entered, 0), known)


def closest_future_loss(
    config: VanillaSceneConfig,
    futures: Mixture,
    truth: TrueFuture,
    may_win: Tensor | None = None,
    num_items_in_batch: "Tensor | float | None" = None,
) -> Tensor:
    """Negative log-likelihood of the closest future in nats, or Huber's loss, and its class.

    The closest future has the smallest mean distance. Both parts are sums over known steps, divided
    by their number.

    Args:
        config: read for the weight of the cross-entropy, and for units of the world per unit of
            the futures in Huber's loss.
        futures: of each row.
        truth: of each row.
        may_win: `(R, K)` bool, futures that may count as the closest, one at least; None: all.
        num_items_in_batch: known future steps of the optimizer step; None: of this call.
    """
    per_mode = distances(futures.means, truth.positions.unsqueeze(1)) * truth.is_known.unsqueeze(1)
    error = per_mode.sum(dim=-1).detach()  # (R, K)
    error = error if may_win is None else error.masked_fill(~may_win, torch.inf)
    closest = error.argmin(dim=1)
    won = futures.selected(closest.unsqueeze(1), futures.logits)
    if won.spreads is None:
        parts = huber(won.means, truth, config.velocity_std)
    else:
        missed = (truth.positions.unsqueeze(1) - won.means) / won.spreads
        nats = missed.square() / 2 + won.spreads.log() + math.log(2 * math.pi) / 2
        parts = nats.sum(dim=-1)
    likelihood = (parts.squeeze(1) * truth.is_known).sum()
    steps = truth.is_known.sum(dim=1)
    scores = cross_entropy(at_least_float32(futures.logits), closest, reduction="none") * steps
    total = likelihood + config.score_loss_weight * scores.sum()
    return per_known_step(total, truth.is_known, num_items_in_batch)


def huber(means: Tensor, truth: TrueFuture, unit: float) -> Tensor:
    """Huber's loss `(R, K, P)` of positions `(R, K, P, 2)` in units of the world, x plus y."""
    wanted = truth.positions.unsqueeze(1).expand_as(means)
    return smooth_l1_loss(means * unit, wanted * unit, reduction="none").sum(dim=-1)


def thin(futures: Mixture, count: int, *, distance: float) -> Mixture:
    """Select `count` futures whose end points differ (Wayformer, section 3).

    Non-maximum suppression: one after another, the most probable future is selected whose end point
    is not within `distance` of a selected one's; where there is none, the most probable. Then each
    future's probability goes to the nearest selected one, so they still sum to 1.

    Args:
        futures: of each row.
        count: how many to select.
        distance: of end points along the rows' axes.
    """
    if futures.logits.shape[1] <= count:
        return futures
    probabilities = at_least_float32(futures.logits).softmax(dim=1)
    ends = at_least_float32(futures.means[:, :, -1])
    apart = (ends.unsqueeze(2) - ends.unsqueeze(1)).norm(dim=-1)  # (R, K, K)
    left, selected = probabilities, []
    row = torch.arange(ends.shape[0], device=ends.device)
    for _ in range(count):
        best = left.argmax(dim=1)
        # 1 less than its probability: after all that are not suppressed; 3 less: never again
        is_suppressed = (apart[row, best] < distance) & (left >= 0)
        left = left - is_suppressed.to(left.dtype)
        left = left.scatter_add(1, best.unsqueeze(1), torch.full_like(left[:, :1], -2.0))
        selected.append(best)
    index = torch.stack(selected, dim=1)  # (R, count)
    owner = apart.gather(1, index.unsqueeze(-1).expand(-1, -1, ends.shape[1])).argmin(dim=1)
    masses = torch.zeros_like(index, dtype=probabilities.dtype)
    masses = masses.scatter_add(1, owner, probabilities)
    return futures.selected(index, masses.clamp(min=1e-9).log())


# --- the models --------------------------------------------------------------------------------


@dataclass
class VanillaSceneTrajectoryOutput(ModelOutput):
    """What a forecaster of agents and lanes returns.

    Attributes:
        loss: nats per known future step, and the classification of the closest future; Huber's
            loss in place of nats where there are no `scales`.
        trajectories: `(B, A, K, P, 2)` positions in the world; 0 for agents not forecast.
        mode_logits: `(B, A, K)`; their softmax are probabilities.
        scales: `(B, A, K, P, 2)` standard deviations along and across the heading, in units of the
            world; None of the forms `vectors` and `proposals_paper`.
        cross_attentions: weights `(R, H, K, M)` from each future to each token, per decoder layer,
            with `output_attentions=True`; rows in the order of scenes and their agents.
    """

    loss: Tensor | None = None
    trajectories: Tensor | None = None
    mode_logits: Tensor | None = None
    scales: Tensor | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


class VanillaScenePreTrainedModel(VanillaPreTrainedModel):
    """The base of the forecasters of agents and lanes, which differ in `futures` alone.

    Attributes:
        needs_all: `futures` gets a row for every agent, also for those not to forecast.
        reads_optional_inputs: whether `OPTIONAL_INPUTS` of the config may be set.
    """

    needs_all: ClassVar[bool] = False
    reads_optional_inputs: ClassVar[bool] = False
    config_class = VanillaSceneConfig
    main_input_name = "past_values"
    # masks are ready 4-D ones
    _supports_flash_attn = False
    _supports_flex_attn = False
    _can_record_outputs = CROSS_ATTENTIONS

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        for name in OPTIONAL_INPUTS:
            if getattr(config, name) and not self.reads_optional_inputs:
                raise ValueError(
                    f"{name}={getattr(config, name)}: {type(self).__name__} does not read that: "
                    "leave it out, or take Wayformer (form fusion)"
                )

    def futures(self, rows: Rows) -> Mixture:
        """`num_seeds` futures of each row, along its axes."""
        raise NotImplementedError(f"{type(self).__name__}: use a VanillaFor... class")

    def may_win(self, truth: TrueFuture) -> Tensor | None:
        """Futures `(R, K)` that may count as the closest, one at least; None: all."""
        return None

    def loss(
        self, futures: Mixture, truth: TrueFuture, num_items_in_batch: "Tensor | float | None"
    ) -> Tensor:
        """Loss per known future step; the divisor is that of `closest_future_loss`."""
        may_win = self.may_win(truth)
        return closest_future_loss(self.config, futures, truth, may_win, num_items_in_batch)

    @capture_outputs
    def forward(  # noqa: PLR0913 - the inputs of every model of this family
        self,
        past_values: Tensor,
        past_observed_mask: Tensor | None = None,
        agent_mask: Tensor | None = None,
        future_values: Tensor | None = None,
        future_observed_mask: Tensor | None = None,
        *,
        lane_values: Tensor | None = None,
        lane_mask: Tensor | None = None,
        lane_kinds: Tensor | None = None,
        agent_kinds: Tensor | None = None,
        agent_sizes: Tensor | None = None,
        light_values: Tensor | None = None,
        light_states: Tensor | None = None,
        focal_mask: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
        return_loss: bool = True,
        **kwargs: Any,
    ) -> VanillaSceneTrajectoryOutput:
        """The futures of each agent of each scene, thinned in evaluation mode, and the loss.

        Args:
            past_values: `(B, A, T, 2)` positions in the world.
            past_observed_mask: `(B, A, T)`, 1 = observed; None: all are.
            agent_mask: `(B, A)`, 1 = agent, 0 = padding; None: all are agents.
            future_values: `(B, A, P, 2)` positions to predict; None: there is no loss.
            future_observed_mask: `(B, A, P)`, 1 = known; None: all are.
            lane_values: `(B, L, S, 2)` points of polylines in the world, in the order of driving;
                None: there is no map.
            lane_mask: `(B, L, S)`, 1 = point; None: all are.
            lane_kinds: `(B, L)` numbers below `num_lane_kinds`; None: all 0.
            agent_kinds: `(B, A)` numbers below `num_agent_kinds`, 0 where not known; None: nowhere.
            agent_sizes: `(B, A, 2)` length and width in units of the world, 0 where not known;
                None: nowhere.
            light_values: `(B, Q, 2)` positions of traffic lights in the world; None: there are
                none.
            light_states: `(B, Q, T)` numbers below `num_light_states`, 0 where not known.
            focal_mask: `(B, A)`, 1 = forecast this agent; None: forecast all.
            num_items_in_batch: known future steps of the optimizer step; None: of this call.
            return_loss: compute the loss where there are `future_values`.
            **kwargs: `output_attentions`.

        Raises:
            ValueError: an input does not fit; the message says which and how.
        """
        config, loss = self.config, None
        rows = read_rows(
            config,
            past_values,
            past_observed_mask,
            agent_mask,
            lane_values=lane_values,
            lane_mask=lane_mask,
            lane_kinds=lane_kinds,
            agent_kinds=agent_kinds,
            agent_sizes=agent_sizes,
            light_values=light_values,
            light_states=light_states,
            focal_mask=focal_mask,
            all_agents=self.needs_all,
        )
        futures = self.futures(rows)
        if future_values is not None and return_loss:
            truth = read_truth(config, rows, future_values, future_observed_mask)
            loss = self.loss(futures, truth, num_items_in_batch)
        if not self.training:
            near = config.thinning_distance / config.velocity_std
            futures = thin(futures, config.num_modes, distance=near)
        origin, scales = rows.axes.origin[:, None, None], None
        if futures.spreads is not None:
            scales = rows.spread(futures.spreads * config.velocity_std)
        return VanillaSceneTrajectoryOutput(
            loss=loss,
            trajectories=rows.spread(rows.axes.leave(futures.means) + origin),
            mode_logits=rows.spread(futures.logits),
            scales=scales,
        )


class VanillaForSceneTrajectoryPrediction(VanillaScenePreTrainedModel):
    """K futures of each agent; `config.fusion` and `config.encoder` choose of Wayformer's grid.

    The seeds are the decoder's input. As positions over zeros, as in DETR, they collapse.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
        >>> from hf_vanilla.models.modeling_vanilla_scene import (
        ...     VanillaForSceneTrajectoryPrediction)
        >>> config = VanillaSceneConfig(d_model=16, fusion="late", encoder="latent")
        >>> model = VanillaForSceneTrajectoryPrediction(config).eval()
        >>> lanes = torch.randn(2, 5, 4, 2)
        >>> model(past_values=torch.randn(2, 3, 8, 2), lane_values=lanes).trajectories.shape
        torch.Size([2, 3, 6, 12, 2])
    """

    reads_optional_inputs = True

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        self.tokens = SceneTokens(config)
        self.fusion = Fusion(config)
        self.seeds = seeds(config)
        self.layers = decoder_layers(config, is_causal=False)
        self.head = MixtureHead(config)
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """Futures read by seeds from the fused tokens."""
        states, is_real = self.fusion(self.tokens(rows))
        futures = read_by_seeds(self.layers, self.seeds.weight, states, is_real)
        return self.head(futures, rows.velocity)


def seeds(config: VanillaSceneConfig) -> nn.Embedding:
    """Learned input of the decoder, one vector per future; N(0, 1), so that they differ."""
    embedding = nn.Embedding(config.num_seeds, config.d_model)
    embedding.init_std = 1.0  # type: ignore[assignment]  # read by `_init_weights`
    return embedding
