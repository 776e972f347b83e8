"""Sentences in, sentences out: as many, in their order, and nothing lost on the way."""

import gzip
import io
import itertools
import logging
import sys

import pytest
import small_run
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla.translation import translator as translation
from hf_vanilla.translation.engines import TorchEngine
from hf_vanilla.translation.translator import (
    TranslateOptions,
    Translator,
    load_engine,
    load_translator,
    translate,
    translate_file,
)

PAIRS = small_run.digit_pairs()
SOURCES = [source for source, _ in PAIRS[:19]]


@pytest.fixture
def files(tmp_path, trained_run):
    """Options that translate one file into another, and the two paths."""
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(line + "\n" for line in SOURCES), encoding="utf-8")

    def options(**changes):
        default = {"model": str(trained_run), "input": str(source), "output": str(output)}
        return TranslateOptions(**{**default, **changes})

    return options, source, output


# --- sentences ---------------------------------------------------------------------------------


def test_the_trained_model_knows_what_it_was_taught(trained):
    references = [target for _, target in PAIRS[:19]]
    translations = translate(*trained, SOURCES)
    right = sum(t == r for t, r in zip(translations, references, strict=True))
    assert right > 15  # the other tests would prove little on a model that says nothing


@pytest.mark.parametrize("budget", [1, 17, 40, 4096])
def test_batches_of_any_budget_translate_as_one_by_one(trained, budget):
    one_by_one = [translate(*trained, [sentence])[0] for sentence in SOURCES]
    assert len(set(one_by_one)) > 10
    assert translate(*trained, SOURCES, tokens_per_batch=budget) == one_by_one


def test_order_and_number_are_kept_whatever_the_lengths(trained):
    forth = translate(*trained, SOURCES)
    back = translate(*trained, SOURCES[::-1])
    assert forth == back[::-1]


