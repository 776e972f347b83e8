"""What a translation run starts with: corpus, tokenizer, encoded pairs, initial model."""

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.data.corpus import (
    BUILT_IN_CORPUS,
    built_in_corpus,
    pairs_from_dataset,
    pairs_from_files,
)
from hf_vanilla.loading import check_section, load_saved
from hf_vanilla.training.processes import MainProcessLogger
from hf_vanilla.training.recipe import Recipe

from .encoding import EncodedPairs, LengthLimits, encode_pairs, read_shards, shards_tokenizer
from .loading import load_translator
from .mixture import add_tags, check_tags, first_rows, mixture_pairs, tagged_pairs
from .options import PairOptions, TranslationDataOptions
from .regularization import SubwordDropout
from .tokenizer_training import train_tokenizer

logger = MainProcessLogger(logging.getLogger(__name__), {})

# rows whose ids enter a fingerprint, at once and in all; of longer datasets evenly spaced runs of
# neighbours, since single rows would read every page of the file; and all lengths
ROWS_AT_ONCE, FINGERPRINT_ROWS = 1_000, 100_000


@dataclass(frozen=True)
class TextData:
    """Everything a translation run reads.

    Attributes:
        tokenizer: of both languages.
        train: encoded pairs.
        validation: encoded pairs; None where there are none.
        validation_text: rows of `source` and `target`, to be translated; None likewise.
        train_text: rows of `source` and `target`, one per encoded pair; None unless BPE-dropout
            or noise reads them.
        dropout: encodes the training text anew for each batch; None without BPE-dropout.
        firsts: `(C + 1,)` row at which each corpus of a mixture begins, and the number of rows;
            None without a mixture.
    """

    tokenizer: PreTrainedTokenizerBase
    train: EncodedPairs
    validation: EncodedPairs | None
    validation_text: Dataset | None = None
    train_text: Dataset | None = None
    dropout: SubwordDropout | None = None
    firsts: np.ndarray | None = None


def load_corpus(options: PairOptions, *, is_stream: bool = False) -> dict[str, Any]:
    """Splits `train` and, where a dataset has one, `validation`: rows of `source` and `target`.

    Args:
        options: name the data.
        is_stream: files and datasets become streams, without a copy on disk.

    Raises:
        ValueError: the data do not match the options.
        OSError: a file cannot be read.
    """
    if options.train_files:
        return {"train": pairs_from_files(*options.train_files, is_stream=is_stream)}
    if options.dataset is None or options.dataset == BUILT_IN_CORPUS:
        return built_in_corpus()
    return pairs_from_dataset(
        options.dataset,
        config_name=options.dataset_config,
        source_column=options.source_column,
        target_column=options.target_column,
        is_stream=is_stream,
    )


def prepare_text(
    recipe: Recipe, initial_tokenizer: PreTrainedTokenizerBase | None = None
) -> TextData:
    """Read the corpus, learn or load the vocabulary, encode.

    Args:
        recipe: names the corpus.
        initial_tokenizer: of the model from which the run starts, if there is one.

    Raises:
        ValueError: the data do not match the recipe, or not the initial model.
        OSError: data cannot be read.
    """
    options: TranslationDataOptions = recipe.data
    logger.info("reading the corpus")
    parts = mixture_pairs(options.corpora)
    corpus: dict[str, Any] = {}
    if parts:
        corpus["train"] = concatenate_datasets(parts)
    elif options.prepared is None:
        corpus = load_corpus(options)
    if options.validation_files:
        corpus["validation"] = pairs_from_files(*options.validation_files)
    tokenizer = _make_tokenizer(recipe, corpus, initial_tokenizer)
    dropout = _make_dropout(recipe, tokenizer)  # before the corpus is encoded
    if parts:
        check_tags(tokenizer, options.corpora)
        corpus["train"] = tagged_pairs(options.corpora, parts)
    # the ratio cleans training data; validation stays whole
    limits = {
        "train": LengthLimits(options.max_length, options.max_length_ratio),
        "validation": LengthLimits(options.max_length),
    }
    workers = options.preprocessing_workers
    encoded = {
        split: encode_pairs(corpus[split], tokenizer, limits[split], workers=workers)
        for split in limits
        if split in corpus
    }
    if options.prepared is not None:
        encoded["train"] = read_shards(Path(options.prepared), limits["train"])
    for split, pairs in encoded.items():
        logger.info("%s: %d pairs; dropped: %s", split, len(pairs.rows), pairs.dropped)
    train, validation = encoded["train"], encoded.get("validation")
    # mapped text takes memory once it was read, so only its ids are kept, if they suffice
    text = None
    if options.bpe_dropout or any(part.is_noisy for part in options.corpora):
        text = corpus["train"] if train.kept is None else corpus["train"].select(train.kept)
    firsts = first_rows([len(part) for part in parts], train.kept) if parts else None
    validation_text = corpus.get("validation")
    return TextData(tokenizer, train, validation, validation_text, text, dropout, firsts)


