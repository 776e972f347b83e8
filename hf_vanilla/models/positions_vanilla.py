# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Positions of tokens: the sinusoids of section 3.5, or learned vectors (Table 3, row E).

Shapes: B batch, L any length, D `d_model`.
"""

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

POSITION_LAYOUTS = ("interleaved", "concatenated")
POSITION_FREQUENCIES = ("paper", "tensor2tensor")


def sinusoid(
    positions: Tensor,
    width: int,
    *,
    base: float = 10_000.0,
    layout: str = "interleaved",
    frequencies: str = "paper",
) -> Tensor:
    """Sines and cosines of geometrically falling frequency (3.5).

    Args:
        positions: `(...,)` integers or floats; fractions are allowed.
        width: even number of channels.
        base: ratio between the first and (nearly) the last wavelength.
        layout: `"interleaved"` (sine, cosine, sine, ...) or `"concatenated"` (sines, then cosines).
        frequencies: `"paper"`, `base^(-2i/width)`, or `"tensor2tensor"`, `base^(-i/(width/2-1))`.

    Returns:
        `(..., width)` in [-1, 1]; float64, except on a device that has none.

    Raises:
        ValueError: `width` is odd or not positive, or a name is unknown.
    """
    if width < 1 or width % 2:
        raise ValueError(f"width={width}: sines and cosines come in pairs, give an even width")
    if layout not in POSITION_LAYOUTS:
        raise ValueError(f"layout={layout!r}: choose one of {', '.join(POSITION_LAYOUTS)}")
    if frequencies not in POSITION_FREQUENCIES:
        names = ", ".join(POSITION_FREQUENCIES)
        raise ValueError(f"frequencies={frequencies!r}: choose one of {names}")
    # float32 angles lose the fourth decimal of the sine near position 1,000
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    pair = torch.arange(width // 2, dtype=dtype, device=positions.device)
    last = width / 2 if frequencies == "paper" else max(width / 2 - 1, 1)
    angles = positions.to(dtype).unsqueeze(-1) * base ** (-pair / last)  # (..., D/2)
    sine, cosine = angles.sin(), angles.cos()
    if layout == "interleaved":
        return torch.stack((sine, cosine), dim=-1).flatten(-2)
    return torch.cat((sine, cosine), dim=-1)


def with_sinusoids(vectors: Tensor, first: int = 0) -> Tensor:
    """Vectors `(..., L, D)` times sqrt(D), plus sinusoids of positions from `first` on (3.4)."""
    length, width = vectors.shape[-2:]
    positions = torch.arange(first, first + length, device=vectors.device)
    return vectors * math.sqrt(width) + sinusoid(positions, width).to(vectors.dtype)


def sinusoid_2d(is_real: Tensor, width: int) -> Tensor:
    """Positions of a feature map: sinusoids of the row, then of the column (DETR, A.4).

    Rows and columns are counted over real pixels from 1 and scaled to 2 pi.

    Args:
        is_real: `(B, H, W)` bool, False = padding.
        width: channels, a multiple of 4.

    Returns:
        `(B, H * W, width)` in [-1, 1]; float64, except on a device that has none.

    Raises:
        ValueError: `width` is not a multiple of 4.
    """
    if width % 4:
        raise ValueError(f"width={width}: row and column take half each, give a multiple of 4")
    halves = []
    for axis in (1, 2):
        count = is_real.cumsum(axis).to(torch.float32)
        last = count.select(axis, -1).unsqueeze(axis)
        halves.append(sinusoid(count / (last + 1e-6) * (2 * math.pi), width // 2))
    return torch.cat(halves, dim=-1).flatten(1, 2)


class SinusoidalPositions(nn.Module):
    """The paper's positions, for sequences of any length.

    They are computed at every call, in double precision. No table is stored, so checkpoints are
    smaller, half precision does not round the angles, and loading has no buffer to fill.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, length: int, first: "int | Tensor", like: Tensor) -> Tensor:
        """Positions `first` to `first + length - 1`, `(L, D)`, in dtype and device of `like`."""
        config = self.config
        positions = torch.arange(length, device=like.device) + first + config.position_offset
        names = {"layout": config.position_layout, "frequencies": config.position_frequencies}
        return sinusoid(positions, config.d_model, **names).to(like.dtype)


class LearnedPositions(nn.Embedding):
    """One trained vector per position (Table 3, row E), up to `max_position_embeddings`."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config.max_position_embeddings, config.d_model)

    def forward(  # type: ignore[override]  # same arguments as SinusoidalPositions
        self, length: int, first: "int | Tensor", like: Tensor
    ) -> Tensor:
        """Positions `first` to `first + length - 1`, `(L, D)`.

        Raises:
            ValueError: the sequence is longer than `max_position_embeddings`.
        """
        if isinstance(first, int) and first + length > self.num_embeddings:
            raise ValueError(
                f"a sequence of {first + length} tokens, but learned positions end at "
                f"max_position_embeddings={self.num_embeddings}: shorten it or train with more"
            )
        positions = torch.arange(length, device=like.device) + first
        return super().forward(positions).to(like.dtype)
