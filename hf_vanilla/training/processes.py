"""The processes of a run: how many there are, what they compute in and by, how fast they could be.

Shapes: N tokens, I inputs, O outputs.
"""

import logging
import os
import re
import signal
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.logging import MultiProcessAdapter
from accelerate.tracking import get_available_trackers
from accelerate.utils import (
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
    parse_flag_from_env,
)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hf_vanilla.models.onednn_vanilla import can_multiply, float_product, multiplies_bfloat16
from hf_vanilla.options import progress_bar

from .options import TrainRecipe

# the others wait while one process reads, tokenizes or writes; if one dies, the launcher ends all
LONGEST_WAIT = timedelta(hours=6)
TRACKERS = "trackers"  # project name; TensorBoard writes to a folder of this name in output_dir
TERMINATED_STATUS = 128 + signal.SIGTERM  # exit status after a SIGTERM that was obeyed in order


class MainProcessLogger(MultiProcessAdapter):
    """Logs on the main process, and names that process only where there are several."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """The message and the arguments of the call to log."""
        named, kwargs = super().process(msg, kwargs)
        return (named if PartialState().num_processes > 1 else msg), kwargs


logger = MainProcessLogger(logging.getLogger(__name__), {})

# dense bf16 and fp16 products per second as their makers state them; the longer name comes first
PEAK_FLOPS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "V100": 125e12,
}


def make_accelerator(recipe: TrainRecipe) -> Accelerator:
    """The processes of this run.

    Raises:
        ValueError: several processes were launched, but they do not know each other, or accelerate
            is set to train in a way that this engine does not.
        ImportError: a tracker is not installed.
    """
    check_settings_of_accelerate()
    # accelerate knows no other name of this option of DistributedDataParallel
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
    accelerator = Accelerator(
        cpu=recipe.use_cpu,
        mixed_precision=chosen_precision(recipe),
        log_with=chosen_trackers(recipe) or None,
        project_dir=Path(recipe.output_dir),
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=LONGEST_WAIT),
            # see average_running_statistics
            DistributedDataParallelKwargs(broadcast_buffers=False),
        ],
    )
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != accelerator.num_processes:
        raise ValueError(
            f"{launched} processes were launched, but each would train alone and overwrite the "
            "others' files: on machines without GPU add --use_cpu True"
        )
    if accelerator.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 where float32 is asked for
        # cuDNN plans its attention for each shape anew, and batches have hundreds of shapes
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    if accelerator.device.type == "cpu" and accelerator.mixed_precision == "fp16":
        logger.warning("mixed_precision=fp16 is for GPUs: this CPU computes in float32")
    if is_slow_bf16(accelerator):
        logger.warning(
            "mixed_precision=bf16: this processor has no instructions for it, and steps take much "
            "longer than in float32: leave the option out"
        )
    return accelerator


def check_settings_of_accelerate() -> None:
    """Refuse what accelerate's environment or configuration asks for and the engine does not do.

    Raises:
        ValueError: it would scale the gradients, or save a part of the weights as the model.
    """
    accumulated = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if accumulated != "1":
        raise ValueError(
            f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS={accumulated}: accelerate would divide every "
            "gradient by it; unset it (gradient_accumulation_steps: 1 in accelerate's "
            "configuration), since the recipe says what a step consists of"
        )
    is_fsdp = parse_flag_from_env("ACCELERATE_USE_FSDP")
    refused = {
        "FSDP 1": is_fsdp and os.environ.get("FSDP_VERSION", "1") != "2",
        "DeepSpeed": parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"),
        "Megatron-LM": parse_flag_from_env("ACCELERATE_USE_MEGATRON_LM"),
    }
    for name, is_set in refused.items():
        if is_set:
            raise ValueError(
                f"accelerate is set to {name}, whose weights are not saved whole here: set "
                "distributed_type to MULTI_GPU, or to FSDP with fsdp_version 2"
            )


def is_slow_bf16(accelerator: Accelerator) -> bool:
    """Whether products are in bf16 on a CPU without instructions for it."""
    is_on_cpu = accelerator.device.type == "cpu"
    return is_on_cpu and accelerator.mixed_precision == "bf16" and not multiplies_bfloat16()


def precision_in_words(accelerator: Accelerator) -> str:
    """What products are computed in, in training and validation, for the model card."""
    chosen = str(accelerator.mixed_precision)
    device = accelerator.device.type
    if chosen != "no" and (chosen, device) != ("fp16", "cpu"):
        return f"{chosen}, the validations too"
    return "float32, products in TF32 where the GPU has it" if device == "cuda" else "float32"


def chosen_precision(recipe: TrainRecipe) -> str:
    """What the products are computed in: `"no"` (float32), `"bf16"` or `"fp16"`.

    The recipe decides; else accelerate's configuration, where it asks for less than float32; else
    bf16 on GPUs that compute in it.
    """
    if recipe.mixed_precision is not None:
        return recipe.mixed_precision
    # the launcher sets "no" also if no precision was chosen
    wanted = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if wanted != "no":
        return wanted
    is_cpu = recipe.use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU")
    has_gpu = not is_cpu and torch.cuda.is_available()
    return "bf16" if has_gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "no"


def chosen_trackers(recipe: TrainRecipe) -> list[str]:
    """Names of the trackers the run reports to; TensorBoard where nobody chose and it is there.

    Raises:
        ImportError: a tracker that the recipe names is not installed.
    """
    installed = [str(tracker) for tracker in get_available_trackers()]
    if recipe.trackers is None:
        return ["tensorboard"] if "tensorboard" in installed else []
    for name in recipe.trackers:
        if name not in installed:
            raise ImportError(f"trackers={name}: it is not installed (pip install {name})")
    return list(recipe.trackers)


@torch.no_grad()
def sum_over_processes(accelerator: Accelerator, sums: Tensor) -> Tensor:
    """Sums of all processes, in float64; in float32 on Apple's GPUs, which have no float64."""
    dtype = torch.float32 if accelerator.device.type == "mps" else torch.float64
    return accelerator.reduce(sums.to(accelerator.device, dtype))


