# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The backbone of DETR: a convolutional network of transformers, its last feature map.

Shapes: B images, C channels, H and W height and width.
"""

import re

import torch
from torch import Tensor, nn
from transformers import AutoBackbone

from .configuration_vanilla_detr import VanillaDetrConfig

# the parts that a pretrained backbone does not train: the stem and the first stage
NOT_TRAINED = re.compile(
    r"^(\w+\.)?(embedder|embeddings|stem|encoder\.convolution"  # a prefix such as "swin."
    r"|(encoder\.)?stages\.0|encoder\.(blocks|layers)\.0)\."
)


class FixedBatchNorm(nn.Module):
    """BatchNorm2d whose statistics and factors are constants.

    Args:
        channels: C.
        eps: added to the variance.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        constants = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
        for name, value in constants.items():
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, pixels: Tensor) -> Tensor:
        """Scale and shift each channel of `(B, C, H, W)`."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return pixels * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


class VanillaDetrBackbone(nn.Module):
    """A backbone and the width of its last feature map.

    Args:
        config: read for `backbone_config`, `backbone_is_pretrained` and `dilation`.

    Raises:
        ValueError: the backbone has no channels, cannot be dilated, or is pretrained and has no
            stem that is known by its name.
    """

    def __init__(self, config: VanillaDetrConfig) -> None:
        super().__init__()
        self.is_pretrained = config.backbone_is_pretrained
        self.model = AutoBackbone.from_config(config.backbone_config)
        if not getattr(self.model, "channels", None):
            raise ValueError(
                f"{type(self.model).__name__} gives no feature maps: take a backbone such as resnet"
            )
        self.width: int = self.model.channels[-1]
        if config.dilation:
            dilate_last_stage(self.model)
        if self.is_pretrained:
            for name, module in list(self.model.named_modules()):
                if isinstance(module, nn.BatchNorm2d):
                    fixed = FixedBatchNorm(module.num_features, module.eps)
                    self.model.set_submodule(name, fixed)

    def freeze(self) -> None:
        """Do not train the stem and the first stage, where they are pretrained."""
        if not self.is_pretrained:
            return
        frozen = [p for name, p in self.model.named_parameters() if NOT_TRAINED.match(name)]
        if not frozen:
            raise ValueError(
                f"backbone_is_pretrained=True, but a {type(self.model).__name__} has no stem and "
                "first stage of a known name: set backbone_is_pretrained=False, or use a resnet"
            )
        for parameter in frozen:
            parameter.requires_grad_(requires_grad=False)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The last feature map `(B, width, h, w)` of images `(B, C, H, W)`."""
        return self.model(pixel_values).feature_maps[-1]


def load_backbone(backbone: VanillaDetrBackbone, name: str) -> None:
    """Load the weights of a pretrained backbone, BatchNorm's statistics too.

    Args:
        backbone: gets the weights.
        name: folder or Hub id, such as `microsoft/resnet-50`; a classifier's head is left out.

    Raises:
        ValueError: it has other weights than the backbone, or lacks some.
        OSError: nothing is found under the name.
    """
    # AutoBackbone would ask the Hub for a folder too
    pretrained, report = type(backbone.model).from_pretrained(
        name, out_features=list(backbone.model.config.out_features), output_loading_info=True
    )
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ValueError(
            f"backbone={name!r} lacks {len(missing)} weights of a "
            f"{backbone.model.config.model_type}, such as {missing[0]}: give a backbone of that "
            "kind"
        )
    found = pretrained.state_dict()
    # BatchNorms with fixed statistics do not count batches
    shapes = [
        {
            name: tuple(value.shape)
            for name, value in state.items()
            if not name.endswith("num_batches_tracked")
        }
        for state in (found, backbone.model.state_dict())
    ]
    if shapes[0] != shapes[1]:
        different = sorted(dict(shapes[0].items() ^ shapes[1].items()))
        raise ValueError(
            f"backbone={name!r} differs from model.backbone_config in {len(different)} weights, "
            f"such as {different[0]}: give the config of that backbone"
        )
    backbone.model.load_state_dict(found, strict=False)


def dilate_last_stage(backbone: nn.Module) -> None:
    """Give the last stage stride 1 and dilation 2, which doubles its resolution (DC5).

    As in the authors' backbone, the block that had the stride keeps dilation 1.

    Raises:
        ValueError: no convolution of the last stage has a stride.
    """
    stages = getattr(getattr(backbone, "encoder", None), "stages", None)
    has_changed = False
    for index, block in enumerate(stages[-1].layers if stages is not None else ()):
        for convolution in block.modules():
            if not isinstance(convolution, nn.Conv2d):
                continue
            if convolution.stride != (1, 1):
                convolution.stride, has_changed = (1, 1), True
            if index and convolution.kernel_size != (1, 1):
                convolution.dilation = (2, 2)
                convolution.padding = tuple(2 * int(side) for side in convolution.padding)
    if not has_changed:
        raise ValueError(
            f"dilation=True, but {type(backbone).__name__} has no stride in its last stage: use a "
            "resnet, or leave dilation out"
        )
