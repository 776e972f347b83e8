"""Matrix products of training in float32, by oneDNN where torch's default library is slow.

On AMD processors with AVX-512, MKL, which torch calls for float32, computes with half of the width
of their registers; oneDNN, which torch calls for bfloat16, is twice as fast.
Shapes: N tokens, I inputs, O outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hf_vanilla.models.onednn_vanilla import can_multiply, float_product


def use_faster_products(model: nn.Module) -> None:
    """Let oneDNN compute the float32 linear layers of a model on a CPU, if that is faster.

    Only the objects change, not their weights or names. Gradients are the same up to rounding;
    second derivatives are not available. On other processors nothing happens.

    Args:
        model: its layers of exactly the class `nn.Linear` are changed in place.
    """
    if not (is_onednn_faster() and can_multiply(torch.float32)):
        return
    for parent in model.modules():
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                setattr(parent, name, OneDnnLinear.of(layer))


def is_onednn_faster() -> bool:
    """Whether this is an AMD processor with AVX-512, and torch's products are those of MKL.

    The processor's name decides, not a timing, so that a resumed run computes the same products.
    """
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    is_amd = str(capabilities.get("cpu_name", "")).startswith("AMD")
    return is_amd and bool(capabilities.get("avx512_f")) and torch.backends.mkl.is_available()


class OneDnnLinear(nn.Linear):
    """`nn.Linear` whose products in float32 on a CPU are computed by oneDNN."""

    @classmethod
    def of(cls, layer: nn.Linear) -> "OneDnnLinear":
        """The same layer, with the same parameters."""
        has_bias = layer.bias is not None
        new = cls(layer.in_features, layer.out_features, bias=has_bias, device="meta")
        new.weight, new.bias = layer.weight, layer.bias
        return new.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        """Outputs `(..., O)` for `(..., I)`."""
        weight = self.weight
        is_plain = type(weight) is nn.Parameter and weight.device.type == "cpu"
        is_float32 = input.dtype == weight.dtype == torch.float32
        is_other = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
        if is_other or not (is_plain and is_float32 and input.numel()):
            return super().forward(input)
        return _OneDnnProduct.apply(input, weight, self.bias)


class _OneDnnProduct(torch.autograd.Function):
    """`input @ weight.T + bias`, and its three gradients."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Outputs `(..., O)`."""
        ctx.save_for_backward(input, weight)
        return float_product(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of input, weight and bias, where they are needed."""
        (input, weight), needed = ctx.saved_tensors, ctx.needs_input_grad
        gradient = gradient.contiguous()
        rows = gradient.flatten(0, -2)  # (N, O)
        return (
            float_product(gradient, weight.t()) if needed[0] else None,
            _weight_gradient(rows, input.contiguous().flatten(0, -2)) if needed[1] else None,
            rows.sum(0) if needed[2] else None,
        )


def _weight_gradient(gradient: Tensor, input: Tensor) -> Tensor:
    """`(O, I)` of `(N, O)` and `(N, I)`.

    The operator copies its first argument into another order, so this is the smaller one.
    """
    if gradient.size(-1) <= input.size(-1):
        return float_product(gradient.t(), input.t())
    return float_product(input.t(), gradient.t()).t()