def validation_bar(accelerator: Accelerator, items: Sequence[Any]) -> Any:
    """A progress bar of the main process over its share of a validation."""
    is_hidden = not accelerator.is_main_process
    return progress_bar(items, text="Validating", unit="batches", is_hidden=is_hidden)


def average_running_statistics(model: nn.Module, accelerator: Accelerator) -> None:
    """Give every process the mean of all processes' running means and variances of BatchNorm.

    Each process updates them by its own micro-batches. Models without BatchNorm are not changed.
    """
    if accelerator.num_processes == 1:
        return
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.track_running_stats:
            for statistics in (module.running_mean, module.running_var):
                assert statistics is not None
                statistics.copy_(accelerator.reduce(statistics, reduction="mean"))


def peak_flops(accelerator: Accelerator) -> float | None:
    """Operations per second that one device could do at most; None where nobody knows.

    Known are the half-precision figures of common GPUs, so float32 training has none.
    """
    if accelerator.device.type != "cuda" or accelerator.mixed_precision not in ("bf16", "fp16"):
        return None
    name = torch.cuda.get_device_name(accelerator.device)
    # whole words: an L40 is no L4
    found = (peak for kind, peak in PEAK_FLOPS.items() if re.search(rf"\b{kind}\b", name))
    return next(found, None)


# --- float32 products by oneDNN ------------------------------------------------------------------

# On AMD processors with AVX-512, MKL, which torch calls for float32, computes with half of the
# width of their registers; oneDNN, which torch calls for bfloat16, is twice as fast.


def use_faster_products(model: nn.Module) -> None:
    """Let oneDNN compute the float32 linear layers of a model on a CPU, if that is faster.

    Only their class changes, not weights or names. Gradients are the same up to rounding;
    second derivatives are not available. On other processors nothing happens.

    Args:
        model: its layers of exactly the class `nn.Linear` are changed.
    """
    if not (is_onednn_faster() and can_multiply(torch.float32)):
        return
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = OneDnnLinear


def is_onednn_faster() -> bool:
    """Whether this is an AMD processor with AVX-512, and torch's products are those of MKL.

    The processor's name decides, not a timing, so that a resumed run computes the same products.
    """
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    is_amd = str(capabilities.get("cpu_name", "")).startswith("AMD")
    return is_amd and bool(capabilities.get("avx512_f")) and torch.backends.mkl.is_available()


class OneDnnLinear(nn.Linear):
    """`nn.Linear` whose products in float32 on a CPU are computed by oneDNN."""

    def forward(self, input: Tensor) -> Tensor:
        """Outputs `(..., O)` for `(..., I)`."""
        weight = self.weight
        is_plain = type(weight) is nn.Parameter and weight.device.type == "cpu"
        is_float32 = input.dtype == weight.dtype == torch.float32
        is_other = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
        if is_other or not (is_plain and is_float32 and input.numel()):
            return super().forward(input)
        return _OneDnnProduct.apply(input, weight, self.bias)


class _OneDnnProduct(torch.autograd.Function):
    """`input @ weight.T + bias`, and its three gradients."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Outputs `(..., O)`."""
        ctx.save_for_backward(input, weight)
        return float_product(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of input, weight and bias, where they are needed."""
        (input, weight), needed = ctx.saved_tensors, ctx.needs_input_grad
        gradient = gradient.contiguous()
        rows = gradient.flatten(0, -2)  # (N, O)
        return (
            float_product(gradient, weight.t()) if needed[0] else None,
            _weight_gradient(rows, input.contiguous().flatten(0, -2)) if needed[1] else None,
            rows.sum(0) if needed[2] else None,
        )


def _weight_gradient(gradient: Tensor, input: Tensor) -> Tensor:
    """`(O, I)` of `(N, O)` and `(N, I)`.

    The operator copies its first argument into another order, so this is the smaller one.
    """
    if gradient.size(-1) <= input.size(-1):
        return float_product(gradient.t(), input.t())
    return float_product(input.t(), gradient.t()).t()
