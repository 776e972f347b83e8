# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""What a caller hands in: which of its tokens are real, and what is wrong with it.

Shapes: B batch, L any length, T queries, S keys.
"""

import torch
from torch import Tensor

from .configuration_vanilla import VanillaConfig


def real_tokens(
    config: VanillaConfig, input_ids: Tensor | None, attention_mask: Tensor | None
) -> Tensor | None:
    """The mask given, or else which of the source ids are not padding; None where nobody knows."""
    if attention_mask is not None or input_ids is None or config.pad_token_id is None:
        return attention_mask
    return input_ids.ne(config.pad_token_id).long()


def require_one(name: str, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> None:
    """Ids or vectors, and exactly one of the two.

    Args:
        name: what the caller knows the ids by.
        input_ids: `(B, L)` or None.
        inputs_embeds: `(B, L, D)` or None.

    Raises:
        ValueError: both or neither are given.
    """
    if (input_ids is None) == (inputs_embeds is None):
        given = "neither" if input_ids is None else "both"
        vectors = name.replace("input_ids", "inputs_embeds")
        raise ValueError(f"give exactly one of {name} and {vectors}: {given} came")


def check_mask(name: str, mask: object, rows: int, length: "int | Tensor") -> None:
    """A mask speaks of every token of every sentence, no more and no fewer.

    A traced program checks nothing; its shapes were checked where it was traced.

    Args:
        name: what the caller knows the mask by.
        mask: `(B, L)`, 1 = real token; or `(B, 1, T, S)` in the form of the attention
            implementation, which is taken as it is, as is any other kind of object.
        rows: B.
        length: L; a tensor where a static cache counts it, and is not read back.

    Raises:
        ValueError: the shape is another one.
    """
    if not isinstance(mask, Tensor) or mask.dim() == 4 or torch.compiler.is_compiling():
        return
    wanted = (rows, mask.shape[-1] if isinstance(length, Tensor) else length)
    if tuple(mask.shape) != wanted:
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, but the tokens it speaks of have {wanted}: "
            "give 1 for every real token and 0 for padding"
        )


def outside_vocabulary(name: str, ids: Tensor, size: int) -> ValueError:
    """What to raise where a lookup of `ids` in a table of `size` entries has failed."""
    return ValueError(
        f"{name} from {int(ids.min())} to {int(ids.max())}, but the vocabulary has the ids 0 to "
        f"{size - 1}: use the model's own tokenizer, or call resize_token_embeddings"
    )
