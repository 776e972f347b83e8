"""Parallel text as datasets of `source` and `target`: of files, the Hub, the built-in corpus."""

import json
import random
import uuid
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from stat import S_IROTH
from typing import Any

import datasets
from datasets import Dataset, DatasetDict, IterableDataset, load_from_disk
from datasets.exceptions import DatasetGenerationError

from hf_vanilla.files import digest_of
from hf_vanilla.loading import load_rows

from .lines import check_text_file, read_pairs

BUILT_IN_CORPUS = "numbers"
# the built-in corpus has all numbers below DENSE, and SPARSE larger ones
DENSE, SPARSE, LARGEST = 10_000, 40_000, 999_999
EVALUATION_PAIRS = 1_000  # of validation and of test
# numbers below 20, and tens from 20
ENGLISH = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
ENGLISH_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
GERMAN = (
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn",
    "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn",
    "neunzehn",
)  # fmt: skip
GERMAN_TENS = (
    *("zwanzig", "dreißig", "vierzig", "fünfzig"),
    *("sechzig", "siebzig", "achtzig", "neunzig"),
)


def pairs_from_files(
    source: str | Path, target: str | Path, *, is_stream: bool = False
) -> Dataset | IterableDataset:
    """The rows of `read_pairs` as a memory-mapped dataset in the cache of `datasets`, or a stream.

    Of files that not everyone may read, the cache is a folder that its owner alone can enter.

    Args:
        source: file of source sentences.
        target: file of their translations.
        is_stream: a stream is read on iteration, perhaps twice, and stored nowhere.

    Raises:
        ValueError: as `read_pairs`, or a file of a stream is a pipe.
        OSError: a file cannot be read.
    """
    facts, is_private = [], False
    for path in (check_text_file(source), check_text_file(target)):
        stat = path.stat()
        is_private |= not stat.st_mode & S_IROTH
        facts.append(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}")
        if not path.is_file():  # a pipe: its content is new each time
            if is_stream:
                raise ValueError(f"{path} is a pipe, but a stream is read twice: give a file")
            facts.append(uuid.uuid4().hex)
    files = {"source": str(source), "target": str(target)}
    if is_stream:
        return IterableDataset.from_generator(read_pairs, gen_kwargs=files)
    # size and time are in the cache key, so an edited file is read again
    key = digest_of("\n".join(facts))
    cache = Path(datasets.config.HF_DATASETS_CACHE)
    if is_private:
        cache /= "private"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        settings = {"fingerprint": f"vanilla-pairs-{key}", "cache_dir": str(cache)}
        return Dataset.from_generator(read_pairs, gen_kwargs=files, **settings)
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None


def pairs_from_dataset(
    name: str,
    *,
    config_name: str | None = None,
    source_column: str,
    target_column: str,
    is_stream: bool = False,
) -> dict[str, Any]:
    """Rows of `source` and `target` from a dataset of the Hub, or a folder of `save_to_disk`.

    The texts are in two columns (`bentrevett/multi30k`), or in one column `translation` that is a
    dict of languages (`wmt14`, `opus_books`).

    Args:
        name: Hub id or local folder.
        config_name: configuration of the dataset, such as `"de-en"`.
        source_column: name of the source column or language.
        target_column: name of the target column or language.
        is_stream: the splits are streams, which are read on iteration and stored nowhere.

    Returns:
        The splits that have rows, by name: a `DatasetDict`, or streams.

    Raises:
        ValueError: a column is missing or not text; the message lists the existing columns.
    """
    splits = _saved_splits(Path(name))
    if splits is None:
        splits = load_rows(name, config_name, streaming=is_stream)
    elif is_stream:
        splits = {split: rows.to_iterable_dataset() for split, rows in splits.items()}
    read = _two_columns_of_a_stream if is_stream else _two_columns
    pairs = {
        split: read(rows, (source_column, target_column))
        for split, rows in splits.items()
        if (any(True for _ in rows) if is_stream else len(rows))
    }
    if "train" not in pairs:
        found = ", ".join(pairs) or "none"
        raise ValueError(f"{name} has no split 'train' with rows; splits with rows: {found}")
    return pairs if is_stream else DatasetDict(pairs)


def _saved_splits(folder: Path) -> dict[str, Dataset] | None:
    """The splits of a folder of `save_to_disk` that have rows; None for anything else.

    Raises:
        ValueError: it is damaged.
        OSError: a file of it is missing.
    """
    listed = folder / "dataset_dict.json"
    if not listed.is_file() and not (folder / "state.json").is_file():
        return None
    found: dict[str, Dataset] = {}
    try:
        folders = {"train": folder}  # one Dataset, not a DatasetDict
        if listed.is_file():
            names = json.loads(listed.read_text(encoding="utf-8"))["splits"]
            folders = {name: folder / name for name in names}
        for name, path in folders.items():
            # load_from_disk() fails for splits without rows, which have no data file
            if json.loads((path / "state.json").read_text(encoding="utf-8"))["_data_files"]:
                found[name] = load_from_disk(str(path))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder} is damaged, or not written by save_to_disk ({error}): save it again"
        ) from None
    # datasets 4.3 writes files of splits without rows too
    return {name: rows for name, rows in found.items() if len(rows)}


def _is_nested(names: Collection[str], columns: tuple[str, str]) -> bool:
    """Whether the texts are in a dict of languages, in a column `translation`."""
    return "translation" in names and not set(columns) <= set(names)


