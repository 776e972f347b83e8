# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""DETR: object detection as set prediction by the layers of the 2017 Transformer (2005.12872).

Shapes: B images, C channels, H and W height and width in pixels, h and w of the feature map,
S = h w, D `d_model`, Q queries, K classes, N decoder layers, M objects of the fullest image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithCrossAttentions
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention_vanilla import padding_mask
from .backbone_vanilla_detr import VanillaDetrBackbone
from .configuration_vanilla_detr import VanillaDetrConfig
from .kernels_vanilla import may_read
from .layers_vanilla import DECODER_RECORDS, ENCODER_RECORDS, decoder_layers, encoder_layers
from .loss_vanilla_detr import Targets, detection_loss, padded_targets
from .positions_vanilla import sinusoid_2d
from .pretrained_vanilla import VanillaPreTrainedModel


@dataclass
class VanillaDetrDecoderOutput(BaseModelOutputWithCrossAttentions):
    """What the decoder returns.

    Attributes:
        last_hidden_state: `(B, Q, D)`, after the norm.
        intermediate_hidden_states: `(N, B, Q, D)`, every layer's output after the same norm.
        hidden_states: before the norm, `(B, Q, D)` each.
        attentions: of the queries to each other, `(B, heads, Q, Q)` each.
        cross_attentions: of the queries to the image, `(B, heads, Q, S)` each.
    """

    intermediate_hidden_states: Tensor | None = None


@dataclass
class VanillaDetrModelOutput(ModelOutput):
    """What the model without heads returns.

    Attributes:
        last_hidden_state: `(B, Q, D)`, after the norm.
        intermediate_hidden_states: `(N, B, Q, D)`, every decoder layer's output after the norm.
        feature_size: h and w of the feature map.
        decoder_hidden_states: as of the decoder.
        decoder_attentions: as of the decoder.
        cross_attentions: as of the decoder.
        encoder_last_hidden_state: `(B, S, D)`.
        encoder_hidden_states: `(B, S, D)` each.
        encoder_attentions: `(B, heads, S, S)` each.
    """

    last_hidden_state: Tensor | None = None
    intermediate_hidden_states: Tensor | None = None
    feature_size: tuple[int, int] | None = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None


@dataclass
class VanillaDetectionOutput(ModelOutput):
    """What the detector returns.

    Attributes:
        loss: sum of the weighted parts over the decoder layers.
        loss_dict: the parts, `loss_ce`, `loss_bbox` and `loss_giou`, with `_0`, `_1`, ... for the
            earlier layers.
        logits: `(B, Q, K + 1)`; the last class is "no object".
        pred_boxes: `(B, Q, 4)`, center form, in shares of each image's real width and height.
        last_hidden_state: `(B, Q, D)`.
        feature_size: h and w of the feature map.
        decoder_hidden_states: as of the decoder.
        decoder_attentions: as of the decoder.
        cross_attentions: as of the decoder.
        encoder_last_hidden_state: `(B, S, D)`.
        encoder_hidden_states: `(B, S, D)` each.
        encoder_attentions: `(B, heads, S, S)` each.
    """

    loss: Tensor | None = None
    loss_dict: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    pred_boxes: Tensor | None = None
    last_hidden_state: Tensor | None = None
    feature_size: tuple[int, int] | None = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None


class VanillaDetrPreTrainedModel(VanillaPreTrainedModel):
    """Initial values of DETR: Glorot for matrices, N(0, 1) for queries, backbones their own."""

    config_class = VanillaDetrConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    embedding_std = 1.0

    def freeze(self) -> None:
        """Do not train stem and first stage of a pretrained backbone."""
        for module in self.modules():
            if isinstance(module, VanillaDetrBackbone):
                module.freeze()


