"""A corpus in shards: every line once, in order, even if the work is interrupted."""

import errno
import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_run

from hf_vanilla.text import shards
from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.shards import (
    failed_lines,
    plan_shards,
    remove_leftovers,
    translate_shard,
)
from hf_vanilla.text.text_translator import TextTranslator
from hf_vanilla.text.translator import Translator

LINES = [source for source, _ in small_run.digit_pairs()[:23]]


@pytest.fixture
def translator(trained):
    return Translator(TorchEngine(*trained))


@pytest.fixture
def corpus(tmp_path):
    """A text, one without a final line feed, an empty one and a compressed one."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in LINES[:11]), encoding="utf-8")
    (folder / "b.txt").write_text("\n".join(LINES[11:14]), encoding="utf-8")
    (folder / "c.txt").write_bytes(b"")
    (folder / "d.txt.gz").write_bytes(gzip.compress("\n".join(LINES[14:]).encode()))
    return folder


@pytest.fixture
def plan(corpus, tmp_path):
    def plan(*inputs, lines=4, column="text", **settings):
        options = {"lines_per_shard": lines, "column": column, "settings": settings}
        return plan_shards([str(i) for i in inputs or [corpus]], tmp_path / "out", **options)

    return plan


def texts(folder):
    names = sorted(folder.glob("*.txt"))
    return "".join(path.read_text(encoding="utf-8") for path in names).splitlines()


def test_shards_cover_the_corpus_without_gap_or_overlap(plan, corpus):
    found = plan().shards
    assert [(s.source[-8:].lstrip("/in"), s.first_line, s.lines) for s in found] == [
        ("a.txt", 1, 4),
        ("a.txt", 5, 4),
        ("a.txt", 9, 3),
        ("b.txt", 1, 3),
        ("c.txt", 1, 0),
        ("d.txt.gz", 1, 9),
    ]
    names = [s.output for s in found]
    assert names == sorted(set(names))
    data = (corpus / "a.txt").read_bytes()
    assert [data[s.begin :][:4] for s in found[:3]] == [LINES[i][:4].encode() for i in (0, 4, 8)]


def test_shards_in_order_are_the_translation_of_the_corpus(plan, translator, tmp_path):
    for shard in plan().shards:
        translate_shard(translator, shard, tmp_path / "out")
        assert failed_lines(shard, tmp_path / "out") == []
    assert texts(tmp_path / "out") == list(translator.translate(LINES))
    remove_leftovers(plan(), tmp_path / "out")


@pytest.mark.parametrize("n_best", [None, 2])
def test_progress_is_told_batch_by_batch_within_a_shard(corpus, plan, trained, tmp_path, n_best):
    translator = Translator(TorchEngine(*trained), tokens_per_batch=8)
    first = plan(corpus / "a.txt", lines=11).shards[0]
    counts = []
    translate_shard(translator, first, tmp_path / "out", n_best=n_best, progress=counts.append)
    assert sum(counts) == 11
    assert max(counts) < 6


def test_progress_of_lines_with_markup_is_told_batch_by_batch(corpus, plan, trained, tmp_path):
    translator = Translator(TorchEngine(*trained), tokens_per_batch=8)
    first = plan(corpus / "a.txt", lines=11).shards[0]
    counts = []
    with_markup = TextTranslator(translator, keep_markup=True)
    translate_shard(with_markup, first, tmp_path / "out", progress=counts.append)
    assert sum(counts) == 11
    assert 1 < max(counts) < 6


def test_progress_counts_lines_and_not_their_sentences(corpus, plan, translator, tmp_path):
    (corpus / "a.txt").write_text("Three one. Two four.\n\nFive.\n", encoding="utf-8")
    (shard,) = plan(corpus / "a.txt").shards
    counts = []
    splitting = TextTranslator(translator, split_sentences="en")
    translate_shard(splitting, shard, tmp_path / "out", progress=counts.append)
    assert counts == [1, 1, 1]


def test_a_finished_shard_is_never_translated_again(plan, translator, tmp_path):
    first = plan().shards[1]
    translate_shard(translator, first, tmp_path / "out")
    (tmp_path / "out" / first.output).write_text("kept")
    again = plan()
    assert again.done == [first]
    assert first not in again.left
    assert len(again.left) == 5
    translate_shard(translator, first, tmp_path / "out")
    assert (tmp_path / "out" / first.output).read_text() == "kept"


def test_a_shard_of_a_killed_worker_is_reported_and_its_temporary_file_removed(
    plan, translator, tmp_path
):
    first, *others = plan().shards
    (tmp_path / "out" / f"{first.output}~host-77.partial").write_text("hal")
    again = plan()
    assert again.begun == [first]
    for shard in again.left:
        translate_shard(translator, shard, tmp_path / "out")
    remove_leftovers(again, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        shards.MANIFEST,
        *(shard.output for shard in (first, *others)),
    }


def test_a_missing_shard_is_named(plan, tmp_path):
    with pytest.raises(ValueError, match=r"lacks 00000-a-0000000\.txt, .*: run the same command"):
        remove_leftovers(plan(), tmp_path / "out")


@pytest.mark.parametrize(
    "changes", [{"lines": 5}, {"column": "other"}, {"num_beams": 2}], ids=lambda c: next(iter(c))
)
def test_other_settings_are_refused_in_an_output_that_was_begun(plan, changes):
    plan()
    name = {"lines": "lines_per_shard"}.get(next(iter(changes)), next(iter(changes)))
    with pytest.raises(ValueError, match=f"out with other {name}=.*another output"):
        plan(**changes)


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (lambda data: data[:-9], "d.txt.gz is incomplete: its compressed data has no end"),
        (lambda data: data[:12] + b"\xff" * 9 + data[21:], "d.txt.gz is damaged or no gzip file"),
        (lambda _: b"plain text", "d.txt.gz is damaged or no gzip file: Not a gzipped file"),
    ],
)
def test_a_damaged_compressed_input_is_named(plan, corpus, damaged, message):
    path = corpus / "d.txt.gz"
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(OSError, match=message):
        plan()


def test_a_changed_input_is_refused_in_an_output_that_was_begun(plan, corpus):
    plan()
    with (corpus / "b.txt").open("a") as file:
        file.write("\nmore")
    with pytest.raises(ValueError, match="out with other inputs"):
        plan()


def test_an_input_that_becomes_shorter_during_a_run_leaves_no_shard(
    plan, corpus, translator, tmp_path
):
    shard = plan().shards[2]
    with (corpus / "a.txt").open("r+") as file:
        file.truncate(shard.begin + 4)
    with pytest.raises(ValueError, match=r"a\.txt has changed: 1 lines from line 9 on, not 3"):
        translate_shard(translator, shard, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == [shards.MANIFEST]


def test_a_full_disk_leaves_no_incomplete_shard_and_the_next_run_translates_it(
    plan, translator, tmp_path, monkeypatch
):
    shard = plan().shards[0]

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shards.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        translate_shard(translator, shard, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == [shards.MANIFEST]
    monkeypatch.undo()
    translate_shard(translator, plan().shards[0], tmp_path / "out")
    assert plan().done == [shard]


def test_a_byte_that_is_not_utf8_fails_only_its_line_which_is_recorded(
    plan, corpus, translator, tmp_path
):
    bad = "".join(f"{line}\n" for line in LINES[:6]).encode().replace(b"\n", b" \xe9\n", 1)
    (corpus / "a.txt").write_bytes(b"\xef\xbb\xbf" + bad.replace(b"\n", b"\r\n"))
    folder = tmp_path / "out"
    first, second = plan(corpus / "a.txt").shards
    for shard in (first, second):
        translate_shard(translator, shard, folder)
    assert (failed_lines(first, folder), failed_lines(second, folder)) == ([1], [])
    assert texts(folder) == ["", *translator.translate(LINES[1:6])]
    assert (folder / (first.output + shards.FAILED)).read_text() == "1\n"


def test_a_byte_that_is_not_utf8_in_a_tag_fails_its_line_too(plan, corpus, translator, tmp_path):
    (corpus / "a.txt").write_bytes(b"<b title='caf\xe9'>three one</b>\none four\n")
    (shard,) = plan(corpus / "a.txt").shards
    translate_shard(TextTranslator(translator, keep_markup=True), shard, tmp_path / "out")
    assert failed_lines(shard, tmp_path / "out") == [1]
    assert texts(tmp_path / "out") == ["", *translator.translate(["one four"])]


def test_a_byte_order_mark_is_removed(plan, corpus, translator, tmp_path):
    (corpus / "a.txt").write_bytes(b"\xef\xbb\xbf" + LINES[0].encode())
    (shard,) = plan(corpus / "a.txt").shards
    translate_shard(translator, shard, tmp_path / "out")
    assert texts(tmp_path / "out") == list(translator.translate(LINES[:1]))


def test_parquet_keeps_its_columns_and_gets_a_column_of_translations(plan, translator, tmp_path):
    table = pa.table({"id": list(range(7)), "text": [*LINES[:5], None, ""]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    planned = plan(tmp_path / "x.parquet").shards
    assert [shard.lines for shard in planned] == [3, 3, 1]
    for shard in planned:
        translate_shard(translator, shard, tmp_path / "out")
    assert [failed_lines(shard, tmp_path / "out") for shard in planned] == [[], [6], []]
    found = pa.concat_tables(pq.read_table(tmp_path / "out" / s.output) for s in planned)
    assert found.drop_columns("translation").equals(table)
    expected = [*translator.translate(LINES[:5]), "", ""]
    assert found.column("translation").to_pylist() == expected


def test_lists_of_a_text_are_rows_of_source_translation_and_score(plan, translator, tmp_path):
    lines = [LINES[0], "", "one\ttwo", "\udcff"]  # the last one is a byte that is not UTF-8
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    (tmp_path / "x.txt").write_bytes(text)
    planned = plan(tmp_path / "x.txt", lines=3, n_best=2).shards
    for shard in planned:
        translate_shard(translator, shard, tmp_path / "out", n_best=2)
    assert [failed_lines(shard, tmp_path / "out") for shard in planned] == [[], [4]]
    found = "".join((tmp_path / "out" / s.output).read_text("utf-8") for s in planned)
    first, second = translator.n_best([LINES[0], lines[2]], 2)
    expected = [(LINES[0], one) for one in first] + [("one two", one) for one in second]
    assert [row.split("\t") for row in found.splitlines()] == [
        [source, one.text, f"{one.score:.4f}"] for source, one in expected
    ]
    assert all(shard.output.endswith(".tsv") for shard in planned)


def test_lists_of_parquet_repeat_the_rows_of_the_input(plan, translator, tmp_path):
    table = pa.table({"id": [5, 6, 7], "text": [LINES[3], None, LINES[1]]})
    pq.write_table(table, tmp_path / "x.parquet")
    (shard,) = plan(tmp_path / "x.parquet", n_best=3).shards
    translate_shard(translator, shard, tmp_path / "out", n_best=3)
    assert failed_lines(shard, tmp_path / "out") == [2]
    found = pq.read_table(tmp_path / "out" / shard.output)
    lists = list(translator.n_best([LINES[3], LINES[1]], 3))
    assert found.column("id").to_pylist() == [5, 5, 5, 7, 7, 7]
    assert found.column("text").to_pylist() == [LINES[3]] * 3 + [LINES[1]] * 3
    for name, of in (("translation", "text"), ("translation_score", "score")):
        expected = [getattr(one, of) for hypotheses in lists for one in hypotheses]
        assert found.column(name).to_pylist() == pytest.approx(expected, abs=1e-5)


def test_a_column_of_scores_is_refused_where_scores_are_written(plan, tmp_path):
    pq.write_table(pa.table({"text": ["a"], "translation_score": [0.1]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="a column 'translation_score' already: rename it"):
        plan(tmp_path / "x.parquet", n_best=2)
    plan(tmp_path / "x.parquet")


def test_a_missing_column_is_refused_before_anything_is_written(plan, tmp_path):
    pq.write_table(pa.table({"de": ["eins"]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="no column 'text': choose --column among de"):
        plan(tmp_path / "x.parquet")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_column_called_translation_is_refused_before_anything_is_written(plan, tmp_path):
    pq.write_table(pa.table({"text": ["a"], "translation": ["b"]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="has a column 'translation' already: rename it"):
        plan(tmp_path / "x.parquet")


def test_an_output_with_other_files_is_refused(plan, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"has files but no manifest\.json"):
        plan()


def test_a_pipe_is_refused(plan, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is not a regular file: shards are read by position"):
        plan(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["nowhere.txt", "empty"])
def test_missing_inputs_are_named(plan, tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises((FileNotFoundError, ValueError), match=name):
        plan(tmp_path / name)


def test_the_manifest_lists_settings_and_shards(plan, tmp_path):
    plan(num_beams=3)
    manifest = json.loads((tmp_path / "out" / shards.MANIFEST).read_text())
    assert manifest["facts"]["num_beams"] == 3
    assert len(manifest["shards"]) == 6
