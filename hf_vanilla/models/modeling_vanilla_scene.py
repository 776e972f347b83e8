# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Wayformer (2207.05844): futures of agents from the agents and lanes around them.

Shapes: B scenes, A agents, T observed steps, P predicted steps, K futures, R rows (agents to
forecast), D `d_model`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils import ModelOutput
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vanilla import VanillaAttention
from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_scene import Rows, read_rows
from .loss_vanilla_scene import Mixture, MixtureHead, Truth, closest_future_loss, read_truth, thin
from .pretrained_vanilla import VanillaPreTrainedModel
from .stacks_vanilla_scene import FUSIONS, SceneTokens, decoder_layers, read_by_seeds


@dataclass
class VanillaSceneTrajectoryOutput(ModelOutput):
    """What a forecaster of agents and lanes returns.

    Attributes:
        loss: nats per known future step, and the classification of the closest future.
        trajectories: `(B, A, K, P, 2)` positions in the world; 0 for agents not forecast.
        mode_logits: `(B, A, K)`; their softmax are probabilities.
        scales: `(B, A, K, P, 2)` standard deviations along and across the heading, in units of the
            world.
        cross_attentions: weights `(R, H, K, M)` from each future to each token, per decoder layer,
            with `output_attentions=True`; rows in the order of scenes and their agents.
    """

    loss: Tensor | None = None
    trajectories: Tensor | None = None
    mode_logits: Tensor | None = None
    scales: Tensor | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


class VanillaScenePreTrainedModel(VanillaPreTrainedModel):
    """The base of the forecasters of agents and lanes, which differ in `futures` alone."""

    config_class = VanillaSceneConfig
    main_input_name = "past_values"
    # masks are ready 4-D ones
    _supports_flash_attn = False
    _supports_flex_attn = False
    _can_record_outputs = {  # noqa: RUF012 - transformers' form
        "cross_attentions": OutputRecorder(VanillaAttention, index=1, layer_name="encoder_attn"),
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Seeds and latent queries N(0, 1), so that they differ; the rest as in every family."""
        super()._init_weights(module)
        width = getattr(module, "init_std", None)
        if width is not None:
            init.normal_(module.weight, std=width)

    def futures(self, rows: Rows) -> Mixture:
        """`num_seeds` futures of each row, along its axes."""
        raise NotImplementedError  # each class of the family has its own

    def may_win(self, truth: Truth) -> Tensor | None:
        """Futures `(R, K)` that may count as the closest, one at least; None: all."""
        return None

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
            focal_mask=focal_mask,
        )
        futures = self.futures(rows)
        if future_values is not None and return_loss:
            truth = read_truth(config, rows, future_values, future_observed_mask)
            loss = closest_future_loss(
                futures,
                truth,
                score_weight=config.score_loss_weight,
                may_win=self.may_win(truth),
                num_items_in_batch=num_items_in_batch,
            )
        if not self.training:
            near = config.thinning_distance / config.velocity_std
            futures = thin(futures, config.num_modes, distance=near)
        origin = rows.axes.origin[:, None, None]
        return VanillaSceneTrajectoryOutput(
            loss=loss,
            trajectories=rows.spread(rows.axes.leave(futures.means) + origin),
            mode_logits=rows.spread(futures.logits),
            scales=rows.spread(futures.spreads * config.velocity_std),
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

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        self.tokens = SceneTokens(config)
        self.fusion = FUSIONS[config.fusion](config)
        self.seeds = seeds(config)
        self.layers = decoder_layers(config)
        self.head = MixtureHead(config)
        self.gradient_checkpointing = False
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """Futures read by seeds from the fused tokens."""
        states, is_real = self.fusion(self.tokens(rows))
        start = self.seeds.weight.expand(states.shape[0], -1, -1)
        return self.head(read_by_seeds(self.layers, start, states, is_real), rows.velocity)


def seeds(config: VanillaSceneConfig) -> nn.Embedding:
    """Learned input of the decoder, one vector per future."""
    embedding = nn.Embedding(config.num_seeds, config.d_model)
    embedding.init_std = 1.0  # type: ignore[assignment]  # read by `_init_weights`
    return embedding
