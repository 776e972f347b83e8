# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Tokens of agents and lanes, and Wayformer's encoders over them (2207.05844, sections 3 and 4).

A fusion decides which tokens meet in which encoder, an encoder how its tokens attend; each of the
three fusions takes each of the encoders. Shapes: R rows, N sequences, L steps, M tokens, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from .configuration_vanilla_scene import VanillaSceneConfig
from .kernels_vanilla import VanillaDropout
from .layers_vanilla import VanillaDecoderLayer, VanillaEncoderLayer
from .positions_vanilla import with_sinusoids
from .rows_vanilla_scene import FEATURES, SIZE_FEATURES, Rows, Seen, reach

TIME, AGENTS = "time", "agents"
FAMILIES = 3  # own steps, others, lanes; with traffic lights one more


@dataclass(frozen=True)
class Grid:
    """Tokens of several sequences.

    Attributes:
        states: `(R, N, L, D)`.
        is_real: `(R, N, L)` bool, False = padding.
    """

    states: Tensor
    is_real: Tensor

    def flat(self) -> tuple[Tensor, Tensor]:
        """`(R, N L, D)` and `(R, N L)`."""
        return self.states.flatten(1, 2), self.is_real.flatten(1)


class SequenceTokens(nn.Module):
    """One family of tokens: a Linear of its own, a vector per kind, positions of its steps.

    Args:
        config: widths and dropout.
        num_kinds: kinds of sequences, such as lane and crossing.
        features: numbers of a step.
    """

    def __init__(
        self, config: VanillaSceneConfig, num_kinds: int = 1, features: int = FEATURES
    ) -> None:
        super().__init__()
        self.projection = nn.Linear(features, config.d_model)
        self.kinds = nn.Embedding(num_kinds, config.d_model)
        self.dropout = VanillaDropout(config.dropout)
        self.positions: nn.Embedding | None = None
        if config.learned_positions:
            self.positions = nn.Embedding(config.learned_positions, config.d_model)

    def forward(self, seen: Seen) -> Grid:
        """Tokens of sequences."""
        features = seen.features.to(self.projection.weight.dtype)
        kinds = seen.kinds if seen.kinds.dim() == 3 else seen.kinds.unsqueeze(2)
        vectors = self.projection(features) + self.kinds(kinds)
        if self.positions is None:
            vectors = with_sinusoids(vectors)
        else:
            steps = torch.arange(vectors.shape[2], device=vectors.device)
            last = self.positions.num_embeddings - 1
            vectors = vectors.relu() + self.positions(steps.clamp(max=last))
        return Grid(self.dropout(vectors), seen.is_real)


class SceneTokens(nn.Module):
    """The families: an agent's own steps, those of others, pieces of polylines, lights if any."""

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        of_agents = max(1, config.num_agent_kinds), FEATURES + SIZE_FEATURES * config.reads_sizes
        self.own = SequenceTokens(config, *of_agents)
        self.others = SequenceTokens(config, *of_agents)
        self.lanes = SequenceTokens(config, config.num_lane_kinds)
        if config.num_light_states:
            self.lights = SequenceTokens(config, config.num_light_states)

    def forward(self, rows: Rows) -> list[Grid]:
        """Tokens of own steps, others, lanes and, where they are read, lights, in this order."""
        grids = [self.own(rows.own), self.others(rows.others), self.lanes(rows.lanes)]
        return grids if rows.lights is None else [*grids, self.lights(rows.lights)]


def side_by_side(grids: Sequence[Grid]) -> tuple[Tensor, Tensor]:
    """All tokens in one sequence `(R, M, D)`, and which are real, `(R, M)` bool."""
    states, is_real = zip(*(grid.flat() for grid in grids), strict=True)
    return torch.cat(states, dim=1), torch.cat(is_real, dim=1)


def stacked(grids: Sequence[Grid]) -> Grid:
    """All sequences in one grid; shorter ones are padded at their end."""
    longest = max(grid.states.shape[2] for grid in grids)
    states, is_real = [], []
    for grid in grids:
        missing = longest - grid.states.shape[2]
        states.append(nn.functional.pad(grid.states, (0, 0, 0, missing)))
        is_real.append(nn.functional.pad(grid.is_real, (0, missing)))
    return Grid(torch.cat(states, dim=1), torch.cat(is_real, dim=1))