class VanillaDetrEncoder(VanillaDetrPreTrainedModel):
    """Encoder layers over the feature map; positions go to queries and keys of every layer."""

    _can_record_outputs = ENCODER_RECORDS

    def __init__(self, config: VanillaDetrConfig) -> None:
        super().__init__(config)
        self.layers = encoder_layers(config)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode an image.

        Args:
            inputs_embeds: `(B, S, D)` projected feature map.
            attention_mask: `(B, S)`, 1 = real pixel; None: all are.
            positions: `(B, S, D)`.
            **kwargs: `output_attentions`, `output_hidden_states`.
        """
        mask = padding_mask(self.config, inputs_embeds, attention_mask)
        hidden_states = inputs_embeds
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, positions, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)


class VanillaDetrDecoder(VanillaDetrPreTrainedModel):
    """Decoder layers that turn all queries into objects at once; one norm serves every output."""

    _can_record_outputs = DECODER_RECORDS

    def __init__(self, config: VanillaDetrConfig) -> None:
        super().__init__(config)
        self.layers = decoder_layers(config, is_causal=False)
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        query_positions: Tensor,
        encoder_hidden_states: Tensor,
        encoder_attention_mask: Tensor | None = None,
        encoder_positions: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VanillaDetrDecoderOutput:
        """Read the image by the queries, whose content starts at zero.

        Args:
            query_positions: `(B, Q, D)`, added to queries and keys of the self-attention and to the
                queries of the cross-attention of every layer.
            encoder_hidden_states: `(B, S, D)`.
            encoder_attention_mask: `(B, S)`, 1 = real pixel; None: all are.
            encoder_positions: `(B, S, D)`, added to the keys of the cross-attention.
            **kwargs: `output_attentions`, `output_hidden_states`.
        """
        hidden_states = torch.zeros_like(query_positions)
        mask = padding_mask(
            self.config, hidden_states, encoder_attention_mask, encoder_hidden_states
        )
        outputs = []
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                None,
                encoder_hidden_states,
                mask,
                positions=query_positions,
                encoder_positions=encoder_positions,
                **kwargs,
            )
            outputs.append(hidden_states)
        normed = self.layer_norm(torch.stack(outputs))  # (N, B, Q, D)
        return VanillaDetrDecoderOutput(
            last_hidden_state=normed[-1], intermediate_hidden_states=normed
        )


class VanillaDetrModel(VanillaDetrPreTrainedModel):
    """Backbone, encoder and decoder, without the heads.

    Examples:
        >>> import torch
        >>> from transformers import ResNetConfig
        >>> from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
        >>> from hf_vanilla.models.modeling_vanilla_detr import VanillaDetrModel
        >>> backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
        ...                         layer_type="basic", out_features=["stage2"])
        >>> model = VanillaDetrModel(VanillaDetrConfig(backbone_config=backbone, d_model=16,
        ...     encoder_layers=1, decoder_layers=1, num_queries=5))
        >>> model(pixel_values=torch.zeros(1, 3, 32, 32)).last_hidden_state.shape
        torch.Size([1, 5, 16])
    """

    def __init__(self, config: VanillaDetrConfig) -> None:
        super().__init__(config)
        self.backbone = VanillaDetrBackbone(config)
        self.input_projection = nn.Conv2d(self.backbone.width, config.d_model, kernel_size=1)
        self.query_positions = nn.Embedding(config.num_queries, config.d_model)
        self.encoder = VanillaDetrEncoder(config)
        self.decoder = VanillaDetrDecoder(config)
        self.post_init()

    def set_attn_implementation(self, *args: Any, **kwargs: Any) -> None:
        """Choose the attention of encoder and decoder; the backbone keeps its own."""
        self.encoder.set_attn_implementation(*args, **kwargs)  # they share one config

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        pixel_mask: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VanillaDetrModelOutput:
        """From pixels to one vector per query.

        Args:
            pixel_values: `(B, C, H, W)`, normalized.
            pixel_mask: `(B, H, W)`, 1 = real pixel, 0 = padding; None: all are real.
            **kwargs: `output_attentions`, `output_hidden_states`.

        Raises:
            ValueError: the mask has another shape, or an image has no real pixel.
        """
        pixels = pixel_values.to(self.input_projection.weight.dtype)
        feature_map = self.input_projection(self.backbone(pixels))  # (B, D, h, w)
        is_real = self._real_positions(pixel_values, pixel_mask, feature_map)  # (B, h, w)
        positions = sinusoid_2d(is_real, self.config.d_model).to(feature_map.dtype)  # (B, S, D)
        attention_mask = None if pixel_mask is None else is_real.flatten(1).long()
        states = feature_map.flatten(2).transpose(1, 2)  # (B, S, D)
        encoded = self.encoder(states, attention_mask, positions, **kwargs)
        batch = pixel_values.shape[0]  # an exported program would take len() as a constant
        queries = self.query_positions.weight.expand(batch, -1, -1)  # (B, Q, D)
        decoded = self.decoder(
            query_positions=queries,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            encoder_positions=positions,
            **kwargs,
        )
        return VanillaDetrModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            intermediate_hidden_states=decoded.intermediate_hidden_states,
            feature_size=tuple(feature_map.shape[2:]),
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )

    @staticmethod
    def _real_positions(
        pixel_values: Tensor, pixel_mask: Tensor | None, feature_map: Tensor
    ) -> Tensor:
        """Which positions of the feature map are real, `(B, h, w)` bool."""
        batch, _, rows, columns = feature_map.shape
        if pixel_mask is None:
            return torch.ones((batch, rows, columns), dtype=torch.bool, device=feature_map.device)
        wanted = (batch, *pixel_values.shape[2:])
        if tuple(pixel_mask.shape) != wanted:
            raise ValueError(
                f"pixel_mask has shape {tuple(pixel_mask.shape)}, but the images need {wanted}: "
                "give 1 for every real pixel and 0 for padding"
            )
        if may_read(pixel_mask) and not pixel_mask.flatten(1).any(dim=1).all():
            raise ValueError("pixel_mask is 0 everywhere in an image: leave the image out")
        return interpolate(pixel_mask[:, None].float(), size=(rows, columns))[:, 0].bool()


class BoxHead(nn.Module):
    """Three linear layers with ReLU between, `(..., D)` to `(..., 4)`.

    Args:
        width: D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        outputs = (width, width, 4)
        self.layers = nn.ModuleList(nn.Linear(width, output) for output in outputs)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Boxes before the sigmoid."""
        for layer in self.layers[:-1]:
            hidden_states = layer(hidden_states).relu()
        return self.layers[-1](hidden_states)


class VanillaForObjectDetection(VanillaDetrPreTrainedModel):
    """DETR: a set of objects per image, each a class and a box; no anchors, no suppression.

    Examples:
        >>> import torch
        >>> from transformers import ResNetConfig
        >>> from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
        >>> from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection
        >>> backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
        ...                         layer_type="basic", out_features=["stage2"])
        >>> model = VanillaForObjectDetection(VanillaDetrConfig(backbone_config=backbone,
        ...     d_model=16, encoder_layers=1, decoder_layers=1, num_queries=5, num_labels=3))
        >>> model(pixel_values=torch.zeros(1, 3, 32, 32)).logits.shape
        torch.Size([1, 5, 4])
    """

    # Trainer would count objects alone, and an image without objects would weigh nothing; without
    # counts it takes the mean of the micro-batches, as the authors do
    accepts_loss_kwargs = False

    def __init__(self, config: VanillaDetrConfig) -> None:
        super().__init__(config)
        self.model = VanillaDetrModel(config)
        self.class_labels_classifier = nn.Linear(config.d_model, config.num_labels + 1)
        self.bbox_predictor = BoxHead(config.d_model)
        self.post_init()

    def set_attn_implementation(self, *args: Any, **kwargs: Any) -> None:
        """Choose the attention of encoder and decoder; the backbone keeps its own."""
        self.model.set_attn_implementation(*args, **kwargs)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        pixel_mask: Tensor | None = None,
        labels: "Tensor | Sequence[Mapping[str, Tensor]] | None" = None,
        boxes: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VanillaDetectionOutput:
        """Objects of each image, and the loss where `labels` are given.

        Args:
            pixel_values: `(B, C, H, W)`, normalized.
            pixel_mask: `(B, H, W)`, 1 = real pixel, 0 = padding; None: all are real.
            labels: `(B, M)` int64 in [0, K), -100 pads, with `boxes`; or transformers' list of
                mappings with `class_labels` and `boxes`.
            boxes: `(B, M, 4)`, center form, in shares of each image's width and height.
            **kwargs: `num_items_in_batch` (objects of the optimizer step) with `num_images` (its
                images), `output_attentions`, `output_hidden_states`.

        Raises:
            ValueError: inputs do not fit; the message says which and how.
        """
        if labels is None and boxes is not None:
            raise ValueError(
                "boxes came without labels: give labels (B, M) too; a Trainer takes them away for "
                "label_smoothing_factor: leave it at 0"
            )
        counts = {
            "num_objects": kwargs.pop("num_items_in_batch", None),
            "num_images": kwargs.pop("num_images", None),
        }
        states = dict(self.model(pixel_values, pixel_mask, **kwargs))
        every = states.pop("intermediate_hidden_states")
        if labels is None or not self.config.auxiliary_loss:
            every = every[-1:]
        logits = self.class_labels_classifier(every)  # (N, B, Q, K + 1)
        found = self.bbox_predictor(every).sigmoid()  # (N, B, Q, 4)
        loss = parts = None
        if labels is not None:
            if not isinstance(labels, Tensor):
                targets = padded_targets(labels)
            elif boxes is None:
                raise ValueError("labels came as a tensor without boxes: give boxes (B, M, 4) too")
            else:
                targets = Targets(labels, boxes)
            loss, parts = detection_loss(self.config, logits, found, targets, **counts)
        return VanillaDetectionOutput(
            loss=loss,
            loss_dict=None if parts is None else named_parts(parts),
            logits=logits[-1],
            pred_boxes=found[-1],
            **states,
        )


def named_parts(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts of the loss as transformers names them; earlier layers carry their number."""
    named = {name: of_layers[-1].detach() for name, of_layers in parts.items()}
    for layer in range(len(parts["loss_ce"]) - 1):
        for name, of_layers in parts.items():
            named[f"{name}_{layer}"] = of_layers[layer].detach()
    return named
