# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Linear layers packed for decoding on a CPU: the same products in the order that oneDNN reads.

Shapes: I inputs, O outputs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .onednn_vanilla import (
    can_multiply,
    float_product,
    has_instructions,
    multiplies_bfloat16,
    packed_weight,
)
from .quantization_vanilla import IntegerProduct, QuantizedLinear

# oneDNN takes some 30 microseconds a call, where torch's own product takes 5: without AVX512, it is
# the faster one only for more float32 weights than about these
PLAIN_WEIGHTS = 300_000


class PackedLinear(nn.Module):
    """One or several layers with the same input in one packed product; no gradients, not saved.

    Args:
        layers: on a CPU, all with a bias or none: `nn.Linear` in float32 or bfloat16, or quantized
            ones, whose own weights are no longer needed.
        dtype: of the outputs of quantized ones; those of the others have that of their weights.
        is_after_relu: as of `IntegerProduct`.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        dtype: torch.dtype = torch.float32,
        *,
        is_after_relu: bool = False,
    ) -> None:
        super().__init__()
        self.out_features = sum(layer.out_features for layer in layers)
        self.integer: IntegerProduct | None = None
        if isinstance(layers[0], QuantizedLinear):
            self.integer = IntegerProduct(layers, dtype, is_after_relu=is_after_relu)
            return
        weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        is_small = weight.dtype == torch.float32 and weight.numel() < PLAIN_WEIGHTS
        self.is_plain = is_small and not has_instructions("avx512_f")
        self.weight = weight if self.is_plain else packed_weight(weight)
        self.bias = torch.cat(biases) if biases else None

    def forward(self, states: Tensor) -> Tensor:
        """Outputs `(..., O)` for `(..., I)`."""
        if self.integer is not None:
            return self.integer(states)
        if self.is_plain:
            return nn.functional.linear(states, self.weight, self.bias)
        return float_product(states, self.weight, self.bias)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("this model is packed for decoding: save it as it was loaded")


class PartOfJoined(nn.Module):
    """One layer of a joined product, for calls whose query, key and value inputs differ.

    Args:
        joined: the product, which it computes as a whole.
        widths: outputs of each layer.
        index: of the layer.
    """

    def __init__(self, joined: PackedLinear, widths: Sequence[int], index: int) -> None:
        super().__init__()
        self.joined, self.widths, self.index = joined, widths, index

    def forward(self, states: Tensor) -> Tensor:
        """Outputs `(..., O)` for `(..., I)`."""
        return self.joined(states).split(self.widths, dim=-1)[self.index]


def pack(model: nn.Module) -> None:
    """Pack the linear layers of a model that only decodes from now on, in place.

    A packed weight takes the place of the other, so the model needs no more memory and can no
    longer be trained or saved; it is set to evaluation mode. An embedding table that is also the
    output layer remains as well. Beside int8 weights, attention computes in bfloat16 where the
    processor has instructions for it.

    Args:
        model: its float32, bfloat16 and int8 layers on a CPU are packed; others stay as they are.
    """
    dtype = torch.bfloat16 if multiplies_bfloat16() else torch.float32
    for name, module in list(model.named_modules()):
        if hasattr(module, "joined"):
            # the attention to the source has other inputs for its keys
            _pack_projections(module, dtype, is_joined=not name.endswith("encoder_attn"))
        for child_name, child in list(module.named_children()):
            if is_packable(child):
                # layers of other packages may have no activation_fn
                activation = getattr(module, "activation_fn", None)
                is_after_relu = child_name == "fc2" and type(activation) is nn.ReLU
                packed = PackedLinear([child], is_after_relu=is_after_relu)
                setattr(module, child_name, packed)
    for weight in model.parameters():
        if weight.device.type == "cpu":  # a copy: each keeps the whole file of a loaded model
            weight.data = weight.data.clone()
    model.eval()  # a new module trains, and our search leaves models that train to transformers


def _pack_projections(attention: Any, dtype: torch.dtype, *, is_joined: bool) -> None:
    """Pack query, key and value, in one product if they have the same input."""
    names = ("q_proj", "k_proj", "v_proj")
    layers = [getattr(attention, name) for name in names]
    if not all(map(is_packable, layers)):
        return
    parts: list[nn.Module] = []
    if is_joined:
        joined = attention.joined = PackedLinear(layers, dtype)
        parts += [PartOfJoined(joined, attention.widths, index) for index in range(len(layers))]
    else:
        parts += [PackedLinear([layer], dtype) for layer in layers]
    for name, part in zip(names, parts, strict=True):
        setattr(attention, name, part)


def is_packable(layer: Any) -> bool:
    """Whether `PackedLinear` may replace a layer."""
    if type(layer) not in (nn.Linear, QuantizedLinear) or layer.weight.device.type != "cpu":
        return False
    dtype = layer.weight.dtype
    return dtype == torch.int8 or (dtype in (torch.float32, torch.bfloat16) and can_multiply(dtype))
