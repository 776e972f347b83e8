# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""TF (2003.08111): the 2017 Transformer over velocities, one future step after the other.

Shapes: B agents, T observed steps, P predicted steps, L any length, D `d_model`.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask
from transformers.utils import ModelOutput, can_return_tuple

from .configuration_vanilla_tracks import VanillaTracksConfig
from .frame_vanilla_tracks import AgentFrame, agent_frame, last_velocity, observed_velocities
from .inputs_vanilla_tracks import check_finite, known_steps
from .kernels_vanilla import VanillaDropout, at_least_float32
from .layers_vanilla import VanillaDecoderLayer, VanillaEncoderLayer
from .loss_vanilla_tracks import mean_distance
from .positions_vanilla import sinusoid
from .pretrained_vanilla import VanillaPreTrainedModel
from .rollout_vanilla_tracks import rollout_steps


@dataclass
class VanillaTrajectoryOutput(ModelOutput):
    """What a forecaster returns.

    Attributes:
        loss: in units of the world per observed future step.
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


class VanillaTracksPreTrainedModel(VanillaPreTrainedModel):
    """The base of the forecasters."""

    config_class = VanillaTracksConfig
    main_input_name = "past_values"


class VelocityEmbedding(nn.Module):
    """Steps as tokens: `Dropout(sqrt(d) Linear(velocity) + sinusoid)` (3.4, 3.5).

    Args:
        config: read for `d_model` and `dropout`.
    """

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__()
        self.projection = nn.Linear(2, config.d_model)
        self.scale = math.sqrt(config.d_model)
        self.dropout = VanillaDropout(config.dropout)

    def forward(self, velocities: Tensor, first: int = 0) -> Tensor:
        """Vectors `(B, L, D)` of velocities `(B, L, 2)`, whose positions count from `first`."""
        vectors = self.projection(velocities.to(self.projection.weight.dtype)) * self.scale
        steps = torch.arange(first, first + velocities.shape[1], device=vectors.device)
        return self.dropout(vectors + sinusoid(steps, vectors.shape[-1]).to(vectors.dtype))


class VanillaTracksEncoder(VanillaTracksPreTrainedModel):
    """An agent's observed velocities as one vector per step."""

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__(config)
        self.embedding = VelocityEmbedding(config)
        layers = [VanillaEncoderLayer(config) for _ in range(config.encoder_layers)]
        self.layers = nn.ModuleList(layers)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self, past_values: Tensor, past_observed_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, AgentFrame, Tensor]:
        """Encode what was observed.

        Args:
            past_values: `(B, T, 2)` positions in the world.
            past_observed_mask: `(B, T)`, 1 = observed; None: all are.

        Returns:
            `(B, T - 1, D)`; the mask `(B, T - 1)` of its real positions, int64; the frame; the last
            known velocity in the frame, `(B, 2)`.

        Raises:
            ValueError: a shape does not fit, a value is not finite, or a last step is not observed.
        """
        is_observed = check_past(self.config, past_values, past_observed_mask)
        past_values = torch.where(is_observed.unsqueeze(-1), at_least_float32(past_values), 0)
        velocities, is_known = observed_velocities(past_values, is_observed)
        frame = agent_frame(
            past_values,
            velocities,
            is_known,
            follows_heading=self.config.follows_heading,
            heading_decay=self.config.heading_decay,
            scale=self.config.velocity_std,
        )
        inputs = frame.enter(velocities)
        hidden_states = self.embedding(inputs)
        attention_mask = is_known.long()
        mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=hidden_states, attention_mask=attention_mask
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask)
        return hidden_states, attention_mask, frame, last_velocity(inputs, is_known)


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
    source_mask = create_bidirectional_mask(
        config=decoder.config,
        inputs_embeds=hidden_states,
        attention_mask=attention_mask,
        encoder_hidden_states=encoder_hidden_states,
    )
    for layer in decoder.layers:
        hidden_states = layer(
            hidden_states, None, encoder_hidden_states, source_mask, past_key_values=cache
        )
    return hidden_states


