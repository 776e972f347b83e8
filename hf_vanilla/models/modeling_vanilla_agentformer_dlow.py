# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The second stage of AgentFormer: K maps to latents, so that K samples differ (3.3).

Shapes: B scenes, A agents, K samples, P predicted steps, Z `latent_dim`.
"""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.output_capturing import capture_outputs

from .configuration_vanilla_agentformer import VanillaAgentFormerConfig
from .inputs_vanilla_agentformer import read_observed
from .kernels_vanilla import at_least_float32
from .loss_vanilla_agentformer import read_future
from .modeling_vanilla_agentformer import (
    VanillaAgentFormerPreTrainedModel,
    VanillaForJointTrajectoryPrediction,
    VanillaJointTrajectoryOutput,
    decode_samples,
    scene_output,
)
from .stacks_vanilla_agentformer import Gaussian, small_linear

SMALLEST_VARIANCE = 1e-8  # as in the authors' code


class VanillaForDiverseTrajectoryPrediction(VanillaAgentFormerPreTrainedModel):
    """Second stage: K futures of a scene without chance, from K learned maps over the first stage.

    An agent's context gives the latent of each of its K samples. The first stage is frozen and
    stays in evaluation mode. Loss: the closest sample, the divergence of the K normal distributions
    from the prior, and the similarity of the samples.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_agentformer import (
        ...     VanillaAgentFormerConfig)
        >>> from hf_vanilla.models.modeling_vanilla_agentformer_dlow import (
        ...     VanillaForDiverseTrajectoryPrediction)
        >>> config = VanillaAgentFormerConfig(d_model=16, num_modes=5)
        >>> model = VanillaForDiverseTrajectoryPrediction(config).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 5, 12, 2])
    """

    def __init__(self, config: VanillaAgentFormerConfig) -> None:
        super().__init__(config)
        self.first_stage = VanillaForJointTrajectoryPrediction(config)
        widths = [config.d_model, *config.map_dims]
        self.map_hidden = nn.ModuleList(small_linear(a, b) for a, b in pairwise(widths))
        size = config.num_modes * config.latent_dim
        self.map_scale = nn.Linear(widths[-1], size)
        self.map_shift = nn.Linear(widths[-1], size)
        bound: Any = 1 / math.sqrt(widths[-1])  # torch's own initial values
        self.map_scale.init_bound = self.map_shift.init_bound = bound
        self.post_init()

    def freeze(self) -> None:
        """Do not train the first stage."""
        self.first_stage.requires_grad_(requires_grad=False)

    def train(self, mode: bool = True) -> "VanillaForDiverseTrajectoryPrediction":
        """Training mode for the maps alone."""
        super().train(mode)
        self.first_stage.eval()
        return self

    @capture_outputs
    def forward(
        self,
        past_values: Tensor,
        past_observed_mask: Tensor | None = None,
        agent_mask: Tensor | None = None,
        future_values: Tensor | None = None,
        future_observed_mask: Tensor | None = None,
        *,
        return_loss: bool = True,
        **kwargs: Any,
    ) -> VanillaJointTrajectoryOutput:
        """Joint futures of the agents of each scene; with `future_values` the losses.

        Arguments and errors are those of the first stage, without `noise`.
        """
        config, first = self.config, self.first_stage
        past = read_observed(config, past_values, past_observed_mask, agent_mask)
        with torch.no_grad():
            context, agent_context = first.context_encoder(past)
            prior = first.future_decoder.prior(agent_context)
        maps = self._maps(agent_context)  # (B, K, A, Z)
        if future_values is None or not return_loss:
            futures = decode_samples(first, past, context, maps.mean, **kwargs)
            return scene_output(config, past, futures)
        truth = read_future(config, past, future_values, future_observed_mask, **kwargs)
        futures = decode_samples(first, past, context, maps.mean)
        # summed over the samples, as in the authors' code
        prior = Gaussian(prior.mean.unsqueeze(1), prior.log_variance.unsqueeze(1))
        nats = maps.divergence(prior).sum(dim=1)  # (B, A)
        output = scene_output(config, past, futures)
        output.sample_loss = truth.closest(futures)
        output.divergence = truth.divergence(nats, config.map_divergence_floor)
        output.similarity = truth.similarity(futures, config.diversity_scale)
        output.loss = (
            config.map_reconstruction_weight * output.sample_loss
            + config.map_divergence_weight * output.divergence
            + config.diversity_weight * output.similarity
        )
        if config.joint_weight:
            together = truth.closest_together(futures)
            output.loss = output.loss + config.joint_weight * together
        return output

    def _maps(self, agent_context: Tensor) -> Gaussian:
        """Normal distributions of the latents of each sample, `(B, K, A, Z)`."""
        hidden_states = agent_context
        for layer in self.map_hidden:
            hidden_states = layer(hidden_states).tanh()
        by_sample = (self.config.num_modes, self.config.latent_dim)
        scale, shift = (
            at_least_float32(layer(hidden_states)).unflatten(-1, by_sample).transpose(1, 2)
            for layer in (self.map_scale, self.map_shift)
        )
        return Gaussian(shift, (scale.square() + SMALLEST_VARIANCE).log())
