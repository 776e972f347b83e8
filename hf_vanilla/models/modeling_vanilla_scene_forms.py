# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""More forecasters of agents and lanes: Gatformer, Spatial-Channel Transformer, Huang et al.

Shapes: R rows, N sequences, L steps, M tokens, D `d_model`, K futures.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from .attention_vanilla import VanillaAttention
from .configuration_vanilla_scene import VanillaSceneConfig
from .kernels_vanilla import at_least_float32, masked_mean
from .layers_vanilla import VanillaEncoderLayer, decoder_layers, encoder_layers
from .modeling_vanilla_scene import Mixture, MixtureHead, VanillaScenePreTrainedModel, seeds
from .rows_vanilla_scene import FEATURES, Rows, reach
from .stacks_vanilla_scene import (
    AGENTS,
    TIME,
    FactorisedEncoder,
    FullEncoder,
    Grid,
    RasterEncoder,
    SceneTokens,
    SequenceTokens,
    key_mask,
    read_by_seeds,
    side_by_side,
    stacked,
)

# --- Gatformer -----------------------------------------------------------------------------------


def nearest_neighbors(
    config: VanillaSceneConfig, positions: Tensor, heading: Tensor, is_there: Tensor
) -> tuple[Tensor, Tensor]:
    """Which others an agent sees: their places among `positions`, `(R, k)`, and which are seen.

    k is `num_neighbors`, of those that the other two limits leave; of 0, k is N.

    Args:
        config: `neighbor_distance`, `field_of_view` and `num_neighbors`.
        positions: `(R, N, 2)` of the others, relative to the agent.
        heading: `(R, 2)` displacement of the agent; where it is 0, the agent sees all around.
        is_there: `(R, N)` bool.
    """
    apart = positions.norm(dim=-1)
    if config.neighbor_distance:
        is_there = is_there & (apart <= config.neighbor_distance)
    if config.field_of_view < 360:
        length = heading.norm(dim=-1, keepdim=True)  # (R, 1)
        ahead = (positions * heading.unsqueeze(1)).sum(dim=-1)
        limit = torch.cos(torch.deg2rad(torch.full_like(length, config.field_of_view / 2)))
        is_there = is_there & ((ahead >= limit * apart * length) | length.eq(0))
    k = min(config.num_neighbors or positions.shape[1], positions.shape[1])
    places = apart.masked_fill(~is_there, torch.inf).topk(k, dim=1, largest=False).indices
    return places, is_there.gather(1, places)


