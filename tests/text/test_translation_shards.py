"""Token shards: the same training as from the text, by any number of parts, and what is refused."""

import json

import numpy as np
import pytest
import small_run
from datasets import Dataset, DatasetDict

from hf_vanilla.text.encoding import (
    PREPARED,
    LengthLimits,
    encode_pairs,
    read_prepared,
    read_shards,
    write_shards,
)
from hf_vanilla.text.options import TranslationDataOptions
from hf_vanilla.text.prepare import PrepareOptions, prepare_shards
from hf_vanilla.training.run import train

PAIRS = [{"source": "a " * (n % 7), "target": "b " * (n % 5 + 1)} for n in range(23)]
LIMITS = LengthLimits(9)


@pytest.fixture
def pairs():
    return Dataset.from_list(PAIRS)


def shards_of(folder):
    return [int(path.name[6:11]) for path in sorted(folder.glob("shard-*.arrow"))]


@pytest.fixture
def shards(pairs, tiny_tokenizer, tmp_path):
    folder = tmp_path / "shards"
    write_shards(pairs, tiny_tokenizer, folder, pairs_per_shard=10)
    assert shards_of(folder) == [0, 1, 2]
    return folder


def prepare(corpus_files, trained_run, folder, **more):
    files = {side: corpus_files[side] for side in ("train_source", "train_target")}
    shape = {"tokenizer": str(trained_run), "output": str(folder), "pairs_per_shard": 7}
    return prepare_shards(PrepareOptions(**files, **shape, **more))


def assert_same_pairs(found, expected):
    assert found.dropped == expected.dropped
    assert np.array_equal(found.source_lengths, expected.source_lengths)
    assert np.array_equal(found.target_lengths, expected.target_lengths)
    for name in ("input_ids", "labels"):
        for mine, other in zip(found.rows[name], expected.rows[name], strict=True):
            assert np.array_equal(mine, other)


def test_shards_hold_the_pairs_that_encoding_the_text_gives(pairs, shards, tiny_tokenizer):
    expected = encode_pairs(pairs, tiny_tokenizer, LIMITS)
    assert 0 < len(expected.rows) < len(pairs)
    assert_same_pairs(read_shards(shards, LIMITS), expected)


def test_parts_write_what_one_process_writes_and_nothing_twice(pairs, shards, tiny_tokenizer):
    other = shards.with_name("parts")
    options = {"pairs_per_shard": 10, "parts": 2}
    write_shards(pairs, tiny_tokenizer, other, part=2, **options)
    assert shards_of(other) == [1]
    with pytest.raises(ValueError, match=r"lacks 2 of 3 shards, the first is shard-00000-of-00003"):
        read_shards(other, LIMITS)
    write_shards(pairs, tiny_tokenizer, other, part=1, **options)
    names = sorted(path.name for path in shards.iterdir())
    assert sorted(path.name for path in other.iterdir()) == names
    assert all((other / n).read_bytes() == (shards / n).read_bytes() for n in names)


def test_parts_that_start_at_once_do_not_disturb_each_other(
    pairs, shards, tiny_tokenizer, monkeypatch
):
    other = shards.with_name("parts")
    options = {"pairs_per_shard": 10, "parts": 2}
    save = tiny_tokenizer.save_pretrained

    def save_while_the_other_part_starts(folder):
        monkeypatch.undo()
        save(folder)
        write_shards(pairs, tiny_tokenizer, other, part=2, **options)
        assert shards_of(other) == [1]

    monkeypatch.setattr(tiny_tokenizer, "save_pretrained", save_while_the_other_part_starts)
    write_shards(pairs, tiny_tokenizer, other, part=1, **options)
    assert {path.name for path in other.iterdir()} == {path.name for path in shards.iterdir()}


def test_a_stopped_preparation_writes_only_what_is_missing(pairs, shards, tiny_tokenizer):
    first, second, third = sorted(shards.glob("*.arrow"))
    expected, kept = second.read_bytes(), first.stat().st_mtime_ns
    second.unlink()
    (shards / f"{third.name}.1.partial").write_bytes(b"half")
    write_shards(pairs, tiny_tokenizer, shards, pairs_per_shard=10)
    assert second.read_bytes() == expected
    assert first.stat().st_mtime_ns == kept
    second.unlink()
    write_shards(pairs.to_iterable_dataset(), tiny_tokenizer, shards, pairs_per_shard=10)
    assert second.read_bytes() == expected


@pytest.mark.parametrize("size", [0, 40, 900])
def test_a_cut_shard_is_named(shards, size):
    path = sorted(shards.glob("*.arrow"))[1]
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"shard-00001-of-00003.arrow is damaged"):
        read_shards(shards, LIMITS)


