"""The table of formats: the options and the converter of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_vanilla.options import Options, option, parse_options, pop_option

from .agentformer import AgentFormerOptions, convert_agentformer
from .detr import DetrOptions, ToDetrOptions, convert_detr, convert_to_detr
from .fairseq import FairseqOptions, convert_fairseq
from .fsmt import FsmtOptions, convert_fsmt
from .marian import MarianOptions, ToMarianOptions, convert_marian, convert_to_marian
from .torch_transformer import TorchOptions, convert_torch
from .vit import ToVitOptions, VitOptions, convert_to_vit, convert_vit
from .vit_checkpoints import GoogleVitOptions, TimmOptions, convert_google_vit, convert_timm

FORMATS: dict[str, tuple[type, Callable[[Any], Path]]] = {
    "agentformer": (AgentFormerOptions, convert_agentformer),
    "detr": (DetrOptions, convert_detr),
    "fairseq": (FairseqOptions, convert_fairseq),
    "fsmt": (FsmtOptions, convert_fsmt),
    "marian": (MarianOptions, convert_marian),
    "timm": (TimmOptions, convert_timm),
    "to-detr": (ToDetrOptions, convert_to_detr),
    "to-marian": (ToMarianOptions, convert_to_marian),
    "to-vit": (ToVitOptions, convert_to_vit),
    "torch": (TorchOptions, convert_torch),
    "vit": (VitOptions, convert_vit),
    "vit-google": (GoogleVitOptions, convert_google_vit),
}


@dataclass(frozen=True, kw_only=True)
class FormatOptions(Options):
    """Convert a model of another toolkit to ours, or ours to another."""

    format: str = option(text=f"one of {', '.join(FORMATS)}")


def read_conversion(arguments: Sequence[str]) -> tuple[str, Any]:
    """A format and its options from a command line, in any order.

    Raises:
        ValueError: the format is missing or unknown, or its options are wrong.
    """
    rest = list(arguments)
    name = pop_option(rest, "--format")
    if name is None:
        asks_help = [argument for argument in rest if argument in ("-h", "--help")]
        epilog = "--format NAME --help lists the options of a format."
        parse_options(FormatOptions, asks_help, epilog=epilog)  # raises, or prints the help
    if name not in FORMATS:
        raise ValueError(f"format={name!r}: choose one of {', '.join(FORMATS)}")
    chosen = f"--format {name}"
    return name, parse_options(FORMATS[name][0], rest, chosen=chosen)


def convert(conversion: tuple[str, Any]) -> Path:
    """Run the converter of a format; returns the folder it wrote.

    Raises:
        ValueError: the model cannot be expressed in the other format, or is damaged.
        OSError: a file is not found, or the output exists.
    """
    name, options = conversion
    return FORMATS[name][1](options)
