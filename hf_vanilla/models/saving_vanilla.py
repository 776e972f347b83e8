# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""How a model is saved together with the code that loads it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .configuration_vanilla import VanillaConfig
from .tokenization_vanilla_fairseq import VanillaFairseqTokenizer


@contextmanager
def code_beside_weights(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None
) -> Iterator[None]:
    """While it lasts, saving or pushing these writes their source files too.

    Such a folder loads with `trust_remote_code=True` where this package is not installed, and
    `pipeline("translation", model=FOLDER, trust_remote_code=True)` finds its class. What
    transformers keeps for it is state of whole classes, hence the way back.

    Args:
        model: a `VanillaForConditionalGeneration`; any other is left as it is.
        tokenizer: its tokenizer, if that is saved too. The usual one needs no code.
    """
    if not isinstance(model.config, VanillaConfig):
        yield
        return
    homes: dict[Any, str] = {
        type(model.config): "AutoConfig",
        type(model): "AutoModelForSeq2SeqLM",
    }
    if isinstance(tokenizer, VanillaFairseqTokenizer):
        homes[type(tokenizer)] = "AutoTokenizer"
    before = {kind: kind._auto_class for kind in homes}
    for kind, auto_class in homes.items():
        kind.register_for_auto_class(auto_class)
    # transformers itself writes only the class that is saved
    model.config.auto_map = {"AutoModel": "modeling_vanilla.VanillaModel"}
    try:
        yield
    finally:
        for kind, auto_class in before.items():
            kind._auto_class = auto_class
        if before[type(model.config)] is None:
            model.config.forget_code()
