# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Linear layers and embeddings with weights of 8 bits, for decoding on a CPU.

A weight matrix is int8 with one float32 scale per output channel. Activations are quantized as they
come: each row by its own maximum, so a sentence's result does not depend on the rest of the batch.
The product of the two is exact in integers. It is computed by torch's oneDNN operators where the
processor multiplies 8-bit numbers, and otherwise in float32, with the same result.

Shapes: I inputs, O outputs, V vocabulary, D `d_model`, B batch, L any length.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .stacks_vanilla import VanillaEmbedding

LARGEST = 127
# the scale of a row of zeros; any positive number that is a normal float
LEAST_SCALE = 1e-30
# x + 128 of a signed byte flips its highest bit; oneDNN is fast for unsigned activations only
HIGHEST_BIT, ZERO_POINT = -128, 128
# sums of so many products of two numbers up to 127 are below 2**24: float32 holds them exactly
EXACT_TERMS = 1024
NO_POST_OP: tuple[str, list[Any], str] = ("none", [], "")


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `(..., I)` as int8 from -127 to 127, and the scale of each, `(..., 1)`."""
    scale = rows.abs().amax(dim=-1, keepdim=True).clamp_min_(LEAST_SCALE).div_(LARGEST)
    return (rows / scale).round_().to(torch.int8), scale


# --- products ----------------------------------------------------------------------------------


class IntegerProduct:
    """The product of activations with int8 weights, packed for this processor.

    Args:
        layers: linear layers with the same input, joined into one product.
        dtype: of the outputs; None: that of the inputs.

    Raises:
        ValueError: the weights are not on a CPU.
    """

    def __init__(
        self, layers: "Sequence[QuantizedLinear]", dtype: torch.dtype | None = None
    ) -> None:
        self.dtype = dtype
        weights = [layer.weight.detach() for layer in layers]
        device = weights[0].device.type
        if device != "cpu":
            raise ValueError(
                f"int8 weights are on the device {device!r}, but only a CPU computes with them: "
                "move the model to the CPU, or load the float model with dtype='bfloat16'"
            )
        self.versions = _versions(layers)
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        self.scale = torch.cat([layer.weight_scale.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.is_fast = multiplies_bytes()
        self.weight = weight
        if self.is_fast:
            self.weight = torch.ops.onednn.qlinear_prepack(self.weight, None)
            self.zero_points = torch.zeros(len(weight), dtype=torch.int32)

    def __call__(self, states: Tensor) -> Tensor:
        """Outputs `(..., O)` of all layers for `(..., I)`."""
        if states.requires_grad:
            states = states.detach()
        rows, row_scale = quantized(states.to(torch.float32))
        if self.is_fast:
            product = _byte_product(rows, self.weight, self.scale, self.zero_points)
        else:
            product = exact_product(rows, self.weight).mul_(self.scale)
        product.mul_(row_scale)
        if self.bias is not None:
            product.add_(self.bias)  # two passes: addcmul takes three times as long as both
        return product.to(self.dtype or states.dtype)


def _versions(layers: "Sequence[QuantizedLinear]") -> list[tuple[int, int]]:
    """Changes when a weight is replaced or written to."""
    return [(id(layer.weight), layer.weight._version) for layer in layers]


def _byte_product(rows: Tensor, packed: Tensor, scale: Tensor, zero_points: Tensor) -> Tensor:
    """Product `(..., O)` of int8 rows, which it overwrites, with packed weights, times `scale`."""
    unsigned = rows.bitwise_xor_(HIGHEST_BIT).view(torch.uint8)
    linear = torch.ops.onednn.qlinear_pointwise.default
    weight = (packed, scale, zero_points, None)
    return linear(unsigned, 1.0, ZERO_POINT, *weight, 1.0, 0, torch.float32, *NO_POST_OP)


def exact_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Product of int8 `(..., I)` and `(O, I)`, exact in integers, then rounded to float32."""
    terms = zip(rows.split(EXACT_TERMS, dim=-1), weight.split(EXACT_TERMS, dim=-1), strict=True)
    parts = [left.float() @ right.float().t() for left, right in terms]
    if len(parts) == 1:
        return parts[0]
    # each part is an integer; their sum need not be one that float32 holds
    return torch.stack([part.to(torch.int32) for part in parts]).sum(0, dtype=torch.int32).float()


