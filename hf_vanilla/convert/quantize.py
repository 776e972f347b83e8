"""Quantize a translation model: a folder of the same model with int8 weights, for CPUs."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from hf_vanilla.files import whole_folder
from hf_vanilla.hub.card import carry_over, public_name
from hf_vanilla.models.quantization_vanilla import quantize
from hf_vanilla.options import Options, option
from hf_vanilla.text.loading import load_translator, require_float

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions(Options):
    """Write a translation model with int8 weights, with tokenizer and generation config."""

    model: str = option(text="folder or Hub id of a float model of this package")
    output: str = option(text="folder for the quantized model")


def quantize_folder(options: QuantizeOptions) -> Path:
    """Write the quantized model of a folder, with its tokenizer and card; returns the new folder.

    Raises:
        ValueError: the model is not one of this package, or is quantized already.
        OSError: the model is not found, or the output exists.
    """
    with whole_folder(options.output) as folder:
        model, tokenizer = load_translator(
            options.model, dtype="float32", device=torch.device("cpu")
        )
        require_float(model, options.model)
        before = model.get_memory_footprint()
        quantize(model)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        name = public_name(options.model)
        change = f"int8 weights, made from {name} by `hf-vanilla quantize`."
        carry_over(options.model, folder, change=change)
        after = model.get_memory_footprint()
        logger.info("weights: %.1f MB in int8, %.1f MB in float32", after / 1e6, before / 1e6)
    return Path(options.output)