class VanillaForTrajectoryPrediction(VanillaTracksPreTrainedModel):
    """One future per agent, autoregressively, each step from the observed and the predicted ones.

    The decoder predicts by how much each velocity differs from the last observed one. Training runs
    the same rollout as inference, with gradients through all its steps.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> from hf_vanilla.models.modeling_vanilla_tracks import VanillaForTrajectoryPrediction
        >>> model = VanillaForTrajectoryPrediction(VanillaTracksConfig(d_model=16)).eval()
        >>> model(past_values=torch.randn(3, 8, 2)).trajectories.shape
        torch.Size([3, 1, 12, 2])
    """

    is_rollout: ClassVar[bool] = True  # `predicted_steps` may be larger than in training
    supports_gradient_checkpointing = False  # it drops the cache, which the rollout needs

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__(config)
        self.encoder = VanillaTracksEncoder(config)
        self.embedding = VelocityEmbedding(config)
        self.layers = nn.ModuleList(
            VanillaDecoderLayer(config, index) for index in range(config.decoder_layers)
        )
        self.head = nn.Linear(config.d_model, 2)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
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
        """The future of each agent; with `future_values` the loss.

        The trajectories are the model's own rollout; in training mode without a weight of the
        rollout's loss, those of teacher forcing.

        Args:
            past_values: `(B, T, 2)` positions in the world.
            past_observed_mask: `(B, T)`, 1 = observed; None: all are.
            future_values: `(B, P, 2)` positions to predict.
            future_observed_mask: `(B, P)`, 1 = observed; None: all are.
            return_loss: compute the loss where there are `future_values`.
            **kwargs: `num_items_in_batch`, observed future steps of the optimizer step;
                `predicted_steps`, another number of steps, without `future_values`.

        Raises:
            ValueError: an input does not fit; the message says which and how.
        """
        hidden, mask, frame, last = self.encoder(past_values, past_observed_mask)
        if future_values is None or not return_loss:
            future = self.rollout(hidden, mask, last, kwargs.get("predicted_steps"))
            return VanillaTrajectoryOutput(
                trajectories=frame.positions(future).unsqueeze(1),
                mode_logits=future.new_zeros(future.shape[0], 1),
            )
        steps: Any = None if self.training else self.rollout(hidden, mask, last)
        is_observed = check_future(self.config, future_values, future_observed_mask)
        wanted = torch.where(is_observed.unsqueeze(-1), future_values, 0)
        divisor = {"num_items_in_batch": kwargs.pop("num_items_in_batch", None)}
        loss = torch.zeros((), device=wanted.device)
        if self.config.forcing_loss_weight:
            forced, is_known = self._teacher_forcing(hidden, mask, last, frame, wanted, is_observed)
            distance = mean_distance(
                frame.leave(forced), _steps(wanted, frame), is_known, **divisor
            )
            loss = loss + self.config.forcing_loss_weight * distance
            steps = forced if steps is None else steps
        if self.config.rollout_loss_weight:
            steps = self.rollout(hidden, mask, last) if self.training else steps
            distance = mean_distance(frame.positions(steps), wanted, is_observed, **divisor)
            loss = loss + self.config.rollout_loss_weight * distance
        return VanillaTrajectoryOutput(
            loss=loss,
            trajectories=frame.positions(steps).unsqueeze(1),
            mode_logits=steps.new_zeros(steps.shape[0], 1),
        )

    def rollout(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        last: Tensor,
        predicted_steps: int | None = None,
    ) -> Tensor:
        """The model's own future, `(B, P, 2)` velocities in the frame, by a growing cache.

        Args:
            hidden_states: `(B, T - 1, D)` of the encoder.
            attention_mask: `(B, T - 1)`, 1 = real position.
            last: `(B, 2)` last observed velocity in the frame.
            predicted_steps: P; None: as in training.
        """
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        steps = [last]
        for number in range(rollout_steps(self.config, predicted_steps)):
            inputs = self.embedding(steps[-1].unsqueeze(1), number)
            decoded = decode(self, inputs, hidden_states, attention_mask, cache)
            steps.append(last + self.head(decoded[:, 0]))
        return torch.stack(steps[1:], dim=1)

    def _next_steps(self, inputs: Tensor, last: Tensor, hidden: Tensor, mask: Tensor) -> Tensor:
        """The velocity after each of `inputs` `(B, P, 2)`, all in the frame."""
        decoded = decode(self, self.embedding(inputs), hidden, mask)
        return last.unsqueeze(1) + self.head(decoded)

    def _teacher_forcing(
        self,
        hidden: Tensor,
        mask: Tensor,
        last: Tensor,
        frame: AgentFrame,
        wanted: Tensor,
        is_observed: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Predicted velocities `(B, P, 2)` after the true ones, and which true steps are known."""
        true, is_known = true_velocities(frame, wanted, is_observed)
        inputs = torch.cat((last.unsqueeze(1), true[:, :-1]), dim=1)
        return self._next_steps(inputs, last, hidden, mask), is_known


def check_past(
    config: VanillaTracksConfig, past_values: Tensor, past_observed_mask: Tensor | None
) -> Tensor:
    """Which observed steps are real, `(B, T)` bool.

    Raises:
        ValueError: a shape does not fit, a value is not finite, or a last step is not observed.
    """
    steps = config.observed_steps
    is_observed = known_steps("past", past_values, past_observed_mask, steps, axes=("B",))
    check_finite("past", past_values, is_observed)
    if not torch.compiler.is_compiling() and not is_observed[:, -1].all():
        agent = int(is_observed[:, -1].logical_not().nonzero()[0])
        raise ValueError(
            f"the last observed step of agent {agent} is missing, and predictions start there: "
            "leave such agents out"
        )
    return is_observed


def check_future(
    config: VanillaTracksConfig, future_values: Tensor, future_observed_mask: Tensor | None
) -> Tensor:
    """Which future steps are known, `(B, P)` bool.

    Raises:
        ValueError: a shape does not fit, or a value is not finite.
    """
    steps = config.predicted_steps
    is_known = known_steps("future", future_values, future_observed_mask, steps, axes=("B",))
    check_finite("future", future_values, is_known)
    return is_known


def true_velocities(
    frame: AgentFrame, future_values: Tensor, is_observed: Tensor
) -> tuple[Tensor, Tensor]:
    """True velocities `(B, P, 2)` in the frame, 0 where unknown, and which are known, `(B, P)`.

    Args:
        frame: of each agent.
        future_values: `(B, P, 2)` positions; anything where they are not observed.
        is_observed: `(B, P)` bool.
    """
    future = torch.where(is_observed.unsqueeze(-1), future_values, 0)
    before = torch.cat((torch.ones_like(is_observed[:, :1]), is_observed[:, :-1]), dim=1)
    is_known = is_observed & before
    return torch.where(is_known.unsqueeze(-1), frame.enter(_steps(future, frame)), 0), is_known


def _steps(positions: Tensor, frame: AgentFrame) -> Tensor:
    """Displacements `(B, P, 2)` in the world between future positions, first from the origin."""
    return torch.diff(positions, dim=1, prepend=frame.origin.unsqueeze(1))
