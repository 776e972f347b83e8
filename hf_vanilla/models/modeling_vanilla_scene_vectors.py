# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Huang et al. (2109.06446): one vector per agent and lane, and one decoder head per future.

Shapes: R rows, N sequences, L steps, D `d_model`, K futures.
"""

import torch
from torch import Tensor, nn

from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_scene import Rows
from .layers_vanilla import VanillaDecoderLayer
from .loss_vanilla_scene import Mixture, mixture, numbers_per_future
from .modeling_vanilla_scene import VanillaScenePreTrainedModel
from .stacks_vanilla_scene import (
    TIME,
    FactorisedEncoder,
    FullEncoder,
    Grid,
    SceneTokens,
    key_mask,
    masked_mean,
    stacked,
)


class SequenceVectors(nn.Module):
    """One vector per sequence: an encoder over its steps, then the mean of the real ones."""

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        self.encoder = FactorisedEncoder(config, (TIME,) * config.encoder_layers)

    def forward(self, grid: Grid) -> Grid:
        """Vectors `(R, 1, N, D)` of sequences."""
        states = self.encoder([grid]).states
        vectors = masked_mean(states, grid.is_real)
        return Grid(vectors.unsqueeze(1), grid.is_real.any(dim=-1).unsqueeze(1))


class FutureHead(nn.Module):
    """The decoder of one future: lanes are read with weights of its own, then two Linears."""

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        self.reader = VanillaDecoderLayer(config, 0, is_causal=False)
        self.layer_norm = nn.LayerNorm(2 * config.d_model, eps=config.layer_norm_eps)
        self.hidden = nn.Linear(2 * config.d_model, config.decoder_ffn_dim)
        self.projection = nn.Linear(config.decoder_ffn_dim, numbers_per_future(config))

    def forward(self, agent: Tensor, lanes: Tensor, is_lane: Tensor) -> Tensor:
        """The numbers `(R, 4 P + 1)` of a future from the agent's vector `(R, D)`."""
        read = self.reader(agent.unsqueeze(1), None, lanes, key_mask(is_lane)).squeeze(1)
        both = self.layer_norm(torch.cat((agent, read), dim=-1))
        return self.projection(self.hidden(both).relu())


class VanillaForVectorTrajectoryPrediction(VanillaScenePreTrainedModel):
    """Huang et al.: an interaction encoder over agents' vectors, then a head for each future.

    The number of heads is `num_seeds`. The paper encodes tracks by an LSTM and lanes by a
    perceptron, where this class has our encoder layers over the steps and the mean. Its heads share
    a map encoder of several attentions, one per future; here each head reads the lanes by a decoder
    layer of its own.

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaForVectorTrajectoryPrediction, VanillaSceneConfig
        >>> model = VanillaForVectorTrajectoryPrediction(VanillaSceneConfig(d_model=16)).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 6, 12, 2])
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        self.tokens = SceneTokens(config)
        self.agent_vectors = SequenceVectors(config)
        self.lane_vectors = SequenceVectors(config)
        self.interaction = FullEncoder(config, config.encoder_layers)
        self.heads = nn.ModuleList(FutureHead(config) for _ in range(config.num_seeds))
        self.gradient_checkpointing = False
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """One future of each head, from the agent's vector and the lanes'."""
        own, others, lanes = self.tokens(rows)
        agents = self.interaction([self.agent_vectors(stacked([own, others]))])
        roads, is_road = self.lane_vectors(lanes).flat()
        agent = agents.states[:, 0, 0]  # the row's own
        numbers = torch.stack([head(agent, roads, is_road) for head in self.heads], dim=1)
        return mixture(numbers, rows.velocity)
