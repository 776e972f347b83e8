# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""One side alone: text to one vector per token or to classes, and a language model.

Encoder-only models load the encoder of a translation model and ignore its decoder, decoder-only
models the reverse. Shapes: B batch, S tokens of a source, L tokens, D `d_model`, C `num_labels`,
V vocabulary.
"""

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithCrossAttentions,
    SequenceClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_vanilla import VanillaConfig
from .kernels_vanilla import VanillaDropout, masked_mean
from .pretrained_vanilla import takes_cache
from .stacks_vanilla import (
    VanillaDecoder,
    VanillaEncoder,
    VanillaModelBase,
    VanillaTextPreTrainedModel,
    one_sided,
    real_tokens,
)

# --- encoder-only --------------------------------------------------------------------------------


class VanillaEncoderModel(VanillaModelBase):
    """The encoder (3.1) alone: one vector per source token.

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaConfig, VanillaEncoderModel
        >>> model = VanillaEncoderModel(VanillaConfig(vocab_size=20, d_model=16, encoder_layers=1))
        >>> model(input_ids=torch.tensor([[5, 6, 1]])).last_hidden_state.shape
        torch.Size([1, 3, 16])
    """

    _tied_weights_keys = {"encoder.embed_tokens.weight": "shared.weight"}
    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?decoder\.", r"^lm_head\."]

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(one_sided(config))
        self.encoder = VanillaEncoder(self.config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode the text.

        Args:
            input_ids: `(B, S)` int64.
            attention_mask: `(B, S)`, 1 = real token; None: every token but `pad_token_id`.
            inputs_embeds: `(B, S, D)` instead of `input_ids`.
            **kwargs: `output_attentions`, `output_hidden_states`, and what attention takes.
        """
        return self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)