@cache
def multiplies_bytes() -> bool:
    """Whether torch multiplies 8-bit numbers exactly on this processor.

    The operators are no public interface of torch. Without such instructions (AVX512-VNNI,
    AVX-VNNI or AMX), they add pairs of products in 16 bits, which is too few for the largest.
    """
    generator = torch.Generator().manual_seed(0)
    rows, weight = (
        torch.randint(-LARGEST, LARGEST + 1, (5, 2048), dtype=torch.int8, generator=generator)
        for _ in range(2)
    )
    rows[0], weight[0], weight[1] = LARGEST, LARGEST, -LARGEST
    ones, zeros = torch.ones(len(weight)), torch.zeros(len(weight), dtype=torch.int32)
    wanted = exact_product(rows, weight)
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        found = [_byte_product(rows[:count].clone(), packed, ones, zeros) for count in (1, 5)]
    except (AttributeError, RuntimeError, TypeError):
        return False
    return all(torch.equal(each, wanted[: len(each)]) for each in found)


# --- layers ------------------------------------------------------------------------------------


class QuantizedLinear(nn.Module):
    """A linear layer with int8 weights; no gradients.

    Args:
        in_features: I.
        out_features: O.
        bias: whether there is one; float32.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = _constant(torch.empty((out_features, in_features), dtype=torch.int8))
        self.weight_scale = _constant(torch.empty(out_features))
        self.bias = _constant(torch.empty(out_features)) if bias else None
        self._product: IntegerProduct | None = None

    def forward(self, states: Tensor) -> Tensor:
        """Outputs `(..., O)` for `(..., I)`."""
        self._product = current_product(self._product, (self,))
        return self._product(states)

    def __getstate__(self) -> dict[str, Any]:
        """Without the packed weights, which cannot be copied."""
        return {**self.__dict__, "_product": None}

    def extra_repr(self) -> str:
        """Sizes, as `nn.Linear` shows them."""
        has_bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has_bias}"


class JoinedProjections:
    """Query, key and value of the same input in one product, so it is quantized once.

    Args:
        layers: the projections.
    """

    def __init__(self, layers: Sequence[QuantizedLinear]) -> None:
        self.layers = tuple(layers)
        self.widths = [layer.out_features for layer in layers]
        self._product: IntegerProduct | None = None

    def __call__(self, states: Tensor) -> tuple[Tensor, ...]:
        """The output of each layer."""
        self._product = current_product(self._product, self.layers)
        return self._product(states).split(self.widths, dim=-1)

    def __getstate__(self) -> dict[str, Any]:
        """Without the packed weights, which cannot be copied."""
        return {**self.__dict__, "_product": None}


def current_product(
    product: IntegerProduct | None, layers: Sequence[QuantizedLinear]
) -> IntegerProduct:
    """The product of these layers: the one given, unless a weight has changed since."""
    if product is not None and product.versions == _versions(layers):
        return product
    return IntegerProduct(layers)


class PackedQuantized(nn.Module):
    """Quantized layers with the same input in one product that stays packed; not saved.

    Args:
        layers: whose own weights are no longer needed.
        dtype: of the outputs.
    """

    def __init__(self, layers: Sequence[QuantizedLinear], dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features = layers[0].in_features
        self.out_features = sum(layer.out_features for layer in layers)
        self.product = IntegerProduct(layers, dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Outputs `(..., O)` for `(..., I)`."""
        return self.product(states)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        refuse_to_save()


def refuse_to_save() -> None:
    """Refuse to save a packed layer.

    Raises:
        ValueError: always; the file would have no weights.
    """
    raise ValueError(
        "this model is packed for decoding and cannot be saved: save the one that "
        "load_translator or from_pretrained loads"
    )


class QuantizedEmbedding(VanillaEmbedding):
    """Token embeddings (3.4) as int8 with a scale per token; a head may share the table.

    Args:
        num_embeddings: V.
        embedding_dim: D.
        padding_idx: the token whose vector is zero.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, device="meta")
        shape = (num_embeddings, embedding_dim)
        self.weight = _constant(torch.empty(shape, dtype=torch.int8))
        self.weight_scale = _constant(torch.empty(num_embeddings))

    def rows(self, input_ids: Tensor) -> Tensor:
        """Vectors `(B, L, D)` of the ids `(B, L)`, float32."""
        levels = nn.functional.embedding(input_ids, self.weight)
        return levels * nn.functional.embedding(input_ids, self.weight_scale.unsqueeze(1))


def _constant(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
