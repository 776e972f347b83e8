# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The loss of a classifier of images: one label, several labels, or numbers."""

from torch import Tensor
from torch.nn import functional

from .configuration_vanilla_vit import PROBLEM_TYPES

SINGLE, MULTI, REGRESSION = PROBLEM_TYPES


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    problem_type: str | None = None,
    smoothing: float = 0.0,
    num_items_in_batch: "Tensor | int | None" = None,
) -> Tensor:
    """Cross-entropy in nats, binary cross-entropy in nats, or squared error, a mean over labels.

    Args:
        logits: `(B, C)`; summed in float32.
        labels: `(B,)` int64 classes, -100 = ignore; `(B, C)` float targets in [0, 1]; or `(B,)` or
            `(B, C)` float values.
        problem_type: a name of `PROBLEM_TYPES`; None: regression where C is 1, one label where
            labels are integers, several labels otherwise.
        smoothing: share of the target spread over all labels, in [0, 1); for one label only.
        num_items_in_batch: labels of the whole step, all micro-batches; None = of this call.

    Raises:
        ValueError: labels do not fit the logits.
    """
    kind = problem_type or _kind(logits, labels)
    total, count = _total(kind, logits.float(), labels, smoothing)
    if num_items_in_batch is None:
        return total / count
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch


def _kind(logits: Tensor, labels: Tensor) -> str:
    if logits.shape[1] == 1:
        return REGRESSION
    return MULTI if labels.is_floating_point() else SINGLE


def _total(
    kind: str, logits: Tensor, labels: Tensor, smoothing: float
) -> "tuple[Tensor, Tensor | int]":
    """The sum over labels, and how many labels it counts."""
    if kind == SINGLE:
        classes = labels.flatten()
        try:
            total = functional.cross_entropy(
                logits, classes, reduction="sum", ignore_index=-100, label_smoothing=smoothing
            )
        except IndexError:
            raise ValueError(
                f"labels from {int(classes.min())} to {int(classes.max())}, but the model has "
                f"{logits.shape[1]} labels: give 0 to {logits.shape[1] - 1}, or build it with a "
                "larger num_labels"
            ) from None
        return total, classes.ne(-100).sum()
    if labels.numel() != logits.numel():
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} for logits of shape {tuple(logits.shape)}: "
            f"{kind} needs one value for each"
        )
    targets = labels.to(logits.dtype).reshape(logits.shape)
    if kind == MULTI:
        total = functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    else:
        total = functional.mse_loss(logits, targets, reduction="sum")
    return total, labels.numel()
