# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Models with weights of 8 bits, for decoding on a CPU: how they compute, are made and loaded.

A weight matrix is int8 with one float32 scale per output channel. Activations are quantized as they
come: each row by its own maximum, so a sentence's result does not depend on the rest of the batch.
The product of the two is exact in integers. It is computed by torch's oneDNN operators where the
processor multiplies 8-bit numbers, and otherwise in float32, with the same result.

Saved code of an int8 translation model is loaded from here, so this file has the model's classes.
Shapes: I inputs, O outputs, V vocabulary, D `d_model`, B batch, L any length.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.utils.quantization_config import QuantizationConfigMixin

from .modeling_vanilla import VanillaForConditionalGeneration, VanillaModel  # noqa: F401
from .onednn_vanilla import LARGEST, byte_product, can_multiply, exact_product, packed_weight
from .stacks_vanilla import VanillaEmbedding

METHOD = "vanilla_int8"
# version of the names and meaning of the saved tensors
FORMAT = 1
# the scale of a row of zeros; any positive number that is a normal float
LEAST_SCALE = 1e-30
DIVISOR = torch.tensor(float(LARGEST), device="cpu")  # torch makes a tensor of a Python number


def scale_of(sizes: Tensor) -> Tensor:
    """The scale `(..., 1)` that makes 127 of the largest size of each row `(..., I)`."""
    return sizes.amax(dim=-1, keepdim=True).clamp_min_(LEAST_SCALE).div_(DIVISOR)


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `(..., I)` as int8 from -127 to 127, and the scale of each, `(..., 1)`."""
    scale = scale_of(rows.abs())
    return (rows / scale).round_().to(torch.int8), scale


# --- products ----------------------------------------------------------------------------------


class IntegerProduct:
    """The product of activations with int8 weights, packed for this processor.

    Args:
        layers: linear layers with the same input, joined into one product.
        dtype: of the outputs; None: that of the inputs.
        is_after_relu: inputs are not negative and are read here only: they are overwritten, which
            spares large rows two more arrays.

    Raises:
        ValueError: the weights are not on a CPU.
    """

    def __init__(
        self,
        layers: "Sequence[QuantizedLinear]",
        dtype: torch.dtype | None = None,
        *,
        is_after_relu: bool = False,
    ) -> None:
        self.dtype, self.is_after_relu = dtype, is_after_relu
        weights = [layer.weight.detach() for layer in layers]
        device = weights[0].device.type
        if device != "cpu":
            raise ValueError(
                f"int8 is for CPUs, and the weights are on {device!r}: move them there"
            )
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        self.scale = torch.cat([layer.weight_scale.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.is_fast = can_multiply(torch.int8)
        self.weight = packed_weight(weight) if self.is_fast else weight
        if self.is_fast:
            self.zero_points = torch.zeros(len(weight), dtype=torch.int32)

    def __call__(self, states: Tensor) -> Tensor:
        """Outputs `(..., O)` of all layers for `(..., I)`."""
        if states.requires_grad:
            states = states.detach()
        rows = states.float()  # fast where `to` takes a microsecond for nothing
        row_scale = scale_of(rows if self.is_after_relu else rows.abs())
        rows = rows.div_(row_scale) if self.is_after_relu else rows / row_scale
        if self.is_fast:
            product = byte_product(rows, self.weight, self.scale, self.zero_points)
        else:
            product = exact_product(rows.round_(), self.weight).mul_(self.scale)
        product.mul_(row_scale)
        if self.bias is not None:
            product.add_(self.bias)  # two passes: addcmul takes three times as long as both
        dtype = self.dtype or states.dtype
        return product if dtype == product.dtype else product.to(dtype)


# --- layers ------------------------------------------------------------------------------------


class KeptProduct:
    """The product of layers with the same input, kept until a weight changes.

    Args:
        *layers: query, key and value, so that their input is quantized once.
    """

    def __init__(self, *layers: "QuantizedLinear") -> None:
        self.layers = layers  # none: the caller names its own, so that no cycle keeps it alive
        self.product: Any = None
        self.versions: Any = None

    def __call__(self, states: Tensor, *own: "QuantizedLinear") -> Tensor:
        """Outputs `(..., O)` of all layers side by side for `(..., I)`."""
        layers = own or self.layers
        # another number where a weight was replaced or written to
        versions = [(id(layer.weight), layer.weight._version) for layer in layers]
        if self.versions != versions:
            self.product, self.versions = IntegerProduct(layers), versions
        return self.product(states)

    def __getstate__(self) -> dict[str, Any]:
        """Without the packed weights, which cannot be copied."""
        return {"layers": self.layers, "product": None, "versions": None}


class QuantizedLinear(nn.Module):
    """A linear layer with int8 weights; no gradients.

    Args:
        in_features: I.
        out_features: O.
        bias: whether there is one; float32.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = _constant(torch.empty((out_features, in_features), dtype=torch.int8))
        self.weight_scale = _constant(torch.empty(out_features))
        self.bias = _constant(torch.empty(out_features)) if bias else None
        self.product = KeptProduct()

    def forward(self, states: Tensor) -> Tensor:
        """Outputs `(..., O)` for `(..., I)`."""
        return self.product(states, self)

    def extra_repr(self) -> str:
        """Sizes, as `nn.Linear` shows them."""
        has_bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has_bias}"


