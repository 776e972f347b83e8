"""Compare saved position tables with the sinusoids that our models compute."""

import torch
from torch import Tensor

from hf_vanilla.models.positions_vanilla import sinusoid


def is_sinusoidal(
    table: Tensor,
    *,
    layout: str,
    frequencies: str = "paper",
    first: int = 0,
    tolerance: float = 1e-3,
) -> bool:
    """Whether the rows of a position table are sinusoids of their numbers (3.5).

    Args:
        table: `(positions, d_model)`.
        layout: of sine and cosine, as in `VanillaConfig.position_layout`.
        frequencies: as in `VanillaConfig.position_frequencies`.
        first: first row that is compared.
        tolerance: allowed difference; the default accepts tables in half precision.
    """
    numbers = torch.arange(first, max(first, len(table)))
    expected = sinusoid(numbers, table.shape[1], layout=layout, frequencies=frequencies)
    return torch.allclose(table[first:].double(), expected.double(), rtol=0, atol=tolerance)
