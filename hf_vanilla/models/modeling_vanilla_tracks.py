# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""TF (2003.08111): the 2017 Transformer over velocities, one future step after the other.

Shapes: B agents, T observed steps, P predicted steps, L any length, D `d_model`, M modes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.utils import ModelOutput
from transformers.utils.output_capturing import capture_outputs

from .attention_vanilla import padding_mask
from .configuration_vanilla_tracks import VanillaTracksConfig
from .inputs_vanilla_forecaster import (
    AgentAxes,
    TrueFuture,
    agent_axes,
    distances,
    known_part,
    last_known,
    per_known_step,
    rollout_steps,
)
from .kernels_vanilla import VanillaDropout, at_least_float32, may_read
from .layers_vanilla import decoder_layers, encoder_layers
from .positions_vanilla import with_sinusoids
from .pretrained_vanilla import VanillaPreTrainedModel

LOWEST_TEMPERATURE = 1e-3


@dataclass
class VanillaTrajectoryOutput(ModelOutput):
    """What a forecaster returns.

    Attributes:
        loss: per observed future step; with one future or several in units of the world, with
            `follows_paper` in standard deviations, with codes in nats.
        trajectories: `(B, M, P, 2)` positions in the world; one mode for TF.
        mode_logits: `(B, M)` scores of the modes before the softmax.
        spreads: `(B, M, P)` standard deviation of each mode's positions in each direction, in units
            of the world; only of the form with densities.
        cross_attentions: weights `(B, H, M, T - 1)` of each decoder layer, with
            `output_attentions=True` and eager attention; only of the form with several modes.
    """

    loss: Tensor | None = None
    trajectories: Tensor | None = None
    mode_logits: Tensor | None = None
    spreads: Tensor | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


@dataclass(frozen=True)
class EncodedPast:
    """What the encoder returns of each agent.

    Attributes:
        hidden_states: `(B, T - 1, D)`.
        attention_mask: `(B, T - 1)` int64, 1 = real position.
        axes: from the world's coordinates to the agent's own and back.
        velocity: `(B, 2)` last known one, along the axes.
    """

    hidden_states: Tensor
    attention_mask: Tensor
    axes: AgentAxes
    velocity: Tensor


class VanillaTracksPreTrainedModel(VanillaPreTrainedModel):
    """The base of the forecasters of single agents, which differ in `futures` and `tokens`."""

    config_class = VanillaTracksConfig
    main_input_name = "past_values"
    is_rollout: ClassVar[bool] = False  # whether `predicted_steps` may be larger than in training

    def futures(
        self, past: EncodedPast, truth: TrueFuture | None, **kwargs: Any
    ) -> VanillaTrajectoryOutput:
        """Futures of each agent; with the truth the loss."""
        raise NotImplementedError(f"{type(self).__name__}: use a VanillaFor... class")

    def tokens(self, velocities: Tensor) -> Tensor:
        """What the encoder embeds of velocities `(B, T - 1, 2)` along the axes: these."""
        return velocities

    @capture_outputs
    def forward(
        self,
        past_values: Tensor,
        past_observed_mask: Tensor | None = None,
        future_values: Tensor | None = None,
        future_observed_mask: Tensor | None = None,
        *,
        return_loss: bool = True,
        **kwargs: Any,
    ) -> VanillaTrajectoryOutput:
        """The futures of each agent and their scores; with `future_values` the loss.

        Args:
            past_values: `(B, T, 2)` positions in the world.
            past_observed_mask: `(B, T)`, 1 = observed; None: all are.
            future_values: `(B, P, 2)` positions to predict.
            future_observed_mask: `(B, P)`, 1 = observed; None: all are.
            return_loss: compute the loss where there are `future_values`.
            **kwargs: `num_items_in_batch`, observed future steps of the optimizer step. Of the
                forms with a rollout `predicted_steps`, another number of steps, without
                `future_values`; of those with several modes `winner_temperature`, see
                `closest_mode_loss`, and `output_attentions`.

        Raises:
            ValueError: an input does not fit; the message says which and how.
        """
        steps, trained = kwargs.get("predicted_steps"), self.config.predicted_steps
        if not self.is_rollout and steps not in (None, trained):
            raise ValueError(
                f"predicted_steps={steps}: {type(self).__name__} computes its {trained} steps at "
                "once: leave it out"
            )
        past = self.encoder(past_values, past_observed_mask, self.tokens)
        truth = None
        if future_values is not None and return_loss:
            truth = TrueFuture(
                *known_part(self.config, "future", future_values, future_observed_mask)
            )
        if future_values is not None:
            kwargs.pop("predicted_steps", None)
        return self.futures(past, truth, **kwargs)


