# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The tokenizer: one byte-level BPE shared by both languages (5.1)."""

from transformers import TokenizersBackend


class VanillaTokenizer(TokenizersBackend):
    """One vocabulary for source and target; every sentence ends in `</s>`.

    Byte-level BPE has no unknown token, and any Unicode text decodes back to itself, with single
    spaces for its white space. Make one with `hf_vanilla.train_tokenizer`; load one with
    `AutoTokenizer.from_pretrained`.

    There is deliberately no `__init__`: transformers rebuilds a tokenizer whose class has one from
    its vocabulary and merges, losing everything else that `tokenizer.json` says.

    Examples:
        >>> from hf_vanilla import train_tokenizer
        >>> tokenizer = train_tokenizer(["ein Haus", "a house"], vocab_size=270)
        >>> tokenizer.decode(tokenizer("ein Haus").input_ids, skip_special_tokens=True)
        'ein Haus'
    """

    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012 - transformers' form
