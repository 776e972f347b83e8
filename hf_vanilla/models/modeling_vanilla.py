# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The 2017 Transformer: encoder and decoder over one shared embedding, and its output (section 3).

Shapes: B batch, S source, T target, D `d_model`, V vocabulary.
"""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_vanilla import VanillaConfig
from .generation_vanilla import (
    GnmtExponent,
    SourceLengthCriteria,
    SourceLengthEnd,
    check_call,
    forget_defaults,
    gathers_for_generate,
    merged_settings,
    paper_decoding,
    penalty_form,
    sentence_limits,
    with_settings,
)
from .pretrained_vanilla import CACHE_NAME, takes_cache
from .stacks_vanilla import (
    VanillaDecoder,
    VanillaEncoder,
    VanillaModelBase,
    VanillaTextPreTrainedModel,
    real_tokens,
    two_sided,
)


class VanillaModel(VanillaModelBase):
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

    _tied_weights_keys = {
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    }

    def __init__(self, config: VanillaConfig) -> None:
        config = two_sided(config)
        super().__init__(config)
        self.encoder = VanillaEncoder(config)
        self.decoder = VanillaDecoder(config)
        self.post_init()

    @takes_cache
    @can_return_tuple
    def forward(  # noqa: PLR0913, PLR0917 - transformers' signature
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        cache: Cache | None = None,
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
            cache: cache of an earlier call.
            inputs_embeds: `(B, S, D)` instead of `input_ids`.
            decoder_inputs_embeds: `(B, T, D)` instead of `decoder_input_ids`.
            use_cache: return `cache`; None: as the config says.
            **kwargs: `output_attentions`, `output_hidden_states`, and what attention takes.
        """
        attention_mask = real_tokens(self.config, input_ids, attention_mask)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        is_tuple = isinstance(encoder_outputs, tuple | list)
        encoded: Any = BaseModelOutput(*encoder_outputs) if is_tuple else encoder_outputs
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **{CACHE_NAME: getattr(decoder_outputs, CACHE_NAME)},
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

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: VanillaConfig) -> None:
        config = two_sided(config)
        super().__init__(config)
        self.model = VanillaModel(config)
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {"lm_head.weight": "model.shared.weight"}
        self.lm_head = nn.Linear(config.d_model, config.target_vocab_size, bias=config.lm_head_bias)
        self.post_init()
        self.generation_config = paper_decoding(config)

    def compute_transition_scores(self, *args: Any, **kwargs: Any) -> Tensor:
        """As transformers does, with the vocabulary of the target in place of the source's."""
        config = copy.copy(self.config)
        config.vocab_size = config.target_vocab_size
        stand_in: Any = SimpleNamespace(config=config)
        return GenerationMixin.compute_transition_scores(stand_in, *args, **kwargs)

    @takes_cache
    @can_return_tuple
    def forward(  # noqa: PLR0913, PLR0917 - transformers' signature
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Logits of the next token at every position, and the loss where `labels` are given.

        Args:
            input_ids: `(B, S)` int64 source.
            attention_mask: `(B, S)`, 1 = real token; None: every token but `pad_token_id`.
            decoder_input_ids: `(B, T)` int64; None: `labels` shifted right by one.
            decoder_attention_mask: `(B, past + T)`, 1 = real token; None: causality suffices.
            encoder_outputs: result of the encoder, to read the source only once.
            cache: cache of an earlier call.
            inputs_embeds: `(B, S, D)` instead of `input_ids`.
            decoder_inputs_embeds: `(B, T, D)` instead of `decoder_input_ids`.
            labels: `(B, T)` int64 ids to predict; -100 and `pad_token_id` do not count.
            use_cache: return `cache`; None: as the config says, never with labels.
            logits_to_keep: compute only the last so many positions; 0: all. A tensor: those.
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
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.training_loss(
                self.config,
                logits,
                labels,
                is_training=self.training,
                num_items_in_batch=num_items_in_batch,
            )
        others = dict(outputs)
        del others["last_hidden_state"]
        return Seq2SeqLMOutput(loss=loss, logits=logits, **others)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save the model; if its code is saved too, so is the translation pipeline."""
        forget_defaults(self.generation_config)
        if self.generation_config._from_model_config:  # else loading would replace it
            self.generation_config._from_model_config = None
        if self._auto_class is not None:
            from .pipeline_vanilla import CUSTOM_PIPELINES

            self.config.custom_pipelines = copy.deepcopy(CUSTOM_PIPELINES)
        super().save_pretrained(save_directory, *args, **kwargs)

    def adjust_generation_fn(self, generation_config: Any, *args: Any, **kwargs: Any) -> None:
        """Load the generation config, which a `Seq2SeqTrainer` may have saved.

        A folder without one gets the paper's decoding, as a new model does.
        """
        own = self.generation_config
        super().adjust_generation_fn(generation_config, *args, **kwargs)
        if generation_config is None and self.generation_config._from_model_config:
            self.generation_config = own
        forget_defaults(self.generation_config)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels shifted right by one after the start token, `(B, T)`; -100 becomes padding.

        Raises:
            ValueError: the config has no start or no padding token.
        """
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError(
                f"labels need decoder_start_token_id (now {start}) and pad_token_id (now {pad}): "
                "set both in the config, or give decoder_input_ids"
            )
        begin, earlier = labels.new_full((labels.shape[0], 1), start), labels[:, :-1]
        return torch.cat((begin, earlier.masked_fill(earlier < 0, pad)), dim=1)

    def _get_resized_lm_head(self, old_lm_head: nn.Linear, *args: Any, **kwargs: Any) -> nn.Linear:
        """Keep the output layer when a separate source embedding is resized."""
        if not self.config.share_encoder_decoder_embeddings:
            return old_lm_head
        return super()._get_resized_lm_head(old_lm_head, *args, **kwargs)

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Translate: transformers' `generate()` with the paper's limits and length penalty (6.1).

        A hypothesis gets at most source length + `max_tokens_beyond_source` tokens.
        `max_new_tokens` replaces that limit; a smaller `max_length` counts too. The package's own
        search runs where it serves the call, otherwise transformers' with the same result.

        Args:
            inputs: `(B, S)` int64 source; or `input_ids`, `inputs_embeds`, `encoder_outputs`.
            generation_config: settings of this call; what it leaves out is the model's.
            logits_processor: list of processors beside those of the settings.
            stopping_criteria: list of criteria beside those of the settings.
            *args: transformers' further arguments.
            **kwargs: settings by name, inputs, and transformers' further arguments; with the
                package also `ensemble`, an `Ensemble` of models that decode together with this
                one, and `constraints`, `Constraints` of phrases that the translations contain.

        Raises:
            ValueError: `length_penalty_form` is unknown, `num_beams` is below 1, the batch is
                empty or not 2-D, logits are NaN, our search does not serve an ensemble or
                constraints, or a constraint cannot be met; and what transformers raises.
        """
        if gathers_for_generate(self):
            return self.generate(
                inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs
            )
        forget_defaults(self.generation_config)  # written after each batch of an evaluation
        names = {"ensemble", "constraints"} & kwargs.keys()
        extras = {name: value for name in names if (value := kwargs.pop(name)) is not None}
        given = {**kwargs, "generation_config": generation_config}
        settings, arguments = merged_settings(self.generation_config, given)
        if inputs is not None:
            arguments["input_ids"] = inputs
        check_call(settings, arguments)
        has_states = arguments.get("encoder_outputs") is not None
        source = None if has_states else arguments.get("input_ids")
        mask = real_tokens(self.config, source, arguments.get("attention_mask"))
        arguments["attention_mask"] = kwargs["attention_mask"] = mask
        changes: dict[str, Any] = {}
        limits = sentence_limits(self.config, settings, arguments)
        if limits is not None:
            changes["max_length"] = int(limits.max())
            stopping_criteria = [*(stopping_criteria or []), SourceLengthCriteria(limits)]
            if (end_ids := settings.forced_eos_token_id) is not None:
                logits_processor = [*(logits_processor or []), SourceLengthEnd(limits, end_ids)]
        is_beam, form = (settings.num_beams or 1) > 1, penalty_form(settings)
        search = None if args else self.own_search(settings, arguments, limits, **extras)
        if search is not None:
            kwargs["custom_generate"] = search
        elif extras:
            raise ValueError(
                "an ensemble needs greedy or beam search of input_ids, constraints beam search, "
                "both the package hf_vanilla and no hooks or records: leave out the rest"
            )
        elif is_beam and form == "gnmt":
            alpha = settings.length_penalty
            changes["length_penalty"] = GnmtExponent(1.0 if alpha is None else alpha)
        generation_config, kwargs = with_settings(changes, generation_config, kwargs)
        return super().generate(
            inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs
        )

    def own_search(
        self, settings: GenerationConfig, arguments: dict[str, Any], limits: Tensor | None, **_: Any
    ) -> Callable | None:
        """What `generate()` calls in place of transformers' search; None: that search runs.

        The package replaces this method by `search_vanilla_conditions.own_search`, which is faster
        and has ensembles and constraints. Code beside weights runs transformers' search.
        """
        return None