def _make_tokenizer(
    recipe: Recipe, corpus: dict[str, Any], initial: PreTrainedTokenizerBase | None
) -> PreTrainedTokenizerBase:
    """The tokenizer of prepared data, initial model, recipe or an earlier start; else a new one."""
    output_dir = Path(recipe.train.output_dir)
    if recipe.data.prepared is not None:
        prepared = shards_tokenizer(Path(recipe.data.prepared))
        if initial is not None and initial.get_vocab() != prepared.get_vocab():
            name = recipe.train.initial_model
            raise ValueError(
                f"prepared={recipe.data.prepared!r} and initial_model={name!r} have different "
                f"tokenizers: prepare the corpus with --tokenizer {name}"
            )
        return prepared
    if initial is not None:
        return initial
    if recipe.data.tokenizer is not None:
        return load_saved(AutoTokenizer, recipe.data.tokenizer)
    if (output_dir / "tokenizer.json").is_file():
        return load_saved(AutoTokenizer, output_dir)
    logger.info("learning the vocabulary")
    config = recipe.config()
    tokenizer = train_tokenizer(
        (text for row in corpus["train"] for text in (row["source"], row["target"])),
        vocab_size=config.vocab_size,
        model_max_length=config.max_position_embeddings,
    )
    add_tags(tokenizer, recipe.data.corpora)
    return tokenizer


def _make_dropout(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> SubwordDropout | None:
    options: TranslationDataOptions = recipe.data
    if not options.bpe_dropout:
        return None
    seed, longest = recipe.train.seed, options.max_length
    return SubwordDropout(tokenizer, rate=options.bpe_dropout, seed=seed, max_length=longest)


def fingerprint(pairs: EncodedPairs) -> str:
    """Number of pairs and a hash of their ids, independent of the names of the files."""
    digest, count = hashlib.sha256(), len(pairs.rows)
    for lengths in (pairs.source_lengths, pairs.target_lengths):
        for first in range(0, count, FINGERPRINT_ROWS):  # a copy of all would take memory
            digest.update(lengths[first : first + FINGERPRINT_ROWS].astype(np.int64).tobytes())
    rows = pairs.rows.with_format("numpy")
    firsts = np.arange(0, count, ROWS_AT_ONCE)
    if count > FINGERPRINT_ROWS:
        runs = FINGERPRINT_ROWS // ROWS_AT_ONCE
        firsts = np.linspace(0, count - ROWS_AT_ONCE, runs, dtype=np.int64)
    for first in firsts.tolist():
        batch = rows[first : first + ROWS_AT_ONCE]
        for column in ("input_ids", "labels"):
            digest.update(np.concatenate(list(batch[column])).astype(np.int64).tobytes())
    return f"{count:,} pairs, {digest.hexdigest()[:16]}"


def load_initial_model(recipe: Recipe) -> tuple[PreTrainedModel, PreTrainedTokenizerBase] | None:
    """`initial_model` of a recipe, on the CPU, in float32, and its tokenizer; None: it names none.

    Raises:
        ValueError: it is no float model of this package, or the recipe's section `model` describes
            another one.
        OSError: there is no such model.
    """
    name = recipe.train.initial_model
    if name is None:
        return None
    what, device = f"initial_model={name!r}", torch.device("cpu")
    model, tokenizer = load_translator(name, dtype="float32", device=device, own=what)
    check_section(name, model.config, recipe.model)
    return model, tokenizer