def test_batches_keep_the_budget_and_hold_every_sentence_once(trained, monkeypatch):
    shapes, generate = [], trained[0].generate

    def noting(**inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return generate(**inputs)

    monkeypatch.setattr(trained[0], "generate", noting)
    translate(*trained, SOURCES, tokens_per_batch=40)
    assert sum(rows for rows, _ in shapes) == len(SOURCES)
    assert all(rows * length <= 40 for rows, length in shapes)
    assert len(shapes) > 2
    assert [length for _, length in shapes] == sorted((s for _, s in shapes), reverse=True)


@pytest.mark.parametrize("blank", ["", " ", "\t", "\u3000"], ids=repr)
def test_a_blank_sentence_translates_to_an_empty_one_in_its_place(trained, blank):
    alone = translate(*trained, SOURCES[:2])
    assert translate(*trained, [blank, SOURCES[0], blank, SOURCES[1]]) == [
        "",
        alone[0],
        "",
        alone[1],
    ]
    assert translate(*trained, [blank] * 3) == [""] * 3


def test_no_sentences_are_no_translations(trained):
    assert translate(*trained, []) == []


def test_generate_is_told_what_the_caller_says(trained):
    greedy = translate(*trained, SOURCES, num_beams=1, max_new_tokens=2)
    tokens = [len(trained[1](text).input_ids) - 1 for text in greedy]
    assert max(tokens) <= 2


def test_translating_leaves_no_gradient_and_no_training_mode(trained):
    translate(*trained, SOURCES[:3])
    assert not trained[0].training
    assert all(weight.grad is None for weight in trained[0].parameters())


@pytest.mark.parametrize("sentence", SOURCES[:5])
def test_plain_transformers_give_the_very_same_translation(trained, trained_run, sentence):
    model = AutoModelForSeq2SeqLM.from_pretrained(trained_run).eval()
    tokenizer = AutoTokenizer.from_pretrained(trained_run)
    with torch.no_grad():
        ids = model.generate(**tokenizer([sentence], return_tensors="pt"))
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == translate(*trained, [sentence])


def test_a_padded_batch_of_plain_transformers_gives_the_same_too(trained):
    model, tokenizer = trained
    batch = tokenizer(SOURCES, padding=True, return_tensors="pt")
    texts = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    assert texts == translate(model, tokenizer, SOURCES)


# --- sentences too long ------------------------------------------------------------------------


LONG = "q" * 61  # a token each, and the end, where the tokenizer permits 40


def test_a_sentence_too_long_is_cut_with_a_warning_that_names_its_line(trained, caplog):
    with caplog.at_level(logging.WARNING):
        whole = translate(*trained, [SOURCES[0], "", LONG, SOURCES[1]])
    assert [record.getMessage() for record in caplog.records] == [
        "line 3 has 62 tokens; only the first 40 are used"
    ]
    assert whole[2] == translate(*trained, ["q" * 39])[0]
    assert whole[3] == translate(*trained, SOURCES[1:2])[0]


def test_a_sentence_of_just_the_permitted_length_is_not_cut(trained, caplog):
    with caplog.at_level(logging.WARNING):
        translate(*trained, ["q" * 39])
    assert not caplog.records


def test_the_warning_counts_lines_through_all_windows(trained, caplog):
    translator = Translator(TorchEngine(*trained), window=3)
    with caplog.at_level(logging.WARNING):
        translations = list(translator.translate(["one"] * 7 + [LONG]))
    assert [r.getMessage() for r in caplog.records] == [
        "line 8 has 62 tokens; only the first 40 are used"
    ]
    assert len(translations) == 8


# --- files -------------------------------------------------------------------------------------


def lines_of(path):
    return path.read_text(encoding="utf-8").split("\n")


def test_line_i_of_the_output_translates_line_i_of_the_input(files, trained):
    options, _, output = files
    translate_file(options())
    assert lines_of(output) == [*translate(*trained, SOURCES), ""]


def test_blank_lines_and_foreign_line_ends_keep_their_places(files, trained):
    options, source, output = files
    source.write_bytes(b"one\r\n\r\n  \r\ntwo\xe2\x80\xa8three\r\nfour")
    translate_file(options())
    expected = translate(*trained, ["one", "", "", "two\u2028three", "four"])
    assert lines_of(output) == [*expected, ""]


def test_a_compressed_input_is_read(files, trained, tmp_path):
    options, source, output = files
    packed = tmp_path / "in.txt.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    translate_file(options(input=str(packed)))
    assert lines_of(output) == [*translate(*trained, SOURCES), ""]


def test_an_empty_input_is_an_empty_output(files):
    options, source, output = files
    source.write_text("")
    translate_file(options())
    assert output.read_bytes() == b""


def test_stdin_is_translated_to_stdout(files, trained, monkeypatch, capsys):
    options, source, _ = files
    stdin = io.TextIOWrapper(io.BytesIO(source.read_bytes()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stdin)
    translate_file(options(input="-", output="-"))
    assert capsys.readouterr().out.split("\n") == [*translate(*trained, SOURCES), ""]


def test_the_number_of_beams_is_the_models_unless_given(files, monkeypatch):
    options, _, _ = files
    seen = []
    opened = translation.load_engine
    monkeypatch.setattr(
        translation, "load_engine", lambda *a, **told: seen.append(told) or opened(*a, **told)
    )
    translate_file(options())
    translate_file(options(num_beams=7, overwrite=True))
    assert "num_beams" not in seen[0]
    assert seen[1]["num_beams"] == 7


def test_a_line_feed_that_the_model_writes_makes_no_line_of_its_own(files, monkeypatch):
    options, source, output = files
    source.write_text("one\ntwo\n", encoding="utf-8")
    monkeypatch.setattr(TorchEngine, "translate_rows", lambda _, rows: ["two\nlines"] * len(rows))
    translate_file(options())
    assert output.read_text(encoding="utf-8") == "two lines\ntwo lines\n"


def test_stdout_needs_no_end_of_the_input_to_be_seen(trained):
    def endless():
        while True:
            yield "one two"

    translator = Translator(TorchEngine(*trained), window=4)
    assert len(list(itertools.islice(translator.translate(endless()), 9))) == 9


# --- refused -----------------------------------------------------------------------------------


def test_an_existing_output_is_refused_and_left_as_it_was(files):
    options, _, output = files
    output.write_text("weeks of work")
    with pytest.raises(FileExistsError, match="choose another name or add --overwrite"):
        translate_file(options())
    assert output.read_text() == "weeks of work"


def test_an_existing_output_is_replaced_when_asked(files, trained):
    options, _, output = files
    output.write_text("yesterday's")
    translate_file(options(overwrite=True))
    assert lines_of(output)[:-1] == translate(*trained, SOURCES)


def test_a_file_may_be_replaced_by_its_own_translation(files, trained):
    options, source, _ = files
    translate_file(options(output=str(source), overwrite=True))
    assert lines_of(source)[:-1] == translate(*trained, SOURCES)


def test_a_byte_that_is_no_utf8_is_named_and_no_output_appears(files):
    options, source, output = files
    source.write_bytes(b"one\ntwo\nthr\xe9e\n")
    with pytest.raises(ValueError, match=r"in\.txt, line 3: byte 4 is not UTF-8"):
        translate_file(options())
    assert not output.exists()


def test_a_failure_leaves_an_older_output_as_it_was(files):
    options, source, output = files
    output.write_text("yesterday's")
    source.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        translate_file(options(overwrite=True))
    assert output.read_text() == "yesterday's"


def test_a_byte_on_stdin_that_is_no_utf8_is_named(files, monkeypatch):
    options, _, _ = files
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\xff\n")))
    with pytest.raises(ValueError, match="stdin, line 2"):
        translate_file(options(input="-", output="-"))


def test_a_missing_input_is_named(files):
    options, _, output = files
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        translate_file(options(input="nowhere"))
    assert not output.exists()


def test_a_folder_without_a_model_is_refused_with_what_to_give(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json; give the folder that training"):
        load_translator(str(tmp_path))


@pytest.mark.parametrize("name", ["num_beams", "tokens_per_batch"])
@pytest.mark.parametrize("value", [0, -2])
def test_a_count_below_one_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}: give a positive number"):
        TranslateOptions(model="m", **{name: value})


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="engine='onnx': choose one of torch, ctranslate2"):
        TranslateOptions(model="m", engine="onnx")
    with pytest.raises(ValueError, match="engine='onnx': choose one of torch, ctranslate2"):
        load_engine("m", "onnx")


def test_an_engine_that_is_there_takes_no_settings(trained):
    with pytest.raises(ValueError, match="num_beams: an engine that is there already has its own"):
        Translator(TorchEngine(*trained), num_beams=2)


def test_a_window_below_one_is_refused(trained):
    with pytest.raises(ValueError, match="window=0: give a positive number"):
        Translator(TorchEngine(*trained), window=0)
