"""Write a model for an engine that needs neither torch nor this package, or with int8 weights."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_vanilla.files import whole_folder
from hf_vanilla.hub.card import carry_over, public_name
from hf_vanilla.loading import task_or_default
from hf_vanilla.models.quantization_vanilla import quantize
from hf_vanilla.options import Options, UsageError, given_options, option, parse_options
from hf_vanilla.text.engines import import_ctranslate2
from hf_vanilla.text.loading import load_translator, require_float

from . import ctranslate2
from .onnx.files import DTYPES, require_onnx
from .onnx.models import export_classifier, export_detector, export_forecaster
from .onnx.transformers_js import export_for_transformers_js
from .onnx.translators import export_translator

logger = logging.getLogger(__name__)

FORMATS = {"ctranslate2": ctranslate2.DTYPES, "onnx": DTYPES}  # and their dtypes
# task: what writes a folder for ONNX Runtime
ONNX = {
    "translation": export_translator,
    "image_classification": export_classifier,
    "object_detection": export_detector,
    "trajectories": export_forecaster,
    "joint_trajectories": export_forecaster,
    "scene_trajectories": export_forecaster,
}


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Write a model for CTranslate2 or ONNX Runtime, with all that its use needs."""

    model: str = option(text="folder or Hub id of our model")
    output: str = option(text="folder for the exported model")
    format: str = option(
        "ctranslate2",
        "ctranslate2 for translators; onnx for every kind of model, with a program that runs it",
        choices=tuple(FORMATS),
    )
    dtype: str = option(
        "float32", f"of the weights: {', '.join(ctranslate2.DTYPES)}; onnx: {', '.join(DTYPES)}"
    )
    layout: str = option(
        "plain",
        "of ONNX files of a translator: plain, with translate.py; transformers.js, without search",
        choices=("plain", "transformers.js"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout != "plain" and self.format != "onnx":
            raise ValueError(f"layout={self.layout!r} needs --format onnx")
        if self.dtype not in FORMATS[self.format]:
            known = ", ".join(FORMATS[self.format])
            raise ValueError(f"dtype={self.dtype!r}: choose one of {known} for {self.format}")


def read_export(arguments: Sequence[str]) -> ExportOptions:
    """The options of a command line.

    Raises:
        UsageError: one is unknown or missing.
    """
    if "quantization" in given_options(arguments):
        raise UsageError("no option --quantization any more: use --dtype")
    return parse_options(ExportOptions, arguments)


def export(options: ExportOptions) -> Path:
    """Write the folder of a model; returns it.

    Raises:
        ImportError: the format's library is not installed.
        ValueError: the format or layout is for translators alone, or cannot express the model;
            the message names all reasons.
        OSError: the model is not found, or the output exists.
    """
    is_onnx, task = options.format == "onnx", task_or_default(options.model)
    if task != "translation" and (not is_onnx or options.layout != "plain"):
        remedy = "leave --layout out" if is_onnx else "use --format onnx"
        raise ValueError(f"{options.model} is of {task}: {remedy}")
    (require_onnx if is_onnx else import_ctranslate2)()
    write = ONNX[task] if is_onnx else ctranslate2.export_translator
    if options.layout == "transformers.js":
        write = export_for_transformers_js
    with whole_folder(options.output) as folder:
        write(options.model, folder, options.dtype)
    return Path(options.output)


# --- int8 ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions(Options):
    """Write a translation model with int8 weights, with tokenizer and generation config."""

    model: str = option(text="folder or Hub id of a float model of this package")
    output: str = option(text="folder for the quantized model")


def quantize_folder(options: QuantizeOptions) -> Path:
    """Write the quantized model of a folder, with its tokenizer and card; returns the new folder.

    Raises:
        ValueError: the model is no translator of this package, or is quantized already.
        OSError: the model is not found, or the output exists.
    """
    if (task := task_or_default(options.model)) != "translation":
        raise ValueError(
            f"{options.model} is of {task}: this command quantizes translation models; in Python, "
            "hf_vanilla.quantize(model) also classifiers and detectors"
        )
    with whole_folder(options.output) as folder:
        model, tokenizer = load_translator(options.model, dtype="float32", device="cpu")
        require_float(model, options.model)
        before = model.get_memory_footprint()
        quantize(model)
        name = public_name(options.model)
        change = f"int8 weights, made from {name} by `hf-vanilla quantize`."
        carry_over(options.model, folder, model, tokenizer, change=change)
        after = model.get_memory_footprint()
        logger.info("weights: %.1f MB in int8, %.1f MB in float32", after / 1e6, before / 1e6)
    return Path(options.output)
