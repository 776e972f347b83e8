# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Wayformer's three fusions and three ways to attend (2207.05844, sections 3 and 4).

A fusion decides which tokens meet in which encoder, an encoder how its tokens attend; each of the
three fusions takes each of the encoders. Shapes: R rows, N sequences, L steps, M tokens, D width.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .configuration_vanilla_scene import VanillaSceneConfig
from .layers_vanilla import VanillaDecoderLayer, VanillaEncoderLayer
from .tokens_vanilla_scene import Grid, key_mask, side_by_side, stacked

TIME, AGENTS = "time", "agents"
FAMILIES = 3  # own steps, others, lanes


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
            if axis == TIME:
                states = _along_last(layer, states, is_real)
            else:
                turned = _along_last(layer, states.transpose(1, 2), is_real.transpose(1, 2))
                states = turned.transpose(1, 2)
        return Grid(states, is_real)


def _along_last(layer: nn.Module, states: Tensor, is_real: Tensor) -> Tensor:
    """Attention within each sequence of `(R, N, L, D)`, of which `(R, N, L)` are real."""
    attended = layer(states.flatten(0, 1), key_mask(is_real.flatten(0, 1)))
    return attended.unflatten(0, states.shape[:2])


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


def _sequential(config: VanillaSceneConfig, layers: int) -> FactorisedEncoder:
    return FactorisedEncoder(config, (TIME,) * layers + (AGENTS,) * layers)


def _interleaved(config: VanillaSceneConfig, layers: int) -> FactorisedEncoder:
    return FactorisedEncoder(config, (TIME, AGENTS) * layers)


# by `config.encoder`: from config and number of layers to an encoder
ENCODERS: dict[str, Callable[[VanillaSceneConfig, int], nn.Module]] = {
    "full": FullEncoder,
    "sequential": _sequential,
    "interleaved": _interleaved,
    "latent": LatentQueryEncoder,
}


class LateFusion(nn.Module):
    """An encoder for each family; their outputs stand side by side for the decoder."""

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        self.encoders = _encoders(config, config.encoder_layers)

    def forward(self, grids: Sequence[Grid]) -> tuple[Tensor, Tensor]:
        """States `(R, M, D)` and which of them are real, `(R, M)` bool."""
        parts = [encoder([grid]) for encoder, grid in zip(self.encoders, grids, strict=True)]
        return side_by_side(parts)


class EarlyFusion(nn.Module):
    """One encoder over the tokens of all families."""

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        self.encoder = ENCODERS[config.encoder](config, config.encoder_layers)

    def forward(self, grids: Sequence[Grid]) -> tuple[Tensor, Tensor]:
        """States `(R, M, D)` and which of them are real, `(R, M)` bool."""
        return side_by_side([self.encoder(grids)])


class HierarchicalFusion(nn.Module):
    """An encoder for each family, then one across them; each has half of the layers."""

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        across = config.encoder_layers // 2
        self.encoders = _encoders(config, config.encoder_layers - across)
        self.across = ENCODERS[config.encoder](config, across)

    def forward(self, grids: Sequence[Grid]) -> tuple[Tensor, Tensor]:
        """States `(R, M, D)` and which of them are real, `(R, M)` bool."""
        parts = [encoder([grid]) for encoder, grid in zip(self.encoders, grids, strict=True)]
        return side_by_side([self.across(parts)])


def _encoders(config: VanillaSceneConfig, layers: int) -> nn.ModuleList:
    return nn.ModuleList(ENCODERS[config.encoder](config, layers) for _ in range(FAMILIES))


# by `config.fusion`
FUSIONS: dict[str, Callable[[VanillaSceneConfig], nn.Module]] = {
    "late": LateFusion,
    "early": EarlyFusion,
    "hierarchical": HierarchicalFusion,
}


def read_by_seeds(layers: nn.ModuleList, seeds: Tensor, states: Tensor, is_real: Tensor) -> Tensor:
    """Outputs of decoder layers whose input are seeds; with no states the seeds attend to nothing.

    Args:
        layers: decoder layers without a causal mask.
        seeds: `(R, K, D)`.
        states: `(R, M, D)` of an encoder.
        is_real: `(R, M)` bool.

    Returns:
        `(R, K, D)`.
    """
    for layer in layers:
        seeds = layer(seeds, None, states, key_mask(is_real))
    return seeds


def decoder_layers(config: VanillaSceneConfig) -> nn.ModuleList:
    """The decoder layers of a config, each without a causal mask."""
    layers = [VanillaDecoderLayer(config, i, is_causal=False) for i in range(config.decoder_layers)]
    return nn.ModuleList(layers)


def masked_mean(states: Tensor, is_real: Tensor) -> Tensor:
    """Mean over the real ones of `(..., M, D)`, of which `(..., M)` are; 0 where there is none."""
    total = torch.where(is_real.unsqueeze(-1), states, 0).sum(dim=-2)
    return total / is_real.sum(dim=-1, keepdim=True).clamp(min=1)
