"""Parallel text to rows: line by line, both sides together, and errors that name the file."""

import gzip
import os
import threading
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict, Features, Translation, Value
from num2words import num2words

from hf_vanilla.data.corpus import (
    DENSE,
    EVALUATION_PAIRS,
    SPARSE,
    built_in_corpus,
    number_words,
    pairs_from_dataset,
    pairs_from_files,
)
from hf_vanilla.data.lines import LONGEST_LINE, read_lines, read_pairs

GERMAN = "ein Haus am See\ndas große Haus\nam See\n"
ENGLISH = "a house by the lake\nthe big house\nby the lake\n"


@pytest.fixture(params=["plain", "gz"])
def write(request, tmp_path):
    """Returns a function that writes bytes to a file, plain or compressed, and returns its path."""

    def to_file(name, content):
        content = content if isinstance(content, bytes) else content.encode("utf-8")
        if request.param == "plain":
            path = tmp_path / name
            path.write_bytes(content)
        else:
            path = tmp_path / f"{name}.gz"
            path.write_bytes(gzip.compress(content))
        return path

    return to_file


# --- lines ----------------------------------------------------------------------------------------


def test_only_a_line_feed_ends_a_line(write):
    cases = [
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\n\n b \n", ["a", "", " b "]),
        ("a\u2028b\nc\x0bd\x85e\n", ["a\u2028b", "c\x0bd\x85e"]),
        ("a\rb\n", ["a\rb"]),
        ("", []),
        ("\n", [""]),
    ]
    for content, lines in cases:
        assert list(read_lines(write("text", content))) == lines


def test_a_byte_that_is_not_utf8_is_an_error_with_file_and_line(write):
    path = write("text", b"gut\nGr\xfc\xdfe\n")
    with pytest.raises(ValueError, match=r"line 2: byte 3 is not UTF-8; .* iconv") as caught:
        list(read_lines(path))
    assert str(path) in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.txt"):
        list(read_lines(tmp_path / "nowhere.txt"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-9], "is incomplete: its compressed data has no end"),
        (lambda content: content[:-8] + bytes(4) + content[-4:], "is damaged .*: CRC check failed"),
        (lambda content: content[:30] + b"\xff" * 9 + content[39:], "is damaged .*: Error -3"),
        (lambda _: b"plain text\n", "is damaged or no gzip file: Not a gzipped file"),
    ],
    ids=["incomplete", "wrong checksum", "damaged", "plain text"],
)
def test_a_bad_gz_file_is_an_error_with_its_name(tmp_path, damage, message):
    path = tmp_path / "bad.gz"
    path.write_bytes(damage(gzip.compress(GERMAN.encode() * 99)))
    with pytest.raises(OSError, match=rf"bad\.gz {message}"):
        list(read_lines(path))
    with pytest.raises(OSError, match=rf"bad\.gz {message}"):
        pairs_from_files(path, path)


# --- pairs ----------------------------------------------------------------------------------------


def test_line_i_stays_with_line_i(write):
    pairs = list(read_pairs(write("de", GERMAN), write("en", ENGLISH)))
    assert [pair["source"] for pair in pairs] == GERMAN.splitlines()
    assert [pair["target"] for pair in pairs] == ENGLISH.splitlines()


def test_a_line_separator_inside_a_sentence_does_not_shift_the_sides(write):
    pairs = list(read_pairs(write("de", "a\u2028b\nc\n"), write("en", "A\r\nC\r\n")))
    assert pairs == [{"source": "a\u2028b", "target": "A"}, {"source": "c", "target": "C"}]


@pytest.mark.parametrize("short_side", ["source", "target"])
def test_sides_of_unequal_length_are_an_error_with_line_and_both_files(write, short_side):
    long, short = write("long", "a\nb\nc\n"), write("short", "A\nB\n")
    files = (short, long) if short_side == "source" else (long, short)
    with pytest.raises(ValueError, match="line 3 has no translation") as caught:
        list(read_pairs(*files))
    assert f"{short} ends after line 2" in str(caught.value)
    assert f"{long} has more lines" in str(caught.value)


def test_two_empty_files_are_an_error(write):
    with pytest.raises(ValueError, match="are empty: no sentence pairs"):
        list(read_pairs(write("de", ""), write("en", "")))