class VanillaForSequenceClassification(VanillaTextPreTrainedModel):
    """The encoder, the mean of its vectors over real tokens, and a linear layer.

    `config.problem_type` and the labels choose the loss, as in all models of transformers.

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaConfig, VanillaForSequenceClassification
        >>> model = VanillaForSequenceClassification(
        ...     VanillaConfig(vocab_size=20, d_model=16, encoder_layers=1, num_labels=3))
        >>> model(input_ids=torch.tensor([[5, 6, 1]]), labels=torch.tensor([2])).logits.shape
        torch.Size([1, 3])
    """

    _keys_to_ignore_on_load_unexpected = [r"^model\.decoder\.", r"^lm_head\."]

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(one_sided(config))
        self.model = VanillaEncoderModel(self.config)
        self.dropout = VanillaDropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Logits `(B, C)` of each text.

        Args:
            input_ids: `(B, S)` int64.
            attention_mask: `(B, S)`, 1 = real token; None: every token but `pad_token_id`.
            inputs_embeds: `(B, S, D)` instead of `input_ids`.
            labels: `(B,)` int64 classes, or `(B,)` or `(B, C)` float targets.
            **kwargs: `output_attentions`, `output_hidden_states`, and what attention takes.
        """
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        attention_mask = real_tokens(self.config, input_ids, attention_mask)
        outputs = self.model(input_ids, attention_mask, inputs_embeds, **kwargs)
        if attention_mask is None:
            pooled = outputs.last_hidden_state.mean(dim=1)  # (B, D)
        else:
            pooled = masked_mean(outputs.last_hidden_state, attention_mask.bool())
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                labels=labels,
                pooled_logits=logits,
                config=self.config,
                num_items_in_batch=num_items_in_batch,
            )
            is_mean = self.config.problem_type != "single_label_classification"
            if is_mean and num_items_in_batch is not None:
                # transformers uses `num_items_in_batch` for the classes of a step only
                loss = loss * labels.numel() / num_items_in_batch
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# --- decoder-only --------------------------------------------------------------------------------


class VanillaDecoderModel(VanillaModelBase):
    """The decoder (3.1) alone, with or without attention to a source."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "shared.weight"}
    _keys_to_ignore_on_load_unexpected = [
        r"^(model\.)?encoder\.",
        r"\.encoder_attn(_layer_norm)?\.",
    ]

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(config)
        self.decoder = VanillaDecoder(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode the text so far; the arguments are those of `VanillaDecoder`."""
        return self.decoder(input_ids, attention_mask, inputs_embeds=inputs_embeds, **kwargs)


class VanillaForCausalLM(VanillaTextPreTrainedModel, GenerationMixin):
    """The decoder with the output projection: a language model.

    It has attention to a source only with `add_cross_attention`; the caller then passes
    `encoder_hidden_states`. The model smooths labels itself (`label_smoothing`). Where the package
    is missing, do not use the `Trainer`'s `label_smoothing_factor`: it does not shift the labels.

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaConfig, VanillaForCausalLM
        >>> model = VanillaForCausalLM(VanillaConfig(vocab_size=20, d_model=16, decoder_layers=1))
        >>> ids = torch.tensor([[5, 6, 1]])
        >>> model(input_ids=ids, labels=ids).logits.shape
        torch.Size([1, 3, 20])
    """

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _keys_to_ignore_on_load_unexpected = [r"^model\.encoder\.", r"\.encoder_attn(_layer_norm)?\."]

    def __init__(self, config: VanillaConfig) -> None:
        config = one_sided(config)
        config.is_decoder = True
        # transformers makes a cache by `num_hidden_layers` and `num_attention_heads`, which are the
        # encoder's fields, so they take the decoder's values
        config.encoder_layers = config.decoder_layers
        config.encoder_attention_heads = config.decoder_attention_heads
        config.vocab_size = config.target_vocab_size
        super().__init__(config)
        self.model = VanillaDecoderModel(config)
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {"lm_head.weight": "model.shared.weight"}
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @takes_cache
    @can_return_tuple
    def forward(  # noqa: PLR0913, PLR0917 - transformers' signature
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithCrossAttentions:
        """Logits of the next token at every position, and the loss if `labels` are given.

        Args:
            input_ids: `(B, L)` int64.
            attention_mask: `(B, past + L)`, 1 = real token; None: all are.
            encoder_hidden_states: `(B, S, D)`, only with `add_cross_attention`.
            encoder_attention_mask: `(B, S)`, 1 = real token.
            cache: cache of an earlier call.
            inputs_embeds: `(B, L, D)` instead of `input_ids`.
            labels: `(B, L)` int64, aligned with `input_ids` and shifted here, as transformers'
                language models do; -100 and `pad_token_id` do not count. `shift_labels`, which a
                sequence split over GPUs comes with, is used instead and not shifted.
            use_cache: return `cache`; None: as the config says, never with labels.
            logits_to_keep: last positions to compute logits for, or a tensor of indices; 0: all.
            **kwargs: `num_items_in_batch` (real target tokens of the optimizer step, the divisor
                of the loss), `output_attentions`, `output_hidden_states`, what attention takes.

        Returns:
            `logits` `(B, L, V)`; `loss` in nats per real target token, label-smoothed in training
            mode (5.4) and the plain NLL in evaluation mode.

        Raises:
            ValueError: an input or a mask does not fit, or there are `position_ids`.
        """
        if kwargs.get("position_ids") is not None:
            raise ValueError(
                "position_ids: positions follow from attention_mask; leave them out. Several texts "
                "in one row need a 4-D attention_mask"
            )
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        shift_labels = kwargs.pop("shift_labels", None)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=False if labels is not None else use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            is_aligned = shift_labels is not None
            loss = self.training_loss(
                self.config,
                logits if is_aligned else logits[:, :-1],
                shift_labels if is_aligned else labels[:, 1:],
                is_training=self.training,
                num_items_in_batch=num_items_in_batch,
            )
        others = dict(outputs)
        del others["last_hidden_state"]
        return CausalLMOutputWithCrossAttentions(loss=loss, logits=logits, **others)
