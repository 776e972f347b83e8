# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The set prediction loss of DETR (3.1), for all decoder layers in one pass.

Shapes: N decoder layers, B images, Q queries, M objects of the fullest image, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .matching_vanilla_detr import (
    DETR_COSTS,
    NO_LABEL,
    MatchingCosts,
    Targets,
    generalized_iou,
    match,
    to_corners,
)


@dataclass(frozen=True, kw_only=True)
class DetectionWeights:
    """Weights of the loss.

    Attributes:
        no_object: of the class "no object", which most queries have to predict.
        distance: of the L1 distance of the boxes.
        overlap: of one minus the generalized IoU.
        costs: those of the matching.
    """

    no_object: float = 0.1
    distance: float = 5.0
    overlap: float = 2.0
    costs: MatchingCosts = DETR_COSTS


DETR_WEIGHTS = DetectionWeights()


@dataclass(frozen=True)
class DetectionLoss:
    """The loss and its parts, one number per decoder layer, the last layer last.

    Attributes:
        label: `(N,)` weighted cross-entropy.
        distance: `(N,)` L1 distance per object.
        overlap: `(N,)` one minus the generalized IoU, per object.
        total: the weighted sum over parts and layers.
    """

    label: Tensor
    distance: Tensor
    overlap: Tensor
    total: Tensor


def detection_loss(
    logits: Tensor,
    boxes: Tensor,
    targets: Targets,
    *,
    weights: DetectionWeights = DETR_WEIGHTS,
    num_objects: "Tensor | float | None" = None,
    num_images: "Tensor | float | None" = None,
) -> DetectionLoss:
    """Match every layer anew, then sum the losses of the pairs and of the unmatched queries.

    Several micro-batches or processes give the gradient of one batch if `num_objects` and
    `num_images` are those of the whole step.

    Args:
        logits: `(N, B, Q, K + 1)`; the last class is "no object".
        boxes: `(N, B, Q, 4)` in center form, in shares of the image.
        targets: the objects of each image.
        weights: those of the loss and of the matching.
        num_objects: objects of the optimizer step; None: of this call. At least 1 is used.
        num_images: images of the optimizer step; None where `num_objects` is None.

    Raises:
        ValueError: shapes do not fit, a label is no class, an image has more objects than there
            are queries, or one of the counts is given without the other.
    """
    labels, target_boxes = targets
    _check_targets(logits, targets)
    if (num_objects is None) != (num_images is None):
        raise ValueError(
            "one of num_items_in_batch (objects) and num_images is given: give both of the "
            "optimizer step, or neither"
        )
    matched = match(logits, boxes, targets, weights.costs)  # (N, B, M)
    layer, image, slot = (matched >= 0).nonzero(as_tuple=True)
    query = matched[layer, image, slot]
    layers, images, queries, classes = logits.shape

    expected = torch.full(logits.shape[:3], classes - 1, device=logits.device)  # (N, B, Q)
    expected[layer, image, query] = labels[image, slot]
    class_weights = logits.new_ones(classes, dtype=torch.float32)
    class_weights[-1] = weights.no_object
    of_queries = cross_entropy(
        logits.float().flatten(0, 2), expected.flatten(), class_weights, reduction="none"
    )
    if num_objects is None or num_images is None:
        num_objects, num_images = labels.ne(NO_LABEL).sum(), images
    objects = torch.as_tensor(num_objects).to(logits.device)
    divisor = objects + weights.no_object * (queries * num_images - objects)
    label = of_queries.view(layers, -1).sum(dim=1) / divisor

    found, wanted = boxes[layer, image, query].float(), target_boxes[image, slot].float()
    distances = (found - wanted).abs().sum(dim=-1)
    overlaps = 1 - generalized_iou(to_corners(found), to_corners(wanted))
    nothing = distances.new_zeros(layers)
    distance = nothing.index_add(0, layer, distances) / objects.clamp(min=1)
    overlap = nothing.index_add(0, layer, overlaps) / objects.clamp(min=1)
    parts = label + weights.distance * distance + weights.overlap * overlap
    return DetectionLoss(label, distance, overlap, parts.sum())


def padded_targets(targets: Sequence[Mapping[str, Tensor]]) -> Targets:
    """Transformers' form of targets as padded tensors.

    Args:
        targets: for each image a mapping with `class_labels` `(m,)` and `boxes` `(m, 4)` in center
            form.

    Raises:
        ValueError: an image's labels and boxes differ in number.
    """
    for index, target in enumerate(targets):
        if len(target["class_labels"]) != len(target["boxes"]):
            raise ValueError(
                f"image {index} of the batch has {len(target['class_labels'])} class_labels and "
                f"{len(target['boxes'])} boxes: give one of each per object"
            )
    most = max((len(target["class_labels"]) for target in targets), default=0)
    device = targets[0]["boxes"].device if targets else None
    labels = torch.full((len(targets), most), NO_LABEL, device=device)
    boxes = torch.zeros((len(targets), most, 4), device=device)
    for index, target in enumerate(targets):
        count = len(target["class_labels"])
        labels[index, :count] = target["class_labels"]
        boxes[index, :count] = target["boxes"].view(-1, 4).to(boxes.dtype)
    return Targets(labels, boxes)


def _check_targets(logits: Tensor, targets: Targets) -> None:
    labels, target_boxes = targets
    images, classes = logits.shape[1], logits.shape[-1] - 1
    if labels.shape != target_boxes.shape[:-1] or labels.dim() != 2 or len(labels) != images:
        raise ValueError(
            f"labels {tuple(labels.shape)} and boxes {tuple(target_boxes.shape)} do not fit "
            f"{images} images: give (B, M) and (B, M, 4)"
        )
    known = labels[labels.ne(NO_LABEL)]
    if len(known) and not 0 <= int(known.min()) <= int(known.max()) < classes:
        raise ValueError(
            f"labels from {int(known.min())} to {int(known.max())}, but the model has the classes "
            f"0 to {classes - 1}: map the data's category ids, or raise num_labels"
        )