class VelocityEmbedding(nn.Module):
    """Steps as tokens: `Dropout(sqrt(d) Linear(velocity) + sinusoid)` (3.4, 3.5).

    Args:
        config: read for `d_model` and `dropout`.
        projection: in place of a Linear over two numbers, such as a table of codes.
    """

    def __init__(
        self, config: VanillaTracksConfig, projection: "nn.Linear | nn.Embedding | None" = None
    ) -> None:
        super().__init__()
        self.projection = nn.Linear(2, config.d_model) if projection is None else projection
        self.dropout = VanillaDropout(config.dropout)

    def forward(self, steps: Tensor, first: int = 0) -> Tensor:
        """Vectors `(B, L, D)` of `(B, L, 2)` or codes `(B, L)`; positions count from `first`."""
        if steps.is_floating_point():
            steps = steps.to(self.projection.weight.dtype)
        return self.dropout(with_sinusoids(self.projection(steps), first))


class VanillaTracksEncoder(VanillaTracksPreTrainedModel):
    """An agent's observed velocities as one vector per step.

    Args:
        config: of the model.
        projection: see `VelocityEmbedding`.
    """

    def __init__(
        self, config: VanillaTracksConfig, projection: "nn.Linear | nn.Embedding | None" = None
    ) -> None:
        super().__init__(config)
        self.embedding = VelocityEmbedding(config, projection)
        self.layers = encoder_layers(config)
        self.post_init()

    def observed(
        self, past_values: Tensor, past_observed_mask: Tensor | None = None
    ) -> tuple[AgentAxes, Tensor, Tensor]:
        """Axes of the agents, velocities `(B, T - 1, 2)` along them, and which are known.

        Raises:
            ValueError: a shape does not fit, a value is not finite, or a last step is not observed.
        """
        config = self.config
        past, is_observed = read_past(config, past_values, past_observed_mask)
        return agent_axes(
            at_least_float32(past),
            is_observed,
            follows_heading=config.follows_heading and not config.follows_paper,
            heading_decay=config.heading_decay,
            scale=1.0 if config.follows_paper else config.velocity_std,
        )

    def forward(
        self,
        past_values: Tensor,
        past_observed_mask: Tensor | None = None,
        tokens: Callable[[Tensor], Tensor] | None = None,
    ) -> EncodedPast:
        """Encode what was observed.

        Args:
            past_values: `(B, T, 2)` positions in the world.
            past_observed_mask: `(B, T)`, 1 = observed; None: all are.
            tokens: from velocities `(B, T - 1, 2)` along the axes to what is embedded; None: these.

        Raises:
            ValueError: a shape does not fit, a value is not finite, or a last step is not observed.
        """
        axes, inputs, is_known = self.observed(past_values, past_observed_mask)
        hidden_states = self.embedding(inputs if tokens is None else tokens(inputs))
        attention_mask = is_known.long()
        mask = padding_mask(self.config, hidden_states, attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask)
        return EncodedPast(hidden_states, attention_mask, axes, last_known(inputs, is_known))


def decode(
    decoder: VanillaTracksPreTrainedModel,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    attention_mask: Tensor | None,
    cache: Cache | None = None,
) -> Tensor:
    """Outputs `(B, L, D)` of a decoder's `layers`.

    Args:
        decoder: the module with `layers` and `config`.
        hidden_states: `(B, L, D)`.
        encoder_hidden_states: `(B, T - 1, D)` of the encoder.
        attention_mask: `(B, T - 1)`, 1 = real position; None: all are.
        cache: keys and values of earlier steps, which are then left out of `hidden_states`.
    """
    source_mask = padding_mask(decoder.config, hidden_states, attention_mask, encoder_hidden_states)
    for layer in decoder.layers:
        hidden_states = layer(hidden_states, None, encoder_hidden_states, source_mask, cache=cache)
    return hidden_states


