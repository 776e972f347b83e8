# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Bipartite matching of predictions and objects (DETR, 3.1): one query per object, least cost.

Shapes: N decoder layers, B images, Q queries, M objects of the fullest image, K classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers.utils import is_scipy_available

from .boxes_vanilla_detr import generalized_iou, to_corners

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
