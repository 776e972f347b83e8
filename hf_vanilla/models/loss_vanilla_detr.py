# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The set prediction loss of DETR (3.1), for all decoder layers in one pass.

Shapes: N decoder layers, B images, Q queries, M objects of the fullest image, K classes.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers.image_transforms import center_to_corners_format
from transformers.utils import is_scipy_available

from .configuration_vanilla_detr import VanillaDetrConfig
from .kernels_vanilla import at_least_float32, may_read

if is_scipy_available():
    from scipy.optimize import linear_sum_assignment

NO_LABEL = -100  # pads `labels`, as everywhere in transformers
LARGEST_BOX = 2  # a box that leaves its image may exceed 1; numbers of pixels are larger


class Targets(NamedTuple):
    """The objects of a batch of images.

    Attributes:
        labels: `(B, M)` int64 in [0, K); -100 pads.
        boxes: `(B, M, 4)` in center form, in shares of the image's width and height.
    """

    labels: Tensor
    boxes: Tensor


@torch.no_grad()
def match(config: VanillaDetrConfig, logits: Tensor, boxes: Tensor, targets: Targets) -> Tensor:
    """The query of each object, `(N, B, M)` int64 on the CPU; -1 where the target is padding.

    The costs of all layers and images are copied to the CPU at once, together with the labels. A
    prediction that is not finite is matched last.

    Args:
        config: read for `class_cost`, `bbox_cost` and `giou_cost`.
        logits: `(N, B, Q, K + 1)`; the last class is "no object".
        boxes: `(N, B, Q, 4)` in center form.
        targets: the objects of each image.

    Raises:
        ValueError: an image has more objects than there are queries.
        ImportError: scipy is not installed.
    """
    if not is_scipy_available():
        raise ImportError("matching needs scipy: pip install scipy")
    queries = logits.shape[2]
    cost = matching_cost(config, logits, boxes, targets)  # (N, B, Q, M)
    labels = targets.labels[None, :, None].expand(len(cost), -1, -1, -1)
    joined = torch.cat((cost, labels.to(cost)), dim=2).cpu()  # a GPU waits once
    cost, is_object = joined[:, :, :queries], joined[0, :, queries].ne(NO_LABEL)
    counts = is_object.sum(dim=1).tolist()
    if counts and max(counts) > queries:
        raise ValueError(
            f"an image has {max(counts)} objects, but the model has {queries} queries: build it "
            "with a larger num_queries, or leave such images out"
        )
    matched = torch.full((*cost.shape[:2], is_object.shape[1]), -1)
    for image, count in enumerate(counts):
        if not count:
            continue
        columns = is_object[image].nonzero().flatten()
        for layer, of_layer in enumerate(cost[:, image, :, columns].numpy()):
            rows, order = linear_sum_assignment(of_layer)
            matched[layer, image, columns[torch.from_numpy(order)]] = torch.from_numpy(rows)
    return matched


def matching_cost(
    config: VanillaDetrConfig, logits: Tensor, boxes: Tensor, targets: Targets
) -> Tensor:
    """Cost of giving each object to each query, `(N, B, Q, M)`; arguments as of `match`."""
    probabilities = at_least_float32(logits).softmax(dim=-1)
    classes = targets.labels.clamp(min=0)[None, :, None]
    classes = classes.expand(*logits.shape[:3], -1)  # (N, B, Q, M)
    predicted = at_least_float32(boxes).unsqueeze(3)  # (N, B, Q, 1, 4)
    wanted = targets.boxes.float()[None, :, None]  # (1, B, 1, M, 4)
    corners = center_to_corners_format(predicted), center_to_corners_format(wanted)
    cost = (
        config.bbox_cost * (predicted - wanted).abs().sum(dim=-1)
        - config.class_cost * probabilities.gather(3, classes)
        - config.giou_cost * generalized_iou(*corners)
    )
    largest = torch.finfo(cost.dtype).max
    return cost.nan_to_num(nan=largest, posinf=largest, neginf=largest)


# --- boxes -------------------------------------------------------------------------------------


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


# --- the loss ----------------------------------------------------------------------------------


