# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The 2017 Transformer: encoder and decoder over one shared embedding, and its output (section 3).

Shapes: B batch, S source, T target, D `d_model`, V vocabulary.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_vanilla import VanillaConfig
from .generation_vanilla import (
    SourceLengthCriteria,
    SourceLengthEnd,
    length_penalty,
    paper_decoding,
)
from .loss_vanilla import training_loss
from .search_vanilla_gate import fast_search
from .stacks_vanilla import (
    VanillaBody,
    VanillaDecoder,
    VanillaEncoder,
    VanillaTextPreTrainedModel,
    real_tokens,
)


class VanillaModel(VanillaBody):
    """Encoder and decoder of the 2017 Transformer, without the output projection (Figure 1).

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaConfig, VanillaModel
        >>> model = VanillaModel(VanillaConfig(vocab_size=20, d_model=16, encoder_layers=1,
        ...                                    decoder_layers=1))
        >>> ids = torch.tensor([[5, 6, 1]])
        >>> model(input_ids=ids, decoder_input_ids=ids).last_hidden_state.shape
        torch.Size([1, 3, 16])
    """

    _tied_weights_keys = {  # noqa: RUF012 - transformers' form
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    }

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(config)
        self.encoder = VanillaEncoder(config)
        self.decoder = VanillaDecoder(config, has_source=True)
        self.post_init()

    @can_return_tuple
    def forward(  # noqa: PLR0913, PLR0917 - transformers' signature
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode the source and decode the target so far.

        Args:
            input_ids: `(B, S)` int64 source.
            attention_mask: `(B, S)`, 1 = real token; None: every token but `pad_token_id`.
            decoder_input_ids: `(B, T)` int64 target, shifted right by one.
            decoder_attention_mask: `(B, past + T)`, 1 = real token; None: causality suffices.
            encoder_outputs: result of the encoder, to read the source only once.
            past_key_values: cache of an earlier call.
            inputs_embeds: `(B, S, D)` instead of `input_ids`.
            decoder_inputs_embeds: `(B, T, D)` instead of `decoder_input_ids`.
            use_cache: return `past_key_values`; None: as the config says.
            **kwargs: `output_attentions`, `output_hidden_states`, and what attention takes.
        """
        attention_mask = real_tokens(self.config, input_ids, attention_mask)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                **kwargs,
            )
        is_tuple = isinstance(encoder_outputs, tuple)
        encoded: Any = BaseModelOutput(*encoder_outputs) if is_tuple else encoder_outputs
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


class VanillaForConditionalGeneration(VanillaTextPreTrainedModel, GenerationMixin):
    """The 2017 Transformer with its output projection: trains on pairs, translates by `generate()`.

    `generate()` starts from the paper's decoding: beam 4, GNMT length penalty with alpha 0.6, at
    most source length + 50 tokens (6.1).

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
        >>> model = VanillaForConditionalGeneration(
        ...     VanillaConfig(vocab_size=20, d_model=16, encoder_layers=1, decoder_layers=1))
        >>> ids = torch.tensor([[5, 6, 1]])
        >>> model(input_ids=ids, labels=ids).logits.shape
        torch.Size([1, 3, 20])
        >>> model.generate(input_ids=ids, max_new_tokens=4).shape[0]
        1
    """

    _tied_weights_keys = {  # noqa: RUF012 - transformers' form
        "lm_head.weight": "model.decoder.embed_tokens.weight"
    }
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012 - transformers' form

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(config)
        self.model = VanillaModel(config)
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {"lm_head.weight": "model.shared.weight"}
        self.lm_head = nn.Linear(config.d_model, config.target_vocab_size, bias=config.lm_head_bias)
        self.post_init()
        self.generation_config = paper_decoding(config)

    @can_return_tuple
    def forward(  # noqa: PLR0913, PLR0917 - transformers' signature
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Logits of the next target token at every place, and the loss where `labels` are given.

        Args:
            input_ids: `(B, S)` int64 source.
            attention_mask: `(B, S)`, 1 = real token; None: every token but `pad_token_id`.
            decoder_input_ids: `(B, T)` int64; None: `labels` shifted right by one.
            decoder_attention_mask: `(B, past + T)`, 1 = real token; None: causality suffices.
            encoder_outputs: result of the encoder, to read the source only once.
            past_key_values: cache of an earlier call.
            inputs_embeds: `(B, S, D)` instead of `input_ids`.
            decoder_inputs_embeds: `(B, T, D)` instead of `decoder_input_ids`.
            labels: `(B, T)` int64 ids to predict; -100 and `pad_token_id` do not count.
            use_cache: return `past_key_values`; None: as the config says, never with labels.
            logits_to_keep: compute only the last so many places; 0: all. A tensor: those places.
            **kwargs: `num_items_in_batch` (real target tokens of the optimizer step, the divisor
                of the loss), `output_attentions`, `output_hidden_states`, what attention takes.

        Returns:
            `logits` `(B, T, V)`; `loss` in nats per real target token, label-smoothed in training
            mode (5.4) and the plain NLL in evaluation mode.
        """
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        is_count = isinstance(logits_to_keep, int)
        kept = slice(-logits_to_keep, None) if is_count else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = training_loss(
                self.config,
                logits,
                labels,
                is_training=self.training,
                num_items_in_batch=num_items_in_batch,
            )
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as every model; where its code goes along, so does the translation pipeline."""
        if self._auto_class is not None:
            from .pipeline_vanilla import CUSTOM_PIPELINES

            self.config.custom_pipelines = copy.deepcopy(CUSTOM_PIPELINES)
        super().save_pretrained(save_directory, *args, **kwargs)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels shifted right by one behind the start token, `(B, T)`; -100 becomes padding.

        Raises:
            ValueError: the config has no start or no padding token.
        """
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError(
                f"labels need decoder_start_token_id (now {start}) and pad_token_id (now {pad}): "
                "set both in the config, or give decoder_input_ids"
            )
        begin = labels.new_full((labels.shape[0], 1), start)
        return torch.cat((begin, labels[:, :-1]), dim=1).masked_fill_(
            torch.cat((torch.zeros_like(begin, dtype=torch.bool), labels[:, :-1] < 0), dim=1), pad
        )

    def _get_resized_lm_head(self, old_lm_head: nn.Linear, *args: Any, **kwargs: Any) -> nn.Linear:
        """The output belongs to the target table; resizing the source's own leaves it alone."""
        if not self.config.share_encoder_decoder_embeddings:
            return old_lm_head
        return super()._get_resized_lm_head(old_lm_head, *args, **kwargs)

    # The steps of `generate()` below are transformers' own; each adds one fact of the paper.

    def _maybe_prepare_encoder_kwargs_for_generation(
        self,
        inputs_tensor: Tensor,
        model_kwargs: dict[str, Any],
        model_input_name: str | None,
        generation_config: GenerationConfig,
    ) -> dict[str, Any]:
        """Note each source's length, and which tokens are padding where no mask tells it."""
        is_ids = model_input_name == "input_ids" and model_kwargs.get("encoder_outputs") is None
        mask = model_kwargs.get("attention_mask")
        mask = real_tokens(self.config, inputs_tensor if is_ids else None, mask)
        if mask is None:
            rows, length = inputs_tensor.shape[:2]
            lengths = torch.full((rows,), length, device=inputs_tensor.device)
        else:
            model_kwargs["attention_mask"] = mask
            lengths = mask.sum(dim=-1)
        generation_config._source_lengths = lengths
        return super()._maybe_prepare_encoder_kwargs_for_generation(
            inputs_tensor, model_kwargs, model_input_name, generation_config
        )

    def _prepare_generated_length(
        self, generation_config: GenerationConfig, **kwargs: Any
    ) -> GenerationConfig:
        """At most source length + `max_tokens_beyond_source`; `max_new_tokens` replaces that limit.

        A `max_length` counts too if it is smaller, except for the placeholder of transformers,
        which `Seq2SeqTrainer` writes into a model's generation config while it evaluates.
        """
        beyond = getattr(generation_config, "max_tokens_beyond_source", None)
        if beyond is not None and generation_config.max_new_tokens is None:
            prompt = kwargs["input_ids_length"]
            limits = generation_config._source_lengths + beyond
            placeholder = generation_config._get_default_generation_params()["max_length"]
            asked = generation_config.max_length
            if kwargs["has_default_max_length"] or asked == placeholder == (
                self.generation_config.max_length
            ):
                asked = None
            is_learned = self.config.position_embedding_type == "learned"
            ends = [asked, self.config.max_position_embeddings if is_learned else None]
            for end in ends:
                limits = limits if end is None else limits.clamp(max=max(end - prompt, 1))
            generation_config._max_lengths = limits + prompt
            generation_config.max_new_tokens = int(limits.max())
            kwargs["has_default_max_length"] = True  # there is only one limit left
        return super()._prepare_generated_length(generation_config=generation_config, **kwargs)

    def _get_stopping_criteria(
        self, generation_config: GenerationConfig, *args: Any, **kwargs: Any
    ) -> StoppingCriteriaList:
        criteria = super()._get_stopping_criteria(generation_config, *args, **kwargs)
        if (max_lengths := getattr(generation_config, "_max_lengths", None)) is not None:
            criteria.append(SourceLengthCriteria(max_lengths))
        return criteria

    def _get_logits_processor(
        self, generation_config: GenerationConfig, *args: Any, **kwargs: Any
    ) -> LogitsProcessorList:
        processors = super()._get_logits_processor(generation_config, *args, **kwargs)
        max_lengths = getattr(generation_config, "_max_lengths", None)
        end_ids = generation_config.forced_eos_token_id
        if max_lengths is not None and end_ids is not None:
            processors.append(SourceLengthEnd(max_lengths, end_ids))
        return processors

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        """Beam search by the penalty that the generation config names, fast where possible."""
        generation_config.length_penalty = length_penalty(generation_config)
        rules = (logits_processor, stopping_criteria, generation_config)
        found = self._fast_search(input_ids, *rules, **kwargs)
        return super()._beam_search(input_ids, *rules, **kwargs) if found is None else found

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        """Greedy search, fast where possible; chance is transformers' own."""
        rules = (logits_processor, stopping_criteria, generation_config)
        found = self._fast_search(input_ids, *rules, **kwargs)
        return super()._sample(input_ids, *rules, **kwargs) if found is None else found

    def _fast_search(self, *args: Any, **kwargs: Any) -> Any:
        is_own = type(self).forward is VanillaForConditionalGeneration.forward
        return fast_search(self, *args, **kwargs) if is_own else None
