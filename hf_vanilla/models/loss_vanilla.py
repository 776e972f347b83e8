# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Smoothed cross-entropy per real target token (5.4).

Shapes: B batch, T target, N = B T tokens, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from .configuration_vanilla import LABEL_SMOOTHING_TYPES, VanillaConfig
from .kernels_vanilla import BlockwiseCrossEntropy, at_least_float32, per_item

IGNORED_LABEL = -100


def training_loss(
    config: VanillaConfig,
    logits: Tensor,
    labels: Tensor,
    *,
    is_training: bool,
    num_items_in_batch: "int | Tensor | None" = None,
) -> Tensor:
    """Loss of a text model: label-smoothed in training (5.4), plain NLL in evaluation.

    Args:
        config: read for `label_smoothing`, `label_smoothing_type`, `pad_token_id`.
        logits: `(B, T, V)`.
        labels: `(B, T)` int64, aligned with `logits`; -100 does not count, nor does `pad_token_id`,
            unless it also ends a sentence.
        is_training: whether to smooth.
        num_items_in_batch: labels of the whole optimizer step other than -100, as a Trainer counts
            them: each padding in them weighs as much as a mean label of this call.
    """
    pad, ends = config.pad_token_id, config.eos_token_id
    real = labels
    if pad is not None and pad not in (ends if isinstance(ends, list) else [ends]):
        # a tokenizer pads `text_target` with its pad token, not with -100
        real = labels.masked_fill(labels == pad, IGNORED_LABEL)
    loss = label_smoothed_loss(
        logits,
        real,
        smoothing=config.label_smoothing if is_training else 0.0,
        smoothing_type=config.label_smoothing_type,
        pad_token_id=pad,
        num_items_in_batch=num_items_in_batch,
    )
    if num_items_in_batch is None:
        return loss
    counts = [ids.ne(IGNORED_LABEL).sum() for ids in (labels, real)]
    return loss * (counts[0] / counts[1].clamp(min=1))


def label_smoothed_loss(
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
        logits: `(B, T, V)`; summed in float32 at least.
        labels: `(B, T)` int64, already aligned with `logits`; -100 is padding.
        smoothing: probability eps taken from the true token, in [0, 1); 0 gives the plain NLL.
        smoothing_type: which tokens share eps: `"non_target"`, the V-1 other tokens
            (tensor2tensor, fairseq); `"uniform"`, all V tokens (torch, transformers, Marian); or
            `"non_target_non_pad"`, the V-2 tokens that are neither true nor padding (Annotated
            Transformer).
        pad_token_id: needed by `"non_target_non_pad"` only.
        num_items_in_batch: real target tokens of the whole optimizer step, all micro-batches and
            processes; None: those of this call.

    Returns:
        A scalar; 0 with a zero gradient where every label is -100.

    Raises:
        ValueError: `smoothing_type` is unknown or lacks its `pad_token_id`; `labels` have another
            shape, or an id outside the vocabulary (on a GPU, CUDA's own assertion fails instead).
    """
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels {tuple(labels.shape)}, logits {tuple(logits.shape)}: give a label per position"
        )
    unsmoothed = None if smoothing_type != "non_target_non_pad" else pad_token_id
    if smoothing_type not in LABEL_SMOOTHING_TYPES:
        names = ", ".join(LABEL_SMOOTHING_TYPES)
        raise ValueError(f"label_smoothing_type={smoothing_type!r}: choose one of {names}")
    if smoothing_type == "non_target_non_pad" and pad_token_id is None:
        raise ValueError("label_smoothing_type='non_target_non_pad' needs a pad_token_id")
    vocabulary = logits.size(-1)
    tokens = vocabulary - LABEL_SMOOTHING_TYPES[smoothing_type]
    share = smoothing / tokens if smoothing else 0.0
    extra = 1 - smoothing if smoothing_type == "uniform" else 1 - smoothing - share
    is_real = labels != IGNORED_LABEL
    targets = labels.masked_fill(~is_real, 0)
    arguments = logits.flatten(0, 1), targets.flatten(), share, extra, unsmoothed
    try:
        losses = _losses(*arguments)
    except (IndexError, RuntimeError):
        if torch.compiler.is_compiling() or not ((targets < 0) | (targets >= vocabulary)).any():
            raise
        raise ValueError(
            f"labels from {int(targets.min())} to {int(targets.max())}, but the vocabulary has the "
            f"ids 0 to {vocabulary - 1}: use the model's own tokenizer, or call "
            "resize_token_embeddings"
        ) from None
    total = (losses * is_real.flatten()).sum()
    return per_item(total, is_real.sum() if num_items_in_batch is None else num_items_in_batch)


def _losses(logits: Tensor, *arguments: Any) -> Tensor:
    """`smoothed_cross_entropy` in the fastest way."""
    if torch.compiler.is_compiling():
        return compiled_cross_entropy(logits, *arguments)
    if not logits.requires_grad:
        return smoothed_cross_entropy(logits, *arguments)
    return BlockwiseCrossEntropy.apply(smoothed_cross_entropy, logits, *arguments)


def smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, share: float, extra: float, unsmoothed: int | None
) -> Tensor:
    """Cross-entropy `(N,)` in nats against a smoothed target, in float32 at least.

    Args:
        logits: `(N, V)`.
        targets: `(N,)` int64 ids of the true tokens.
        share: probability of each token.
        extra: additional probability of the true token.
        unsmoothed: id of a token that does not have `share`, if any.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    log_likely = logits.log_softmax(dim=-1, dtype=dtype)
    losses = -extra * log_likely.gather(-1, targets[:, None]).squeeze(-1)
    if share:
        losses = losses - share * log_likely.sum(dim=-1)
    if share and unsmoothed is not None:
        losses = losses + share * log_likely[:, unsmoothed]
    return losses


def compiled_cross_entropy(
    logits: Tensor, targets: Tensor, share: float, extra: float, unsmoothed: int | None
) -> Tensor:
    """`smoothed_cross_entropy` in operators that a compiler fuses to one pass over the logits.

    The backward pass is one more pass, since none of them scatters.
    """
    logits = at_least_float32(logits)
    ids = torch.arange(logits.size(-1), device=logits.device)
    weights = extra * (ids == targets[:, None]).to(logits.dtype)
    if share:
        weights = weights + share * (ids != (-1 if unsmoothed is None else unsmoothed))
    tokens = logits.size(-1) - (0 if unsmoothed is None else 1)
    return (extra + share * tokens) * logits.logsumexp(-1) - (weights * logits).sum(-1)