def detection_loss(
    config: VanillaDetrConfig,
    logits: Tensor,
    boxes: Tensor,
    targets: Targets,
    *,
    num_objects: "Tensor | float | None" = None,
    num_images: "Tensor | float | None" = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Match every layer anew, then sum the losses of the pairs and of the unmatched queries.

    Several micro-batches or processes give the gradient of one batch if `num_objects` and
    `num_images` are those of the whole step.

    Args:
        config: read for the weights of the loss and of the matching.
        logits: `(N, B, Q, K + 1)`; the last class is "no object".
        boxes: `(N, B, Q, 4)` in center form, in shares of the image.
        targets: the objects of each image.
        num_objects: objects of the optimizer step; None: of this call. At least 1 is used.
        num_images: images of the optimizer step; None where `num_objects` is None.

    Returns:
        The weighted sum over parts and layers; and `(N,)` of each part, the last layer last:
        `loss_ce`, the weighted cross-entropy, and, per object, `loss_bbox`, the L1 distance, and
        `loss_giou`, one minus the generalized IoU.

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
    matched = match(config, logits, boxes, targets)  # (N, B, M)
    pairs = (matched >= 0).nonzero(as_tuple=True)
    indices = torch.stack((*pairs, matched[pairs]))
    if logits.device.type == "cuda":
        indices = indices.pin_memory()
    layer, image, slot, query = indices.to(logits.device, non_blocking=True)
    layers, images, queries, classes = logits.shape

    expected = torch.full(logits.shape[:3], classes - 1, device=logits.device)  # (N, B, Q)
    expected[layer, image, query] = labels[image, slot]
    logits = at_least_float32(logits)
    class_weights = logits.new_ones(classes)
    class_weights[-1] = config.eos_coefficient
    of_queries = cross_entropy(
        logits.flatten(0, 2), expected.flatten(), class_weights, reduction="none"
    )
    if num_objects is None or num_images is None:
        num_objects, num_images = labels.ne(NO_LABEL).sum(), images
    objects = torch.as_tensor(num_objects).to(logits.device)
    weight = objects + config.eos_coefficient * (queries * num_images - objects)
    label = of_queries.view(layers, -1).sum(dim=1) / weight.clamp(min=1e-9)  # 0: nothing counts

    predicted = at_least_float32(boxes[layer, image, query])
    wanted = target_boxes[image, slot].float()
    distances = (predicted - wanted).abs().sum(dim=-1)
    corners = center_to_corners_format(predicted), center_to_corners_format(wanted)
    overlaps = 1 - generalized_iou(*corners)
    nothing = distances.new_zeros(layers)
    distance = nothing.index_add(0, layer, distances) / objects.clamp(min=1)
    overlap = nothing.index_add(0, layer, overlaps) / objects.clamp(min=1)
    total = label + config.bbox_loss_coefficient * distance + config.giou_loss_coefficient * overlap
    return total.sum(), {"loss_ce": label, "loss_bbox": distance, "loss_giou": overlap}


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
    if not targets:
        return Targets(torch.full((0, 0), NO_LABEL), torch.zeros(0, 0, 4))
    device = targets[0]["boxes"].device
    boxes = [target["boxes"].to(device).view(-1, 4).float() for target in targets]
    labels = [target["class_labels"].to(device).long() for target in targets]
    padded = pad_sequence(labels, batch_first=True, padding_value=NO_LABEL)
    return Targets(padded, pad_sequence(boxes, batch_first=True))


def _check_targets(logits: Tensor, targets: Targets) -> None:
    labels, target_boxes = targets
    images, classes = logits.shape[1], logits.shape[-1] - 1
    if labels.shape != target_boxes.shape[:-1] or labels.dim() != 2 or len(labels) != images:
        raise ValueError(
            f"labels {tuple(labels.shape)} and boxes {tuple(target_boxes.shape)} do not fit "
            f"{images} images: give (B, M) and (B, M, 4)"
        )
    if not may_read(labels):  # on a GPU, CUDA's own assertion fails instead
        return
    is_known = labels.ne(NO_LABEL)
    known, sizes = labels[is_known], target_boxes[is_known].abs()
    if not (sizes <= LARGEST_BOX).all():
        raise ValueError(
            f"boxes with numbers up to {sizes.max():g}: give (center x, center y, width, height) "
            "in shares of the image's width and height, all from 0 to 1"
        )
    if len(known) and not 0 <= int(known.min()) <= int(known.max()) < classes:
        raise ValueError(
            f"labels from {int(known.min())} to {int(known.max())}, but the model has the classes "
            f"0 to {classes - 1}: map the data's category ids, or raise num_labels"
        )
