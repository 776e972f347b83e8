# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Smoothed cross-entropy per real target token (5.4).

Shapes: B batch, T target, N = B T tokens, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .configuration_vanilla import LABEL_SMOOTHING_TYPES, VanillaConfig

IGNORED_LABEL = -100
# logits handled at once on a CPU: few enough to stay in its cache
CACHED_LOGITS = 2**19


def training_loss(
    config: VanillaConfig,
    logits: Tensor,
    labels: Tensor,
    *,
    is_training: bool,
    num_items_in_batch: "int | Tensor | None" = None,
) -> Tensor:
    """The loss that a config describes: smoothed in training, the plain NLL in evaluation (5.4).

    Args:
        config: read for `label_smoothing`, `label_smoothing_type`, `pad_token_id`.
        logits: `(B, T, V)`.
        labels: `(B, T)` int64, aligned with `logits`; -100 and `pad_token_id` do not count.
        is_training: whether to smooth.
        num_items_in_batch: as for `label_smoothed_loss`.
    """
    pad = config.pad_token_id
    if pad is not None:  # a tokenizer pads `text_target` with its pad token, not with -100
        labels = labels.masked_fill(labels == pad, IGNORED_LABEL)
    return label_smoothed_loss(
        logits,
        labels,
        smoothing=config.label_smoothing if is_training else 0.0,
        smoothing_type=config.label_smoothing_type,
        pad_token_id=pad,
        num_items_in_batch=num_items_in_batch,
    )


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
        ValueError: `smoothing_type` is unknown or lacks its `pad_token_id`; `labels` are of another
            shape, or outside the vocabulary (a GPU's own assertion tells the latter).
    """
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} do not fit logits of shape "
            f"{tuple(logits.shape)}: give one label for each place"
        )
    unsmoothed = None if smoothing_type != "non_target_non_pad" else pad_token_id
    if smoothing_type not in LABEL_SMOOTHING_TYPES:
        names = ", ".join(LABEL_SMOOTHING_TYPES)
        raise ValueError(f"label_smoothing_type={smoothing_type!r}: choose one of {names}")
    if smoothing_type == "non_target_non_pad" and pad_token_id is None:
        raise ValueError("label_smoothing_type='non_target_non_pad' needs a pad_token_id")
    words = logits.size(-1) - LABEL_SMOOTHING_TYPES[smoothing_type]
    share = smoothing / words if smoothing else 0.0
    extra = 1 - smoothing if smoothing_type == "uniform" else 1 - smoothing - share
    is_real = labels != IGNORED_LABEL
    targets = labels.masked_fill(~is_real, 0)
    # a compiler fuses the plain formula and cannot follow the other
    is_plain = torch.compiler.is_compiling() or not logits.requires_grad
    cross_entropy = _plain_cross_entropy if is_plain else _CrossEntropy.apply
    try:
        losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), share, extra, unsmoothed)
    except (IndexError, RuntimeError):
        if torch.compiler.is_compiling() or not _is_outside(targets, logits.size(-1)):
            raise
        raise ValueError(
            f"labels from {int(targets.min())} to {int(targets.max())}, but the vocabulary has the "
            f"ids 0 to {logits.size(-1) - 1}: use the model's own tokenizer, or call "
            "resize_token_embeddings"
        ) from None
    total = (losses * is_real.flatten()).sum()
    if num_items_in_batch is None:
        return total / is_real.sum().clamp(min=1)
    return total / num_items_in_batch


def _plain_cross_entropy(
    logits: Tensor, targets: Tensor, share: float, extra: float, unsmoothed: int | None
) -> Tensor:
    """Cross-entropy `(N,)` against `share` on every word and `extra` more on the true one.

    Args:
        logits: `(N, V)`.
        targets: `(N,)` int64 ids of the true words.
        share: probability of each word.
        extra: what the true word has besides.
        unsmoothed: id of a word without its share.
    """
    logits = _wide(logits)
    losses = logits.logsumexp(dim=-1) - extra * logits.gather(-1, targets[:, None]).squeeze(-1)
    if share:
        losses = losses - share * logits.sum(dim=-1)
    if share and unsmoothed is not None:
        losses = losses + share * logits[:, unsmoothed]
    return losses


class _CrossEntropy(torch.autograd.Function):
    """`_plain_cross_entropy` whose backward writes its gradient once, a cacheful of rows at a time.

    Autograd's own would make several more arrays of N x V numbers, which costs more time than the
    product that made the logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        share: float,
        extra: float,
        unsmoothed: int | None,
    ) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.shares = share, extra, unsmoothed
        parts = zip(_cachefuls(logits), _cachefuls(targets, like=logits), strict=True)
        return torch.cat([_plain_cross_entropy(*part, *ctx.shares) for part in parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, targets = ctx.saved_tensors
        share, extra, unsmoothed = ctx.shares
        result = torch.empty_like(logits)
        parts = (logits, targets, gradient, result)
        for rows, ids, factor, out in zip(
            *(_cachefuls(part, like=logits) for part in parts), strict=True
        ):
            is_wide = _wide(out) is out
            wide = torch.softmax(rows, dim=-1, out=out) if is_wide else _wide(rows).softmax(dim=-1)
            if share:
                wide -= share
            if share and unsmoothed is not None:
                wide[:, unsmoothed] += share
            wide.scatter_add_(-1, ids[:, None], wide.new_full((len(ids), 1), -extra))
            torch.mul(wide, factor[:, None], out=out)
        return result, None, None, None, None


def _is_outside(targets: Tensor, size: int) -> bool:
    return bool(targets.numel()) and not 0 <= int(targets.min()) <= int(targets.max()) < size


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _cachefuls(rows: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
    """Rows in parts of which a CPU's cache holds the logits; all at once elsewhere."""
    logits = rows if like is None else like
    is_cpu = logits.device.type == "cpu"
    return rows.split(max(1, CACHED_LOGITS // logits.size(-1)) if is_cpu else max(1, len(rows)))