class VanillaForTrajectoryPrediction(VanillaTracksPreTrainedModel):
    """One future per agent, autoregressively, each step from the observed and the predicted ones.

    The decoder predicts by how much each velocity differs from the last observed one. Training runs
    the same rollout as inference, with gradients through all its steps.

    With `follows_paper` the decoder predicts each velocity, standardised, and a third number, from
    the start token (0, 0, 1) on; of true velocities, the third number is 0. The loss is the
    distance of the next velocity and the third number's absolute value.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> from hf_vanilla.models.modeling_vanilla_tracks import VanillaForTrajectoryPrediction
        >>> model = VanillaForTrajectoryPrediction(VanillaTracksConfig(d_model=16)).eval()
        >>> model(past_values=torch.randn(3, 8, 2)).trajectories.shape
        torch.Size([3, 1, 12, 2])
    """

    has_one_future: ClassVar[bool] = True
    is_rollout = True
    supports_gradient_checkpointing = False  # it drops the cache, which the rollout needs

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__(config)
        self.encoder = VanillaTracksEncoder(config)
        numbers = 3 if config.follows_paper else 2
        self.embedding = VelocityEmbedding(config, nn.Linear(numbers, config.d_model))
        self.layers = decoder_layers(config)
        self.head = nn.Linear(config.d_model, numbers)
        self.post_init()

    def tokens(self, velocities: Tensor) -> Tensor:
        """Velocities `(..., 2)`, with `follows_paper` standardised by each axis."""
        return self._by_axis(velocities, lambda value, mean, std: (value - mean) / std)

    def _velocities(self, steps: Tensor) -> Tensor:
        """The inverse of `tokens`, without the third number."""
        return self._by_axis(steps, lambda value, mean, std: value * std + mean)

    def _by_axis(self, steps: Tensor, change: Callable[..., Tensor]) -> Tensor:
        if not self.config.follows_paper:
            return steps
        scales = zip(self.config.velocity_mean, self.config.velocity_deviation, strict=True)
        return torch.stack([change(steps[..., i], *scale) for i, scale in enumerate(scales)], -1)

    def futures(
        self, past: EncodedPast, truth: TrueFuture | None, **kwargs: Any
    ) -> VanillaTrajectoryOutput:
        """The future of each agent.

        It is the model's own rollout; in training mode without a weight of the rollout's loss, that
        of teacher forcing.
        """
        config, loss = self.config, None
        steps: Any = None
        if truth is None or not self.training:
            steps = self.rollout(past, kwargs.get("predicted_steps"))
        if truth is not None and config.follows_paper:
            true, is_known = truth.velocities(past.axes)
            wanted = self.tokens(true)
            inputs = torch.cat((self._start(past).unsqueeze(1), pad(wanted[:, :-1], (0, 1))), dim=1)
            forced = self._next_steps(past, inputs)
            error = distances(forced[..., :2], wanted) + forced[..., 2].abs()
            count = kwargs.get("num_items_in_batch")
            loss = per_known_step((error * is_known).sum(), truth.is_known, count)
            steps = self._velocities(forced) if steps is None else steps
        elif truth is not None:
            divisor = {"num_items_in_batch": kwargs.get("num_items_in_batch")}
            loss = torch.zeros((), device=truth.positions.device)
            if config.forcing_loss_weight:
                true, is_known = truth.velocities(past.axes)
                inputs = torch.cat((past.velocity.unsqueeze(1), true[:, :-1]), dim=1)
                forced = self._next_steps(past, inputs)
                predicted, wanted = past.axes.leave(forced), truth.steps(past.axes)
                distance = mean_distance(predicted, wanted, is_known, **divisor)
                loss = loss + config.forcing_loss_weight * distance
                steps = forced if steps is None else steps
            if config.rollout_loss_weight:
                steps = self.rollout(past) if self.training else steps
                predicted = past.axes.positions(steps)
                distance = mean_distance(predicted, truth.positions, truth.is_known, **divisor)
                loss = loss + config.rollout_loss_weight * distance
        if config.constant_velocity_share and not self.training:
            steps = torch.lerp(
                steps, past.velocity.unsqueeze(1).to(steps), config.constant_velocity_share
            )
        return VanillaTrajectoryOutput(
            loss=loss,
            trajectories=past.axes.positions(steps).unsqueeze(1),
            mode_logits=steps.new_zeros(steps.shape[0], 1),
        )

    def rollout(self, past: EncodedPast, predicted_steps: int | None = None) -> Tensor:
        """The model's own future, `(B, P, 2)` velocities along the axes, by a growing cache.

        Args:
            past: of the encoder.
            predicted_steps: P; None: as in training.
        """
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        steps = [self._start(past)]
        for number in range(rollout_steps(self.config, predicted_steps)):
            steps.append(self._next_steps(past, steps[-1].unsqueeze(1), number, cache)[:, 0])
        return self._velocities(torch.stack(steps[1:], dim=1))

    def _start(self, past: EncodedPast) -> Tensor:
        """First input of the decoder: the last velocity; with `follows_paper` the start token."""
        if not self.config.follows_paper:
            return past.velocity
        return pad(torch.zeros_like(past.velocity), (0, 1), value=1.0)

    def _next_steps(
        self, past: EncodedPast, inputs: Tensor, first: int = 0, cache: Cache | None = None
    ) -> Tensor:
        """The step after each of `inputs` `(B, L, 2)`, or `(B, L, 3)` with `follows_paper`."""
        inputs = self.embedding(inputs, first)
        decoded = decode(self, inputs, past.hidden_states, past.attention_mask, cache)
        changes = at_least_float32(self.head(decoded))
        return changes if self.config.follows_paper else past.velocity.unsqueeze(1) + changes