class VanillaForNeighborTrajectoryPrediction(VanillaScenePreTrainedModel):
    """Gatformer: graph attention over the nearest agents, a CNN over what is around each.

    Every agent is encoded once, along its own axes: steps with their positions, and the vector of a
    CNN over a picture of lanes and others. Their mean is the agent's node. In each graph layer a
    node attends to itself and to its neighbors' nodes, which are gathered, so that the cost grows
    with their number and not with that of all agents; an edge is a Linear of the neighbor's
    position and displacement along the agent's axes. An encoder over node and steps, and a decoder
    that reads it by seeds, give the futures.

    Known is the abstract alone: sizes, the form of the attention and of the edges, and the head are
    ours.

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaForNeighborTrajectoryPrediction, VanillaSceneConfig
        >>> config = VanillaSceneConfig(d_model=16, num_neighbors=2, field_of_view=180)
        >>> model = VanillaForNeighborTrajectoryPrediction(config).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 6, 12, 2])
    """

    needs_all = True

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        self.tokens = SequenceTokens(config)
        self.raster = RasterEncoder(config)
        self.edges = nn.Linear(FEATURES, config.d_model)
        self.graph_layers = encoder_layers(config)
        self.encoder_layers = encoder_layers(config)
        self.seeds = seeds(config)
        self.layers = decoder_layers(config, is_causal=False)
        self.head = MixtureHead(config)
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """Futures read by seeds from the agent's node and its steps."""
        steps, is_real = self.tokens(rows.own).flat()  # (R, T, D)
        steps = steps + self.raster(rows).unsqueeze(1)
        node = masked_mean(steps, is_real).unsqueeze(1)  # (R, 1, D)
        neighbors, edges, sees = self._neighbors(rows)
        is_node = torch.ones_like(sees[:, :1])
        mask = key_mask(torch.cat((is_node, sees), dim=1))
        edges = self.edges(edges.to(node.dtype))  # (R, k, D)
        for layer in self.graph_layers:
            seen = embedding(neighbors, node[:, 0]) + edges
            node = layer(node, mask, None, torch.cat((node, seen), dim=1))
        states, is_real = torch.cat((node, steps), dim=1), torch.cat((is_node, is_real), dim=1)
        for layer in self.encoder_layers:
            states = layer(states, key_mask(is_real))
        futures = read_by_seeds(self.layers, self.seeds.weight, states, is_real)
        return self.head(futures, rows.velocity)

    def _neighbors(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Rows `(R, k)` of the neighbors, their last features `(R, k, 4)`, and which are seen."""
        config, last = self.config, rows.others.last()
        # the row of each agent, -1 where there is none
        number = torch.arange(rows.scene.shape[0], device=rows.scene.device)
        row = number.new_full(rows.shape, -1).index_put((rows.scene, rows.agent), number)
        row = row[rows.scene.unsqueeze(1), rows.others.numbers]  # (R, N)
        places, sees = nearest_neighbors(
            config,
            last[..., :2] * reach(config) * config.velocity_std,
            rows.velocity,
            (row >= 0) & rows.others.is_real[..., -1],
        )
        index = places.unsqueeze(-1).expand(-1, -1, FEATURES)
        return row.clamp(min=0).gather(1, places), last.gather(1, index), sees


# --- Spatial-Channel Transformer -----------------------------------------------------------------


class AgentGate(nn.Module):
    """Each agent's states times factors from 0 to 1 that depend on all agents (1709.01507).

    The agents are the channels. Squeeze: the mean over an agent's real steps. Excitation: two
    Linears across agents, the same for each feature, with a ReLU between and a sigmoid after.
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        agents = 1 + config.max_others
        hidden = max(1, agents // config.gate_reduction)
        self.squeeze, self.excite = nn.Linear(agents, hidden), nn.Linear(hidden, agents)

    def forward(self, states: Tensor, is_real: Tensor) -> Tensor:
        """States `(R, N, L, D)`, of which `(R, N, L)` are real, weighted by agent and feature."""
        count = states.shape[1]
        means = masked_mean(states, is_real).transpose(1, 2)  # (R, D, N)
        # fewer agents need fewer columns and rows
        hidden = linear(means, self.squeeze.weight[:, :count], self.squeeze.bias).relu()
        factors = linear(hidden, self.excite.weight[:count], self.excite.bias[:count]).sigmoid()
        return states * factors.transpose(1, 2).unsqueeze(2)


class VanillaForGatedTrajectoryPrediction(VanillaScenePreTrainedModel):
    """Spatial-Channel Transformer: attention over time, over agents, then a gate of the agents.

    Known is the abstract alone. Ours: others are in the order of their distance, so that a channel
    has a meaning; lanes, which the paper has not, are tokens for the decoder.

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
        layers = range(config.encoder_layers)
        self.encoders = nn.ModuleList(FactorisedEncoder(config, (TIME, AGENTS)) for _ in layers)
        self.gates = nn.ModuleList(AgentGate(config) for _ in layers)
        self.lane_encoder = FullEncoder(config, config.encoder_layers)
        self.seeds = seeds(config)
        self.layers = decoder_layers(config, is_causal=False)
        self.head = MixtureHead(config)
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """Futures read by seeds from the gated steps of all agents and from lanes."""
        in_order = rows.others.nearest(rows.others.numbers.shape[1])
        own, others, lanes = self.tokens(replace(rows, others=in_order))
        grid = stacked([own, others])
        for encoder, gate in zip(self.encoders, self.gates, strict=True):
            grid = Grid(gate(encoder([grid]).states, grid.is_real), grid.is_real)
        states, is_real = side_by_side([grid, self.lane_encoder([lanes])])
        futures = read_by_seeds(self.layers, self.seeds.weight, states, is_real)
        return self.head(futures, rows.velocity)


# --- Huang et al. (2109.06446) -------------------------------------------------------------------


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


class VanillaForVectorTrajectoryPrediction(VanillaScenePreTrainedModel):
    """Huang et al.: an interaction encoder over agents' vectors, then modes as heads of attention.

    Each of `num_seeds` modes has a query of its own, made of the agent's vector, and attends once
    to the interaction-encoded agents and the lanes, whose keys and values the modes share. Two
    Linears, shared too, make the future of a mode from the agent's vector and what the mode read.
    The loss is Huber's of the closest future and the cross-entropy of its score.

    Known is the abstract alone: the loss and how often a mode reads are ours. Vectors of tracks and
    lanes are encoder layers over the steps and their mean, in place of an LSTM and a perceptron.

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaForVectorTrajectoryPrediction, VanillaSceneConfig
        >>> model = VanillaForVectorTrajectoryPrediction(VanillaSceneConfig(d_model=16)).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 6, 12, 2])
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        width = config.d_model
        self.tokens = SceneTokens(config)
        self.agent_vectors = SequenceVectors(config)
        self.lane_vectors = SequenceVectors(config)
        self.interaction = FullEncoder(config, config.encoder_layers)
        self.modes = nn.Linear(width, config.num_seeds * width)
        self.attention = VanillaEncoderLayer(config)
        self.attention.self_attn = VanillaAttention(config, 1)  # one head, whatever the config says
        self.hidden = nn.Linear(2 * width, config.decoder_ffn_dim)
        self.projection = nn.Linear(config.decoder_ffn_dim, 2 * config.predicted_steps + 1)
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """A future of each mode, from the agent's vector and what the mode reads."""
        own, others, lanes = self.tokens(rows)
        agents = self.interaction([self.agent_vectors(stacked([own, others]))])
        states, is_real = side_by_side([agents, self.lane_vectors(lanes)])
        agent = states[:, 0]  # the row's own
        queries = self.modes(agent).unflatten(-1, (-1, agent.shape[-1]))  # (R, K, D)
        read = self.attention(queries, key_mask(is_real), None, states)
        both = torch.cat((agent.unsqueeze(1).expand_as(read), read), dim=-1)
        numbers = at_least_float32(self.projection(self.hidden(both).relu()))
        moves = numbers[..., :-1].unflatten(-1, (-1, 2)) + rows.velocity[:, None, None]
        return Mixture(moves.cumsum(dim=2), None, numbers[..., -1])
