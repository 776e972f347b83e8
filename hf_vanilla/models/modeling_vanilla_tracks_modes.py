# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Several futures at once: learned queries become whole tracks, each with a score.

One form adds a standard deviation per step: a density of where an agent will be.

Shapes: B agents, T observed steps, P predicted steps, M modes, D `d_model`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils.output_capturing import OutputRecorder

from .attention_vanilla import VanillaAttention
from .configuration_vanilla_tracks import VanillaTracksConfig
from .inputs_vanilla_forecaster import per_known_step
from .kernels_vanilla import at_least_float32
from .layers_vanilla import VanillaDecoderLayer
from .loss_vanilla_tracks import closest_mode_loss, mixture_nats
from .modeling_vanilla_tracks import (
    EncodedPast,
    TrueFuture,
    VanillaTracksEncoder,
    VanillaTracksPreTrainedModel,
    VanillaTrajectoryOutput,
    decode,
)

SMALLEST_SPREAD = 1e-3  # of velocity_std


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

    def futures(
        self, past: EncodedPast, truth: TrueFuture | None, **kwargs: Any
    ) -> VanillaTrajectoryOutput:
        """Futures of the decoded queries; the last observed velocity is added to each step."""
        hidden_states = self.queries.weight.expand(past.velocity.shape[0], -1, -1)  # (B, M, D)
        hidden_states = decode(self, hidden_states, past.hidden_states, past.attention_mask)
        hidden_states = self.layer_norm(hidden_states)
        changes = self.track_head(hidden_states).unflatten(-1, (-1, 2))  # (B, M, P, 2)
        logits = at_least_float32(self.score_head(hidden_states)).squeeze(-1)  # (B, M)
        trajectories = past.axes.positions(changes + past.velocity[:, None, None])
        loss = None
        if truth is not None:
            loss = closest_mode_loss(
                trajectories,
                logits,
                truth.positions,
                truth.is_known,
                score_weight=self.config.score_loss_weight,
                final_weight=self.config.final_loss_weight,
                temperature=kwargs.get("winner_temperature"),
                num_items_in_batch=kwargs.get("num_items_in_batch"),
            )
        return VanillaTrajectoryOutput(
            loss=loss,
            trajectories=trajectories,
            mode_logits=logits,
            spreads=self._spreads(hidden_states),
        )

    def _spreads(self, hidden_states: Tensor) -> Tensor | None:
        """`(B, M, P)` standard deviations from the modes' vectors; this form has none."""
        return None


class VanillaForTrajectoryDensityPrediction(VanillaForMultimodalTrajectoryPrediction):
    """The form with several modes, and the spread of each around its track.

    At each step the density is a mixture of round Gaussians: the modes with their probabilities.
    The spreads learn from the likelihood of the truth; its gradient ends at their Linear, so tracks
    and scores are those of the form without spreads.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> from hf_vanilla.models.modeling_vanilla_tracks_modes import (
        ...     VanillaForTrajectoryDensityPrediction)
        >>> config = VanillaTracksConfig(d_model=16, num_modes=5)
        >>> model = VanillaForTrajectoryDensityPrediction(config).eval()
        >>> model(past_values=torch.randn(3, 8, 2)).spreads.shape
        torch.Size([3, 5, 12])
    """

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__(config)
        self.spread_head = nn.Linear(config.d_model, config.predicted_steps)
        self.post_init()

    def _spreads(self, hidden_states: Tensor) -> Tensor:
        """`(B, M, P)` in units of the world."""
        logs = at_least_float32(self.spread_head(hidden_states.detach()))
        return self.config.velocity_std * (logs.exp() + SMALLEST_SPREAD)

    def futures(
        self, past: EncodedPast, truth: TrueFuture | None, **kwargs: Any
    ) -> VanillaTrajectoryOutput:
        """Futures and spreads; the loss adds the negative log-likelihood in nats per step."""
        output: Any = super().futures(past, truth, **kwargs)
        if truth is not None:
            nats = mixture_nats(
                output.trajectories.detach(),
                output.mode_logits.detach(),
                output.spreads,
                truth.positions,
            )
            total, count = (nats * truth.is_known).sum(), kwargs.get("num_items_in_batch")
            output.loss = output.loss + per_known_step(total, truth.is_known, count)
        return output
