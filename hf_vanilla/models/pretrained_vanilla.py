# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""What configs and models of all families share: sizes of layers, checks, initial values."""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import Seq2SeqLMOutput

# how this version of transformers names the keys and values of earlier tokens; `cache` since 5.24
CACHE_NAME = "cache" if "cache" in Seq2SeqLMOutput.__annotations__ else "past_key_values"


def takes_cache(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Let the `forward` of a module take `cache` by its earlier name too, `past_key_values`."""

    @functools.wraps(forward)
    def renamed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if "past_key_values" in kwargs:
            earlier = kwargs.pop("past_key_values")
            if earlier is not None and kwargs.get("cache") is not None:
                raise ValueError("cache and past_key_values are one argument: give cache alone")
            kwargs["cache"] = kwargs.get("cache") if earlier is None else earlier
        return forward(self, *args, **kwargs)

    return renamed


# how several GPUs share the weights of a layer; for the `base_model_tp_plan` of a config
LAYER_TP_PLAN = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.out_proj": "rowwise",
    "layers.*.encoder_attn.q_proj": "colwise",
    "layers.*.encoder_attn.k_proj": "colwise",
    "layers.*.encoder_attn.v_proj": "colwise",
    "layers.*.encoder_attn.out_proj": "rowwise",
    "layers.*.fc1": "colwise",
    "layers.*.fc2": "rowwise",
}


@strict
class VanillaPreTrainedConfig(PreTrainedConfig):
    r"""Base class of every config in this package: its fields shape the layers of an encoder.

    A config that has other defaults declares these fields again.

    Args:
        d_model (`int`, defaults to 512): width of every hidden state.
        encoder_layers (`int`, defaults to 6): N, layers of the encoder.
        encoder_attention_heads (`int`, defaults to 8): h of an encoder layer.
        encoder_ffn_dim (`int`, defaults to 2048): d_ff, width inside its feed-forward network.
        dropout (`float`, defaults to 0.1): P_drop, on every sublayer's output and on the sum of
            input and position (5.4).
        attention_dropout (`float`, defaults to 0.0): on the attention weights.
        activation_dropout (`float`, defaults to 0.0): inside the feed-forward network.
        activation_function (`str`, defaults to `"relu"`): a name of
            `transformers.activations.ACT2FN`.
        attention_bias (`bool`, defaults to `False`): biases on the four projections of attention.
        layer_norm_eps (`float`, defaults to 1e-6): added to the variance in every LayerNorm.
    """

    head_split_remedy = "change either"
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    d_model: int = 512
    encoder_layers: int = 6
    encoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    attention_bias: bool = False
    layer_norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        """Width of one encoder head's queries, keys and values, which transformers reads."""
        return self.d_model // max(self.encoder_attention_heads, 1)  # validation refuses 0

    def head_widths(self, num_heads: int) -> tuple[int, int]:
        """d_k and d_v (3.2.2) of an attention with `num_heads` heads."""
        return self.d_model // num_heads, self.d_model // num_heads

    def require_positive(self, *names: str) -> None:
        """Refuse a value that is not above 0.

        Args:
            *names: of fields.

        Raises:
            ValueError: one is not; the message names it.
        """
        for name in names:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: give a positive number")

    def require_at_least_zero(self, *names: str) -> None:
        """Refuse a negative value.

        Args:
            *names: of fields.

        Raises:
            ValueError: one is negative; the message names it.
        """
        for name in names:
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")

    def require_choice(self, name: str, choices: Iterable[Any]) -> None:
        """Refuse an unknown name, so that it never becomes a default.

        Args:
            name: of a field.
            choices: its possible values.

        Raises:
            ValueError: the value is none of them; the message names them.
        """
        if getattr(self, name) not in choices:
            known = ", ".join(str(choice) for choice in choices)
            raise ValueError(f"{name}={getattr(self, name)!r}: choose one of {known}")

    def validate_layers(self) -> None:
        """Sizes, counts and `layer_norm_eps` are positive; the activation is known."""
        sizes = ("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")
        self.require_positive(*sizes, "layer_norm_eps")
        self.require_choice("activation_function", sorted(ACT2FN))

    def validate_head_split(self) -> None:
        """Heads divide d_model."""
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            heads = getattr(self, name, 0)
            if heads > 0 and self.d_model % heads:
                raise ValueError(
                    f"d_model={self.d_model} is not a multiple of {name}={heads}: "
                    f"{self.head_split_remedy}"
                )

    def validate_rates(self) -> None:
        """Dropouts and smoothing are probabilities below 1."""
        for name in ("dropout", "attention_dropout", "activation_dropout", "label_smoothing"):
            rate = getattr(self, name, 0)
            if not 0 <= rate < 1:
                raise ValueError(f"{name}={rate}: give a rate from 0 up to, not including, 1")

    def forget_code(self) -> None:
        """Remove the fields that name source files beside the weights."""
        for name in ("auto_map", "custom_pipelines"):
            self.__dict__.pop(name, None)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save; without code beside the weights, the file names no code.

        With int8 weights, the file states that dtype, so that a version of this package which
        cannot read them refuses it instead of taking them for floats.
        """
        if self._auto_class is None:
            self.forget_code()
        dtype: Any = getattr(self, "dtype", None)
        if getattr(self, "quantization_config", None) is not None:
            self.dtype = "int8"
            named: dict[str, Any] = getattr(self, "auto_map", None) or {}
            for auto_class, name in named.items():
                # this file has the same classes, and reads int8 weights
                named[auto_class] = re.sub(r"\bmodeling_vanilla\.", "quantization_vanilla.", name)
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            self.dtype = dtype


@strict
class VanillaTwoSidedConfig(VanillaPreTrainedConfig):
    r"""Base class of the configs with an encoder and a decoder.

    Args:
        decoder_layers (`int`, defaults to 6): N, layers of the decoder.
        decoder_attention_heads (`int`, defaults to 8): h of both its attentions.
        decoder_ffn_dim (`int`, defaults to 2048): d_ff, width inside its feed-forward network.
    """

    decoder_layers: int = 6
    decoder_attention_heads: int = 8
    decoder_ffn_dim: int = 2048
    is_encoder_decoder: bool = True

    def validate_decoder_layers(self) -> None:
        """Sizes and counts of the decoder's layers are positive."""
        self.require_positive("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim")


class VanillaPreTrainedModel(PreTrainedModel):
    """Base class of every model in this package; each family sets its own `config_class`.

    The config needs `d_model`; its `base_model_tp_plan` may name modules that a model lacks.

    Attributes:
        embedding_std: deviation of the initial embeddings; None: 1/sqrt(d_model).

    Examples:
        >>> from hf_vanilla import VanillaConfig, VanillaEncoderModel, VanillaPreTrainedModel
        >>> model = VanillaEncoderModel(VanillaConfig(vocab_size=20, d_model=16, encoder_layers=1))
        >>> isinstance(model, VanillaPreTrainedModel)
        True
    """

    embedding_std: ClassVar[float | None] = None
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    gradient_checkpointing = False  # a switch of transformers, of the model and of each layer
    _no_split_modules = ["VanillaEncoderLayer", "VanillaDecoderLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        config.validate()  # a field may have been set since the config was made

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
        """Glorot for matrices and N(0, 1/d_model) for embeddings, as in tensor2tensor.

        A Linear may have another gain, `init_gain`; it or an embedding may be N(0, `init_std`^2).
        """
        if isinstance(module, nn.Linear | nn.Conv2d):
            init.xavier_uniform_(module.weight, gain=getattr(module, "init_gain", 1.0))
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.embedding_std or self.config.d_model**-0.5)
            is_loaded = getattr(module.weight, "_is_hf_initialized", False)
            if module.padding_idx is not None and not is_loaded:
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif hasattr(module, "weight_scale"):
            _init_int8(module)
        if (std := getattr(module, "init_std", None)) is not None:
            init.normal_(module.weight, std=std)


def _init_int8(layer: Any) -> None:
    """Uniform weights with the spread of a float layer, where a folder of int8 weights has none."""
    rows, columns = layer.weight.shape
    fan = columns if hasattr(layer, "padding_idx") else (rows + columns) / 2
    init.copy_(layer.weight, torch.randint_like(layer.weight, -127, 128))
    init.constant_(layer.weight_scale, (3 / fan) ** 0.5 / 127)
    if getattr(layer, "bias", None) is not None:
        init.zeros_(layer.bias)
