# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Encoder-only models: text to one vector per token, or to classes.

They load the encoder of a translation model and ignore its decoder. Shapes: B batch, S tokens,
D `d_model`, C `num_labels`.
"""

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_vanilla import VanillaConfig
from .kernels_vanilla import VanillaDropout
from .stacks_vanilla import (
    VanillaEncoder,
    VanillaModelBase,
    VanillaTextPreTrainedModel,
    one_sided,
    real_tokens,
)


class VanillaEncoderModel(VanillaModelBase):
    """The encoder (3.1) alone: one vector per source token.

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaConfig, VanillaEncoderModel
        >>> model = VanillaEncoderModel(VanillaConfig(vocab_size=20, d_model=16, encoder_layers=1))
        >>> model(input_ids=torch.tensor([[5, 6, 1]])).last_hidden_state.shape
        torch.Size([1, 3, 16])
    """

    _tied_weights_keys = {"encoder.embed_tokens.weight": "shared.weight"}  # noqa: RUF012
    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?decoder\.", r"^lm_head\."]  # noqa: RUF012

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
        return self.encoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )


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

    _keys_to_ignore_on_load_unexpected = [r"^model\.decoder\.", r"^lm_head\."]  # noqa: RUF012

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
        logits = self.classifier(
            self.dropout(mean_of_real(outputs.last_hidden_state, attention_mask))
        )
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


def mean_of_real(hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mean over the real tokens, `(B, S, D)` -> `(B, D)`; zeros for a row without real tokens."""
    if attention_mask is None:
        return hidden_states.mean(dim=1)
    weights = attention_mask.to(hidden_states.dtype).unsqueeze(-1)  # (B, S, 1)
    return (hidden_states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
