# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Faster ways to compute attention, loss and dropout on a CPU, loss and norms on a GPU.

The formulas are in `attention_`, `loss_` and `layers_vanilla.py`, which call these in their place.
`docs/performance.md` says what each one saves.
Shapes: N tokens, V vocabulary; those of attention are in `attention_vanilla.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# number of different values of 16 bits
DRAWS = 2**16
# logits of one block, few enough to stay in the cache of a CPU
BLOCK_LOGITS = 2**19


def may_read(states: Tensor) -> bool:
    """Whether checks and shapes may depend on the values of a tensor.

    Not in a compiled program. On a GPU each value that is read makes the host wait, so a train step
    reads none there: its batches are checked on the CPU, by the readers of the data.
    """
    is_waiting = states.device.type != "cpu" and torch.is_grad_enabled()
    return not is_waiting and not torch.compiler.is_compiling()


def at_least_float32(states: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return states.to(torch.promote_types(states.dtype, torch.float32))


def per_item(total: Tensor, count: "float | Tensor") -> Tensor:
    """A sum divided by the number of its items, or by 1 where there are none."""
    if isinstance(count, Tensor):
        return total / count.to(total.device).clamp(min=1)
    return total / max(count, 1)


def masked_mean(states: Tensor, is_real: Tensor) -> Tensor:
    """Mean over the real ones of `(..., M, D)`, of which `(..., M)` are; 0 where there is none."""
    total = torch.where(is_real.unsqueeze(-1), states, 0).sum(dim=-2)
    return total / is_real.sum(dim=-1, keepdim=True).clamp(min=1)


def in_autocast_bfloat16(states: Tensor) -> Tensor:
    """States as bfloat16 where autocast computes in it, otherwise as they are.

    The residual stream then stays in bfloat16. In float32, every product and every norm would cast
    it to and fro, the projections to query, key and value three times.
    """
    return states.to(torch.bfloat16) if is_autocast_bfloat16(states.device.type) else states


def is_autocast_bfloat16(device: str) -> bool:
    """Whether autocast computes in bfloat16 on devices of a type."""
    is_cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return is_cast and torch.get_autocast_dtype(device) == torch.bfloat16


class VanillaLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` that keeps bfloat16 in autocast on a GPU, as on a CPU.

    There, autocast would return float32. Means and variances are in float32 in any case.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the last dimension; any shape before it."""
        device, dtype = input.device.type, input.dtype
        if device == "cpu" or dtype != torch.bfloat16 or not is_autocast_bfloat16(device):
            return super().forward(input)
        with torch.autocast(device, enabled=False):
            scale, shift = self.weight.to(dtype), self.bias.to(dtype)
            return nn.functional.layer_norm(input, self.normalized_shape, scale, shift, self.eps)


class VanillaDropout(nn.Dropout):
    """`nn.Dropout` (5.4), on a CPU with 16 random bits per number instead of a Bernoulli draw.

    The Bernoulli draw takes longer than a product of two 256 x 256 matrices per token. The rate is
    rounded to a multiple of 1/65536 and kept numbers are scaled by the rounded rate, so the mean is
    exact. On other devices and in compiled programs this is `nn.Dropout` itself.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Set a share `p` of the numbers to zero, in training only; any shape."""
        if not self.training:
            return input  # decoding calls this four times per layer and token
        dropped = round(self.p * DRAWS)
        is_cpu = input.device.type == "cpu" and not torch.compiler.is_compiling()
        if not is_cpu or self.inplace or dropped in (0, DRAWS):
            return super().forward(input)
        # 64 bits are the fastest draw: four numbers each, from -2^63 to 2^63 - 1
        bits = torch.empty((input.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        draws = bits.view(torch.int16)[: input.numel()].view(input.shape)
        factors = torch.empty(input.shape, dtype=input.dtype)
        torch.ge(draws, dropped - DRAWS // 2, out=factors).mul_(DRAWS / (DRAWS - dropped))
        return input * factors


def faster_attention(attend: Callable, query: Tensor) -> Callable:
    """The attention function to call for this query: `attend`, or one in place of sdpa.

    On a CPU, torch's sdpa is slow in half precision. At the lengths of sentences, its backward pass
    takes six times as long as in float32, and two plain products in bfloat16 are faster than both,
    with and without gradients.
    """
    if query.device.type != "cpu" or attend is not ALL_ATTENTION_FUNCTIONS["sdpa"]:
        return attend
    if query.dtype == torch.bfloat16:
        return attention_in_products
    is_trained = query.dtype == torch.float16 and query.requires_grad
    return sdpa_in_float32 if is_trained else attend


def attention_in_products(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Scaled dot-product attention (3.2.1) by two products; with dropout, sdpa in float32.

    The softmax is computed in float32: of short rows, torch's is slower in bfloat16. Arguments are
    those of `eager_attention`; masks are those of sdpa.
    """
    if kwargs.get("dropout"):
        return sdpa_in_float32(module, query, key, value, attention_mask, **kwargs)
    if attention_mask is None and module.is_causal and query.shape[2] > 1:
        if not query.requires_grad:
            attend: Callable = ALL_ATTENTION_FUNCTIONS["sdpa"]
            return attend(module, query, key, value, attention_mask, **kwargs)
        attention_mask = query.new_ones((query.shape[2], key.shape[2]), dtype=torch.bool).tril()
    scores = query * kwargs["scaling"] @ key.transpose(-2, -1)  # (B, H, T, S)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.float()
        lowest = torch.finfo(scores.dtype).min
        # a sum, since the gradient of `masked_fill` is another pass over the scores
        bias = scores.new_zeros(attention_mask.shape).masked_fill_(~attention_mask, lowest)
        weights = scores.add_(bias).softmax(dim=-1)
        has_key = attention_mask.any(dim=-1, keepdim=True)
        if torch.compiler.is_compiling() or not has_key.all():
            weights = weights * has_key  # no allowed key: zeros
    else:
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = scores.softmax(dim=-1, dtype=torch.float32)
    return (weights.to(value.dtype) @ value).transpose(1, 2), None