def test_one_empty_file_is_an_error(write):
    with pytest.raises(ValueError, match="ends after line 0"):
        list(read_pairs(write("de", ""), write("en", "a\n")))


# --- files as a dataset ---------------------------------------------------------------------------


def test_files_become_rows_in_order(write):
    rows = pairs_from_files(write("de", GERMAN), write("en", ENGLISH))
    assert rows.column_names == ["source", "target"]
    assert rows["source"][:] == GERMAN.splitlines()
    assert rows["target"][:] == ENGLISH.splitlines()


def test_an_edited_file_is_read_again(write):
    files = write("de", GERMAN), write("en", ENGLISH)
    assert pairs_from_files(*files)["target"][1] == "the big house"
    edited = write("en", ENGLISH.replace("big", "red"))  # as long as before
    later = files[1].stat().st_mtime_ns + 1_000_000
    os.utime(edited, ns=(later, later))
    assert pairs_from_files(*files)["target"][1] == "the red house"


def test_two_pairs_of_files_have_separate_caches(write):
    german, english = write("de", GERMAN), write("en", ENGLISH)
    assert pairs_from_files(german, english)["source"][0] == "ein Haus am See"
    assert pairs_from_files(english, german)["source"][0] == "a house by the lake"


def test_errors_pass_through_the_datasets_library(write):
    with pytest.raises(ValueError, match="line 4 has no translation"):
        pairs_from_files(write("de", GERMAN), write("en", ENGLISH + "more\n"))
    with pytest.raises(ValueError, match="line 1: byte 1 is not UTF-8"):
        pairs_from_files(write("de", b"\xff\n"), write("en", "a\n"))


