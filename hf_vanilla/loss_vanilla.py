# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Smoothed cross-entropy per real target token (5.4). Shapes: B batch, T target, V vocabulary."""

import torch
from torch import Tensor

from .configuration_vanilla import LABEL_SMOOTHING_TYPES

IGNORED_LABEL = -100


def label_smoothed_loss(  # noqa: PLR0913 - the loss and its divisor are one thought
    logits: Tensor,
    labels: Tensor,
    *,
    smoothing: float,
    smoothing_type: str = "non_target",
    pad_token_id: int | None = None,
    num_items_in_batch: "int | Tensor | None" = None,
) -> Tensor:
    """Nats per real target token, with the targets smoothed over the vocabulary (5.4).

    Args:
        logits: `(B, T, V)`; taken to float32 at least.
        labels: `(B, T)` int64, already aligned with `logits`; -100 is padding.
        smoothing: probability eps taken from the true word, in [0, 1); 0 gives the plain NLL.
        smoothing_type: who shares eps: `"non_target"`, the V-1 other words (tensor2tensor,
            fairseq); `"uniform"`, all V words (torch, transformers, Marian); or
            `"non_target_non_pad"`, the V-2 words neither true nor padding (Annotated Transformer).
        pad_token_id: the padding word; needed by `"non_target_non_pad"` only.
        num_items_in_batch: real target tokens of the whole optimizer step, all micro-batches and
            processes; None: those of this call.

    Returns:
        A scalar; 0 with a zero gradient where every label is -100.

    Raises:
        ValueError: `smoothing_type` is unknown or lacks its `pad_token_id`.
    """
    if smoothing_type not in LABEL_SMOOTHING_TYPES:
        names = ", ".join(LABEL_SMOOTHING_TYPES)
        raise ValueError(f"label_smoothing_type={smoothing_type!r}: choose one of {names}")
    is_real = labels != IGNORED_LABEL
    targets = labels.masked_fill(~is_real, 0).unsqueeze(-1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_probs = logits.log_softmax(dim=-1)
    losses = -log_probs.gather(-1, targets).squeeze(-1)  # (B, T)
    if smoothing:
        others = _mean_of_others(log_probs, losses, smoothing_type, pad_token_id)
        losses = (1 - smoothing) * losses + smoothing * others
    total = (losses * is_real).sum()
    if num_items_in_batch is None:
        return total / is_real.sum().clamp(min=1)
    return total / num_items_in_batch


def _mean_of_others(
    log_probs: Tensor, nll: Tensor, smoothing_type: str, pad_token_id: int | None
) -> Tensor:
    """Mean of -log p over the words that share eps, `(B, T)`."""
    total, words = -log_probs.sum(dim=-1), log_probs.size(-1)
    if smoothing_type == "uniform":
        return total / words
    if smoothing_type == "non_target":
        return (total - nll) / (words - 1)
    if pad_token_id is None:
        raise ValueError("label_smoothing_type='non_target_non_pad' needs a pad_token_id")
    return (total - nll + log_probs[..., pad_token_id]) / (words - 2)
