"""A corpus as token ids on disk: shards that any number of processes or machines write once.

A shard is an Arrow stream file of the columns of `ENCODED`. It is complete or absent, so a stopped
preparation continues where it was. Training maps the shards; no process tokenizes.

Shapes: N pairs.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset, concatenate_datasets
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_vanilla.file_values import checked, shown
from hf_vanilla.files import digest_of, whole_file, write_files, write_text
from hf_vanilla.loading import load_saved

from .encoding import (
    ENCODED,
    ENCODED_AT_ONCE,
    EncodedPairs,
    LengthLimits,
    encode_texts,
    pairs_within,
)

logger = logging.getLogger(__name__)

PREPARED = "prepared.json"
FORMAT = 1  # version of the files' meaning
MOST_PAIRS = 10**12
SAMPLED_ROWS = 1_000  # rows of text in a corpus's fingerprint, evenly spaced


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the shards of a folder are.

    Attributes:
        format: version of the files.
        pairs: sentence pairs of the corpus.
        pairs_per_shard: of every shard but the last.
        corpus: hash of some of its rows.
        tokenizer: number of entries and hash of the vocabulary.
    """

    format: int = FORMAT
    pairs: int
    pairs_per_shard: int
    corpus: str
    tokenizer: str

    @property
    def shards(self) -> int:
        """Their number."""
        return len(shards_of_part(self.pairs, self.pairs_per_shard))

    def rows(self, shard: int) -> range:
        """Row numbers of a shard in the corpus."""
        first = shard * self.pairs_per_shard
        return range(first, min(first + self.pairs_per_shard, self.pairs))

    def path(self, folder: Path, shard: int) -> Path:
        """File of a shard."""
        return folder / f"shard-{shard:05d}-of-{self.shards:05d}.arrow"


class StreamedPairs:
    """Rows of a stream of unknown length, counted and then read forwards by slices.

    Args:
        rows: of `source` and `target`.

    Raises:
        ValueError: there are none.
    """

    def __init__(self, rows: IterableDataset) -> None:
        self._rows = rows
        self._iterator: Iterator[dict[str, str]] = iter(())
        self._following: int | None = None
        digest, self._count = hashlib.sha256(), 0
        for row in tqdm(rows, desc="Counting", unit="pair"):
            digest.update(json.dumps([row["source"], row["target"]]).encode())
            self._count += 1
        if not self._count:
            raise ValueError("the stream has no sentence pairs")
        self.fingerprint = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: slice) -> dict[str, list[str]]:
        if rows.start != self._following:
            self._iterator = iter(self._rows.skip(rows.start))
        read = list(islice(self._iterator, rows.stop - rows.start))
        self._following = rows.stop
        return {side: [row[side] for row in read] for side in ("source", "target")}


