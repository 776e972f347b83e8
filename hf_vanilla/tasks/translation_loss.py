"""R-Drop: two passes with different dropout should agree (Wu et al. 2021).

Shapes: B batch, T target, V vocabulary.
"""

import torch
from torch import Tensor
from transformers.modeling_outputs import Seq2SeqLMOutput

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
    first, second = outputs.logits.chunk(2)
    divergence = symmetric_divergence(first, second, batch["labels"]) / tokens
    outputs.loss = outputs.loss + alpha / 2 * divergence
    outputs.logits = first
    return outputs


def symmetric_divergence(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Mean of KL(p || q) and KL(q || p) in nats, summed over the real target tokens; `()`.

    Args:
        first: `(B, T, V)` logits of p; softmax in float32.
        second: `(B, T, V)` logits of q.
        labels: `(B, T)` int64; tokens below 0 do not count.
    """
    is_real = labels >= 0
    log_p, log_q = (logits[is_real].float().log_softmax(dim=-1) for logits in (first, second))
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum() / 2
