# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Several futures at once: learned queries become whole tracks, each with a score.

Shapes: B agents, T observed steps, P predicted steps, M modes, D `d_model`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vanilla import VanillaAttention
from .configuration_vanilla_tracks import VanillaTracksConfig
from .frame_vanilla_tracks import AgentFrame
from .kernels_vanilla import at_least_float32
from .layers_vanilla import VanillaDecoderLayer
from .loss_vanilla_tracks import closest_mode_loss
from .modeling_vanilla_tracks import (
    VanillaTracksEncoder,
    VanillaTracksPreTrainedModel,
    VanillaTrajectoryOutput,
    check_future,
    decode,
)


class VanillaForMultimodalTrajectoryPrediction(VanillaTracksPreTrainedModel):
    """M futures per agent in one pass; the closest is regressed, its score is classified.

    A future is the last observed velocity plus what the model changes about it, step by step.
    The queries are the decoder's input. As positions over zeros, as in DETR, the modes collapse.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> from hf_vanilla.models.modeling_vanilla_tracks_modes import (
        ...     VanillaForMultimodalTrajectoryPrediction)
        >>> config = VanillaTracksConfig(d_model=16, num_modes=5)
        >>> model = VanillaForMultimodalTrajectoryPrediction(config).eval()
        >>> out = model(past_values=torch.randn(3, 8, 2))
        >>> out.trajectories.shape, out.mode_logits.shape
        (torch.Size([3, 5, 12, 2]), torch.Size([3, 5]))
    """

    _can_record_outputs = {  # noqa: RUF012 - transformers' form
        "cross_attentions": OutputRecorder(VanillaAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__(config)
        self.encoder = VanillaTracksEncoder(config)
        self.queries = nn.Embedding(config.num_modes, config.d_model)
        self.layers = nn.ModuleList(
            VanillaDecoderLayer(config, index, is_causal=False)
            for index in range(config.decoder_layers)
        )
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.track_head = nn.Linear(config.d_model, 2 * config.predicted_steps)
        self.score_head = nn.Linear(config.d_model, 1)
        self.gradient_checkpointing = False
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Queries N(0, 1), so that modes differ from the start; the rest as in every family."""
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight)
        else:
            super()._init_weights(module)

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
            **kwargs: `num_items_in_batch`, observed future steps of the optimizer step;
                `winner_temperature`, see `closest_mode_loss`; `output_attentions`.

        Raises:
            ValueError: an input does not fit; the message says which and how.
        """
        hidden_states, frame, last = self._modes(past_values, past_observed_mask)
        trajectories, logits = self._futures(hidden_states, frame, last)
        loss = None
        if future_values is not None and return_loss:
            is_observed = check_future(self.config, future_values, future_observed_mask)
            loss = self._loss(trajectories, logits, future_values, is_observed, **kwargs)
        return VanillaTrajectoryOutput(loss=loss, trajectories=trajectories, mode_logits=logits)

    def _modes(
        self, past_values: Tensor, past_observed_mask: Tensor | None
    ) -> tuple[Tensor, AgentFrame, Tensor]:
        """Vectors `(B, M, D)` of the modes, frames, and last velocities `(B, 2)` in these."""
        encoded, attention_mask, frame, last = self.encoder(past_values, past_observed_mask)
        hidden_states = self.queries.weight.expand(encoded.shape[0], -1, -1)  # (B, M, D)
        hidden_states = decode(self, hidden_states, encoded, attention_mask)
        return self.layer_norm(hidden_states), frame, last

    def _futures(
        self, hidden_states: Tensor, frame: AgentFrame, last: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Positions `(B, M, P, 2)` in the world and scores `(B, M)` of the modes' vectors."""
        changes = self.track_head(hidden_states).unflatten(-1, (-1, 2))  # (B, M, P, 2)
        logits = at_least_float32(self.score_head(hidden_states)).squeeze(-1)  # (B, M)
        return frame.positions(changes + last[:, None, None]), logits

    def _loss(
        self,
        trajectories: Tensor,
        logits: Tensor,
        future_values: Tensor,
        is_observed: Tensor,
        **kwargs: Any,
    ) -> Tensor:
        return closest_mode_loss(
            trajectories,
            logits,
            future_values,
            is_observed,
            score_weight=self.config.score_loss_weight,
            final_weight=self.config.final_loss_weight,
            temperature=kwargs.get("winner_temperature"),
            num_items_in_batch=kwargs.get("num_items_in_batch"),
        )
