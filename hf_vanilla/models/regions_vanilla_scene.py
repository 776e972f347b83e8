# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Regions of end points (mmTransformer, 2103.11624, section 3.3), clustered by k-means.

Shapes: N end points, G regions, R rows, K proposals.
"""

import torch
from torch import Tensor

ROUNDS = 50


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
    return k_means(points, centres, ROUNDS).to(end_points.dtype)


def k_means(points: Tensor, centres: Tensor, rounds: int) -> Tensor:
    """Centres `(G, 2)` of points `(N, 2)` after at most so many rounds from `centres` on.

    A centre that no point is closest to stays where it is.
    """
    for _ in range(rounds):
        owner = region_of(points, centres)
        total = torch.zeros_like(centres).index_add(0, owner, points)
        size = torch.bincount(owner, minlength=len(centres)).unsqueeze(1)
        moved = torch.where(size > 0, total / size.clamp(min=1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def region_of(end_points: Tensor, centres: Tensor) -> Tensor:
    """Number of the nearest centre, `(N,)` int64."""
    return torch.cdist(end_points, centres.to(end_points.dtype)).argmin(dim=1)


def proposals_of_regions(regions: Tensor, proposals: int, count: int) -> Tensor:
    """Which proposals belong to the region `(R,)` of each row, `(R, K)` bool.

    Proposals are divided evenly: the first K / G belong to region 0.
    """
    owner = torch.arange(proposals, device=regions.device) // (proposals // count)
    return owner == regions.unsqueeze(1)
