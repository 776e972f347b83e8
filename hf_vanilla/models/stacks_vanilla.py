# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The encoder and the decoder stack over their embedding (3.1, 3.4), and their initial values.

Shapes: B batch, S source, T target, L any length, D `d_model`.
"""

import copy
import math
import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vanilla import VanillaAttention
from .configuration_vanilla import VanillaConfig
from .dropout_vanilla import VanillaDropout
from .inputs_vanilla import check_mask, outside_vocabulary, real_tokens, require_one
from .layers_vanilla import VanillaDecoderLayer, VanillaEncoderLayer
from .positions_vanilla import LearnedPositions, SinusoidalPositions


class VanillaEmbedding(nn.Embedding):
    """A table of word vectors in which padding is always looked up as zeros.

    `nn.Embedding` alone only keeps the lookup's own gradient from the padding row; tied to the
    softmax, that row learns all the same and would stop being zero.
    """

    def forward(self, input_ids: Tensor) -> Tensor:
        """Vectors of `(B, L)` ids, `(B, L, D)`.

        Raises:
            ValueError: an id is outside the table. A GPU cannot tell which without slowing every
                step; there its own assertion fails.
        """
        try:
            vectors = super().forward(input_ids)
        except IndexError:
            raise outside_vocabulary("token ids", input_ids, self.num_embeddings) from None
        if self.padding_idx is None:
            return vectors
        return vectors.masked_fill(input_ids.eq(self.padding_idx).unsqueeze(-1), 0)


class VanillaPreTrainedModel(PreTrainedModel):
    """What the models of this file share: flags for transformers, and initial values."""

    config_class = VanillaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VanillaEncoderLayer", "VanillaDecoderLayer"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def post_init(self) -> None:
        """Keep of the plans for several GPUs what this model has: its stacks, a table, a source."""
        super().post_init()
        names = {re.sub(r"\d+", "*", name) for name, _ in self.named_modules()}
        for plan in ("_tp_plan", "_fsdp_plan"):
            rules = getattr(self, plan, None) or {}
            setattr(self, plan, {name: style for name, style in rules.items() if name in names})

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot everywhere and N(0, 1/d_model) for tables, as in the tensor2tensor release."""
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

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize as transformers does, and keep both vocabulary sizes of one table equal."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        if self.config.share_encoder_decoder_embeddings or not self.config.is_encoder_decoder:
            self.config.decoder_vocab_size = self.config.vocab_size
        return embeddings

    def resize_decoder_token_embeddings(
        self,
        new_num_tokens: int,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Resize the target table, and the output with it, where the source has a table of its own.

        Raises:
            ValueError: source and target share one table.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "source and target share one table (share_encoder_decoder_embeddings=True): "
                "call resize_token_embeddings, which resizes both sides"
            )
        decoder = self.base_model.decoder
        decoder.embed_tokens = self._get_resized_embeddings(
            decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        size = decoder.embed_tokens.num_embeddings
        if (head := self.get_output_embeddings()) is not None:
            # not our own method, which leaves the output alone when the source is resized
            resized = PreTrainedModel._get_resized_lm_head(
                self, head, size, mean_resizing=mean_resizing
            )
            self.set_output_embeddings(resized)
        self.config.decoder_vocab_size = size
        self.tie_weights()
        return decoder.embed_tokens


class VanillaStack(VanillaPreTrainedModel):
    """The bottom of either stack: `Dropout(sqrt(d) embedding + position)` (3.4, 3.5, 5.4).

    And its top, which is nothing in the paper.
    """

    side = ""  # what a caller's names for the inputs begin with

    def __init__(self, config: VanillaConfig, vocab_size: int) -> None:
        super().__init__(config)
        self.embed_tokens: nn.Embedding = VanillaEmbedding(
            vocab_size, config.d_model, config.zero_token_id
        )
        is_learned = config.position_embedding_type == "learned"
        self.embed_positions = (LearnedPositions if is_learned else SinusoidalPositions)(config)
        # the table is shared with the softmax and drawn small for it; an input needs its scale back
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.dropout = VanillaDropout(config.dropout)
        # no part of the paper's post-norm stacks, whose last layer already ends in a norm
        is_normed = config.final_layer_norm
        self.layer_norm = (
            nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if is_normed else nn.Identity()
        )

    def embed(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        past_length: "int | Tensor" = 0,
    ) -> Tensor:
        """Words and places, `(B, L, D)`.

        Places count real tokens, so that padding on the left moves nothing.

        Args:
            input_ids: `(B, L)` int64; this or `inputs_embeds`.
            inputs_embeds: `(B, L, D)`, unscaled.
            attention_mask: `(B, past_length + L)`, 1 = real token; else all are real.
            past_length: tokens already in the cache.

        Raises:
            ValueError: both or neither of `input_ids` and `inputs_embeds` are given, an id is
                outside the vocabulary, or the mask is of another shape.
        """
        require_one(f"{self.side}input_ids", input_ids, inputs_embeds)
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        vectors = inputs_embeds * self.embed_scale
        rows, length = vectors.shape[:2]
        check_mask(f"{self.side}attention_mask", attention_mask, rows, past_length + length)
        places = self._places(attention_mask, length)
        if attention_mask is None or places is None:
            positions = self.embed_positions(length, past_length, vectors)  # (L, D)
        else:
            table = self.embed_positions(attention_mask.shape[-1], 0, vectors)
            positions = nn.functional.embedding(places.clamp(min=0), table)  # (B, L, D)
        return self.dropout(vectors + positions)

    def _places(self, attention_mask: Tensor | None, length: int) -> Tensor | None:
        """How many real tokens stand before each of the last `length`, `(B, L)`; None: all."""
        if attention_mask is None or attention_mask.dim() != 2:
            return None
        return attention_mask.to(torch.long).cumsum(-1)[:, -length:] - 1


class VanillaEncoder(VanillaStack):
    """N layers of self-attention and feed-forward (3.1)."""

    _can_record_outputs = {  # noqa: RUF012 - transformers' form
        "hidden_states": VanillaEncoderLayer,
        "attentions": OutputRecorder(VanillaAttention, index=1, layer_name="self_attn"),
    }

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(config, config.vocab_size)
        layers = [VanillaEncoderLayer(config) for _ in range(config.encoder_layers)]
        self.layers = nn.ModuleList(layers)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Read the source.

        Args:
            input_ids: `(B, S)` int64.
            attention_mask: `(B, S)`, 1 = real token; None: every token but `pad_token_id`.
            inputs_embeds: `(B, S, D)` instead of `input_ids`; scaled like them.
            **kwargs: `output_attentions`, `output_hidden_states`, and what attention takes.
        """
        attention_mask = real_tokens(self.config, input_ids, attention_mask)
        hidden_states = self.embed(input_ids, inputs_embeds, attention_mask)
        layer_mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=hidden_states, attention_mask=attention_mask
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, layer_mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class VanillaDecoder(VanillaStack):
    """N layers of masked self-attention, attention to the source and feed-forward (3.1)."""

    _can_record_outputs = {  # noqa: RUF012 - transformers' form
        "hidden_states": VanillaDecoderLayer,
        "attentions": OutputRecorder(VanillaAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaConfig, *, has_source: bool | None = None) -> None:
        super().__init__(config, config.target_vocab_size)
        if has_source is None:
            has_source = config.is_encoder_decoder or config.add_cross_attention
        self.has_source = has_source
        self.side = "decoder_" if config.is_encoder_decoder else ""
        self.layers = nn.ModuleList(
            VanillaDecoderLayer(config, index, has_source=self.has_source)
            for index in range(config.decoder_layers)
        )
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(  # noqa: PLR0913 - transformers' signature
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Read the target so far, looking at the source.

        Args:
            input_ids: `(B, T)` int64, shifted right by one.
            attention_mask: `(B, past + T)`, 1 = real token; None: causality suffices, since target
                padding stands on the right.
            encoder_hidden_states: `(B, S, D)`; None leaves the source out. A decoder alone takes
                none, unless `add_cross_attention` is on.
            encoder_attention_mask: `(B, S)`, 1 = real token.
            past_key_values: keys and values of earlier tokens and of the source.
            inputs_embeds: `(B, T, D)` instead of `input_ids`.
            use_cache: return `past_key_values`.
            **kwargs: `output_attentions`, `output_hidden_states`, and what attention takes.

        Raises:
            ValueError: an input or a mask does not fit; the message says which and how.
        """
        if encoder_hidden_states is not None and not self.has_source:
            raise ValueError(
                "encoder_hidden_states came, but this decoder has no attention to a source: "
                "build it with add_cross_attention=True"
            )
        if use_cache and past_key_values is None:
            own, of_source = (DynamicCache(config=self.config) for _ in range(2))
            past_key_values = EncoderDecoderCache(own, of_source) if self.has_source else own
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
        hidden_states = self.embed(input_ids, inputs_embeds, attention_mask, past_length)
        own_cache = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            own_cache = past_key_values.self_attention_cache
        layer_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=attention_mask,
            past_key_values=own_cache,
        )
        if encoder_hidden_states is not None:
            length = encoder_hidden_states.shape[1]
            name = "attention_mask" if self.side else "encoder_attention_mask"
            check_mask(name, encoder_attention_mask, hidden_states.shape[0], length)
        source_mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                layer_mask,
                encoder_hidden_states,  # by place: reentrant checkpointing needs its gradient
                source_mask,
                past_key_values=past_key_values,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states), past_key_values=past_key_values
        )

    def _places(self, attention_mask: Tensor | None, length: int) -> Tensor | None:
        """Also from a causal `(B, 1, L, S)` mask: a token stands behind those it may see."""
        if attention_mask is None or attention_mask.dim() != 4:
            return super()._places(attention_mask, length)
        is_bool = attention_mask.dtype == torch.bool
        lowest = 0 if is_bool else torch.finfo(attention_mask.dtype).min
        may_attend = attention_mask if is_bool else attention_mask > lowest
        return may_attend[:, 0].sum(dim=-1) - 1


class VanillaBody(VanillaPreTrainedModel):
    """The stacks of a model over the one table that its config lets them share (3.4)."""

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared: nn.Embedding = VanillaEmbedding(
                config.vocab_size, config.d_model, config.zero_token_id
            )
        else:
            self._tied_weights_keys: dict[str, str] = {}

    @property
    def stacks(self) -> list[VanillaStack]:
        """The encoder, the decoder, or both in this order."""
        return [part for part in self.children() if isinstance(part, VanillaStack)]

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Source and target share a table by their own field, whatever the output layer does."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys)

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of the first stack, which is the shared one unless each has its own."""
        return self.stacks[0].embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the table of the first stack and, where it is shared, of all."""
        self.stacks[0].embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.shared = value
            for stack in self.stacks:
                stack.embed_tokens = value


def one_half(config: VanillaConfig) -> VanillaConfig:
    """A copy of the config that says that nothing is encoded first and then decoded."""
    config = copy.deepcopy(config)
    config.is_encoder_decoder = False
    return config