class QuantizedEmbedding(VanillaEmbedding):
    """Token embeddings (3.4) as int8 with a scale per token; a head may share the table.

    Args:
        num_embeddings: V.
        embedding_dim: D.
        padding_idx: the token whose vector is zero.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, device="meta")
        shape = (num_embeddings, embedding_dim)
        self.weight = _constant(torch.empty(shape, dtype=torch.int8))
        self.weight_scale = _constant(torch.empty(num_embeddings))

    def rows(self, input_ids: Tensor) -> Tensor:
        """Vectors `(B, L, D)` of the ids `(B, L)`, float32."""
        levels = nn.functional.embedding(input_ids, self.weight)
        return levels * nn.functional.embedding(input_ids, self.weight_scale.unsqueeze(1))


def _constant(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


# --- models ------------------------------------------------------------------------------------


def is_quantized(model: nn.Module) -> bool:
    """Whether a model has weights of this file."""
    kinds = (QuantizedLinear, QuantizedEmbedding)
    return any(isinstance(module, kinds) for module in model.modules())


def quantize(model: PreTrainedModel) -> PreTrainedModel:
    """Quantize the linear layers and token embeddings of a model of this package, in place.

    Norms, biases, convolutions and learned positions stay in float32.

    Args:
        model: with float weights on a CPU; its layers are replaced.

    Returns:
        The same model, in evaluation mode. `save_pretrained` saves it as it is.

    Raises:
        ValueError: it is another model or a forecaster, is quantized already or is not on a CPU.
    """
    name, device = type(model).__name__, model.device.type
    if not str(getattr(model.config, "model_type", None)).startswith("vanilla"):
        raise ValueError(f"int8: a {name} is not a model of hf_vanilla: use hf-vanilla convert")
    _refuse_forecaster(model)
    if is_quantized(model):
        raise ValueError(f"this {name} has int8 weights already: quantize the float model")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(f"this {name} is on the meta device, without values: load its weights")
    if device != "cpu":
        raise ValueError(f"int8 is for CPUs, and this {name} is on {device!r}: move it to the CPU")
    quantizer = VanillaInt8Quantizer(VanillaInt8Config(), pre_quantized=False)
    model.float().eval()
    quantizer.preprocess_model(model)
    model.hf_quantizer = quantizer
    quantizer.postprocess_model(model)
    return model


def _refuse_forecaster(model: PreTrainedModel) -> None:
    if model.main_input_name == "past_values":
        raise ValueError(f"int8: a {type(model).__name__} is a forecaster: give dtype='bfloat16'")


def replace_layers(model: PreTrainedModel, *, has_values: bool) -> None:
    """Replace linear layers and embeddings by quantized ones, and tie what was tied.

    Args:
        model: of this package.
        has_values: quantize the present weights; False: they are loaded afterwards.
    """
    modules: list[tuple[str, Any]] = list(model.named_modules())
    for name, module in modules:
        if type(module) is nn.Linear:
            has_bias = module.bias is not None
            new: Any = QuantizedLinear(module.in_features, module.out_features, bias=has_bias)
        elif type(module) is VanillaEmbedding:
            rows, width = module.weight.shape
            new = QuantizedEmbedding(rows, width, module.padding_idx)
        else:
            continue
        if has_values:
            new.weight.data, scale = quantized(module.weight.detach())
            new.weight_scale.data = scale.squeeze(1)
            if getattr(new, "bias", None) is not None:
                new.bias.data = module.bias.detach().clone()
        model.set_submodule(name, new.train(module.training))
    _set_ties(model, has_scales=True)
    if has_values:
        model.tie_weights()


def restore_layers(model: PreTrainedModel) -> None:
    """Put float layers of the same values in place of quantized ones."""
    modules: list[tuple[str, Any]] = list(model.named_modules())
    for name, own in modules:
        if isinstance(own, QuantizedEmbedding):
            sizes = own.num_embeddings, own.embedding_dim
            layer: Any = VanillaEmbedding(*sizes, own.padding_idx, device="meta")
        elif isinstance(own, QuantizedLinear):
            layer = nn.Linear(own.in_features, own.out_features, bias=False, device="meta")
            if own.bias is not None:
                layer.bias = nn.Parameter(own.bias.detach())
        else:
            continue
        layer.weight = nn.Parameter(own.weight * own.weight_scale.unsqueeze(1))
        model.set_submodule(name, layer.train(own.training))
    _set_ties(model, has_scales=False)
    model.tie_weights()


def _set_ties(model: PreTrainedModel, *, has_scales: bool) -> None:
    """Tie scales as their weights are, and join query, key and value; without scales neither."""
    for module in model.modules():
        keys = getattr(module, "_tied_weights_keys", None)
        if isinstance(module, PreTrainedModel) and keys:
            keys = {key: source for key, source in keys.items() if not key.endswith("_scale")}
            scales = {f"{key}_scale": f"{source}_scale" for key, source in keys.items()}
            module._tied_weights_keys = {**keys, **scales} if has_scales else keys
        if hasattr(module, "joined"):
            projections: Any = (module.q_proj, module.k_proj, module.v_proj)
            module.joined = KeptProduct(*projections) if has_scales else None
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


# --- transformers' interface -------------------------------------------------------------------


class VanillaInt8Config(QuantizationConfigMixin):
    """`quantization_config` of a model of this package with int8 weights.

    Args:
        version: of the saved tensors.
        dequantize: load them as float weights, for any device and for training: a small file is
            then all that int8 brings. Set in `config.json`; of int8 weights, `from_pretrained`
            reads it only there.
        **kwargs: none.

    Raises:
        ValueError: a newer version of this package wrote the weights.

    Examples:
        >>> import tempfile
        >>> from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, VanillaInt8Config
        >>> model = VanillaForConditionalGeneration(
        ...     VanillaConfig(vocab_size=20, d_model=16, encoder_layers=1, decoder_layers=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     quantized = VanillaForConditionalGeneration.from_pretrained(
        ...         folder, quantization_config=VanillaInt8Config())
        >>> quantized.lm_head.weight.dtype
        torch.int8
    """

    def __init__(self, version: int = FORMAT, *, dequantize: bool = False, **kwargs: Any) -> None:
        kwargs.pop("quant_method", None)
        if version != FORMAT or kwargs:
            raise ValueError(
                f"int8 weights of format {version} {kwargs or ''}, not {FORMAT}: update hf_vanilla "
                "or quantize the float model again"
            )
        self.quant_method: Any = METHOD
        self.version, self.dequantize = version, dequantize


class VanillaInt8Quantizer(HfQuantizer):
    """What `from_pretrained` does for int8 weights: saved ones, or `quantization_config=...`."""

    requires_calibration = False

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Refuse other devices than a CPU, and for weights to be dequantized the disk.

        Raises:
            ValueError: `device_map` names one.
        """
        devices = kwargs.get("device_map")
        named = devices.values() if isinstance(devices, dict) else [devices]
        if self.quantization_config.dequantize:
            if "disk" in named:
                raise ValueError(
                    f"device_map={devices!r}: int8 weights cannot stay on the disk: load and save "
                    "the model without it, and load that folder of float weights"
                )
            return
        # "auto" is a CPU on a machine without a GPU; on others the first product refuses
        if any(str(device) not in ("None", "cpu", "cpu:0", "auto") for device in named):
            raise ValueError(
                f"device_map={devices!r}: int8 is for CPUs: leave it out, or load the float model"
            )

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What is not int8 is float32, until it is dequantized."""
        self.dtype = dtype if dtype.is_floating_point else torch.float32
        return torch.float32

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, **kwargs: Any
    ) -> PreTrainedModel:
        _refuse_forecaster(model)
        if self.pre_quantized:
            replace_layers(model, has_values=False)
        return model

    def _process_model_after_weight_loading(
        self, model: PreTrainedModel, **kwargs: Any
    ) -> PreTrainedModel:
        if not self.pre_quantized:
            replace_layers(model, has_values=True)
        elif self.quantization_config.dequantize:
            restore_layers(model)
            return model.to(self.dtype)
        return model.requires_grad_(requires_grad=False)

    def _dequantize(
        self, model: PreTrainedModel, dtype: torch.dtype | None = None
    ) -> PreTrainedModel:
        restore_layers(model)
        return model.to(dtype or torch.float32).requires_grad_()

    def is_serializable(self) -> bool:
        """Whether the weights can be saved: yes."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Whether the weights can be trained: no."""
        return False


# a copy of this file beside saved weights may be imported in the same process
if METHOD not in AUTO_QUANTIZER_MAPPING:
    register_quantization_config(METHOD)(VanillaInt8Config)
    register_quantizer(METHOD)(VanillaInt8Quantizer)
