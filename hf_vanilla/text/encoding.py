"""Text pairs to token ids, with the pairs that are not fit to train on dropped and counted.

Prepared ids are shards on disk, Arrow stream files of the columns of `ENCODED`. A shard is complete
or absent, so a stopped preparation continues where it was. Training maps the shards.

Shapes: N pairs.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, IterableDataset, Value, concatenate_datasets
from datasets import Sequence as ListOf
from datasets.fingerprint import Hasher
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_vanilla.files import digest_of, whole_file, write_files, write_text
from hf_vanilla.loading import load_saved
from hf_vanilla.options import Options, made_section, option

IDS, LENGTH = ListOf(Value("int32")), Value("int32")
ENCODED = Features(input_ids=IDS, labels=IDS, source_length=LENGTH, target_length=LENGTH)
# pairs that are encoded at once and stored together: with this many, a column of lengths fills
# whole pages and is read without touching the ids
ENCODED_AT_ONCE = 10_000
PREPARED = "prepared.json"
FORMAT = 1  # version of the files' meaning
MOST_PAIRS = 10**12
# what decides the ids of a `VanillaFairseqTokenizer` beside its backend
FAIRSEQ_SETTINGS = (
    *("source_vocab_size", "target_pieces", "source_lang", "target_lang"),
    *("use_moses", "do_lower_case", "normalize_punctuation"),
)


@dataclass(frozen=True)
class LengthLimits:
    """Which pairs are fit to train on.

    Attributes:
        max_length: tokens a side may have, `</s>` included.
        max_length_ratio: tokens of the longer side per token of the shorter side, `</s>` not
            counted; None allows any ratio. fairseq's recipes use 1.5.
    """

    max_length: int
    max_length_ratio: float | None = None

    def drop_reasons(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Why each pair is dropped: 0 it is kept, 1 a side is empty, 2 too long, 3 too unequal.

        Args:
            source: `(N,)` tokens of each source; 0 is an empty one.
            target: `(N,)` tokens of each target; 0 is an empty one.

        Returns:
            `(N,)` int8; the first reason where several apply.
        """
        short, long = np.minimum(source, target), np.maximum(source, target)
        reasons = np.zeros(len(short), dtype=np.int8)
        if self.max_length_ratio is not None:
            reasons[(long - 1) > self.max_length_ratio * (short - 1)] = 3
        reasons[long > self.max_length] = 2
        reasons[short == 0] = 1
        return reasons

    def dropped(self, reasons: np.ndarray) -> str:
        """How many pairs are dropped for each of the `drop_reasons`, in words."""
        _, empty, too_long, too_unequal = np.bincount(reasons, minlength=4).tolist()
        text = f"{empty} with an empty side, {too_long} longer than {self.max_length} tokens"
        if self.max_length_ratio is not None:
            text += f", {too_unequal} beyond a length ratio of {self.max_length_ratio}"
        return text


@dataclass(frozen=True)
class EncodedPairs:
    """Sentence pairs as token ids, memory-mapped if the text is.

    Attributes:
        rows: `input_ids` and `labels`, both ending in `</s>`.
        source_lengths: `(N,)` int32, tokens of each source.
        target_lengths: `(N,)` int32, tokens of each target.
        dropped: how many pairs are not among the rows and why, in words.
        kept: `(N,)` number of each row in the text; None where no pair was dropped.
    """

    rows: Dataset
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    dropped: str
    kept: np.ndarray | None = None


def encode_texts(
    tokenizer: PreTrainedTokenizerBase, batch: dict[str, list[str]]
) -> dict[str, list[Any]]:
    """Encode `source` as `input_ids` and `target` as `labels`; a blank text has length 0."""
    options = {"verbose": False, "return_attention_mask": False}
    sides = {
        "source": tokenizer(batch["source"], **options).input_ids,
        "target": tokenizer(text_target=batch["target"], **options).input_ids,
    }
    lengths = {
        f"{side}_length": [
            len(row) if text.strip() else 0 for text, row in zip(batch[side], rows, strict=True)
        ]
        for side, rows in sides.items()
    }
    return {"input_ids": sides["source"], "labels": sides["target"], **lengths}


def encode_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, limits: LengthLimits, *, workers: int = 1
) -> EncodedPairs:
    """Tokenize `source` and `target`, and drop the pairs outside the limits.

    The ids are stored in the cache of `datasets`, so a second call does not tokenize again.

    Args:
        pairs: rows of `source` and `target`.
        tokenizer: of both languages.
        limits: which pairs are kept.
        workers: processes that share the work.

    Raises:
        ValueError: no pair is left.
    """
    key = _fingerprint(pairs, tokenizer)
    rows = pairs.map(
        lambda batch: encode_texts(tokenizer, batch),
        batched=True,
        batch_size=ENCODED_AT_ONCE,
        writer_batch_size=ENCODED_AT_ONCE,
        remove_columns=pairs.column_names,
        features=ENCODED,
        num_proc=workers if workers > 1 else None,
        new_fingerprint=key,
        desc="Tokenizing",
    )
    return pairs_within(rows, limits, key)


