# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The encoder and the decoder stack over their embedding (3.1, 3.4), and checks of their inputs.

Shapes: B batch, S source or keys, T target or queries, L any length, D `d_model`.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.dynamic_module_utils import custom_object_save
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention_vanilla import padding_mask
from .configuration_vanilla import VanillaConfig
from .kernels_vanilla import VanillaDropout, VanillaLayerNorm, in_autocast_bfloat16
from .layers_vanilla import DECODER_RECORDS, ENCODER_RECORDS, decoder_layers, encoder_layers
from .loss_vanilla import training_loss
from .positions_vanilla import LearnedPositions, SinusoidalPositions
from .pretrained_vanilla import CACHE_NAME, VanillaPreTrainedModel, takes_cache


class VanillaEmbedding(nn.Embedding):
    """Token embeddings (3.4) in which the padding token is always the zero vector.

    `nn.Embedding` only masks the gradient of the lookup. The table is shared with the output
    projection, whose gradient would move the padding row away from zero.
    """

    def forward(self, input_ids: Tensor) -> Tensor:
        """Embeddings `(B, L, D)` of the ids `(B, L)`.

        Raises:
            ValueError: an id is outside the table. On a GPU, CUDA's own assertion fails instead,
                because reading the ids back would slow every step.
        """
        try:
            vectors = self.rows(input_ids)
        except IndexError:
            raise ValueError(
                f"token ids from {int(input_ids.min())} to {int(input_ids.max())}, but the "
                f"vocabulary has the ids 0 to {self.num_embeddings - 1}: use the model's own "
                "tokenizer, or call resize_token_embeddings"
            ) from None
        if self.padding_idx is None:
            return vectors
        return vectors.masked_fill(input_ids.eq(self.padding_idx).unsqueeze(-1), 0)

    def rows(self, input_ids: Tensor) -> Tensor:
        """Rows of the table, `(B, L, D)`, for the ids `(B, L)`."""
        return super().forward(input_ids)


