"""Text of a translation run: corpus, tokenizer, encoded pairs, fingerprints."""

import hashlib
import logging
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, IterableDataset, concatenate_datasets
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_vanilla.data.corpus import (
    BUILT_IN_CORPUS,
    built_in_corpus,
    pairs_from_dataset,
    pairs_from_files,
    stream_from_files,
    streams_from_dataset,
)
from hf_vanilla.loading import load_saved
from hf_vanilla.training.processes import MainProcessLogger
from hf_vanilla.training.recipe import Recipe

from .encoding import EncodedPairs, LengthLimits, encode_pairs
from .mixture import (
    add_tags,
    check_tags,
    first_rows,
    mixture_pairs,
    tagged_pairs,
)
from .options import TranslationDataOptions
from .token_shards import read_shards, shards_tokenizer, tokenizer_fingerprint
from .tokenizer_training import train_tokenizer

logger = MainProcessLogger(logging.getLogger(__name__), {})

# pairs of a stream's beginning from which a vocabulary is learned
VOCABULARY_PAIRS = 1_000_000
# pairs of a stream's beginning that enter its fingerprint
STREAM_FINGERPRINT_PAIRS = 10_000
# rows whose ids enter a fingerprint, at once and in all; of longer datasets evenly spaced runs of
# neighbours, since single rows would read every page of the file; and all lengths
ROWS_AT_ONCE, FINGERPRINT_ROWS = 1_000, 100_000


@dataclass(frozen=True)
class ValidationSet:
    """Pairs that validation measures.

    Attributes:
        pairs: encoded.
        text: rows of `source` and `target`, to be translated.
    """

    pairs: EncodedPairs
    text: Dataset


@dataclass(frozen=True)
class TextData:
    """Everything a translation run reads.

    Attributes:
        tokenizer: of both languages.
        train: encoded pairs; or a stream of text, encoded while it is read.
        validation: None where there are no validation pairs.
        train_text: rows of `source` and `target`, one per encoded pair; None unless BPE-dropout
            or noise reads them.
        firsts: `(C + 1,)` row at which each corpus of a mixture begins, and the number of rows;
            None without a mixture.
    """

    tokenizer: PreTrainedTokenizerBase
    train: EncodedPairs | IterableDataset
    validation: ValidationSet | None
    train_text: Dataset | None = None
    firsts: np.ndarray | None = None


def load_corpus(options: TranslationDataOptions) -> dict[str, Dataset | IterableDataset]:
    """Splits `train` and, where there is one, `validation`: rows of `source` and `target`.

    Where training pairs are prepared shards, there is no split `train`.

    Raises:
        ValueError: the data do not match the options.
        OSError: a file cannot be read.
    """
    if options.streaming:
        return _load_stream(options)
    if options.prepared is not None:
        files = options.validation_files
        return {} if files is None else {"validation": pairs_from_files(*files)}
    if options.train_files is not None:
        corpus = DatasetDict(train=pairs_from_files(*options.train_files))
        if options.validation_files is not None:
            corpus["validation"] = pairs_from_files(*options.validation_files)
        return corpus
    if options.dataset is None or options.dataset == BUILT_IN_CORPUS:
        return built_in_corpus()
    return pairs_from_dataset(
        options.dataset,
        config_name=options.dataset_config,
        source_column=options.source_column,
        target_column=options.target_column,
    )


def _with_validation(
    train: Dataset, options: TranslationDataOptions
) -> dict[str, Dataset | IterableDataset]:
    """The training pairs of a mixture, and the validation files."""
    files = options.validation_files
    return (
        {"train": train}
        if files is None
        else {
            "train": train,
            "validation": pairs_from_files(*files),
        }
    )


def _load_stream(options: TranslationDataOptions) -> dict[str, Dataset | IterableDataset]:
    """`train` as a stream; `validation` as a dataset, since it is read often."""
    if options.train_files is not None:
        corpus = {"train": stream_from_files(*options.train_files)}
        validation = options.validation_files and pairs_from_files(*options.validation_files)
        return {**corpus, "validation": validation} if validation else corpus
    splits = streams_from_dataset(
        options.dataset or BUILT_IN_CORPUS,
        config_name=options.dataset_config,
        source_column=options.source_column,
        target_column=options.target_column,
    )
    if "validation" in splits:
        return {**splits, "validation": Dataset.from_list([*splits["validation"]])}
    return splits


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
    logger.info("reading the corpus, learning the vocabulary")
    parts = mixture_pairs(options.corpora)
    if parts:
        corpus = _with_validation(concatenate_datasets(parts), options)
    else:
        corpus = load_corpus(options)
    tokenizer = _make_tokenizer(recipe, corpus, initial_tokenizer)
    if parts:
        check_tags(tokenizer, options.corpora)
        corpus["train"] = tagged_pairs(options.corpora, parts)
    encoded = {
        split: _encode(options, pairs, tokenizer, split)
        for split, pairs in corpus.items()
        if split == "validation" or (split == "train" and not options.streaming)
    }
    validation = None
    if "validation" in corpus:
        validation = ValidationSet(encoded["validation"], corpus["validation"])
    # mapped text takes memory once it was read, so only its ids are kept, if they suffice
    text = None
    if options.prepared is not None:
        train = read_shards(Path(options.prepared), _limits(options, "train"))
        _report("train", train, _limits(options, "train"))
    else:
        train = corpus["train"] if options.streaming else encoded["train"]
    kept = encoded["train"].kept if "train" in encoded else None
    if options.bpe_dropout or any(part.is_noisy for part in options.corpora):
        text = corpus["train"] if kept is None else corpus["train"].select(kept)
    firsts = first_rows([len(part) for part in parts], kept) if parts else None
    return TextData(tokenizer, train, validation, text, firsts)