def pairs_within(rows: Dataset, limits: LengthLimits, key: str) -> EncodedPairs:
    """The pairs within the limits.

    Args:
        rows: all pairs, with the columns of `ENCODED`.
        limits: which pairs are kept.
        key: of the rows in the cache of `datasets`.

    Raises:
        ValueError: no pair is left.
    """
    # Arrow columns to numpy directly: as Python lists they would need a hundred times the memory
    source, target = (
        rows.data.column(f"{side}_length").to_numpy() for side in ("source", "target")
    )
    reasons = limits.drop_reasons(source, target)
    dropped, keep = limits.dropped(reasons), reasons == 0
    if not keep.any():
        raise ValueError(f"no sentence pair to use: of {len(rows)}, {dropped}")
    if not keep.all():
        source, target = source[keep], target[keep]
        # filter() stores its row indices in a cache file; select() would hold them in memory
        rows = rows.filter(
            lambda source, target: limits.drop_reasons(np.array(source), np.array(target)) == 0,
            input_columns=["source_length", "target_length"],
            batched=True,
            batch_size=10 * ENCODED_AT_ONCE,
            new_fingerprint=Hasher.hash((key, limits)),
            desc="Dropping pairs",
        )
    return EncodedPairs(
        rows=rows.select_columns(["input_ids", "labels"]).with_format("numpy"),
        source_lengths=source,
        target_lengths=target,
        dropped=dropped,
        kept=None if keep.all() else np.flatnonzero(keep),
    )


def _fingerprint(pairs: Dataset, tokenizer: PreTrainedTokenizerBase) -> str:
    """A cache key that does not change when the tokenizer is used.

    `datasets` would hash the whole tokenizer, including padding and truncation of its last call.
    """
    state: Any = tokenizer
    if hasattr(tokenizer, "backend_tokenizer"):
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        state = {k: part for k, part in state.items() if k not in ("padding", "truncation")}
        state["class"] = type(tokenizer).__name__
        settings = tokenizer.init_kwargs
        state |= {name: settings[name] for name in FAIRSEQ_SETTINGS if name in settings}
    return Hasher.hash(("encode_pairs", pairs._fingerprint, state))


# --- shards on disk, which any number of processes or machines write once -------------------------


