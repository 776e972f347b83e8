# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Bipartite matching of predictions and objects (DETR, 3.1), and the boxes that it compares.

Center form is `(center x, center y, width, height)`, corner form `(left, top, right, bottom)`. Both
are in any unit; the model's boxes are in shares of the image's width and height.
Shapes: N decoder layers, B images, Q queries, M objects of the fullest image, K classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers.utils import is_scipy_available

if is_scipy_available():
    from scipy.optimize import linear_sum_assignment

NO_LABEL = -100  # pads `labels`, as everywhere in transformers


class MatchingCosts(NamedTuple):
    """Weights of the three costs.

    Attributes:
        label: of minus the probability of the object's class.
        distance: of the L1 distance of the boxes in center form.
        overlap: of minus the generalized IoU.
    """

    label: float = 1.0
    distance: float = 5.0
    overlap: float = 2.0


class Targets(NamedTuple):
    """The objects of a batch of images.

    Attributes:
        labels: `(B, M)` int64 in [0, K); -100 pads.
        boxes: `(B, M, 4)` in center form, in shares of the image's width and height.
    """

    labels: Tensor
    boxes: Tensor


DETR_COSTS = MatchingCosts()


@torch.no_grad()
def match(
    logits: Tensor,
    boxes: Tensor,
    targets: Targets,
    costs: MatchingCosts = DETR_COSTS,
) -> Tensor:
    """The query of each object, `(N, B, M)` int64; -1 where the target is padding.

    The costs of all layers and images are one tensor and one copy to the CPU. A prediction that is
    not finite is matched last.

    Args:
        logits: `(N, B, Q, K + 1)`; the last class is "no object".
        boxes: `(N, B, Q, 4)` in center form.
        targets: the objects of each image.
        costs: weights of the costs.

    Raises:
        ValueError: an image has more objects than there are queries.
        ImportError: scipy is not installed.
    """
    labels = targets.labels
    counts = labels.ne(NO_LABEL).sum(dim=1).tolist()
    queries = logits.shape[2]
    if counts and max(counts) > queries:
        raise ValueError(
            f"an image has {max(counts)} objects, but the model has {queries} queries: build it "
            "with a larger num_queries, or leave such images out"
        )
    if not is_scipy_available():
        raise ImportError("matching needs scipy: pip install scipy")
    cost = matching_cost(logits, boxes, targets, costs).cpu()  # (N, B, Q, M)
    chosen = torch.full((*cost.shape[:2], labels.shape[1]), -1)
    is_object = labels.ne(NO_LABEL).cpu()
    for image, count in enumerate(counts):
        if not count:
            continue
        columns = is_object[image].nonzero().flatten()
        for layer, of_layer in enumerate(cost[:, image, :, columns].numpy()):
            rows, order = linear_sum_assignment(of_layer)
            chosen[layer, image, columns[torch.from_numpy(order)]] = torch.from_numpy(rows)
    return chosen.to(logits.device)


def matching_cost(logits: Tensor, boxes: Tensor, targets: Targets, costs: MatchingCosts) -> Tensor:
    """Cost of giving each object to each query, `(N, B, Q, M)` float32; arguments as of `match`."""
    probabilities = logits.float().softmax(dim=-1)
    classes = targets.labels.clamp(min=0)[None, :, None].expand(
        *logits.shape[:3], -1
    )  # (N, B, Q, M)
    predicted = boxes.float().unsqueeze(3)  # (N, B, Q, 1, 4)
    wanted = targets.boxes.float()[None, :, None]  # (1, B, 1, M, 4)
    cost = (
        costs.distance * (predicted - wanted).abs().sum(dim=-1)
        - costs.label * probabilities.gather(3, classes)
        - costs.overlap * generalized_iou(to_corners(predicted), to_corners(wanted))
    )
    largest = torch.finfo(cost.dtype).max
    return cost.nan_to_num(nan=largest, posinf=largest, neginf=largest)


# --- boxes -------------------------------------------------------------------------------------


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
    """IoU minus the share of the enclosing box outside both (Rezatofighi et al. 2019), `(...)`.

    In (-1, 1]. Disjoint boxes get a gradient too: the larger their distance, the lower. Two boxes
    without area at one point have 0, never NaN.

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
