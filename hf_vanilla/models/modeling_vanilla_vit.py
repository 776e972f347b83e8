# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The Vision Transformer (2010.11929): image patches through a pre-norm encoder, then to labels.

Its attention is the text model's own (3.2); its layer is another, because the norm stands before
each sublayer. Shapes: B batch, P patches, D `d_model`, C `num_labels`, H x W pixels.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook
from transformers import initialization as init
from transformers.activations import GELUActivation
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_vanilla_vit import PROBLEM_TYPES, VanillaVitConfig
from .kernels_vanilla import VanillaDropout, at_least_float32, per_item
from .layers_vanilla import ENCODER_RECORDS, VanillaEncoderLayer
from .positions_vanilla import sinusoid_2d
from .pretrained_vanilla import VanillaPreTrainedModel

# elements of the hidden states; with fewer, the check for hooks takes longer than new arrays
LEAST_ELEMENTS = 2**15


class VanillaPreNormEncoderLayer(VanillaEncoderLayer):
    """Self-attention, then feed-forward, each on the normed input: `x + Sublayer(LayerNorm(x))`.

    It has the parts of the 2017 layer, in another order.
    """

    def forward(  # type: ignore[override]  # no mask, no positions
        self, hidden_states: Tensor, num_queries: int | None = None, **kwargs: object
    ) -> Tensor:
        """One layer.

        Args:
            hidden_states: `(B, 1 + P, D)`.
            num_queries: compute the first `num_queries` tokens alone, which see all; None: all.
            **kwargs: passed on to attention.

        Returns:
            `(B, 1 + P, D)`, or `(B, num_queries, D)`.
        """
        overwrites = hidden_states.numel() >= LEAST_ELEMENTS and may_overwrite(self)
        normed = self.self_attn_layer_norm(hidden_states)
        attended, _ = self.self_attn(normed[:, :num_queries], normed, normed, **kwargs)
        hidden_states = _sum(self.dropout(attended), hidden_states[:, :num_queries], overwrites)

        wide = self.fc1(self.final_layer_norm(hidden_states))
        if overwrites and type(self.activation_fn) is GELUActivation:
            torch.ops.aten.gelu_(wide)
        else:
            wide = self.activation_fn(wide)
        fed = self.fc2(self.activation_dropout(wide))
        return _sum(self.dropout(fed), hidden_states, overwrites)