def _two_columns(rows: Dataset, columns: tuple[str, str]) -> Dataset:
    if _is_nested(rows.column_names, columns):
        rows = rows.select_columns(["translation"]).flatten()  # one column for each language
        rows = rows.rename_columns(
            {name: name.removeprefix("translation.") for name in rows.column_names}
        )
    _check_columns(rows.column_names, columns)
    rows = rows.select_columns(list(columns))
    for name, feature in rows.features.items():
        if getattr(feature, "dtype", None) not in ("string", "large_string"):
            kind = getattr(feature, "dtype", type(feature).__name__)
            raise ValueError(f"column {name!r} contains {kind}, not text: choose another column")
    rows = rows.rename_columns(dict(zip(columns, ("source", "target"), strict=True)))
    if any(column.null_count for column in rows.data.columns):
        rows = rows.map(_without_none, desc="Replacing missing texts")
    return rows


def _two_columns_of_a_stream(rows: IterableDataset, columns: tuple[str, str]) -> IterableDataset:
    # a stream does not always know its columns, but its rows do
    first: dict[str, Any] = next(row for row in rows)
    is_nested = _is_nested(first, columns)
    texts = (row["translation"] for row in rows) if is_nested else [first]
    _check_columns(next(filter(None, texts), {}), columns)

    def two_columns(row: dict[str, Any]) -> dict[str, str]:
        texts = (row["translation"] or {}) if is_nested else row
        found = {name: texts.get(name) for name in columns}
        for name, text in found.items():
            if not isinstance(text, str | None):
                kind = type(text).__name__
                raise ValueError(f"column {name!r} contains {kind} {text!r}, not text")
        return _without_none({"source": found[columns[0]], "target": found[columns[1]]})

    return rows.map(two_columns, remove_columns=list(first.keys() - {"source", "target"}))


def _without_none(row: dict[str, Any]) -> dict[str, str]:
    """A missing text as an empty one, so that its pair is dropped and counted."""
    return {name: text or "" for name, text in row.items()}


def _check_columns(names: Collection[str], columns: tuple[str, str]) -> None:
    missing = set(columns) - set(names)
    if missing:
        raise ValueError(f"no column {', '.join(sorted(missing))}: choose among {', '.join(names)}")
    if len(set(columns)) == 1:
        raise ValueError(f"source_column and target_column are both {columns[0]!r}: give two")


def number_words(number: int) -> dict[str, str]:
    """A number below a million in English and in German words: "forty-two", "zweiundvierzig".

    Raises:
        ValueError: the number is negative or larger.
    """
    if not 0 <= number <= LARGEST:
        raise ValueError(f"{number} is not from 0 to {LARGEST:,}")
    english, german, _ = number_parts(number)
    text = english[0]
    for before, part in pairwise(english):
        text += ("-" if before in ENGLISH_TENS and part in ENGLISH else " ") + part
    return {"source": text, "target": "".join(german)}


def number_parts(number: int) -> tuple[list[str], list[str], set[tuple[int, int]]]:
    """The parts of a number below a million in English and in German, and their translations.

    Returns:
        English parts and German parts in their orders, and the pairs of part numbers that translate
        each other; "und" has none.
    """
    if number < 20:
        return [ENGLISH[number]], [GERMAN[number]], {(0, 0)}
    if number < 100:
        tens, ones = divmod(number, 10)
        ten, german_ten = ENGLISH_TENS[tens - 2], GERMAN_TENS[tens - 2]
        if not ones:
            return [ten], [german_ten], {(0, 0)}
        german_one = "ein" if ones == 1 else GERMAN[ones]
        return [ten, ENGLISH[ones]], [german_one, "und", german_ten], {(0, 2), (1, 0)}
    unit, *words = (1000, "thousand", "tausend") if number >= 1000 else (100, "hundred", "hundert")
    count, rest = divmod(number, unit)
    english, german, links = number_parts(count) if count > 1 else (["one"], ["ein"], {(0, 0)})
    links.add((len(english), len(german)))
    english, german = [*english, words[0]], [*german, words[1]]
    if rest:
        more_english, more_german, more = number_parts(rest)
        links |= {(i + len(english), j + len(german)) for i, j in more}
        english, german = [*english, *more_english], [*german, *more_german]
    return english, german, links


def built_in_numbers(seed: int = 0) -> dict[str, list[int]]:
    """The numbers of the built-in corpus by split; no two splits share one."""
    draw = random.Random(seed)
    numbers = [*range(DENSE), *draw.sample(range(DENSE, LARGEST + 1), SPARSE)]
    draw.shuffle(numbers)
    return {
        "test": numbers[:EVALUATION_PAIRS],
        "validation": numbers[EVALUATION_PAIRS : 2 * EVALUATION_PAIRS],
        "train": numbers[2 * EVALUATION_PAIRS :],
    }


def built_in_corpus(seed: int = 0) -> DatasetDict:
    """Numbers in English and German words: a small real translation task without a download.

    German writes a number as one word and swaps tens and units. Train, validation and test share
    no number; validation and test have 1,000 pairs each.
    """
    splits = built_in_numbers(seed).items()
    return DatasetDict(
        {split: Dataset.from_list([number_words(n) for n in part]) for split, part in splits}
    )