def shards_of_part(pairs: int, pairs_per_shard: int, part: int = 1, parts: int = 1) -> range:
    """Numbers of the shards that a part writes, of n parts every n-th; parts count from 1."""
    return range(part - 1, -(-pairs // pairs_per_shard), parts)


def write_shards(
    pairs: Dataset | StreamedPairs,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    pairs_per_shard: int,
    part: int = 1,
    parts: int = 1,
) -> Iterator[int]:
    """Tokenize the shards of one part that do not exist yet; yields the number of each of the part.

    Part i of n takes every n-th shard from shard i - 1 on, so n processes or machines divide the
    work without exchanging anything.

    Args:
        pairs: rows of `source` and `target`, the same in every part.
        tokenizer: of both languages, the same in every part.
        folder: of the shards.
        pairs_per_shard: of every shard but the last.
        part: which part, from 1.
        parts: how many there are.

    Raises:
        ValueError: the folder has shards of another corpus, tokenizer or size.
        OSError: a file cannot be written.
    """
    prepared = Prepared(
        pairs=len(pairs),
        pairs_per_shard=pairs_per_shard,
        corpus=_corpus_fingerprint(pairs),
        tokenizer=tokenizer_fingerprint(tokenizer),
    )
    if (folder / PREPARED).is_file():
        _check_same(folder, prepared)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder, tokenizer.save_pretrained)
        write_text(folder / PREPARED, json.dumps(asdict(prepared), indent=1) + "\n")
    for shard in shards_of_part(len(pairs), pairs_per_shard, part, parts):
        path = prepared.path(folder, shard)
        if not path.is_file():
            with whole_file(path, mark=f".{part}") as unfinished:
                _write_shard(unfinished, pairs, prepared.rows(shard), tokenizer)
        yield shard


def read_shards(folder: Path, limits: LengthLimits) -> EncodedPairs:
    """The pairs of all shards that are within the limits, mapped from disk.

    They are those of `encode_pairs`, in the same order.

    Raises:
        ValueError: the folder is not of `hf-vanilla prepare`, a shard is missing or cut, or no
            pair is left.
    """
    prepared = read_prepared(folder)
    missing = [n for n in range(prepared.shards) if not prepared.path(folder, n).is_file()]
    if missing:
        raise ValueError(
            f"{folder} lacks {len(missing)} of {prepared.shards} shards, the first is "
            f"{prepared.path(folder, missing[0]).name}: run hf-vanilla prepare again, which writes "
            "what is missing"
        )
    parts = [
        _read_shard(prepared.path(folder, shard), len(prepared.rows(shard)))
        for shard in range(prepared.shards)
    ]
    key = digest_of(json.dumps(asdict(prepared)))
    return pairs_within(concatenate_datasets(parts), limits, f"vanilla-shards-{key}")


def read_prepared(folder: Path) -> Prepared:
    """What the shards of a folder are.

    Raises:
        ValueError: the folder is not of `hf-vanilla prepare`, or of a newer version.
    """
    try:
        found = json.loads((folder / PREPARED).read_text(encoding="utf-8"))
        prepared = Prepared(**found)
        for name, kind in get_type_hints(Prepared).items():
            value = checked(getattr(prepared, name), kind, name)
            if kind is int and not 0 < value <= MOST_PAIRS:
                raise ValueError(f"{name} is {shown(value)}")
    except FileNotFoundError:
        raise ValueError(
            f"{folder} has no {PREPARED}: give a folder of hf-vanilla prepare"
        ) from None
    except (ValueError, TypeError, RecursionError) as error:
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


# --- inside ------------------------------------------------------------------------------------


def _write_shard(
    path: Path, pairs: Dataset | StreamedPairs, rows: range, tokenizer: PreTrainedTokenizerBase
) -> None:
    schema = ENCODED.arrow_schema
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for first in range(rows.start, rows.stop, ENCODED_AT_ONCE):
            texts = pairs[first : min(first + ENCODED_AT_ONCE, rows.stop)]
            writer.write_table(pa.table(encode_texts(tokenizer, texts), schema=schema))


def _read_shard(path: Path, count: int) -> Dataset:
    try:
        rows = Dataset.from_file(str(path))
        found = len(rows)
    except (pa.ArrowInvalid, OSError) as error:
        found, reason = None, f" ({error})"
    else:
        reason = ""
    if found != count:
        raise ValueError(
            f"{path} is damaged: it has {found or 'no'} readable pairs of {count}{reason}. Remove "
            "it and run hf-vanilla prepare again"
        )
    return rows


def _check_same(folder: Path, wanted: Prepared) -> None:
    found = asdict(read_prepared(folder))
    for name, value in asdict(wanted).items():
        if found[name] != value:
            raise ValueError(
                f"{folder} has shards with {name}={found[name]!r}, but this run has {value!r}: "
                "choose another output"
            )


def _corpus_fingerprint(pairs: Dataset | StreamedPairs) -> str:
    """Hash of some rows, or of all rows of a stream; the same on every machine."""
    if isinstance(pairs, StreamedPairs):
        return pairs.fingerprint
    rows = np.unique(np.linspace(0, len(pairs) - 1, SAMPLED_ROWS).astype(np.int64))
    texts = pairs[rows.tolist()]
    return digest_of(json.dumps([texts["source"], texts["target"]]))
