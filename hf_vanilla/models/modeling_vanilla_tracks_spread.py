# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Several futures, each with a standard deviation per step: a density of where an agent will be.

Shapes: B agents, P predicted steps, M modes, D `d_model`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.output_capturing import capture_outputs

from .configuration_vanilla_tracks import VanillaTracksConfig
from .kernels_vanilla import at_least_float32
from .loss_vanilla_tracks import mixture_nats
from .modeling_vanilla_tracks import VanillaTrajectoryOutput, check_future
from .modeling_vanilla_tracks_modes import VanillaForMultimodalTrajectoryPrediction

SMALLEST_SPREAD = 1e-3  # of velocity_std


class VanillaForTrajectoryDensityPrediction(VanillaForMultimodalTrajectoryPrediction):
    """The form with several modes, and the spread of each around its track.

    At each step the density is a mixture of round Gaussians: the modes with their probabilities.
    The spreads learn from the likelihood of the truth; its gradient ends at their Linear, so tracks
    and scores are those of the form without spreads.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> from hf_vanilla.models.modeling_vanilla_tracks_spread import (
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
        """Futures, scores and spreads; arguments and errors as of the form without spreads.

        The loss is that form's plus the negative log-likelihood in nats per observed future step.
        """
        hidden_states, frame, last = self._modes(past_values, past_observed_mask)
        trajectories, logits = self._futures(hidden_states, frame, last)
        logs = at_least_float32(self.spread_head(hidden_states.detach()))  # (B, M, P)
        spreads = self.config.velocity_std * (logs.exp() + SMALLEST_SPREAD)
        loss = None
        if future_values is not None and return_loss:
            is_observed = check_future(self.config, future_values, future_observed_mask)
            loss = self._loss(trajectories, logits, future_values, is_observed, **kwargs)
            wanted = torch.where(is_observed.unsqueeze(-1), future_values, 0)
            nats = mixture_nats(trajectories.detach(), logits.detach(), spreads, wanted)
            count = kwargs.get("num_items_in_batch")
            count = torch.as_tensor(is_observed.sum() if count is None else count)
            loss = loss + (nats * is_observed).sum() / count.to(nats.device).clamp(min=1)
        return VanillaTrajectoryOutput(
            loss=loss, trajectories=trajectories, mode_logits=logits, spreads=spreads
        )
