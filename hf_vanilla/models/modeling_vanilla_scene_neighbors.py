# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Gatformer: agents attend to their neighbors only. Shapes: R rows, G agents, L steps, M tokens."""

import torch
from torch import Tensor, nn

from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_scene import Rows, reach
from .layers_vanilla import VanillaEncoderLayer
from .loss_vanilla_scene import Mixture, MixtureHead
from .modeling_vanilla_scene import VanillaScenePreTrainedModel, seeds
from .stacks_vanilla_scene import (
    FullEncoder,
    SceneTokens,
    decoder_layers,
    read_by_seeds,
    side_by_side,
)


def neighbor_mask(
    positions: Tensor,
    headings: Tensor,
    is_agent: Tensor,
    *,
    distance: float = 0.0,
    count: int = 0,
    field_of_view: float = 360.0,
) -> Tensor:
    """Which agent sees which, `(R, G, G)` bool; each agent sees itself.

    Args:
        positions: `(R, G, 2)`.
        headings: `(R, G, 2)` displacements; an agent whose heading is 0 sees all around.
        is_agent: `(R, G)` bool.
        distance: farther agents are not seen; 0: no limit.
        count: nearest agents that are seen, of those that the other two limits leave; 0: all.
        field_of_view: degrees around the heading.
    """
    offset = positions.unsqueeze(1) - positions.unsqueeze(2)  # (R, G, G, 2) from i to j
    apart = offset.norm(dim=-1)
    itself = torch.eye(positions.shape[1], dtype=torch.bool, device=positions.device)
    sees = is_agent.unsqueeze(1) & ~itself
    if distance:
        sees = sees & (apart <= distance)
    if field_of_view < 360:
        length = headings.norm(dim=-1, keepdim=True)  # (R, G, 1)
        ahead = (offset * headings.unsqueeze(2)).sum(dim=-1)
        limit = torch.cos(torch.deg2rad(torch.tensor(field_of_view / 2, device=apart.device)))
        sees = sees & ((ahead >= limit * apart * length) | length.eq(0))
    if count:
        apart = apart.masked_fill(~sees, torch.inf)
        place = apart.argsort(dim=-1, stable=True).argsort(dim=-1)
        sees = sees & (place < count)
    return sees | itself


def last_states(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Last observed position and displacement of a row's agent and the others, and who is there.

    Returns:
        `(R, 1 + N, 2)` twice along the row's axes, positions divided as the features are; `(R, 1 +
        N)` bool.
    """
    features = torch.cat((rows.own.features, rows.others.features), dim=1)
    is_real = torch.cat((rows.own.is_real, rows.others.is_real), dim=1)
    steps = torch.arange(1, is_real.shape[-1] + 1, device=is_real.device)
    last = (is_real * steps).argmax(dim=-1)  # (R, 1 + N)
    index = last[..., None, None].expand(-1, -1, 1, features.shape[-1])
    found = features.gather(2, index).squeeze(2)
    return found[..., :2], found[..., 2:], is_real.any(dim=-1)


class VanillaForNeighborTrajectoryPrediction(VanillaScenePreTrainedModel):
    """Gatformer: the encoder's attention between agents is a sparse graph.

    The model makes a 4-D mask of the neighbors and passes it to the layers: a token of agent i sees
    the tokens of i and of its neighbors, by distance, by number, and within the field of view. The
    decoder reads the agent's own tokens and those of its neighbors. The paper has no lanes; here an
    encoder of their own makes them tokens for the decoder. The paper attends over one vector per
    agent; here over its steps.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
        >>> from hf_vanilla.models.modeling_vanilla_scene_neighbors import (
        ...     VanillaForNeighborTrajectoryPrediction)
        >>> config = VanillaSceneConfig(d_model=16, num_neighbors=2, field_of_view=180)
        >>> model = VanillaForNeighborTrajectoryPrediction(config).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 6, 12, 2])
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        self.tokens = SceneTokens(config)
        layers = [VanillaEncoderLayer(config) for _ in range(config.encoder_layers)]
        self.agent_layers = nn.ModuleList(layers)
        self.lane_encoder = FullEncoder(config, config.encoder_layers)
        self.seeds = seeds(config)
        self.layers = decoder_layers(config)
        self.head = MixtureHead(config)
        self.gradient_checkpointing = False
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """Futures read by seeds from the agent's own tokens, its neighbors' and the lanes'."""
        own, others, lanes = self.tokens(rows)
        states, is_real = side_by_side([own, others])  # (R, M, D), (R, M)
        agent = torch.arange(states.shape[1], device=states.device) // own.states.shape[2]
        sees = self._sees(rows)[:, :, agent]  # (R, G, M)
        mask = sees[:, agent] & is_real.unsqueeze(1)  # (R, M, M)
        for layer in self.agent_layers:
            states = layer(states, mask.unsqueeze(1))
        roads, is_road = self.lane_encoder([lanes]).flat()
        seen = torch.cat((is_real & sees[:, 0], is_road), dim=1)
        start = self.seeds.weight.expand(states.shape[0], -1, -1)
        modes = read_by_seeds(self.layers, start, torch.cat((states, roads), dim=1), seen)
        return self.head(modes, rows.velocity)

    def _sees(self, rows: Rows) -> Tensor:
        config = self.config
        positions, headings, is_agent = last_states(rows)
        return neighbor_mask(
            positions * reach(config) * config.velocity_std,
            headings,
            is_agent,
            distance=config.neighbor_distance,
            count=config.num_neighbors,
            field_of_view=config.field_of_view,
        )
