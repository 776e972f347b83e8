# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Boxes: two forms, overlap, generalized overlap (Rezatofighi et al. 2019).

Center form is `(center x, center y, width, height)`, corner form `(left, top, right, bottom)`. Both
are in any unit; the model's boxes are in shares of the image's width and height.
"""

import torch
from torch import Tensor


def to_corners(boxes: Tensor) -> Tensor:
    """Center form `(..., 4)` to corner form `(..., 4)`."""
    center, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat((center - 0.5 * size, center + 0.5 * size), dim=-1)


def to_centers(boxes: Tensor) -> Tensor:
    """Corner form `(..., 4)` to center form `(..., 4)`."""
    top_left, bottom_right = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((top_left + bottom_right) / 2, bottom_right - top_left), dim=-1)


def box_area(boxes: Tensor) -> Tensor:
    """Area `(...)` of boxes in corner form `(..., 4)`."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def intersection_and_union(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Areas `(...)` of intersection and union.

    Args:
        boxes: corner form, `(..., 4)`.
        others: corner form, broadcastable to `boxes`.
    """
    top_left = torch.maximum(boxes[..., :2], others[..., :2])
    bottom_right = torch.minimum(boxes[..., 2:], others[..., 2:])
    width, height = (bottom_right - top_left).clamp(min=0).unbind(-1)
    intersection = width * height
    return intersection, box_area(boxes) + box_area(others) - intersection


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union in [0, 1], `(...)`; two boxes without area have 0.

    Args:
        boxes: corner form, `(..., 4)`.
        others: corner form, broadcastable to `boxes`. For all pairs, give `(..., N, 1, 4)` and
            `(..., 1, M, 4)`.
    """
    intersection, union = intersection_and_union(boxes, others)
    return intersection / union.clamp(min=torch.finfo(union.dtype).tiny)


def generalized_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """IoU minus the share of the enclosing box that neither box covers, in (-1, 1], `(...)`.

    Disjoint boxes get a gradient too: the farther apart, the lower. Two boxes without area at one
    point have 0, never NaN.

    Args:
        boxes: as for `iou`.
        others: as for `iou`.
    """
    intersection, union = intersection_and_union(boxes, others)
    top_left = torch.minimum(boxes[..., :2], others[..., :2])
    bottom_right = torch.maximum(boxes[..., 2:], others[..., 2:])
    enclosing = (bottom_right - top_left).prod(dim=-1)
    tiny = torch.finfo(union.dtype).tiny
    overlap = intersection / union.clamp(min=tiny)
    return overlap - (enclosing - union) / enclosing.clamp(min=tiny)