class VanillaTextPreTrainedModel(VanillaPreTrainedModel):
    """Base class of the models with token embeddings: their config, and how tables are resized."""

    config_class = VanillaConfig
    training_loss: Callable = staticmethod(training_loss)  # a training may compile it

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does; beside saved code, the code of int8 weights if it has them."""
        super().save_pretrained(save_directory, *args, **kwargs)
        quantizer = getattr(self, "hf_quantizer", None)
        if quantizer is not None and self._auto_class is not None:
            custom_object_save(quantizer, save_directory)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize as transformers does, and keep both vocabulary sizes of a shared table equal.

        Raises:
            ValueError: the weights are int8.
        """
        if args or kwargs:
            self._require_float()
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        if self.config.share_encoder_decoder_embeddings or not self.config.is_encoder_decoder:
            self.config.decoder_vocab_size = self.config.vocab_size
        return embeddings

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the target embeddings and the output projection of a model with two tables.

        Raises:
            ValueError: source and target share one table, or the weights are int8.
        """
        self._require_float()
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError("source and target share one table: call resize_token_embeddings")
        decoder = self.base_model.decoder
        decoder.embed_tokens = self._get_resized_embeddings(
            decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        size = decoder.embed_tokens.num_embeddings
        if (head := self.get_output_embeddings()) is not None:
            # our own method would leave the output projection as it is
            resized = PreTrainedModel._get_resized_lm_head(
                self, head, size, mean_resizing=mean_resizing
            )
            self.set_output_embeddings(resized)
        self.config.decoder_vocab_size = size
        if not self.config.is_encoder_decoder:
            self.config.vocab_size = size
        self.tie_weights()
        return decoder.embed_tokens

    def _require_float(self) -> None:
        if getattr(self, "hf_quantizer", None) is not None:
            raise ValueError("int8 weights cannot be resized: call dequantize() on the model first")


class VanillaStack(VanillaTextPreTrainedModel):
    """Base of both stacks; the input, `Dropout(sqrt(d) embedding + position)` (3.4, 3.5, 5.4).

    It also has the optional LayerNorm after the last layer, which the paper does not have.
    """

    input_prefix = ""  # how the caller's argument names begin, for error messages

    def __init__(self, config: VanillaConfig, vocab_size: int) -> None:
        super().__init__(config)
        self.embed_tokens: nn.Embedding = VanillaEmbedding(
            vocab_size, config.d_model, config.zero_token_id
        )
        is_learned = config.position_embedding_type == "learned"
        self.embed_positions = (LearnedPositions if is_learned else SinusoidalPositions)(config)
        # the table is shared with the output projection and initialized small for it; as an input
        # it needs its scale back (3.4)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.dropout = VanillaDropout(config.dropout)
        # not in the paper: the last post-norm layer already ends in a LayerNorm
        self.layer_norm: nn.Module = nn.Identity()
        if config.final_layer_norm:
            self.layer_norm = VanillaLayerNorm(config.d_model, eps=config.layer_norm_eps)

    def embed(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        past_length: "int | Tensor" = 0,
    ) -> Tensor:
        """Embeddings plus positions, `(B, L, D)`.

        Positions are computed from the attention mask, so left padding does not shift them.

        Args:
            input_ids: `(B, L)` int64; either this or `inputs_embeds`.
            inputs_embeds: `(B, L, D)`, unscaled.
            attention_mask: `(B, past_length + L)`, 1 = real token; None: all tokens are real.
            past_length: tokens already in the cache.

        Raises:
            ValueError: both or neither of `input_ids` and `inputs_embeds` are given, an id is
                outside the vocabulary, or the mask is of another shape.
        """
        require_one(f"{self.input_prefix}input_ids", input_ids, inputs_embeds)
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        vectors = inputs_embeds * self.embed_scale
        rows, length = vectors.shape[:2]
        check_mask(f"{self.input_prefix}attention_mask", attention_mask, rows, past_length + length)
        indices = self._position_indices(attention_mask, length)
        if attention_mask is None or indices is None:
            positions = self.embed_positions(length, past_length, vectors)  # (L, D)
        else:
            table = self.embed_positions(attention_mask.shape[-1], 0, vectors)
            positions = nn.functional.embedding(indices.clamp(min=0), table)  # (B, L, D)
        return self.dropout(in_autocast_bfloat16(vectors + positions))

    def _position_indices(self, attention_mask: Tensor | None, length: int) -> Tensor | None:
        """Real tokens before each of the last `length` tokens, `(B, L)`; None: all are real."""
        if attention_mask is None or attention_mask.dim() != 2:
            return None
        return attention_mask.to(torch.long).cumsum(-1)[:, -length:] - 1


class VanillaEncoder(VanillaStack):
    """N layers of self-attention and feed-forward (3.1)."""

    _can_record_outputs = ENCODER_RECORDS

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(config, config.vocab_size)
        self.layers = encoder_layers(config)
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
        """Encode the source.

        Args:
            input_ids: `(B, S)` int64.
            attention_mask: `(B, S)`, 1 = real token; None: every token but `pad_token_id`.
            inputs_embeds: `(B, S, D)` instead of `input_ids`, unscaled.
            **kwargs: `output_attentions`, `output_hidden_states`, and what attention takes.
        """
        attention_mask = real_tokens(self.config, input_ids, attention_mask)
        hidden_states = self.embed(input_ids, inputs_embeds, attention_mask)
        layer_mask = padding_mask(self.config, hidden_states, attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, layer_mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class VanillaDecoder(VanillaStack):
    """N layers of masked self-attention, attention to the source and feed-forward (3.1)."""

    _can_record_outputs = DECODER_RECORDS

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(config, config.target_vocab_size)
        self.has_source = config.is_encoder_decoder or config.add_cross_attention
        self.input_prefix = "decoder_" if config.is_encoder_decoder else ""
        self.layers = decoder_layers(config, has_source=self.has_source)
        self.post_init()

    @takes_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(  # noqa: PLR0913 - transformers' signature
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode the target so far, with attention to the source.

        Args:
            input_ids: `(B, T)` int64, shifted right by one.
            attention_mask: `(B, past + T)`, 1 = real token; None: only the causal mask, which is
                enough where padding is on the right.
            encoder_hidden_states: `(B, S, D)`; None skips the attention to the source. A
                decoder-only model accepts it only with `add_cross_attention`.
            encoder_attention_mask: `(B, S)`, 1 = real token.
            cache: KV cache of earlier tokens and of the source.
            inputs_embeds: `(B, T, D)` instead of `input_ids`.
            use_cache: return `cache`.
            **kwargs: `output_attentions`, `output_hidden_states`, and what attention takes.

        Raises:
            ValueError: an input or a mask does not fit; the message says which and how.
        """
        if encoder_hidden_states is not None and not self.has_source:
            raise ValueError("encoder_hidden_states needs a decoder with add_cross_attention=True")
        if use_cache and cache is None:
            own, of_source = (DynamicCache(config=self.config) for _ in range(2))
            cache = EncoderDecoderCache(own, of_source) if self.has_source else own
        past_length = 0 if cache is None else cache.get_seq_length()
        hidden_states = self.embed(input_ids, inputs_embeds, attention_mask, past_length)
        own_cache = cache
        if isinstance(cache, EncoderDecoderCache):
            own_cache = cache.self_attention_cache
        # the cache is positional: its name differs between versions of transformers
        layer_mask = create_causal_mask(self.config, hidden_states, attention_mask, own_cache)
        if encoder_hidden_states is not None:
            sources, length = encoder_hidden_states.shape[:2]
            if sources != hidden_states.shape[0]:
                raise ValueError(
                    f"{sources} sources, but {hidden_states.shape[0]} targets: give one each"
                )
            name = "attention_mask" if self.input_prefix else "encoder_attention_mask"
            check_mask(name, encoder_attention_mask, sources, length)
        source_mask = padding_mask(
            self.config, hidden_states, encoder_attention_mask, encoder_hidden_states
        )
        for layer in self.layers:
            # the source is positional: reentrant checkpointing needs its gradient
            hidden_states = layer(
                hidden_states, layer_mask, encoder_hidden_states, source_mask, cache=cache, **kwargs
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states), **{CACHE_NAME: cache}
        )

    def _position_indices(self, attention_mask: Tensor | None, length: int) -> Tensor | None:
        """As above; with a 4-D causal mask, the number of keys a token may attend to, less 1."""
        if attention_mask is None or attention_mask.dim() != 4:
            return super()._position_indices(attention_mask, length)
        is_bool = attention_mask.dtype == torch.bool
        lowest = 0 if is_bool else torch.finfo(attention_mask.dtype).min
        may_attend = attention_mask if is_bool else attention_mask > lowest
        return may_attend[:, 0].sum(dim=-1) - 1