def read_past(
    config: VanillaTracksConfig, past_values: Tensor, past_observed_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Observed positions `(B, T, 2)`, 0 where not observed, and which are, `(B, T)` bool.

    Raises:
        ValueError: a shape does not fit, a value is not finite, or a last step is not observed.
    """
    past, is_observed = known_part(config, "past", past_values, past_observed_mask)
    if may_read(is_observed) and not is_observed[:, -1].all():
        agent = int(is_observed[:, -1].logical_not().nonzero()[0])
        raise ValueError(
            f"the last observed step of agent {agent} is missing, and predictions start there: "
            "leave such agents out"
        )
    return past, is_observed


# --- losses, in units of the world or in nats ----------------------------------------------------


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


def closest_mode_loss(
    config: VanillaTracksConfig,
    trajectories: Tensor,
    mode_logits: Tensor,
    truth: TrueFuture,
    *,
    temperature: "Tensor | float | None" = None,
    num_items_in_batch: "Tensor | float | None" = None,
) -> Tensor:
    """Distance of the closest mode, and the cross-entropy of its score.

    Both are sums over observed future steps, divided by their number: an agent counts by the steps
    of its future that are known, and one without any counts nothing.

    Args:
        config: read for the weights of the cross-entropy and of the distance at the last step; the
            latter counts also where the closest mode is determined.
        trajectories: `(B, M, P, 2)`.
        mode_logits: `(B, M)`.
        truth: `(B, P)` steps.
        temperature: in units of the world. All modes are regressed, each with the softmax of minus
            its distance per step over the temperature as weight; from a high temperature that
            falls, no mode stays unused. None: only the closest mode is regressed.
        num_items_in_batch: observed future steps of the optimizer step; None: of this call.
    """
    is_observed, final_weight = truth.is_known, config.final_loss_weight
    per_step = distances(trajectories, truth.positions.unsqueeze(1))  # (B, M, P)
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
    scores = cross_entropy(at_least_float32(mode_logits), closest, reduction="none") * steps
    total = regressed + config.score_loss_weight * scores.sum()
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
