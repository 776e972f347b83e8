# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""What the models of all families share: flags for transformers and initial values."""

import re
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init


class VanillaPreTrainedModel(PreTrainedModel):
    """Base class of every model in this package; each family sets its own `config_class`.

    The config needs `d_model`; its `base_model_tp_plan` may name modules that a model lacks.

    Examples:
        >>> from hf_vanilla import VanillaConfig, VanillaEncoderModel, VanillaPreTrainedModel
        >>> model = VanillaEncoderModel(VanillaConfig(vocab_size=20, d_model=16, encoder_layers=1))
        >>> isinstance(model, VanillaPreTrainedModel)
        True
    """

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VanillaEncoderLayer", "VanillaDecoderLayer"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a saved model, as in transformers; what is not trained stays frozen.

        Transformers makes new parameters while it loads, which all require a gradient.
        """
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info
        model.freeze()
        return loaded

    def freeze(self) -> None:
        """Freeze the parameters that are never trained; called after building and after loading."""

    def post_init(self) -> None:
        """Freeze, and drop the rules of parallel plans whose modules this model lacks."""
        super().post_init()
        self.freeze()
        # a plan writes `layers.*.fc1` for the layer's number, not for the digit of `fc1`
        names = {re.sub(r"\.\d+(?=\.|$)", ".*", name) for name, _ in self.named_modules()}
        for plan in ("_tp_plan", "_fsdp_plan"):
            rules = getattr(self, plan, None) or {}
            setattr(self, plan, {name: style for name, style in rules.items() if name in names})

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot for matrices and N(0, 1/d_model) for embeddings, as in tensor2tensor."""
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight, gain=getattr(module, "init_gain", 1.0))
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
            is_loaded = getattr(module.weight, "_is_hf_initialized", False)
            if module.padding_idx is not None and not is_loaded:
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
