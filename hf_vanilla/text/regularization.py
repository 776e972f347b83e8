"""R-Drop: two passes with different dropout should agree (Wu et al. 2021).

Shapes: B batch, T target, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers.modeling_outputs import Seq2SeqLMOutput

from hf_vanilla.models.kernels_vanilla import at_least_float32, row_blocks
from hf_vanilla.training.task import Batch


def rdrop_outputs(
    model: torch.nn.Module, batch: Batch, tokens: Tensor, *, alpha: float
) -> Seq2SeqLMOutput:
    """Loss and logits of a batch that passes the model twice, with two draws of dropout.

    The loss is half of the published one, so that it is comparable to the loss of one pass:
    the mean of both cross-entropies, and `alpha` / 2 times the mean of both divergences.

    Args:
        model: in training mode.
        batch: `input_ids` and `attention_mask` `(B, S)`, `labels` `(B, T)`.
        tokens: `()` target tokens of the whole step.
        alpha: weight of the divergence.

    Returns:
        `loss`, `()` nats per target token; `logits` `(B, T, V)` of the first pass.
    """
    twice = {name: torch.cat([values, values]) for name, values in batch.items()}
    outputs = model(**twice, num_items_in_batch=2 * tokens)
    divergence = symmetric_divergence(outputs.logits, batch["labels"]) / tokens
    outputs.loss = outputs.loss + alpha / 2 * divergence
    outputs.logits, _ = outputs.logits.chunk(2)
    return outputs


def symmetric_divergence(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of KL(p || q) and KL(q || p) in nats, summed over the real target tokens; `()`.

    Args:
        logits: `(2B, T, V)` of p in the first half and of q in the second; computed in float32.
        labels: `(B, T)` int64; tokens below 0 do not count.
    """
    return _SymmetricDivergence.apply(logits, (labels >= 0).flatten())


class _SymmetricDivergence(torch.autograd.Function):
    """The divergence and its gradient, block by block.

    Autograd would make about ten arrays of B T V numbers in float32.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, is_real: Tensor) -> Tensor:
        """`()`, of logits `(2B, T, V)` and `(B T,)` bool."""
        gradient = torch.empty_like(logits)
        halves = (*logits.flatten(0, 1).chunk(2), *gradient.flatten(0, 1).chunk(2))
        parts = (row_blocks(part, logits) for part in (*halves, is_real))
        blocks = [_write_gradient(*part) for part in zip(*parts, strict=True)]
        ctx.save_for_backward(gradient)
        return torch.stack(blocks).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor, None]:
        """The gradient of the logits, times that of the divergence."""
        (gradient,) = ctx.saved_tensors
        return gradient * factor, None


def _write_gradient(
    first: Tensor, second: Tensor, first_out: Tensor, second_out: Tensor, is_real: Tensor
) -> Tensor:
    """The divergence of `n` tokens, and its gradients into `first_out` and `second_out`.

    With r = log p - log q, the gradients are (p (r - E_p[r] + 1) - q) / 2 for the logits of p, and
    (q (E_q[r] - r + 1) - p) / 2 for those of q.
    """
    log_p, log_q = (at_least_float32(logits).log_softmax(dim=-1) for logits in (first, second))
    ratio = log_p - log_q
    p, q = (logs.exp_().mul_(is_real[:, None]) for logs in (log_p, log_q))
    mean_p, mean_q = ((weights * ratio).sum(dim=-1, keepdim=True) for weights in (p, q))
    torch.mul((ratio - (mean_p - 1)).mul_(p).sub_(q), 0.5, out=first_out)
    torch.mul((mean_q + 1 - ratio).mul_(q).sub_(p), 0.5, out=second_out)
    return (mean_p - mean_q).sum() / 2
