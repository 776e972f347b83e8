# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""More forecasters of agents and lanes, which read the same tokens as Wayformer.

Shapes: R rows, A agents, N sequences, L steps, M tokens, D `d_model`, K futures or proposals, G
regions of mmTransformer and agents of Gatformer.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_forecaster import k_means, nearest
from .inputs_vanilla_scene import Rows, reach, read_rows
from .layers_vanilla import VanillaDecoderLayer, decoder_layers, encoder_layers
from .modeling_vanilla_scene import (
    Mixture,
    MixtureHead,
    Truth,
    VanillaScenePreTrainedModel,
    mixture,
    numbers_per_future,
    read_truth,
    seeds,
)
from .stacks_vanilla_scene import (
    TIME,
    FactorisedEncoder,
    FullEncoder,
    Grid,
    SceneTokens,
    key_mask,
    masked_mean,
    read_by_seeds,
    side_by_side,
    stacked,
)

# --- Gatformer -----------------------------------------------------------------------------------


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
        rank = apart.argsort(dim=-1, stable=True).argsort(dim=-1)
        sees = sees & (rank < count)
    return sees | itself


def last_states(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Last observed position and displacement of a row's agent and the others, and which are real.

    Returns:
        `(R, 1 + N, 2)` twice along the row's axes, positions divided as the features are; `(R, 1 +
        N)` bool.
    """
    features = torch.cat((rows.own.features, rows.others.features), dim=1)
    is_real = torch.cat((rows.own.is_real, rows.others.is_real), dim=1)
    steps = torch.arange(1, is_real.shape[-1] + 1, device=is_real.device)
    last = (is_real * steps).argmax(dim=-1)  # (R, 1 + N)
    index = last[..., None, None].expand(-1, -1, 1, features.shape[-1])
    last_features = features.gather(2, index).squeeze(2)
    return last_features[..., :2], last_features[..., 2:], is_real.any(dim=-1)


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
        >>> from hf_vanilla.models.modeling_vanilla_scene_forms import (
        ...     VanillaForNeighborTrajectoryPrediction)
        >>> config = VanillaSceneConfig(d_model=16, num_neighbors=2, field_of_view=180)
        >>> model = VanillaForNeighborTrajectoryPrediction(config).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 6, 12, 2])
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        self.tokens = SceneTokens(config)
        self.agent_layers = encoder_layers(config)
        self.lane_encoder = FullEncoder(config, config.encoder_layers)
        self.seeds = seeds(config)
        self.layers = decoder_layers(config, is_causal=False)
        self.head = MixtureHead(config)
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
        tokens = torch.cat((states, roads), dim=1)
        modes = read_by_seeds(self.layers, self.seeds.weight, tokens, seen)
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


# --- Spatial-Channel Transformer -----------------------------------------------------------------


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

    The paper has no lanes and leaves open where the gate is within a layer; here lanes are
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
        self.encoder_layers = encoder_layers(config)
        self.gates = nn.ModuleList(ChannelGate(config) for _ in self.encoder_layers)
        self.seeds = seeds(config)
        self.layers = decoder_layers(config, is_causal=False)
        self.head = MixtureHead(config)
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """Futures read by seeds from the gated tokens."""
        states, is_real = side_by_side(self.tokens(rows))
        for layer, gate in zip(self.encoder_layers, self.gates, strict=True):
            states = gate(layer(states, key_mask(is_real)), is_real)
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
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """One future of each head, from the agent's vector and the lanes'."""
        own, others, lanes = self.tokens(rows)
        agents = self.interaction([self.agent_vectors(stacked([own, others]))])
        roads, is_road = self.lane_vectors(lanes).flat()
        agent = agents.states[:, 0, 0]  # the row's own
        numbers = torch.stack([head(agent, roads, is_road) for head in self.heads], dim=1)
        return mixture(numbers, rows.velocity)


# --- mmTransformer (2103.11624) ------------------------------------------------------------------

K_MEANS_ROUNDS = 50


class ProposalStage(nn.Module):
    """One of the three stages: an encoder over one family of tokens, and a decoder that reads it.

    Without a token, as of lanes where there is no map, the proposals attend to nothing here.
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        self.encoder = FullEncoder(config, config.encoder_layers)
        self.layers = decoder_layers(config, is_causal=False)

    def forward(self, proposals: Tensor, grid: Grid) -> Tensor:
        """Refined proposals `(R, K, D)`, of `(R, K, D)` or of `(K, D)` for every row."""
        return read_by_seeds(self.layers, proposals, *self.encoder([grid]).flat())


class VanillaForProposalTrajectoryPrediction(VanillaScenePreTrainedModel):
    """mmTransformer: K proposals, of which only those in the region of the truth are trained.

    A proposal belongs to one of G regions of end points along the agent's axes, which `fit_regions`
    takes from the training data. The closest proposal of the truth's region is regressed; the class
    of the loss is this proposal among all, instead of the paper's two separate ones for region and
    proposal. The paper refines all agents' proposals with those of each other; here the third stage
    reads the observed steps of the others.

    Raises:
        ValueError: `num_seeds` is no multiple of `num_regions`.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
        >>> from hf_vanilla.models.modeling_vanilla_scene_forms import (
        ...     VanillaForProposalTrajectoryPrediction)
        >>> config = VanillaSceneConfig(d_model=16, num_regions=3)
        >>> model = VanillaForProposalTrajectoryPrediction(config).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 6, 12, 2])
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        if config.num_seeds % config.num_regions:
            raise ValueError(
                f"num_seeds={config.num_seeds} proposals cannot be divided among num_regions="
                f"{config.num_regions}: make it a multiple"
            )
        self.tokens = SceneTokens(config)
        self.seeds = seeds(config)
        self.motion = ProposalStage(config)
        self.lanes = ProposalStage(config)
        self.others = ProposalStage(config)
        self.head = MixtureHead(config)
        self.register_buffer("centres", torch.zeros(config.num_regions, 2))
        self._has_regions = config.num_regions == 1  # a GPU is read once, not at each step
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            init.zeros_(self.centres)

    @torch.no_grad()
    def set_regions(
        self, future_values: Tensor, future_observed_mask: Tensor | None = None, **inputs: Any
    ) -> None:
        """Take the regions from training data.

        Args:
            future_values: `(B, A, P, 2)`; agents whose last step is not known do not count.
            future_observed_mask: `(B, A, P)`, 1 = known; None: all are.
            **inputs: the others of `forward`.

        Raises:
            ValueError: there are fewer different end points than regions.
        """
        rows = read_rows(self.config, **inputs)
        truth = read_truth(self.config, rows, future_values, future_observed_mask)
        ends = truth.positions[truth.is_known[:, -1], -1]
        self.centres.copy_(fit_regions(ends, self.config.num_regions))

    def futures(self, rows: Rows) -> Mixture:
        """Proposals refined by own motion, lanes and others, in this order."""
        own, others, lanes = self.tokens(rows)
        proposals = self.motion(self.seeds.weight, own)
        proposals = self.lanes(proposals, lanes)
        proposals = self.others(proposals, others)
        return self.head(proposals, rows.velocity)

    def may_win(self, truth: Truth) -> Tensor:
        """Proposals `(R, K)` of the truth's region; all where the last step is not known.

        Raises:
            ValueError: `set_regions` was never called.
        """
        config = self.config
        if not (torch.compiler.is_compiling() or self._has_regions):
            self._has_regions = bool(self.centres.any())
            if not self._has_regions:
                raise ValueError(
                    "there are no regions, so only the proposals of the first would be trained: "
                    "call set_regions() with training scenes first"
                )
        regions = nearest(truth.positions[:, -1], self.centres)
        of_region = proposals_of_regions(regions, config.num_seeds, config.num_regions)
        return of_region | ~truth.is_known[:, -1:]


def fit_regions(end_points: Tensor, count: int) -> Tensor:
    """Centres of `count` clusters of end points.

    Centres start at the point nearest to the mean and, one after another, at the point farthest
    from all centres, so equal data give equal regions and none is empty.

    Args:
        end_points: `(N, 2)`.
        count: regions G.

    Returns:
        `(G, 2)`.

    Raises:
        ValueError: there are fewer different end points than regions.
    """
    points = end_points.double()
    different = len(points.unique(dim=0))
    if different < count:
        raise ValueError(
            f"num_regions={count}, but the training data have {different} different end points, so "
            "a region would be empty: lower num_regions"
        )
    centres = points[(points - points.mean(dim=0)).norm(dim=1).argmin()].unsqueeze(0)
    while len(centres) < count:
        farthest = torch.cdist(points, centres).amin(dim=1).argmax()
        centres = torch.cat((centres, points[farthest].unsqueeze(0)))
    return k_means(points, centres, K_MEANS_ROUNDS).to(end_points.dtype)


def proposals_of_regions(regions: Tensor, proposals: int, count: int) -> Tensor:
    """Which proposals belong to the region `(R,)` of each row, `(R, K)` bool.

    Proposals are divided evenly: the first K / G belong to region 0.
    """
    owner = torch.arange(proposals, device=regions.device) // (proposals // count)
    return owner == regions.unsqueeze(1)