class RasterEncoder(nn.Module):
    """A small CNN over a picture of what is around each agent, along its axes.

    A channel for each kind of polylines and one for the steps of others; a cell is 1 where one
    passes, 0 elsewhere.

    Args:
        config: `raster_cells`, kinds of polylines, how far the picture reaches.
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        widths = (config.num_lane_kinds + 1, 16, 32, config.d_model)
        self.cells, self.channels = config.raster_cells, widths[0]
        self.extent = 1.0  # in units of the features' positions
        if config.neighbor_distance:
            self.extent = config.neighbor_distance / (reach(config) * config.velocity_std)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(*pair, kernel_size=3, stride=2, padding=1) for pair in pairwise(widths)
        )
        self.projection = nn.Linear(config.d_model * (self.cells // 8) ** 2, config.d_model)

    def forward(self, rows: Rows) -> Tensor:
        """Vectors `(R, D)` of the rows."""
        picture = self.picture(rows).to(self.projection.weight.dtype)
        for convolution in self.convolutions:
            picture = convolution(picture).relu()
        return self.projection(picture.flatten(1))

    def picture(self, rows: Rows) -> Tensor:
        """`(R, kinds + 1, cells, cells)`; the agent is in the middle, its heading along columns."""
        lanes, others = rows.lanes, rows.others
        parts = torch.linspace(-0.5, 0.5, self.cells // 4, device=lanes.features.device)
        middle, direction = lanes.features.unsqueeze(3).split(2, dim=-1)
        on_lanes = middle + parts.unsqueeze(-1) * direction  # (R, P, S - 1, points of a piece, 2)
        kinds = lanes.kinds[..., None, None].expand(on_lanes.shape[:-1])
        is_real = lanes.is_real.unsqueeze(-1).expand(kinds.shape)
        lane_cells = self._cells(on_lanes, is_real, kinds)
        last = torch.full_like(others.numbers, self.channels - 1).unsqueeze(-1)
        other_cells = self._cells(others.features[..., :2], others.is_real, last)
        cells = torch.cat((lane_cells, other_cells), dim=1)
        size = self.channels * self.cells**2
        picture = lanes.features.new_zeros(cells.shape[0], size + 1).scatter(1, cells, 1.0)
        return picture[:, :-1].view(-1, self.channels, self.cells, self.cells)

    def _cells(self, points: Tensor, is_real: Tensor, channel: Tensor) -> Tensor:
        """Number `(R, points)` of the cell of each point; one more than all if it is in none."""
        cell = ((points / self.extent + 1) / 2 * self.cells).floor()
        is_inside = is_real & ((cell >= 0) & (cell < self.cells)).all(dim=-1)
        number = (channel * self.cells + cell[..., 1]) * self.cells + cell[..., 0]
        return torch.where(is_inside, number, self.channels * self.cells**2).long().flatten(1)


def key_mask(is_real: Tensor) -> Tensor:
    """`(R, 1, 1, M)` bool: every query may attend to the real keys `(R, M)`."""
    return is_real[:, None, None]


class FullEncoder(nn.Module):
    """Every token attends to every other one ("multi-axis attention").

    Args:
        config: sizes of the layers.
        layers: how many.
    """

    def __init__(self, config: VanillaSceneConfig, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VanillaEncoderLayer(config) for _ in range(layers))

    def forward(self, grids: Sequence[Grid]) -> Grid:
        """Tokens of all grids as one sequence, `(R, 1, M, D)`."""
        states, is_real = side_by_side(grids)
        for layer in self.layers:
            states = layer(states, key_mask(is_real))
        return Grid(states.unsqueeze(1), is_real.unsqueeze(1))


class FactorisedEncoder(nn.Module):
    """Each layer attends along one axis: over the steps of a sequence, or over the sequences.

    Its cost grows with N L^2 and L N^2 in place of (N L)^2. The paper leaves open which place of a
    polyline meets which step of an agent: here the first ones meet.

    Args:
        config: sizes of the layers.
        axes: the axis of each layer, `TIME` or `AGENTS`.
    """

    def __init__(self, config: VanillaSceneConfig, axes: Sequence[str]) -> None:
        super().__init__()
        self.axes = tuple(axes)
        self.layers = nn.ModuleList(VanillaEncoderLayer(config) for _ in axes)

    def forward(self, grids: Sequence[Grid]) -> Grid:
        """All sequences in one grid, `(R, N, L, D)`."""
        grid = stacked(grids)
        states, is_real = grid.states, grid.is_real
        for axis, layer in zip(self.axes, self.layers, strict=True):
            # a layer attends along the third dimension
            first = 1 if axis == TIME else 2
            turned, is_key = states.transpose(1, first), is_real.transpose(1, first)
            attended = layer(turned.flatten(0, 1), key_mask(is_key.flatten(0, 1)))
            states = attended.unflatten(0, turned.shape[:2]).transpose(1, first)
        return Grid(states, is_real)


class LatentQueryEncoder(nn.Module):
    """Learned queries read the tokens once; after that only the queries attend to each other.

    Its cost grows linearly with the number of tokens.

    Args:
        config: `num_latents` and sizes of the layers.
        layers: how many, the reading one included.
    """

    def __init__(self, config: VanillaSceneConfig, layers: int) -> None:
        super().__init__()
        self.queries = nn.Embedding(config.num_latents, config.d_model)
        self.queries.init_std = 1.0  # type: ignore[assignment]  # read by `_init_weights`
        self.reader = VanillaDecoderLayer(config, 0, is_causal=False)
        self.layers = nn.ModuleList(VanillaEncoderLayer(config) for _ in range(layers - 1))

    def forward(self, grids: Sequence[Grid]) -> Grid:
        """The queries as one sequence, `(R, 1, num_latents, D)`."""
        tokens, is_real = side_by_side(grids)
        states = self.queries.weight.expand(tokens.shape[0], -1, -1)
        states = self.reader(states, None, tokens, key_mask(is_real))
        for layer in self.layers:
            states = layer(states)
        # without any real token, the queries count as padding
        has_any = is_real.any(dim=1, keepdim=True)
        return Grid(states.unsqueeze(1), has_any.unsqueeze(1).expand(-1, 1, states.shape[1]))


# by `config.encoder`: from config and number of layers to an encoder
ENCODERS: dict[str, Callable[[VanillaSceneConfig, int], nn.Module]] = {
    "full": FullEncoder,
    "sequential": lambda config, n: FactorisedEncoder(config, [TIME] * n + [AGENTS] * n),
    "interleaved": lambda config, n: FactorisedEncoder(config, [TIME, AGENTS] * n),
    "latent": LatentQueryEncoder,
}


class Fusion(nn.Module):
    """Which tokens meet in which encoder, by `config.fusion`.

    Late: an encoder for each family, whose outputs stand side by side. Early: one over the tokens
    of all families. Hierarchical: one for each family, then one across, with half of the layers
    each.
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        make, layers = ENCODERS[config.encoder], config.encoder_layers
        across = {"late": 0, "early": layers, "hierarchical": layers // 2}[config.fusion]
        families = 0 if config.fusion == "early" else FAMILIES + bool(config.num_light_states)
        self.encoders = nn.ModuleList(make(config, layers - across) for _ in range(families))
        # early fusion has another name in saved weights
        self.last = "encoder" if config.fusion == "early" else "across"
        if across:
            self.add_module(self.last, make(config, across))

    def forward(self, grids: Sequence[Grid]) -> tuple[Tensor, Tensor]:
        """States `(R, M, D)` and which of them are real, `(R, M)` bool."""
        if len(self.encoders):
            grids = [encoder([grid]) for encoder, grid in zip(self.encoders, grids, strict=True)]
        last = getattr(self, self.last, None)
        return side_by_side(grids if last is None else [last(grids)])


def read_by_seeds(layers: nn.ModuleList, seeds: Tensor, states: Tensor, is_real: Tensor) -> Tensor:
    """Outputs of decoder layers whose input are seeds; with no states the seeds attend to nothing.

    Args:
        layers: decoder layers without a causal mask.
        seeds: `(R, K, D)`, or `(K, D)` for every row.
        states: `(R, M, D)` of an encoder.
        is_real: `(R, M)` bool.

    Returns:
        `(R, K, D)`.
    """
    seeds = seeds.expand(states.shape[0], -1, -1)
    for layer in layers:
        seeds = layer(seeds, None, states, key_mask(is_real))
    return seeds
