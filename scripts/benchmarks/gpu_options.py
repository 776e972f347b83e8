"""Options of the benchmark on a GPU, and what its parts share."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

# what a case measured; a part gives its cases one by one, each with its name
Facts = dict[str, Any]
Cases = Iterator[tuple[str, Callable[[], Facts]]]
PARTS = ("paths", "training", "decoding", "recipe")
DEVICES = ("cuda", "cpu")
PAD, EOS = 0, 1


class SkippedError(Exception):
    """A case that cannot run here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """Try every code path on a GPU and measure training and decoding."""

    output: str = field(
        default="gpu_benchmark", metadata={"help": "folder for results.json and results.md"}
    )
    device: str = field(default="cuda", metadata={"help": "cuda or cpu"})
    tiny: bool = field(
        default=False, metadata={"help": "tiny models and few steps, to try the script itself"}
    )
    parts: str = field(default=",".join(PARTS), metadata={"help": "parts to run, by commas"})
    minutes: float = field(default=10.0, metadata={"help": "time for all parts"})
    data: str | None = field(
        default=None,
        metadata={"help": "folder with the files of multi30k_tiny_lowercased; none: skipped"},
    )
    seeds: int = field(default=5, metadata={"help": "trainings of that recipe"})

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        if self.device not in DEVICES:
            raise ValueError(f"device={self.device!r}: choose one of {', '.join(DEVICES)}")
        unknown = [part for part in self.chosen if part not in PARTS]
        if unknown or not self.chosen:
            raise ValueError(f"parts={self.parts!r}: choose from {', '.join(PARTS)}")
        if not (math.isfinite(self.minutes) and self.minutes > 0):
            raise ValueError(f"minutes={self.minutes}: give a positive number")
        if self.seeds < 1:
            raise ValueError(f"seeds={self.seeds}: give 1 or more")

    @property
    def chosen(self) -> list[str]:
        """Parts to run, in order."""
        return [part.strip() for part in self.parts.split(",") if part.strip()]

    @property
    def is_cuda(self) -> bool:
        """Whether everything runs on a GPU."""
        return self.device == "cuda"


def require_cuda(options: GpuOptions) -> None:
    """Skip a case without a GPU."""
    if not options.is_cuda:
        raise SkippedError("no CUDA device")


def model_of(options: GpuOptions, size: str, **changes: Any) -> VanillaForConditionalGeneration:
    """A model with random weights on the CPU, `size` base or big; with `tiny`, a tiny one."""
    width, layers, vocabulary = {"base": (512, 6, 37_000), "big": (1024, 6, 37_000)}[size]
    heads = width // 64
    if options.tiny:
        width, layers, vocabulary, heads = width // 16, 1, 97, 2
    torch.manual_seed(0)
    config = VanillaConfig(
        vocab_size=vocabulary,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        **changes,
    )
    return VanillaForConditionalGeneration(config)


def sentence_lengths(count: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Source and target lengths in tokens, `(N,)` each, spread as in translated text.

    About 27 tokens in the mean, as in WMT 2014 with 37,000 entries.
    """
    draw = np.random.default_rng(0)
    source = np.exp(draw.normal(3.15, 0.55, count))
    target = source * np.exp(draw.normal(0.0, 0.12, count))
    return tuple(np.clip(each.round(), 4, longest).astype(np.int64) for each in (source, target))


def synchronize(options: GpuOptions) -> None:
    """Wait until the device has computed everything."""
    if options.is_cuda:
        torch.cuda.synchronize()
