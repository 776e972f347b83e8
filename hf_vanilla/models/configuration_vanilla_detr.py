# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Every number that shapes the weights, the function or the loss of DETR.

The defaults are DETR-R50 ("End-to-End Object Detection with Transformers", 2005.12872).
"""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig, ResNetConfig

from .pretrained_vanilla import LAYER_TP_PLAN, VanillaTwoSidedConfig


@strict
class VanillaDetrConfig(VanillaTwoSidedConfig):
    r"""Configuration of DETR: a backbone, the 2017 layers, learned queries, two heads.

    The other sizes and rates of its layers are fields of `VanillaTwoSidedConfig`.

    Args:
        d_model (`int`, defaults to 256): as there.
        attention_dropout (`float`, defaults to 0.1): as there.
        activation_dropout (`float`, defaults to 0.1): as there.
        attention_bias (`bool`, defaults to `True`): as there.
        layer_norm_eps (`float`, defaults to 1e-5): as there.
        backbone_config (`PreTrainedConfig` or `dict`, *optional*): a backbone of transformers with
            `channels`. None: ResNet-50, last stage.
        backbone_is_pretrained (`bool`, defaults to `True`): fix the statistics of every BatchNorm
            and do not train the stem and the first stage. False, for training from scratch:
            everything learns.
        dilation (`bool`, defaults to `False`): stride 1 and dilation 2 in the last stage (DC5).
        num_channels (`int`, defaults to 3): of the images.
        num_queries (`int`, defaults to 100): objects an image can have at most.
        auxiliary_loss (`bool`, defaults to `True`): the loss counts every decoder layer, each
            matched anew; False: the last layer only. It never changes the logits.
        class_cost (`float`, defaults to 1.0): weight of the class in the matching.
        bbox_cost (`float`, defaults to 5.0): weight of the L1 distance in the matching.
        giou_cost (`float`, defaults to 2.0): weight of the generalized IoU in the matching.
        bbox_loss_coefficient (`float`, defaults to 5.0): weight of the L1 distance in the loss.
        giou_loss_coefficient (`float`, defaults to 2.0): weight of the generalized IoU in the loss.
        eos_coefficient (`float`, defaults to 0.1): weight of the class "no object" in the loss.

    Raises:
        huggingface_hub.errors.StrictDataclassError: a value has the wrong type or cannot be built;
            the message names the value and the remedy.

    Examples:
        >>> from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
        >>> VanillaDetrConfig(num_queries=25).num_queries
        25
    """

    model_type = "vanilla_detr"
    base_model_tp_plan = LAYER_TP_PLAN
    # Trainer gathers losses, logits and boxes, where metrics for transformers' DETR expect them;
    # the rest would fill the memory over a data set
    keys_to_ignore_at_inference = [
        *("last_hidden_state", "feature_size", "encoder_last_hidden_state"),
        *("decoder_hidden_states", "decoder_attentions", "cross_attentions"),
        *("encoder_hidden_states", "encoder_attentions"),
    ]

    backbone_config: dict[str, Any] | PreTrainedConfig | None = None
    backbone_is_pretrained: bool = True
    dilation: bool = False
    num_channels: int = 3
    num_queries: int = 100
    d_model: int = 256
    attention_dropout: float | int = 0.1
    activation_dropout: float | int = 0.1
    attention_bias: bool = True
    layer_norm_eps: float = 1e-5
    auxiliary_loss: bool = True
    class_cost: float | int = 1.0
    bbox_cost: float | int = 5.0
    giou_cost: float | int = 2.0
    bbox_loss_coefficient: float | int = 5.0
    giou_loss_coefficient: float | int = 2.0
    eos_coefficient: float | int = 0.1

    def __post_init__(self, **kwargs: Any) -> None:
        if name := kwargs.get("backbone"):  # a field of transformers' DETR
            raise ValueError(
                f"backbone={name!r}: give backbone_config, such as "
                "ResNetConfig(depths=[3, 4, 23, 3], out_features=['stage4'])"
            )
        if self.backbone_config is None:
            self.backbone_config = ResNetConfig(
                num_channels=self.num_channels, out_features=["stage4"]
            )
        elif isinstance(self.backbone_config, dict):
            values = dict(self.backbone_config)
            if "model_type" not in values:
                raise ValueError("backbone_config has no model_type: give one, such as 'resnet'")
            self.backbone_config = AutoConfig.for_model(**values)
        channels = getattr(self.backbone_config, "num_channels", self.num_channels)
        if self.num_channels not in (3, channels):  # 3 may be the default
            raise ValueError(
                f"num_channels={self.num_channels}, but backbone_config has {channels}: give both "
                "the same"
            )
        self.num_channels = channels
        super().__post_init__(**kwargs)

    def validate_sizes(self) -> None:
        """Counts are positive; the width holds sine and cosine of row and column."""
        self.require_positive("num_channels", "num_queries")
        if self.d_model % 4:
            raise ValueError(f"d_model={self.d_model}: 2-D positions need a multiple of 4")

    def validate_weights(self) -> None:
        """Costs and weights are not negative, and one cost is positive."""
        costs = ("class_cost", "bbox_cost", "giou_cost")
        weights = ("bbox_loss_coefficient", "giou_loss_coefficient", "eos_coefficient")
        self.require_at_least_zero(*costs, *weights)
        if not any(getattr(self, name) for name in costs):
            raise ValueError("class_cost, bbox_cost and giou_cost are all 0: nothing to match by")
