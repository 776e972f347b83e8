# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Histories and polylines as tokens of one width. Shapes: R rows, N sequences, L steps, D width."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .configuration_vanilla_scene import VanillaSceneConfig
from .kernels_vanilla import VanillaDropout
from .positions_vanilla import sinusoid
from .rows_vanilla_scene import FEATURES, Rows, Seen


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
    """One family of tokens: a Linear of its own, a vector per kind, a sinusoid over its steps.

    Args:
        config: widths and dropout.
        num_kinds: kinds of sequences, such as lane and crossing.
    """

    def __init__(self, config: VanillaSceneConfig, num_kinds: int = 1) -> None:
        super().__init__()
        self.projection = nn.Linear(FEATURES, config.d_model)
        self.kinds = nn.Embedding(num_kinds, config.d_model)
        self.scale = math.sqrt(config.d_model)
        self.dropout = VanillaDropout(config.dropout)

    def forward(self, seen: Seen) -> Grid:
        """Tokens of sequences."""
        features = seen.features.to(self.projection.weight.dtype)
        vectors = self.projection(features) + self.kinds(seen.kinds).unsqueeze(2)
        steps = torch.arange(vectors.shape[2], device=vectors.device)
        positions = sinusoid(steps, vectors.shape[-1]).to(vectors.dtype)
        return Grid(self.dropout(vectors * self.scale + positions), seen.is_real)


class SceneTokens(nn.Module):
    """The three families: an agent's own steps, those of others, pieces of polylines."""

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        self.own = SequenceTokens(config)
        self.others = SequenceTokens(config)
        self.lanes = SequenceTokens(config, config.num_lane_kinds)

    def forward(self, rows: Rows) -> list[Grid]:
        """Tokens of own steps, others and lanes, in this order."""
        return [self.own(rows.own), self.others(rows.others), self.lanes(rows.lanes)]


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


def key_mask(is_real: Tensor) -> Tensor:
    """`(R, 1, 1, M)` bool: every query may attend to the real keys `(R, M)`."""
    return is_real[:, None, None]