def may_overwrite(layer: nn.Module) -> bool:
    """Whether a layer may overwrite the outputs of its parts: no gradient and no hook reads them.

    Fewer new arrays make a forward pass 1.02 (8 pixels, batch 128) to 1.05 (ViT-S/16) times as
    fast.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or _has_any_global_hook():
        return False
    states = [vars(part) for part in layer.modules()]
    return not any(
        state["_forward_hooks"] or state["_forward_pre_hooks"] or "forward" in state
        for state in states
    )


def _sum(states: Tensor, others: Tensor, overwrites: bool) -> Tensor:
    """`states + others`, written into `states` if it may be overwritten."""
    is_alike = states.dtype == others.dtype
    return states.add_(others) if overwrites and is_alike else states + others


class VanillaVitEmbedding(nn.Module):
    """`Dropout([class token; patches of the image] + positions)`, equation 1 of the paper."""

    def __init__(self, config: VanillaVitConfig) -> None:
        super().__init__()
        self.config = config
        rows, columns = config.grid
        patch = config.patch_height_width
        self.patch_projection = nn.Conv2d(config.num_channels, config.d_model, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.d_model))
        self.positions = nn.Parameter(torch.zeros(1, 1 + rows * columns, config.d_model))
        self.dropout = VanillaDropout(config.dropout)

    def forward(self, pixel_values: Tensor, *, interpolate_pos_encoding: bool = False) -> Tensor:
        """Patches with their positions.

        Args:
            pixel_values: `(B, channels, H, W)`.
            interpolate_pos_encoding: take images of any size that patches divide.

        Returns:
            `(B, 1 + P, D)`, the class token first, then the patches row by row.

        Raises:
            ValueError: channels or size of the images do not fit; the message says how.
        """
        if not torch.compiler.is_exporting():  # a check would fix the size in the program
            self._check(pixel_values, interpolate_pos_encoding)
        patches = self.patch_projection(pixel_values.to(self.patch_projection.weight.dtype))
        rows, columns = patches.shape[2:]
        class_token = self.class_token.expand(patches.shape[0], -1, -1)
        tokens = torch.cat((class_token, patches.flatten(2).transpose(1, 2)), dim=1)
        positions: Tensor = self.positions
        if interpolate_pos_encoding:
            positions = resized(positions, self.config.grid, (rows, columns))
        return self.dropout(tokens + positions)

    def _check(self, pixel_values: Tensor, interpolate_pos_encoding: bool) -> None:
        config = self.config
        if pixel_values.dim() != 4:
            raise ValueError(
                f"pixel_values of shape {tuple(pixel_values.shape)}: "
                "give (batch, channels, height, width), as the image processor returns it"
            )
        channels, *size = pixel_values.shape[1:]
        if channels != config.num_channels:
            raise ValueError(
                f"images of {channels} channels, but this model reads num_channels="
                f"{config.num_channels}: its image processor makes them so"
            )
        if not interpolate_pos_encoding and tuple(size) != config.image_height_width:
            raise ValueError(
                f"images of {size[0]} x {size[1]} pixels, but image_size={config.image_size}: "
                "resize them, pass interpolate_pos_encoding=True, or call resize_positions"
            )
        patches = config.patch_height_width
        if any(side < patch or side % patch for side, patch in zip(size, patches, strict=True)):
            raise ValueError(
                f"images of {size[0]} x {size[1]} pixels are not cut into whole patches by "
                f"patch_size={config.patch_size}: resize them to a multiple of it"
            )


class MismatchedSizesError(ValueError, RuntimeError):
    """Saved weights of another size; transformers raises a `RuntimeError` in this case."""


class VanillaVitPreTrainedModel(VanillaPreTrainedModel):
    """What the models of this file share: their inputs, initial values, messages."""

    config_class = VanillaVitConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _no_split_modules = ["VanillaVitEmbedding", "VanillaPreNormEncoderLayer"]
    _input_embed_layer = "patch_projection"

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As transformers does; weights of another size are named in the error.

        Raises:
            MismatchedSizesError: a weight has another shape than the config says.
        """
        name = pretrained_model_name_or_path
        try:
            return super().from_pretrained(name, *args, **kwargs)
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
        kwargs |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        _, report = super().from_pretrained(name, *args, **kwargs)
        faults = (
            f"{weight} has shape {tuple(found)}, expected {tuple(expected)}"
            for weight, found, expected in sorted(report["mismatched_keys"])
        )
        raise MismatchedSizesError(
            f"{name}: {'; '.join(faults)}. For another image_size load the model as it was saved "
            "and call resize_positions(height, width); for a new head ignore_mismatched_sizes=True"
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot for Linear, fan-in for patches, zeros for the class token, sines for positions."""
        if isinstance(module, nn.Conv2d):
            init.trunc_normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            init.zeros_(module.bias)
            return
        super()._init_weights(module)
        is_head = module is getattr(self, "classifier", None)
        # whether the weights below the head came from a checkpoint
        if is_head and getattr(self.base_model.layer_norm.weight, "_is_hf_initialized", False):
            init.zeros_(module.weight)  # a new head on trained weights starts without opinion
        elif isinstance(module, VanillaVitEmbedding):
            init.zeros_(module.class_token)
            if self.config.position_start == "normal":
                init.normal_(module.positions, std=0.02)
            else:
                rows, columns = self.config.grid
                is_real = torch.ones(1, rows, columns, dtype=torch.bool)
                table = sinusoid_2d(is_real, self.config.d_model)
                table = torch.cat((torch.zeros_like(table[:, :1]), table), dim=1)
                init.copy_(module.positions, table.to(module.positions))


class VanillaVitModel(VanillaVitPreTrainedModel):
    """Images to one vector for the class token and one for each patch.

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaVitConfig, VanillaVitModel
        >>> config = VanillaVitConfig(image_size=8, patch_size=2, d_model=16, encoder_layers=1,
        ...     encoder_attention_heads=2, encoder_ffn_dim=32)
        >>> model = VanillaVitModel(config)
        >>> model(torch.zeros(1, 3, 8, 8)).last_hidden_state.shape
        torch.Size([1, 17, 16])
    """

    _can_record_outputs = ENCODER_RECORDS

    def __init__(self, config: VanillaVitConfig) -> None:
        super().__init__(config)
        self.embeddings = VanillaVitEmbedding(config)
        layers = [VanillaPreNormEncoderLayer(config) for _ in range(config.encoder_layers)]
        self.layers = nn.ModuleList(layers)
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.pooler = nn.Linear(config.d_model, config.d_model) if config.has_pooler else None
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: Tensor,
        interpolate_pos_encoding: bool = False,
        class_token_only: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Read images.

        Args:
            pixel_values: `(B, channels, H, W)`.
            interpolate_pos_encoding: take images of any size that patches divide.
            class_token_only: let the last layer compute the class token alone. Its vector stays
                the same; `last_hidden_state` is then `(B, 1, D)`.
            **kwargs: `output_attentions`, `output_hidden_states`, and what attention takes.

        Returns:
            `last_hidden_state` `(B, 1 + P, D)` after the final norm, and `pooler_output` `(B, D)`
            where the config has a pooler. `hidden_states` are those before the final norm.
        """
        hidden_states = self.embeddings(
            pixel_values, interpolate_pos_encoding=interpolate_pos_encoding
        )
        for layer in self.layers[:-1]:
            hidden_states = layer(hidden_states, **kwargs)
        hidden_states = self.layers[-1](hidden_states, 1 if class_token_only else None, **kwargs)
        hidden_states = self.layer_norm(hidden_states)
        pooled = None if self.pooler is None else self.pooler(hidden_states[:, 0]).tanh()
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    @torch.no_grad()
    def resize_positions(self, height: int, width: int) -> None:
        """Make this a model for images of another size, which is then saved with it.

        Args:
            height: of the images from now on, in pixels.
            width: likewise.

        Raises:
            ValueError: patches do not divide the new size.
        """
        old_grid, old_size = self.config.grid, self.config.image_size
        self.config.image_size = height if height == width else [height, width]
        try:
            self.config.validate_patches()
        except ValueError:
            self.config.image_size = old_size
            raise
        old = self.embeddings.positions
        table = resized(old, old_grid, self.config.grid).clone()
        self.embeddings.positions = nn.Parameter(table, requires_grad=old.requires_grad)


class VanillaForImageClassification(VanillaVitPreTrainedModel):
    """The Vision Transformer and a linear layer on its class token, or on its pooler if it has one.

    The kind of loss follows `config.problem_type`, or the labels, as everywhere in transformers.

    Examples:
        >>> import torch
        >>> from hf_vanilla import VanillaForImageClassification, VanillaVitConfig
        >>> config = VanillaVitConfig(image_size=8, patch_size=2, d_model=16, encoder_layers=1,
        ...     encoder_attention_heads=2, encoder_ffn_dim=32, num_labels=10)
        >>> model = VanillaForImageClassification(config)
        >>> model(torch.zeros(1, 3, 8, 8), labels=torch.tensor([7])).logits.shape
        torch.Size([1, 10])
    """

    def __init__(self, config: VanillaVitConfig) -> None:
        super().__init__(config)
        self.model = VanillaVitModel(config)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """Logits `(B, C)` of each image.

        Args:
            pixel_values: `(B, channels, H, W)`.
            labels: `(B,)` int64 classes, -100 = ignore; `(B, C)` float targets in [0, 1] of several
                labels; or `(B,)` or `(B, C)` float values of a regression.
            interpolate_pos_encoding: take images of any size that patches divide.
            **kwargs: `output_attentions`, `output_hidden_states`, `num_items_in_batch` (labels of
                the whole step, all micro-batches), and what attention takes.

        Raises:
            ValueError: images or labels do not fit; the message says how.
        """
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        records = ("output_attentions", "output_hidden_states")
        wanted = [(kwargs.get(name), getattr(self.config, name)) for name in records]
        is_alone = all((own if given is None else given) is False for given, own in wanted)
        outputs = self.model(
            pixel_values,
            interpolate_pos_encoding,
            class_token_only=is_alone,
            **kwargs,
        )
        pooled = outputs.pooler_output  # None without a pooler
        logits = self.classifier(outputs.last_hidden_state[:, 0] if pooled is None else pooled)
        loss = None
        if labels is not None:
            loss = classification_loss(
                *(self.config, logits, labels),
                is_training=self.training,
                num_items_in_batch=num_items_in_batch,
            )
        return ImageClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def resize_positions(self, height: int, width: int) -> None:
        """As `VanillaVitModel.resize_positions`."""
        self.model.resize_positions(height, width)


def resized(positions: Tensor, old_grid: tuple[int, int], new_grid: tuple[int, int]) -> Tensor:
    """Positions of another number of patches, by bicubic interpolation.

    Args:
        positions: `(1, 1 + rows * columns, D)` of the old grid; the class token's stays.
        old_grid: rows and columns of patches.
        new_grid: likewise.

    Returns:
        `(1, 1 + rows * columns, D)` of the new grid; the same tensor where nothing changes.
    """
    if not torch.compiler.is_exporting() and tuple(new_grid) == tuple(old_grid):
        return positions
    table = positions[:, 1:].unflatten(1, old_grid).permute(0, 3, 1, 2)  # (1, D, rows, columns)
    table = nn.functional.interpolate(table, size=new_grid, mode="bicubic", align_corners=False)
    return torch.cat((positions[:, :1], table.flatten(2).transpose(1, 2)), dim=1)


# --- the loss: one label, several labels, or numbers --------------------------------------------

SINGLE, MULTI, REGRESSION = PROBLEM_TYPES


def classification_loss(
    config: VanillaVitConfig,
    logits: Tensor,
    labels: Tensor,
    *,
    is_training: bool,
    num_items_in_batch: "Tensor | int | None" = None,
) -> Tensor:
    """Cross-entropy in nats, binary cross-entropy in nats, or squared error, a mean over labels.

    Args:
        config: read for `problem_type` and `label_smoothing`. Without a type: regression where C is
            1, one label where labels are integers, several labels otherwise.
        logits: `(B, C)`; summed in float32 at least.
        labels: `(B,)` int64 classes, -100 = ignore; `(B, C)` float targets in [0, 1]; or `(B,)` or
            `(B, C)` float values.
        is_training: whether to smooth, which is for one label only.
        num_items_in_batch: labels of the whole step, all micro-batches; None = of this call.

    Raises:
        ValueError: labels do not fit the logits.
    """
    problem_type = config.problem_type
    if problem_type is None:
        problem_type = MULTI if labels.is_floating_point() else SINGLE
        problem_type = REGRESSION if logits.shape[1] == 1 else problem_type
    smoothing = config.label_smoothing if is_training else 0.0
    total, count = _total(problem_type, at_least_float32(logits), labels, smoothing)
    return per_item(total, count if num_items_in_batch is None else num_items_in_batch)


def _total(
    problem_type: str, logits: Tensor, labels: Tensor, smoothing: float
) -> "tuple[Tensor, Tensor | int]":
    """The sum over labels, and how many labels it counts."""
    count, needed = logits.numel(), "one value for each"
    if problem_type == SINGLE:
        count, needed = len(logits), "one class for each row; give several labels as floats"
    if labels.numel() != count:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} for logits of shape {tuple(logits.shape)}: "
            f"{problem_type} needs {needed}"
        )
    if problem_type == SINGLE:
        classes = labels.flatten()
        try:
            total = functional.cross_entropy(
                logits, classes, reduction="sum", ignore_index=-100, label_smoothing=smoothing
            )
        except IndexError:
            raise ValueError(
                f"labels from {int(classes.min())} to {int(classes.max())}, but the model has "
                f"{logits.shape[1]} labels: give 0 to {logits.shape[1] - 1}, or raise num_labels"
            ) from None
        return total, classes.ne(-100).sum()
    targets = labels.to(logits.dtype).reshape(logits.shape)
    if problem_type == MULTI:
        total = functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    else:
        total = functional.mse_loss(logits, targets, reduction="sum")
    return total, labels.numel()