@dataclass(frozen=True, kw_only=True)
class Prepared(Options):
    """What the shards of a folder are."""

    format: int = option(FORMAT, "version of the files")
    pairs: int = option(text="sentence pairs of the corpus", at_least=1, at_most=MOST_PAIRS)
    pairs_per_shard: int = option(text="of every shard but the last", at_least=1)
    corpus: str = option(text="hash of some of its rows")
    tokenizer: str = option(text="number of entries and hash of the vocabulary")

    @property
    def shards(self) -> int:
        """Their number."""
        return -(-self.pairs // self.pairs_per_shard)

    def rows(self, shard: int) -> range:
        """Row numbers of a shard in the corpus."""
        first = shard * self.pairs_per_shard
        return range(first, min(first + self.pairs_per_shard, self.pairs))

    def path(self, folder: Path, shard: int) -> Path:
        """File of a shard."""
        return folder / f"shard-{shard:05d}-of-{self.shards:05d}.arrow"


def write_shards(
    pairs: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    pairs_per_shard: int,
    part: int = 1,
    parts: int = 1,
) -> Prepared:
    """Tokenize the shards of one part that do not exist yet, with a progress bar.

    Part i of n takes every n-th shard from shard i - 1 on, so n processes or machines divide the
    work without exchanging anything.

    Args:
        pairs: rows of `source` and `target`, the same in every part; they are read twice, in order.
        tokenizer: of both languages, the same in every part.
        folder: of the shards.
        pairs_per_shard: of every shard but the last.
        part: which part, from 1.
        parts: how many there are.

    Returns:
        What the shards of all parts are.

    Raises:
        ValueError: there are no pairs, or the folder has shards of another corpus, tokenizer or
            size.
        OSError: a file cannot be written.
    """
    count, corpus = _count_and_hash(pairs)
    prepared = Prepared(
        pairs=count,
        pairs_per_shard=pairs_per_shard,
        corpus=corpus,
        tokenizer=tokenizer_fingerprint(tokenizer),
    )
    mark = f".{part}"  # parts that start at once write the same files
    if (folder / PREPARED).is_file():
        _check_same(folder, prepared)
    else:
        write_files(folder, tokenizer.save_pretrained, mark=mark)
        text = json.dumps(asdict(prepared), indent=1)
        write_text(folder / PREPARED, f"{text}\n", mark=mark)
    shards, schema = range(part - 1, prepared.shards, parts), ENCODED.arrow_schema
    files = {prepared.path(folder, n): prepared.rows(n) for n in shards}
    total = sum(map(len, files.values()))
    following, read = _texts_of(pairs), 0
    with tqdm(total=total, desc="Tokenizing", unit="pair") as bar:
        for path, rows in files.items():
            if path.is_file():
                bar.update(len(rows))
                continue
            with (
                whole_file(path, mark=mark) as unfinished,
                pa.OSFile(str(unfinished), "wb") as file,
                pa.ipc.new_stream(file, schema) as writer,
            ):
                for first in range(rows.start, rows.stop, ENCODED_AT_ONCE):
                    last = min(first + ENCODED_AT_ONCE, rows.stop)
                    batch = zip(*islice(following, first - read, last - read), strict=True)
                    source, target = map(list, batch)
                    read = last
                    encoded = encode_texts(tokenizer, {"source": source, "target": target})
                    writer.write_table(pa.table(encoded, schema=schema))
                    bar.update(last - first)
    return prepared


def read_shards(folder: Path, limits: LengthLimits) -> EncodedPairs:
    """The pairs of all shards that are within the limits, mapped from disk.

    They are those of `encode_pairs`, in the same order.

    Raises:
        ValueError: the folder is not of `hf-vanilla prepare`, a shard is missing or cut, or no
            pair is left.
    """
    prepared = read_prepared(folder)
    files = {prepared.path(folder, n): len(prepared.rows(n)) for n in range(prepared.shards)}
    if missing := [path.name for path in files if not path.is_file()]:
        raise ValueError(
            f"{folder} lacks {len(missing)} of {prepared.shards} shards, the first is "
            f"{missing[0]}: run hf-vanilla prepare again, which writes what is missing"
        )
    parts = []
    for path, count in files.items():
        found, reason = None, ""
        try:
            parts.append(Dataset.from_file(str(path)))
            found = len(parts[-1])
        except (pa.ArrowInvalid, OSError) as error:
            reason = f" ({error})"
        if found != count:
            raise ValueError(
                f"{path} is damaged: it has {found or 'no'} readable pairs of {count}{reason}. "
                "Remove it and run hf-vanilla prepare again"
            )
    key = digest_of(json.dumps(asdict(prepared)))
    return pairs_within(concatenate_datasets(parts), limits, f"vanilla-shards-{key}")


def read_prepared(folder: Path) -> Prepared:
    """What the shards of a folder are.

    Raises:
        ValueError: the folder is not of `hf-vanilla prepare`, or of a newer version.
    """
    try:
        found = json.loads((folder / PREPARED).read_text(encoding="utf-8"))
        prepared: Prepared = made_section(Prepared, found, PREPARED)
    except FileNotFoundError:
        raise ValueError(f"{folder} has no {PREPARED}: give one of hf-vanilla prepare") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{folder / PREPARED} is damaged or of a newer version ({error}): prepare the corpus "
            "into another folder"
        ) from None
    if prepared.format != FORMAT:
        raise ValueError(
            f"{folder} has shards of format {prepared.format}, this version reads format {FORMAT}: "
            "prepare the corpus into another folder"
        )
    return prepared


def shards_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of the shards.

    Raises:
        ValueError: the folder is not of `hf-vanilla prepare`, or its tokenizer was replaced.
        OSError: the tokenizer is missing.
    """
    prepared = read_prepared(folder)
    tokenizer = load_saved(AutoTokenizer, folder)
    if (found := tokenizer_fingerprint(tokenizer)) != prepared.tokenizer:
        raise ValueError(
            f"the shards in {folder} are of a tokenizer with {prepared.tokenizer}, but the "
            f"tokenizer beside them has {found}: prepare the corpus into another folder"
        )
    return tokenizer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Number of entries and hash of the vocabulary."""
    entries = json.dumps(sorted(tokenizer.get_vocab().items()))
    return f"{len(tokenizer):,} entries, {digest_of(entries)}"


def _check_same(folder: Path, prepared: Prepared) -> None:
    """Refuse to continue shards of another corpus, tokenizer or size."""
    found = vars(read_prepared(folder))
    for name, value in vars(prepared).items():
        if found[name] != value:
            raise ValueError(
                f"{folder} has shards with {name}={found[name]!r}, but this run has {value!r}: "
                "choose another output"
            )


def _count_and_hash(pairs: Dataset | IterableDataset) -> tuple[int, str]:
    """Number of all rows, and their hash, which is the same on every machine."""
    digest, count = hashlib.sha256(), 0
    for texts in tqdm(_texts_of(pairs), desc="Counting", unit="pair"):
        digest.update(json.dumps(texts).encode())
        count += 1
    if not count:
        raise ValueError("there are no sentence pairs")
    return count, digest.hexdigest()[:16]


def _texts_of(pairs: Dataset | IterableDataset) -> Iterator[tuple[str, str]]:
    """Source and target of each row; rows are read in batches, which is faster."""
    for batch in pairs.iter(1000):
        yield from zip(batch["source"], batch["target"], strict=True)