class VanillaModelBase(VanillaTextPreTrainedModel):
    """One or two stacks and the embedding that they share, if the config says so (3.4)."""

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
        """Tie the stacks by `share_encoder_decoder_embeddings`, not by `tie_word_embeddings`."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys)

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding of the first stack: the shared one, or the source's own."""
        return self.stacks[0].embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding of the first stack or, if it is shared, of both."""
        self.stacks[0].embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.shared = value
            for stack in self.stacks:
                stack.embed_tokens = value


def one_sided(config: VanillaConfig) -> VanillaConfig:
    """A copy of the config for an encoder-only or decoder-only model."""
    config = copy.deepcopy(config)
    config.is_encoder_decoder = False
    return config


def two_sided(config: VanillaConfig) -> VanillaConfig:
    """The config of a model with encoder and decoder; a copy if it is of one of them alone."""
    if not config.is_encoder_decoder:
        config = copy.deepcopy(config)
        config.is_encoder_decoder, config.is_decoder = True, False
    return config


def real_tokens(
    config: VanillaConfig, input_ids: Tensor | None, attention_mask: Tensor | None
) -> Tensor | None:
    """The mask, by default 1 where the source id is not padding; None if neither is known."""
    if attention_mask is not None or input_ids is None or config.pad_token_id is None:
        return attention_mask
    return input_ids.ne(config.pad_token_id).long()


def require_one(name: str, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> None:
    """Check that exactly one of ids and embeddings is given.

    Args:
        name: the caller's name of the ids.
        input_ids: `(B, L)` or None.
        inputs_embeds: `(B, L, D)` or None.

    Raises:
        ValueError: both or neither are given.
    """
    if (input_ids is None) == (inputs_embeds is None):
        given = "neither" if input_ids is None else "both"
        vectors = name.replace("input_ids", "inputs_embeds")
        message = f"give exactly one of {name} and {vectors}: {given} given"
        if (name, given) == ("decoder_input_ids", "neither"):
            message += (
                ", and no labels; a Trainer with label_smoothing_factor needs "
                "DataCollatorForSeq2Seq(tokenizer, model=model)"
            )
        raise ValueError(message)


def check_mask(name: str, mask: object, rows: int, length: "int | Tensor") -> None:
    """Check that a mask has one entry for every token of every row.

    A compiled program skips the check, because its shapes were checked when it was traced.

    Args:
        name: the caller's name of the mask.
        mask: `(B, L)`, 1 = real token. A 4-D mask `(B, 1, T, S)` and objects that are not tensors
            belong to the attention implementation and are not checked.
        rows: B.
        length: L. The tensor that a static cache has instead is not compared, to avoid a GPU sync.

    Raises:
        ValueError: the mask has another shape.
    """
    if not isinstance(mask, Tensor) or mask.dim() == 4 or torch.compiler.is_compiling():
        return
    wanted = (rows, mask.shape[-1] if isinstance(length, Tensor) else length)
    if tuple(mask.shape) != wanted:
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, not {wanted}: 1 for a real token, 0 for padding"
        )