def test_a_missing_file_is_an_error_before_reading(write, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        pairs_from_files(write("de", GERMAN), tmp_path / "nowhere")


def test_a_pipe_is_read_once_and_a_stream_refuses_it(write, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for text in (GERMAN, GERMAN.replace("groß", "klein")):  # the same name, other content
        writer = threading.Thread(
            target=pipe.write_text, args=(text,), kwargs={"encoding": "utf-8"}
        )
        writer.start()
        rows = pairs_from_files(pipe, write("en", ENGLISH))
        writer.join(timeout=30)
        assert rows["source"][:] == text.splitlines()
    with pytest.raises(ValueError, match="pipe is a pipe, but a stream is read twice"):
        pairs_from_files(pipe, write("en", ENGLISH), is_stream=True)


def test_a_folder_as_text_file_is_an_error(write, tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder: give a text file"):
        pairs_from_files(write("de", GERMAN), tmp_path)


# --- datasets -------------------------------------------------------------------------------------


@pytest.fixture(params=["columns", "translation", "translation feature"])
def saved_set(request, tmp_path):
    pairs = [
        {"de": de, "en": en} for de, en in zip(GERMAN.split("\n"), ENGLISH.split("\n"), strict=True)
    ]
    rows = [{"translation": pair} for pair in pairs] if request.param == "translation" else pairs
    features = None
    if request.param == "translation feature":  # as in WMT datasets
        rows = [{"translation": pair} for pair in pairs]
        features = Features({"translation": Translation(languages=["de", "en"])})
    splits = {"train": rows[:2], "validation": rows[2:3]}
    splits = {name: Dataset.from_list(part, features=features) for name, part in splits.items()}
    DatasetDict(splits).save_to_disk(tmp_path / "set")
    return str(tmp_path / "set")


def test_columns_and_translation_dicts_become_the_same_rows(saved_set):
    corpus = pairs_from_dataset(saved_set, source_column="en", target_column="de")
    assert corpus["train"].to_list() == [
        {"source": "a house by the lake", "target": "ein Haus am See"},
        {"source": "the big house", "target": "das große Haus"},
    ]
    assert corpus["validation"].to_list() == [{"source": "by the lake", "target": "am See"}]


@pytest.mark.parametrize("is_stream", [False, True])
def test_one_column_for_both_sides_is_refused(saved_set, is_stream):
    columns = {"source_column": "en", "target_column": "en"}
    with pytest.raises(ValueError, match="source_column and target_column are both 'en': give two"):
        pairs_from_dataset(saved_set, **columns, is_stream=is_stream)


def test_wrong_columns_are_an_error_with_the_existing_columns(saved_set):
    with pytest.raises(ValueError, match="no column fr, source: choose among de, en"):
        pairs_from_dataset(saved_set, source_column="source", target_column="fr")


def test_other_columns_are_dropped(tmp_path):
    row = {"id": 3, "target": "wrong", "en": "a house", "de": "ein Haus"}
    DatasetDict(train=Dataset.from_list([row])).save_to_disk(tmp_path / "set")
    corpus = pairs_from_dataset(str(tmp_path / "set"), source_column="en", target_column="de")
    assert corpus["train"].to_list() == [{"source": "a house", "target": "ein Haus"}]


def read_both_ways(splits, tmp_path):
    """The training rows of a saved dataset, from disk and as a stream, which must be equal."""
    DatasetDict(splits).save_to_disk(tmp_path / "set")
    columns = {"source_column": "en", "target_column": "de"}
    rows = pairs_from_dataset(str(tmp_path / "set"), **columns)["train"].to_list()
    stream = pairs_from_dataset(str(tmp_path / "set"), **columns, is_stream=True)
    assert list(stream["train"]) == rows
    return rows


PAIR = {"en": "a house", "de": "ein Haus"}
PAIR_ROW = {"source": "a house", "target": "ein Haus"}


@pytest.mark.parametrize("has_feature", [True, False])
def test_other_columns_beside_translation_are_dropped(tmp_path, has_feature):
    """The layout of opus_books and kde4."""
    feature = {"id": Value("string"), "translation": Translation(languages=["de", "en"])}
    features = Features(feature) if has_feature else None
    rows = Dataset.from_list([{"id": "0", "translation": PAIR}], features=features)
    assert read_both_ways({"train": rows}, tmp_path) == [PAIR_ROW]


def test_missing_texts_are_empty_texts(tmp_path):
    rows = Dataset.from_list([PAIR, {"en": None, "de": "ein Boot"}])
    expected = [PAIR_ROW, {"source": "", "target": "ein Boot"}]
    assert read_both_ways({"train": rows}, tmp_path) == expected


def test_missing_translations_are_empty_texts(tmp_path):
    rows = Dataset.from_list([{"translation": None}, {"translation": PAIR}])
    assert read_both_ways({"train": rows}, tmp_path) == [{"source": "", "target": ""}, PAIR_ROW]


def test_a_column_of_numbers_is_an_error_with_its_name(tmp_path):
    DatasetDict(train=Dataset.from_list([{**PAIR, "de": 7}])).save_to_disk(tmp_path / "set")
    columns = {"source_column": "en", "target_column": "de"}
    with pytest.raises(ValueError, match="column 'de' contains int64, not text"):
        pairs_from_dataset(str(tmp_path / "set"), **columns)
    with pytest.raises(ValueError, match="column 'de' contains int 7, not text"):
        list(pairs_from_dataset(str(tmp_path / "set"), **columns, is_stream=True)["train"])


def test_a_folder_of_one_saved_dataset_is_the_training_split(tmp_path):
    Dataset.from_list([PAIR]).save_to_disk(tmp_path / "set")
    columns = {"source_column": "en", "target_column": "de"}
    corpus = pairs_from_dataset(str(tmp_path / "set"), **columns)
    assert {split: rows.to_list() for split, rows in corpus.items()} == {"train": [PAIR_ROW]}
    stream = pairs_from_dataset(str(tmp_path / "set"), **columns, is_stream=True)
    assert list(stream["train"]) == [PAIR_ROW]


def test_a_split_without_rows_counts_as_missing(tmp_path):
    train, empty = Dataset.from_list([PAIR]), Dataset.from_dict({"en": [], "de": []})
    DatasetDict(train=train, validation=empty).save_to_disk(tmp_path / "set")
    columns = {"source_column": "en", "target_column": "de"}
    for is_stream in (False, True):
        corpus = pairs_from_dataset(str(tmp_path / "set"), **columns, is_stream=is_stream)
        assert list(corpus) == ["train"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_dataset_without_train_is_an_error_with_its_splits(tmp_path, is_stream):
    DatasetDict(test=Dataset.from_list([PAIR])).save_to_disk(tmp_path / "set")
    with pytest.raises(ValueError, match="has no split 'train' with rows; splits with rows: test"):
        pairs_from_dataset(
            str(tmp_path / "set"), source_column="en", target_column="de", is_stream=is_stream
        )


@pytest.mark.parametrize("name", ["dataset_dict.json", "state.json", "*.arrow"])
def test_a_damaged_folder_is_named(name, tmp_path):
    DatasetDict(train=Dataset.from_list([PAIR])).save_to_disk(tmp_path / "set")
    (path,) = (tmp_path / "set").rglob(name)
    path.write_bytes(b"")
    columns = {"source_column": "en", "target_column": "de"}
    for is_stream in (False, True):
        with pytest.raises(ValueError, match=r"set is damaged, or not written by save_to_disk \("):
            pairs_from_dataset(str(tmp_path / "set"), **columns, is_stream=is_stream)


# --- the built-in corpus --------------------------------------------------------------------------


def test_numbers_are_words_in_both_languages():
    cases = [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (16, "sixteen", "sechzehn"),
        (42, "forty-two", "zweiundvierzig"),
        (101, "one hundred one", "einhunderteins"),
        (1_001, "one thousand one", "eintausendeins"),
        (21_000, "twenty-one thousand", "einundzwanzigtausend"),
        (
            742_319,
            "seven hundred forty-two thousand three hundred nineteen",
            "siebenhundertzweiundvierzigtausenddreihundertneunzehn",
        ),
    ]
    for number, english, german in cases:
        assert number_words(number) == {"source": english, "target": german}


def test_numbers_outside_of_the_corpus_have_no_words():
    for number in (-1, 1_000_000):
        with pytest.raises(ValueError, match=rf"{number} is not from 0 to 999,999"):
            number_words(number)


def test_number_words_are_those_of_num2words():
    for number in (*range(0, 1_200, 7), *range(997, 10**6, 4_999)):
        english = num2words(number, lang="en").replace(" and ", " ").replace(",", "")
        german = num2words(number, lang="de")
        assert number_words(number) == {"source": english, "target": german}


@pytest.fixture(scope="module")
def numbers():
    return built_in_corpus()


def test_splits_of_the_built_in_corpus_share_no_number(numbers):
    sides = {part: set(rows["source"]) for part, rows in numbers.items()}
    assert not sides["train"] & sides["test"]
    assert not sides["train"] & sides["validation"]
    assert not sides["validation"] & sides["test"]


def test_splits_of_the_built_in_corpus_have_no_duplicates(numbers):
    assert {part: len(rows) for part, rows in numbers.items()} == {
        "train": DENSE + SPARSE - 2 * EVALUATION_PAIRS,
        "validation": EVALUATION_PAIRS,
        "test": EVALUATION_PAIRS,
    }
    assert all(len(set(rows["source"])) == len(rows) for rows in numbers.values())


def test_every_small_number_is_in_the_built_in_corpus(numbers):
    words = {source for rows in numbers.values() for source in rows["source"]}
    assert {number_words(number)["source"] for number in range(0, DENSE, 97)} <= words


def test_the_built_in_corpus_is_a_function_of_the_seed():
    first, again, other = (built_in_corpus(seed)["test"]["source"][:] for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_a_compressed_line_without_end_is_refused_before_it_fills_the_memory(write):
    path = write("long", b"x\n" + b"a" * LONGEST_LINE + b"\n" + b"a" * 3 * LONGEST_LINE)
    lines = read_lines(path)
    assert next(lines) == "x"
    with pytest.raises(ValueError, match="line 2 has more than 16,777,216 bytes"):
        next(lines)


def test_the_cache_of_a_private_corpus_is_as_private(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for mode, is_private in ((0o600, True), (0o644, False)):
        for name, text in (("a", GERMAN), ("b", ENGLISH)):
            (tmp_path / f"{name}{mode}").write_text(text)
        (tmp_path / f"a{mode}").chmod(mode)
        rows = pairs_from_files(tmp_path / f"a{mode}", tmp_path / f"b{mode}")
        derived = rows.map(lambda row: {"length": len(row["source"])})
        for file in [*rows.cache_files, *derived.cache_files]:
            folders = Path(file["filename"]).relative_to(tmp_path).parents[:-1]
            is_closed = [not (tmp_path / folder).stat().st_mode & 0o077 for folder in folders]
            assert any(is_closed) == is_private
