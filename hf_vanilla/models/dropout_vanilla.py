# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Dropout (5.4) whose random numbers cost little on a CPU."""

import torch
from torch import Tensor, nn

# what one draw of 16 bits can be
DRAWS = 2**16


class VanillaDropout(nn.Dropout):
    """`nn.Dropout`, with 16 random bits a number on a CPU instead of a Bernoulli draw of its own.

    There torch's draw costs more time than a product of two 256 x 256 matrices per token. The rate
    is rounded to a multiple of 1/65536 and what is kept is scaled up by just that rate, so means
    are kept exactly. Elsewhere, and in compiled programs, it is `nn.Dropout` itself.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Zeros in place of a share `p` of the numbers, in training only; any shape."""
        dropped = round(self.p * DRAWS)
        is_cheap = input.device.type == "cpu" and not torch.compiler.is_compiling()
        if not is_cheap or not self.training or self.inplace or dropped in (0, DRAWS):
            return super().forward(input)
        # a whole word of 64 bits is the fastest draw there is; both its ends are included
        words = torch.empty((input.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        draws = words.view(torch.int16)[: input.numel()].view(input.shape)
        factors = torch.empty(input.shape, dtype=input.dtype)
        torch.ge(draws, dropped - DRAWS // 2, out=factors).mul_(DRAWS / (DRAWS - dropped))
        return input * factors
