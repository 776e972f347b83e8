# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Matrix products on a CPU by torch's oneDNN operators, which are no public interface of torch.

Shapes: I inputs, O outputs.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

LARGEST = 127  # of an int8 number, in size
ZERO_POINT = 128  # oneDNN is fast for unsigned activations only: x + 128
# added to a small x, this rounds x, half to even, since float32 has no fractions from 2**23 on, and
# leaves x + 128 in the lowest byte; a tensor, because torch makes one of a Python number each time
ROUNDING = torch.tensor(1.5 * 2**23 + ZERO_POINT, device="cpu")
# sums of so many products of two numbers up to 127 are below 2**24: float32 holds them exactly
EXACT_TERMS = 1024
NO_POST_OP: tuple[str, list[Any], str] = ("none", [], "")
# rows of the product that a weight is packed for; other numbers are as correct
ROWS = 64


def packed_weight(weight: Tensor) -> Tensor:
    """A weight `(O, I)`, float32, bfloat16 or int8, in the order that oneDNN reads."""
    if weight.dtype == torch.int8:
        return torch.ops.onednn.qlinear_prepack(weight, None)
    return torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)


def float_product(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Outputs `(..., O)` for `(..., I)` and a float weight, packed or not."""
    return torch.ops.mkldnn._linear_pointwise.default(states, weight, bias, *NO_POST_OP)


def byte_product(rows: Tensor, packed: Tensor, scale: Tensor, zero_points: Tensor) -> Tensor:
    """Product `(..., O)` of rows, rounded to integers, with packed int8 weights, times `scale`.

    Args:
        rows: `(..., I)` float32 from -127 to 127, which it overwrites.
        packed: of `packed_weight`.
        scale: `(O,)`.
        zero_points: `(O,)` int32 zeros.
    """
    unsigned = rows.add_(ROUNDING).view(torch.int32).byte()
    linear = torch.ops.onednn.qlinear_pointwise.default
    weight = (packed, scale, zero_points, None)
    return linear(unsigned, 1.0, ZERO_POINT, *weight, 1.0, 0, torch.float32, *NO_POST_OP)


def exact_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Product of `(..., I)` and `(O, I)`, integers from -127 to 127, exact until it is float32."""
    terms = zip(rows.split(EXACT_TERMS, dim=-1), weight.split(EXACT_TERMS, dim=-1), strict=True)
    parts = [left.float() @ right.float().t() for left, right in terms]
    if len(parts) == 1:
        return parts[0]
    # each part is an integer; their sum need not be one that float32 holds
    return torch.stack([part.to(torch.int32) for part in parts]).sum(0, dtype=torch.int32).float()


@cache
def can_multiply(dtype: torch.dtype) -> bool:
    """Whether torch has the operators for this dtype, and they compute a product.

    Products of int8 numbers have to be exact. Without instructions for them (AVX512-VNNI, AVX-VNNI
    or AMX), oneDNN adds pairs of products in 16 bits, which is too few for the largest.

    Args:
        dtype: float32, bfloat16 or int8.
    """
    try:
        return _is_exact_for_bytes() if dtype == torch.int8 else _is_close_for(dtype)
    except (AttributeError, RuntimeError, TypeError):
        return False


def _is_close_for(dtype: torch.dtype) -> bool:
    states = torch.linspace(-1, 1, 35, dtype=dtype).view(7, 5)
    weight = torch.linspace(1, -1, 15, dtype=dtype).view(3, 5)
    wanted, tolerance = states @ weight.t(), 1e-5 if dtype == torch.float32 else 0.1
    return all(
        torch.allclose(float_product(states, each), wanted, atol=tolerance)
        for each in (weight, packed_weight(weight))
    )


def _is_exact_for_bytes() -> bool:
    generator = torch.Generator().manual_seed(0)
    rows, weight = (
        torch.randint(-LARGEST, LARGEST + 1, (5, 2048), dtype=torch.int8, generator=generator)
        for _ in range(2)
    )
    rows[0], weight[0], weight[1] = LARGEST, LARGEST, -LARGEST
    ones, zeros = torch.ones(len(weight)), torch.zeros(len(weight), dtype=torch.int32)
    wanted, packed = exact_product(rows, weight), packed_weight(weight)
    found = [byte_product(rows[:count].float(), packed, ones, zeros) for count in (1, 5)]
    return all(torch.equal(each, wanted[: len(each)]) for each in found)


def multiplies_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 numbers; True if torch cannot tell."""
    return has_instructions("bf16")


def has_instructions(kind: str) -> bool:
    """Whether the processor has instructions with this in their name; True if torch cannot tell."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    known = [bool(value) for name, value in capabilities.items() if kind in name]
    return any(known) if known else True
