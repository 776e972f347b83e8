# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Linear layers packed for decoding on a CPU: the same products in the order that oneDNN reads.

Shapes: I inputs, O outputs.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

# rows of the product that a weight is packed for; other numbers are as correct
ROWS = 64
NO_POST_OP: tuple[str, list[Any], str] = ("none", [], "")


class PackedLinear(nn.Module):
    """One or several linear layers with the same input, packed; no gradients, and not saved.

    Args:
        layers: `nn.Linear` on a CPU, in float32 or bfloat16, all with a bias or none.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.in_features = layers[0].in_features
        self.out_features = sum(layer.out_features for layer in layers)
        weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def forward(self, states: Tensor) -> Tensor:
        """Outputs `(..., O)` for `(..., I)`."""
        linear = torch.ops.mkldnn._linear_pointwise.default
        return linear(states, self.packed, self.bias, *NO_POST_OP)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to save.

        Raises:
            ValueError: always; the file would have no weights.
        """
        raise ValueError(
            "this model is packed for decoding and cannot be saved: save the one that "
            "load_translator or from_pretrained loads"
        )


class JoinedPacked(nn.Module):
    """Query, key and value of the same input in one packed product.

    Args:
        layers: the three projections.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.widths = [layer.out_features for layer in layers]
        self.product = PackedLinear(layers)

    def forward(self, states: Tensor) -> tuple[Tensor, ...]:
        """The output of each layer."""
        return self.product(states).split(self.widths, dim=-1)


class PartOfJoined(nn.Module):
    """One layer of a joined product, for calls whose query, key and value inputs differ.

    Args:
        joined: the product, which it computes as a whole.
        index: of the layer.
    """

    def __init__(self, joined: JoinedPacked, index: int) -> None:
        super().__init__()
        self.joined, self.index = joined, index

    def forward(self, states: Tensor) -> Tensor:
        """Outputs `(..., O)` for `(..., I)`."""
        return self.joined(states)[self.index]


def pack(model: nn.Module) -> None:
    """Pack the linear layers of a model that only decodes from now on, in place.

    A packed weight takes the place of the other, so the model needs no more memory and can no
    longer be trained or saved; it is set to evaluation mode. An embedding table that is also the
    output layer remains as well.

    Args:
        model: its float32 and bfloat16 layers on a CPU are packed; others stay as they are.
    """
    for name, module in list(model.named_modules()):
        # the attention to the source has other inputs for its keys
        if hasattr(module, "joined") and not name.endswith("encoder_attn"):
            _join(module)
        for child_name, child in list(module.named_children()):
            if is_packable(child):
                setattr(module, child_name, PackedLinear([child]))
    model.eval()  # a new module trains, and our search leaves models that train to transformers


def _join(attention: Any) -> None:
    """Join query, key and value, if all three can be packed."""
    layers = (attention.q_proj, attention.k_proj, attention.v_proj)
    if all(map(is_packable, layers)):
        attention.joined = JoinedPacked(layers)
        for index, name in enumerate(("q_proj", "k_proj", "v_proj")):
            setattr(attention, name, PartOfJoined(attention.joined, index))


def is_packable(layer: nn.Module) -> bool:
    """Whether `PackedLinear` may replace a layer."""
    if type(layer) is not nn.Linear or layer.weight.device.type != "cpu":
        return False
    return layer.weight.dtype in (torch.float32, torch.bfloat16) and can_pack(layer.weight.dtype)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether torch has the operators for this dtype, and they compute a product.

    They are no public interface of torch.
    """
    layer, states = nn.Linear(5, 3, dtype=dtype), torch.ones((2, 5), dtype=dtype)
    try:
        found = PackedLinear([layer])(states)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(found, layer(states), atol=1e-5 if dtype == torch.float32 else 0.1)