def sdpa_in_float32(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Transformers' sdpa on float32 copies; the result has the dtype of `query`.

    Arguments are those of `eager_attention`.
    """
    attend: Callable = ALL_ATTENTION_FUNCTIONS["sdpa"]
    with torch.autocast("cpu", enabled=False):  # it would cast them back
        in_float32 = (states.float() for states in (query, key, value))
        attended, weights = attend(module, *in_float32, *args, **kwargs)
    return attended.to(query.dtype), weights


class BlockwiseCrossEntropy(torch.autograd.Function):
    """A cross-entropy formula whose gradient is written once, block by block.

    Autograd of the formula would make several arrays of N x V numbers.

    Call `apply(formula, logits, targets, share, extra, unsmoothed)`; the last five are the
    arguments of `loss_vanilla.smoothed_cross_entropy`, which is the formula.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(formula: Callable, logits: Tensor, targets: Tensor, *shares: Any) -> Tensor:
        """Losses `(N,)`."""
        parts = zip(row_blocks(logits, logits), row_blocks(targets, logits), strict=True)
        return torch.cat([formula(*part, *shares) for part in parts])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keep logits and targets."""
        ctx.formula, logits, targets, *ctx.shares = inputs
        ctx.save_for_backward(logits, targets)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        """Softmax minus the smoothed target, times the gradient of each loss."""
        logits, targets = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative or a transform of torch.func
            pull = torch.func.vjp(lambda x: ctx.formula(x, targets, *ctx.shares), logits)[1]
            return None, *pull(gradient), None, None, None, None
        result = torch.empty_like(logits)
        parts = (row_blocks(part, logits) for part in (logits, targets, gradient, result))
        write = _write_gradient if logits.device.type == "cpu" else _write_gradient_in_passes
        for rows, ids, factor, out in zip(*parts, strict=True):
            write(rows, ids, factor, out, ctx.shares)
        return None, result, None, None, None, None


def _write_gradient(
    logits: Tensor, targets: Tensor, gradient: Tensor, out: Tensor, shares: Sequence[Any]
) -> None:
    """Of a block; `shares` are the last three arguments of the formula."""
    share, extra, unsmoothed = shares
    dtype = torch.promote_types(logits.dtype, torch.float32)
    options: dict[str, Any] = {"out": out} if out.dtype == dtype else {"dtype": dtype}
    result = torch.softmax(logits, dim=-1, **options)
    if share:
        result -= share
    if share and unsmoothed is not None:
        result[:, unsmoothed] += share
    extras = result.new_full((len(targets), 1), -extra)
    result.scatter_add_(-1, targets[:, None], extras)
    out.copy_(result.mul_(gradient[:, None]))


def _write_gradient_in_passes(
    logits: Tensor, targets: Tensor, gradient: Tensor, out: Tensor, shares: Sequence[Any]
) -> None:
    """As above without arrays of N x V in float32, which no cache of a GPU holds."""
    share, extra, unsmoothed = shares
    torch.softmax(logits, dim=-1, out=out)  # of half precision too, summed in float32
    factor = gradient[:, None]
    torch.addcmul(-share * factor, out, factor, out=out)
    if share and unsmoothed is not None:
        out[:, unsmoothed] += share * gradient
    out.scatter_add_(-1, targets[:, None], (-extra * factor).to(out.dtype))


def row_blocks(rows: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    """`(N, ...)` in blocks whose logits fit the cache of a CPU; one block on other devices."""
    is_cpu = logits.device.type == "cpu"
    return rows.split(max(1, BLOCK_LOGITS // logits.size(-1)) if is_cpu else max(1, len(rows)))
