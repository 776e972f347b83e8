"""What a run stands on: its folder, its corpus, its tokenizer, its rows of ids."""

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from datasets import Dataset, DatasetDict, IterableDataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_vanilla.data.corpus import (
    BUILT_IN_CORPUS,
    built_in_corpus,
    pairs_from_dataset,
    pairs_from_files,
    stream_from_files,
    streams_from_dataset,
)
from hf_vanilla.data.encoding import EncodedPairs, LengthLimits, encode_pairs
from hf_vanilla.data.tokenizer_training import train_tokenizer
from hf_vanilla.files import PARTIAL, write_files
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.recipes.recipe import Recipe, TrainRecipe, read_recipe

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.yaml"
# a run may go on with other values of these; any other change makes it another run
FREE_TO_CHANGE = {"output_dir", "max_steps", "eval_steps", "eval_sentences", "save_steps"}
FREE_TO_CHANGE |= {"save_total_limit", "logging_steps", "average_checkpoints", "average_best"}
FREE_TO_CHANGE |= {"patience", "use_cpu", "model_license", "compile", "gradient_checkpointing"}
FREE_TO_CHANGE |= {"trackers", "preprocessing_workers"}
# of a stream's beginning, from which a vocabulary is learned
VOCABULARY_PAIRS = 1_000_000
# rows whose ids enter a fingerprint, at once and in all; of longer sets runs of neighbours, evenly
# spaced, since rows here and there would read every page of the file; and every length
ROWS_AT_ONCE, FINGERPRINT_ROWS = 1_000, 100_000


@dataclass(frozen=True)
class HeldOut:
    """What a run is measured on.

    Attributes:
        pairs: as ids.
        text: rows of `source` and `target`, to be translated.
    """

    pairs: EncodedPairs
    text: Dataset


@dataclass(frozen=True)
class RunData:
    """What a run reads.

    Attributes:
        tokenizer: of both languages.
        train: encoded pairs; or a stream of text, encoded while it is read.
        validation: pairs held out; None where there are none.
    """

    tokenizer: PreTrainedTokenizerBase
    train: EncodedPairs | IterableDataset
    validation: HeldOut | None


def load_corpus(recipe: TrainRecipe) -> dict[str, Dataset | IterableDataset]:
    """Splits `train` and, where the recipe names one, `validation`, of `source` and `target`.

    Raises:
        ValueError: the data is not what the recipe says.
        OSError: a file cannot be read.
    """
    if recipe.streaming:
        return _load_stream(recipe)
    if recipe.train_files is not None:
        corpus = DatasetDict(train=pairs_from_files(*recipe.train_files))
        if recipe.validation_files is not None:
            corpus["validation"] = pairs_from_files(*recipe.validation_files)
        return corpus
    if recipe.dataset is None or recipe.dataset == BUILT_IN_CORPUS:
        return built_in_corpus()
    return pairs_from_dataset(
        recipe.dataset,
        config_name=recipe.dataset_config,
        source_column=recipe.source_column,
        target_column=recipe.target_column,
    )


def _load_stream(recipe: TrainRecipe) -> dict[str, Dataset | IterableDataset]:
    """`train` as a stream; `validation` as a set, since it is gone through often."""
    if recipe.train_files is not None:
        corpus = {"train": stream_from_files(*recipe.train_files)}
        held_out = recipe.validation_files and pairs_from_files(*recipe.validation_files)
        return {**corpus, "validation": held_out} if held_out else corpus
    splits = streams_from_dataset(
        recipe.dataset or BUILT_IN_CORPUS,
        config_name=recipe.dataset_config,
        source_column=recipe.source_column,
        target_column=recipe.target_column,
    )
    if "validation" in splits:
        return {**splits, "validation": Dataset.from_list([*splits["validation"]])}
    return splits


def prepare_data(recipe: Recipe, accelerator: Accelerator) -> RunData:
    """Read the corpus, learn or load the vocabulary, encode; the main process first.

    Raises:
        ValueError: the folder holds another run, or the data is not what the recipe says.
        OSError: data cannot be read, or the folder not written.
    """
    output_dir, is_main = Path(recipe.train.output_dir), accelerator.is_main_process
    if is_main:
        logger.info("reading the corpus, learning the vocabulary")
    with accelerator.main_process_first():
        check_folder(recipe, output_dir)
        corpus = load_corpus(recipe.train)
        if "validation" not in corpus:
            _check_needs_no_validation(recipe.train)
        if is_main:
            output_dir.mkdir(parents=True, exist_ok=True)
            text = recipe.to_yaml()
            write_files(
                output_dir, lambda new: (new / RECIPE_FILE).write_text(text, encoding="utf-8")
            )
        tokenizer = _make_tokenizer(recipe, corpus, is_main=is_main)
        encoded = {
            split: _encode(recipe.train, pairs, tokenizer, split, is_main=is_main)
            for split, pairs in corpus.items()
            if split == "validation" or (split == "train" and not recipe.train.streaming)
        }
    held_out = None
    if "validation" in corpus:
        held_out = HeldOut(encoded["validation"], corpus["validation"])
    # a set that is mapped takes memory where its text has been read, so only its ids go on
    train = corpus["train"] if recipe.train.streaming else encoded["train"]
    return RunData(tokenizer, train, held_out)


