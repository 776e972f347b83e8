"""`--recipe auto`: sizes and length of a training by the number of its sentence pairs."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hf_vanilla.data.lines import check_text_file, read_lines
from hf_vanilla.options import made_options

from .data import load_corpus
from .encoding import read_prepared
from .options import TranslationDataOptions

logger = logging.getLogger(__name__)


class AutoRow(NamedTuple):
    """Settings for a number of pairs; encoder and decoder have the same sizes."""

    pairs: int
    vocab_size: int
    d_model: int
    layers: int
    heads: int
    ffn_dim: int
    dropout: float
    max_steps: int
    warmup_steps: int
    learning_rate: float
    tokens_per_step: int


ROWS = (
    AutoRow(1_000, 1_000, 128, 2, 4, 256, 0.3, 1_200, 150, 5e-3, 2_048),
    AutoRow(3_000, 2_000, 128, 2, 4, 256, 0.2, 2_000, 300, 5e-3, 2_048),
    AutoRow(10_000, 4_000, 128, 2, 4, 512, 0.2, 2_000, 300, 5e-3, 4_096),
    AutoRow(30_000, 6_000, 192, 4, 4, 768, 0.2, 5_700, 600, 3e-3, 4_096),
    AutoRow(100_000, 8_000, 256, 4, 4, 1_024, 0.2, 10_000, 1_000, 2e-3, 8_192),
    AutoRow(300_000, 16_000, 384, 6, 6, 1_536, 0.15, 25_000, 2_000, 1.1e-3, 16_384),
    AutoRow(1_000_000, 32_000, 512, 6, 8, 2_048, 0.1, 50_000, 4_000, 7e-4, 25_000),
)


def auto_recipe(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a recipe's file has them, for the data of a command line.

    Args:
        given: options of the command line; those of the data say which pairs to count.

    Raises:
        ValueError: no data are given, or they do not match.
        OSError: a file cannot be read.
    """
    pairs = _number_of_pairs(made_options(TranslationDataOptions, given))
    row = min(ROWS, key=lambda row: abs(math.log(row.pairs / max(pairs, 1))))
    _, *settings = (f"{name}={value:,g}" for name, value in row._asdict().items())
    logger.info(f"recipe auto: {pairs:,} pairs, settings for {row.pairs:,}: {' '.join(settings)}")
    sides = ("encoder", "decoder")
    return {
        "max_length": 160,
        "max_steps": row.max_steps,
        "tokens_per_step": row.tokens_per_step,
        "tokens_per_batch": min(row.tokens_per_step // 4, 4_096),  # of several lengths in a step
        "learning_rate": row.learning_rate,
        "schedule": "cosine",
        "warmup_steps": row.warmup_steps,
        "adam": {"epsilon": 1e-8},
        "max_grad_norm": 25.0,
        "average_checkpoints": 10,
        "save_total_limit": 10,
        "save_steps": row.max_steps // 60,
        "eval_steps": row.max_steps // 6,
        "logging_steps": 20,
        "model": {
            "vocab_size": row.vocab_size,
            "d_model": row.d_model,
            **{f"{side}_layers": row.layers for side in sides},
            **{f"{side}_attention_heads": row.heads for side in sides},
            **{f"{side}_ffn_dim": row.ffn_dim for side in sides},
            "dropout": row.dropout,
        },
        "decoding": {"num_beams": 5},
    }


def _number_of_pairs(options: TranslationDataOptions) -> int:
    files = options.train_files[:1] or [corpus.source for corpus in options.corpora]
    for path in files:
        if not check_text_file(path).is_file():
            raise ValueError(f"{path} is a pipe, but recipe auto reads it twice: give a file")
    if files:
        return sum(1 for path in files for _ in read_lines(path))
    if options.prepared is not None:
        return read_prepared(Path(options.prepared)).pairs
    if options.dataset is None:
        raise ValueError(
            "recipe auto counts the pairs of the data: give --train_source and --train_target, "
            "--dataset or --mixture"
        )
    return len(load_corpus(options)["train"])
