# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Every number that shapes the weights or the function of the Vision Transformer (2010.11929).

The defaults are the paper's ViT-B/16 (Table 1).
"""

from huggingface_hub.dataclasses import strict

from .pretrained_vanilla import LAYER_TP_PLAN, VanillaPreTrainedConfig

POSITION_STARTS = ("sinusoid_2d", "normal")
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


@strict
class VanillaVitConfig(VanillaPreTrainedConfig):
    r"""Configuration of the Vision Transformer: a pre-norm encoder over image patches.

    The other sizes and rates of its layers are fields of `VanillaPreTrainedConfig`.

    Args:
        d_model (`int`, defaults to 768): as there.
        encoder_layers (`int`, defaults to 12): as there.
        encoder_attention_heads (`int`, defaults to 12): as there.
        encoder_ffn_dim (`int`, defaults to 3072): as there.
        dropout (`float`, defaults to 0.0): as there.
        activation_function (`str`, defaults to `"gelu"`): as there.
        attention_bias (`bool`, defaults to `True`): as there.
        image_size (`int` or pair of `int`, defaults to 224): height and width in pixels; one number
            means both. A multiple of `patch_size`.
        patch_size (`int` or pair of `int`, defaults to 16): height and width of a patch in pixels.
        num_channels (`int`, defaults to 3): channels of an image.
        position_start (`str`, defaults to `"sinusoid_2d"`): initial value of the learned positions:
            sines and cosines of row and column, or `"normal"`: N(0, 0.02), as in the authors' code.
        has_pooler (`bool`, defaults to `False`): a Linear and a tanh on the class token
            (`pooler_output`), which a classifier then reads: the paper's head during pre-training.
        label_smoothing (`float`, defaults to 0.0): share of the target probability that is spread
            over all labels; in training mode and for single labels only.

    Raises:
        huggingface_hub.errors.StrictDataclassError: a value has the wrong type or cannot be built;
            the message names the value and the remedy.

    Examples:
        >>> from hf_vanilla import VanillaVitConfig
        >>> VanillaVitConfig(image_size=(32, 48), patch_size=8).grid
        (4, 6)
    """

    model_type = "vanilla_vit"
    attribute_map = {
        **VanillaPreTrainedConfig.attribute_map,
        "intermediate_size": "encoder_ffn_dim",
    }
    base_model_tp_plan = LAYER_TP_PLAN

    image_size: int | list[int] | tuple[int, int] = 224
    patch_size: int | list[int] | tuple[int, int] = 16
    num_channels: int = 3
    d_model: int = 768
    encoder_layers: int = 12
    encoder_attention_heads: int = 12
    encoder_ffn_dim: int = 3072
    dropout: float | int = 0.0
    activation_function: str = "gelu"
    attention_bias: bool = True
    position_start: str = "sinusoid_2d"
    has_pooler: bool = False
    label_smoothing: float | int = 0.0

    @property
    def image_height_width(self) -> tuple[int, int]:
        """Height and width of an image in pixels."""
        return as_pair(self.image_size)

    @property
    def patch_height_width(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return as_pair(self.patch_size)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        (height, width), (rows, columns) = self.image_height_width, self.patch_height_width
        return height // rows, width // columns

    def validate_patches(self) -> None:
        """An image has channels and is cut into whole patches."""
        self.require_positive("num_channels")
        for name in ("image_size", "patch_size"):
            value = getattr(self, name)
            sides = [value] if isinstance(value, int) else list(value)
            if len(sides) not in (1, 2) or min(sides) < 1:
                raise ValueError(f"{name}={value}: give one positive number, or height and width")
        sizes, patches = self.image_height_width, self.patch_height_width
        larger = tuple(-(-s // patch) * patch for s, patch in zip(sizes, patches, strict=True))
        if larger != sizes:
            raise ValueError(
                f"image_size={self.image_size} is not a multiple of patch_size={self.patch_size}: "
                f"take {larger}"
            )

    def validate_names(self) -> None:
        """An unknown name never becomes a default."""
        self.require_choice("position_start", POSITION_STARTS)
        self.require_choice("problem_type", (*PROBLEM_TYPES, None))

    def validate_positions(self) -> None:
        """Sine and cosine of row and of column need a width that four divides."""
        if self.position_start == "sinusoid_2d" and self.d_model % 4:
            raise ValueError(
                f"d_model={self.d_model} is not a multiple of 4, which position_start="
                "'sinusoid_2d' needs: change d_model or take position_start='normal'"
            )


def as_pair(size: "int | list[int] | tuple[int, ...]") -> tuple[int, int]:
    """Height and width of a size that may be one number for both."""
    sides = [size] if isinstance(size, int) else list(size)
    return sides[0], sides[-1]