def _encode(
    options: TranslationDataOptions, pairs: Dataset, tokenizer: PreTrainedTokenizerBase, split: str
) -> EncodedPairs:
    limits = _limits(options, split)
    encoded = encode_pairs(pairs, tokenizer, limits, workers=options.preprocessing_workers)
    _report(split, encoded, limits)
    return encoded


def _limits(options: TranslationDataOptions, split: str) -> LengthLimits:
    # the ratio cleans training data; validation stays whole
    return LengthLimits(options.max_length, options.max_length_ratio if split == "train" else None)


def _report(split: str, encoded: EncodedPairs, limits: LengthLimits) -> None:
    dropped = encoded.dropped.describe(limits)
    logger.info("%s: %d pairs; dropped: %s", split, len(encoded.rows), dropped)


def _make_tokenizer(
    recipe: Recipe, corpus: dict[str, Any], initial: PreTrainedTokenizerBase | None
) -> PreTrainedTokenizerBase:
    """The tokenizer of prepared data, initial model, recipe or an earlier start; else a new one."""
    output_dir = Path(recipe.train.output_dir)
    if recipe.data.prepared is not None:
        prepared = shards_tokenizer(Path(recipe.data.prepared))
        if initial is not None and initial.get_vocab() != prepared.get_vocab():
            name = recipe.data.initial_model
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
    config = recipe.config()
    rows = islice(corpus["train"], VOCABULARY_PAIRS if recipe.data.streaming else None)
    tokenizer = train_tokenizer(
        (text for row in rows for text in (row["source"], row["target"])),
        vocab_size=config.vocab_size,
        model_max_length=config.max_position_embeddings,
    )
    add_tags(tokenizer, recipe.data.corpora)
    return tokenizer


# --- fingerprints --------------------------------------------------------------------------------


def text_facts(data: TextData, options: TranslationDataOptions) -> dict[str, str]:
    """Fingerprints of training data, validation data and tokenizer."""
    facts = {}
    if isinstance(data.train, EncodedPairs):
        facts["training data"] = _fingerprint(data.train)
    else:
        facts["training data"] = _stream_fingerprint(data.train, options)
    if data.validation is not None:
        facts["validation data"] = _fingerprint(data.validation.pairs)
    facts["tokenizer"] = tokenizer_fingerprint(data.tokenizer)
    return facts


def _fingerprint(pairs: EncodedPairs) -> str:
    """Number of pairs and a hash of their ids, independent of the names of the files."""
    digest, count = hashlib.sha256(), len(pairs.rows)
    for lengths in (pairs.source_lengths, pairs.target_lengths):
        for first in range(0, count, FINGERPRINT_ROWS):  # a copy of all would take memory
            digest.update(lengths[first : first + FINGERPRINT_ROWS].astype(np.int64).tobytes())
    rows = pairs.rows.with_format("numpy")
    firsts = np.arange(0, count, ROWS_AT_ONCE)
    if count > FINGERPRINT_ROWS:
        firsts = np.linspace(
            0, count - ROWS_AT_ONCE, FINGERPRINT_ROWS // ROWS_AT_ONCE, dtype=np.int64
        )
    for first in firsts.tolist():
        batch = rows[first : first + ROWS_AT_ONCE]
        for column in ("input_ids", "labels"):
            digest.update(np.concatenate(list(batch[column])).astype(np.int64).tobytes())
    return f"{count:,} pairs, {digest.hexdigest()[:16]}"


def _stream_fingerprint(stream: IterableDataset, options: TranslationDataOptions) -> str:
    """Sizes and times of the files, and a hash of the first pairs: nobody reads all of a stream."""
    digest = hashlib.sha256()
    for path in options.train_files or ():
        stat = Path(path).stat()
        digest.update(f"{stat.st_size} {stat.st_mtime_ns}\n".encode())
    first = islice(stream, min(options.window_pairs, STREAM_FINGERPRINT_PAIRS))
    for row in first:
        digest.update(f"{row['source']}\t{row['target']}\n".encode(errors="surrogatepass"))
    return f"stream, {digest.hexdigest()[:16]}"
