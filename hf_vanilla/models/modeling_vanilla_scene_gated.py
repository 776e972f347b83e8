# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Spatial-Channel Transformer: squeeze and excitation of channels between layers.

Shapes: R rows, M tokens, D `d_model`.
"""

from torch import Tensor, nn

from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_scene import Rows
from .layers_vanilla import VanillaEncoderLayer
from .loss_vanilla_scene import Mixture, MixtureHead
from .modeling_vanilla_scene import VanillaScenePreTrainedModel, seeds
from .stacks_vanilla_scene import (
    SceneTokens,
    decoder_layers,
    key_mask,
    masked_mean,
    read_by_seeds,
    side_by_side,
)


class ChannelGate(nn.Module):
    """Each channel times a factor from 0 to 1 that depends on the mean of all tokens.

    Squeeze: the mean over real tokens. Excitation: two Linears with a ReLU between and a sigmoid
    after (1709.01507).
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        hidden = config.d_model // config.gate_reduction
        self.squeeze = nn.Linear(config.d_model, hidden)
        self.excite = nn.Linear(hidden, config.d_model)

    def forward(self, states: Tensor, is_real: Tensor) -> Tensor:
        """States `(R, M, D)`, of which `(R, M)` are real, with their channels weighted."""
        mean = masked_mean(states, is_real)
        return states * self.excite(self.squeeze(mean).relu()).sigmoid().unsqueeze(1)


class VanillaForGatedTrajectoryPrediction(VanillaScenePreTrainedModel):
    """Spatial-Channel Transformer: one encoder, a gate of channels after each layer.

    The paper has no lanes and leaves open where the gate stands within a layer; here lanes are
    tokens like all others, and the gate follows the whole layer.

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaForGatedTrajectoryPrediction, VanillaSceneConfig
        >>> model = VanillaForGatedTrajectoryPrediction(VanillaSceneConfig(d_model=16)).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 6, 12, 2])
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        self.tokens = SceneTokens(config)
        count = range(config.encoder_layers)
        self.encoder_layers = nn.ModuleList(VanillaEncoderLayer(config) for _ in count)
        self.gates = nn.ModuleList(ChannelGate(config) for _ in count)
        self.seeds = seeds(config)
        self.layers = decoder_layers(config)
        self.head = MixtureHead(config)
        self.gradient_checkpointing = False
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """Futures read by seeds from the gated tokens."""
        states, is_real = side_by_side(self.tokens(rows))
        for layer, gate in zip(self.encoder_layers, self.gates, strict=True):
            states = gate(layer(states, key_mask(is_real)), is_real)
        start = self.seeds.weight.expand(states.shape[0], -1, -1)
        return self.head(read_by_seeds(self.layers, start, states, is_real), rows.velocity)