def test_other_pairs_or_another_size_are_refused(pairs, shards, tiny_tokenizer):
    with pytest.raises(ValueError, match=r"pairs_per_shard=10, but this run has 9"):
        write_shards(pairs, tiny_tokenizer, shards, pairs_per_shard=9)
    rows = PAIRS * 90
    folder = shards.with_name("many")
    write_shards(Dataset.from_list(rows), tiny_tokenizer, folder, pairs_per_shard=2000)
    rows[1001] = {**rows[1001], "source": "c"}  # one row of many
    with pytest.raises(ValueError, match=r"with corpus='.*choose another output"):
        write_shards(Dataset.from_list(rows), tiny_tokenizer, folder, pairs_per_shard=2000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "shards of format 2, this version reads format 1"),
        ({"unknown": 2}, "damaged or of a newer version"),
        ({"pairs": "9"}, "pairs is '9': give a whole number"),
        ({"pairs_per_shard": 0}, "pairs_per_shard=0: give a positive number"),
        ({"corpus": None}, "corpus is missing"),
        ({"corpus": 7}, "corpus is 7: give a text"),
        ({"pairs": 10**13}, "pairs=10000000000000: give a number from 1 to"),
    ],
)
def test_shards_of_a_newer_version_are_refused(shards, change, message):
    path = shards / PREPARED
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        read_shards(shards, LIMITS)


def test_a_folder_without_shards_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no prepared.json: give one of hf-vanilla prep"):
        read_shards(tmp_path, LIMITS)


def test_training_on_shards_equals_training_on_the_text(corpus_files, trained_run, tmp_path):
    prepare(corpus_files, trained_run, tmp_path / "shards")
    text = small_run.recipe(tmp_path / "text", corpus_files, tokenizer=str(trained_run))
    files = {key: path for key, path in corpus_files.items() if key.startswith("validation")}
    mapped = small_run.recipe(tmp_path / "mapped", files, prepared=str(tmp_path / "shards"))
    expected, found = (small_run.weights(train(recipe)) for recipe in (text, mapped))
    assert all(found[name].equal(expected[name]) for name in expected)
    assert "trained with hf_vanilla on shards:" in (tmp_path / "mapped/README.md").read_text()


def test_a_stream_gives_the_shards_of_its_text_and_resumes(
    corpus_files, trained_run, tmp_path, monkeypatch, capsys
):
    prepare(corpus_files, trained_run, tmp_path / "text")
    monkeypatch.setattr(Dataset, "from_generator", None)  # would store a copy of the text
    prepare(corpus_files, trained_run, tmp_path / "stream", streaming=True)
    shards = sorted((tmp_path / "stream").glob("*.arrow"))
    shards[2].unlink()
    prepare(corpus_files, trained_run, tmp_path / "stream", streaming=True)
    told = capsys.readouterr().err
    assert told.count(f"| {small_run.TRAIN}/{small_run.TRAIN} ") >= 3  # pairs: a shard takes long
    for shard in shards:
        assert shard.read_bytes() == (tmp_path / "text" / shard.name).read_bytes()


@pytest.mark.parametrize("streaming", [False, True])
def test_the_validation_pairs_of_a_dataset_become_files(trained_run, tmp_path, streaming):
    splits = {"train": Dataset.from_list(PAIRS), "validation": Dataset.from_list(PAIRS[:3])}
    DatasetDict(splits).save_to_disk(tmp_path / "data")
    output = tmp_path / "shards"
    where = {"tokenizer": str(trained_run), "output": str(output)}
    prepare_shards(PrepareOptions(dataset=str(tmp_path / "data"), streaming=streaming, **where))
    assert read_prepared(output).pairs == len(PAIRS)
    assert (output / "validation.source").read_text() == "\na\na a\n"
    assert (output / "validation.target").read_text() == "b\nb b\nb b b\n"

    changed = {"train": Dataset.from_list(PAIRS[1:]), "validation": Dataset.from_list(PAIRS[3:5])}
    DatasetDict(changed).save_to_disk(tmp_path / "other")
    with pytest.raises(ValueError, match="choose another output"):
        prepare_shards(PrepareOptions(dataset=str(tmp_path / "other"), **where))
    assert (output / "validation.target").read_text() == "b\nb b\nb b b\n"


def test_a_tokenizer_that_was_replaced_is_refused(corpus_files, trained_run, tmp_path):
    prepare(corpus_files, trained_run, tmp_path / "shards")
    path = tmp_path / "shards" / "tokenizer.json"
    path.write_text(path.read_text().replace('"</s>"', '"<end>"'))
    files = {key: file for key, file in corpus_files.items() if key.startswith("validation")}
    with pytest.raises(ValueError, match="prepare the corpus into another folder"):
        train(small_run.recipe(tmp_path / "run", files, prepared=str(tmp_path / "shards")))


def test_options_that_contradict_shards_are_refused():
    for name, value in {"dataset": "d", "tokenizer": "t"}.items():
        with pytest.raises(ValueError, match=f"prepared='p' and {name}=.*leave one of them out"):
            TranslationDataOptions(prepared="p", **{name: value})


def test_a_part_beyond_the_parts_is_refused(corpus_files, trained_run, tmp_path):
    with pytest.raises(ValueError, match="part=3, but parts=2: count the parts from 1"):
        prepare(corpus_files, trained_run, tmp_path / "out", part=3, parts=2)
    assert not (tmp_path / "out").exists()