def _encode(
    options: TrainRecipe,
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    split: str,
    *,
    is_main: bool,
) -> EncodedPairs:
    # what is held out stays whole: a ratio is for cleaning what is learned from
    ratio = options.max_length_ratio if split == "train" else None
    limits = LengthLimits(options.max_length, ratio)
    encoded = encode_pairs(pairs, tokenizer, limits, workers=options.preprocessing_workers)
    if is_main:
        told = encoded.dropped.describe(limits)
        logger.info("%s: %d pairs; left out: %s", split, len(encoded.rows), told)
    return encoded


def _make_tokenizer(
    recipe: Recipe, corpus: dict[str, Any], *, is_main: bool
) -> PreTrainedTokenizerBase:
    output_dir = Path(recipe.train.output_dir)
    if recipe.train.tokenizer is not None:
        return AutoTokenizer.from_pretrained(recipe.train.tokenizer)
    if (output_dir / "tokenizer.json").is_file():
        return AutoTokenizer.from_pretrained(output_dir)
    config = recipe.config()
    rows = islice(corpus["train"], VOCABULARY_PAIRS if recipe.train.streaming else None)
    tokenizer = train_tokenizer(
        (text for row in rows for text in (row["source"], row["target"])),
        vocab_size=config.vocab_size,
        model_max_length=config.max_position_embeddings,
    )
    if is_main:
        write_files(output_dir, tokenizer.save_pretrained)
    return tokenizer


def config_for(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> VanillaConfig:
    """The recipe's config with what only the tokenizer knows."""
    return recipe.config(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )


def _check_needs_no_validation(options: TrainRecipe) -> None:
    for name, value in (("patience", options.patience), ("average_best", options.average_best)):
        if value:
            raise ValueError(f"{name}={value} needs a validation set, and the data has none")


# --- one folder, one run -----------------------------------------------------------------------


def check_folder(recipe: Recipe, output_dir: Path) -> None:
    """Refuse to mix two runs in one folder.

    Raises:
        ValueError: the folder holds a run of another recipe, or something that is no run.
    """
    written = output_dir / RECIPE_FILE
    if written.is_file():
        before = read_recipe(["--recipe", str(written)])
        earlier = {**asdict(before.train), "model": before.model}
        now = {**asdict(recipe.train), "model": recipe.model}
        changed = {n for n in now if earlier[n] != now[n]} - FREE_TO_CHANGE
        if changed:
            told = ", ".join(f"{n} ({earlier[n]!r}, now {now[n]!r})" for n in sorted(changed))
            raise ValueError(
                f"{output_dir} holds a run of another recipe, which differs in {told}: choose "
                "another output_dir, or delete the folder to start anew"
            )
    elif output_dir.is_dir() and [p for p in output_dir.iterdir() if p.suffix != PARTIAL]:
        raise ValueError(
            f"{output_dir} is not empty and holds no run to go on with: choose another output_dir"
        )


def run_facts(data: RunData, config: VanillaConfig) -> dict[str, Any]:
    """What a checkpoint is worth nothing without: names and values that must stay as they are."""
    facts: dict[str, Any] = {}
    if isinstance(data.train, EncodedPairs):  # nobody has seen all of a stream
        facts["training data"] = _fingerprint(data.train)
    if data.validation is not None:
        facts["validation data"] = _fingerprint(data.validation.pairs)
    facts["tokenizer"] = _tokenizer_fingerprint(data.tokenizer)
    known = VanillaConfig().to_dict().keys() - {"transformers_version", "architectures", "dtype"}
    # as JSON gives it back
    return json.loads(
        json.dumps({**facts, "config": {n: v for n, v in config.to_dict().items() if n in known}})
    )


def check_facts(before: dict[str, Any], now: dict[str, Any], checkpoint: Path) -> None:
    """Refuse to go on from a checkpoint that was made with other data, tokenizer or config.

    Args:
        before: `run_facts` of the checkpoint; empty where it was written without.
        now: those of this run.
        checkpoint: for the message.

    Raises:
        ValueError: something differs; the message says what.
    """
    flat = [
        {**{n: v for n, v in facts.items() if n != "config"}, **facts.get("config", {})}
        for facts in (before, now)
    ]
    changed = [
        f"{name} ({flat[0][name]}, now {flat[1].get(name)})"
        for name in flat[0]
        if flat[0][name] != flat[1].get(name)
    ]
    if changed:
        raise ValueError(
            f"{checkpoint} was made with other {', '.join(changed)}: put back what it was made "
            "with, or choose another output_dir to start anew"
        )


def _fingerprint(pairs: EncodedPairs) -> str:
    """Number of pairs and a hash of their ids, whatever the files are called."""
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


def _tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Size of the vocabulary and a hash of it; what text becomes is in the data's fingerprint."""
    entries = json.dumps(sorted(tokenizer.get_vocab().items()))
    return f"{len(tokenizer):,} entries, {hashlib.sha256(entries.encode()).hexdigest()[:16]}"
