"""Any line, even an impossible one, gets exactly one translation, at its own index."""

import logging
from itertools import product

import pytest
import small_run
import torch

from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.translator import Translator, translate

GOOD = [source for source, _ in small_run.digit_pairs()[:5]]
ODD = {
    "NUL bytes": "one \0 two\0",
    "emoji": "one \U0001f469\u200d\U0001f680 two",
    "unassigned": "one \u0378 \U000e0fff two",
    "both directions": "one \u05d0\u05d1 \u202etwo\u202c \u0627\u0628",
    "ten thousand tokens": "q " * 5_000,
    "noncharacter": "one \uffff two",
    "special tokens": "one </s> <pad> two",
    "line separators": "one\u2028two\x0bthree\x85",
}


class FailsFor(TorchEngine):
    """Fails for every batch with one of the given sentences."""

    def __init__(self, trained, *bad):
        super().__init__(*trained)
        self.bad = [self.tokenizer(text).input_ids for text in bad]
        self.calls = 0

    def translate_rows(self, rows):
        self.calls += 1
        if any(row in self.bad for row in rows):
            raise RuntimeError("out of memory\nin line 3 of a kernel")
        return super().translate_rows(rows)


class Silent(TorchEngine):
    """Translates sentences of one token to nothing."""

    def translate_rows(self, rows):
        return ["" if len(row) == 2 else "text" for row in rows]


@pytest.fixture
def warnings_of(caplog):
    """Make a call; return its result and its warnings."""

    def run(call):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            result = call()
        return result, [record.getMessage() for record in caplog.records]

    return run


def test_empty_translations_are_reported_with_their_lines_but_blank_lines_are_not(
    trained, warnings_of
):
    translator = Translator(Silent(*trained), window=20)
    lines = ["q q", "", "q", "q q", *["q"] * 12, "q q"]
    texts, warnings = warnings_of(lambda: list(translator.translate(lines)))
    assert [line for line, text in enumerate(texts, start=1) if text] == [1, 4, 17]
    numbers = "3, 5, 6, 7, 8, 9, 10, 11, 12, 13, ..."
    assert warnings == [f"the translation is empty (lines: {numbers})"]
    assert translator.failed == []


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_line_gets_one_translation_and_changes_no_other(trained, odd):
    alone = translate(*trained, GOOD)
    mixed = translate(*trained, [GOOD[0], odd, *GOOD[1:], odd])
    assert mixed[1] == mixed[-1]
    assert [mixed[0], *mixed[2:-1]] == alone


def test_window_and_tokens_per_batch_do_not_change_the_output(trained):
    lines = [GOOD[0], "", *ODD.values(), *GOOD]
    expected = [translate(*trained, [line])[0] for line in lines]
    for window, budget in product((1, 2, 3, 100), (1, 40, 4096)):
        translator = Translator(TorchEngine(*trained), window=window, tokens_per_batch=budget)
        assert list(translator.translate(iter(lines))) == expected, (window, budget)


def test_a_sentence_longer_than_tokens_per_batch_is_a_batch_of_its_own(trained):
    shapes, engine = [], TorchEngine(*trained)
    original = engine.translate_rows

    def record(rows):
        shapes.append((len(rows), max(map(len, rows))))
        return original(rows)

    engine.translate_rows = record
    list(Translator(engine, tokens_per_batch=30).translate(["q " * 18, *GOOD * 2]))
    assert shapes[0] == (1, 36)
    assert all(rows * length <= 30 for rows, length in shapes[1:])


def test_a_tokenizer_without_a_limit_cuts_nothing(trained, monkeypatch, caplog):
    monkeypatch.setattr(trained[1], "model_max_length", int(1e30))
    long = "q " * 150
    found = Translator(TorchEngine(*trained, max_new_tokens=3)).translate([GOOD[0], long])
    assert len(list(found)) == 2
    assert not caplog.records


def test_a_line_that_the_tokenizer_refuses_becomes_empty_and_is_reported(trained, warnings_of):
    translator = Translator(TorchEngine(*trained))
    lines = [GOOD[0], "half \ud800 of a pair", GOOD[1], None, GOOD[2]]
    found, warnings = warnings_of(lambda: list(translator.translate(lines, first_line=11)))
    right = translate(*trained, GOOD[:3])
    assert found == [right[0], "", right[1], "", right[2]]
    assert translator.failed == [12, 14]
    assert [text.split(":")[0] for text in warnings] == [
        f"line {n} cannot be translated and becomes empty" for n in (12, 14)
    ]
    assert "it is not valid UTF-8: convert" in warnings[0]
    assert warnings[1].endswith(": None is no text")


def test_a_line_for_which_the_engine_fails_changes_no_other(trained, warnings_of):
    engine = FailsFor(trained, GOOD[2])
    translator = Translator(engine)
    found, warnings = warnings_of(lambda: list(translator.translate(GOOD)))
    expected = translate(*trained, GOOD)
    assert found == [*expected[:2], "", *expected[3:]]
    assert warnings == [
        "line 3 cannot be translated and becomes empty: out of memory in line 3 of a kernel"
    ]
    assert translator.failed == [3]
    list(translator.translate(GOOD[:2]))
    assert translator.failed == []


def test_a_batch_too_large_for_memory_is_halved_until_it_fits(trained, warnings_of):
    engine = TorchEngine(*trained)
    given, sizes = engine.translate_rows, []

    def small_memory(rows):
        sizes.append(len(rows))
        if len(rows) > 2:
            raise torch.OutOfMemoryError("2 rows are the most")
        return given(rows)

    engine.translate_rows = small_memory
    found, warnings = warnings_of(lambda: list(Translator(engine).translate(GOOD)))
    assert found == translate(*trained, GOOD)
    assert not warnings
    assert sizes[:2] == [5, 2]


def test_an_error_at_every_sentence_is_raised_even_if_an_empty_sentence_works(trained):
    engine = FailsFor(trained, *GOOD)
    with pytest.raises(ValueError, match="no sentence can be translated: out of memory in line 3"):
        list(Translator(engine).translate(["", *GOOD]))


def test_an_error_of_any_kind_at_every_sentence_is_raised_as_one_for_the_user(trained):
    engine = TorchEngine(*trained, max_new_tokens="ten")
    with pytest.raises(ValueError, match=r"no sentence can be translated: .*'str'"):
        list(Translator(engine).translate(GOOD))


def test_an_engine_that_returns_too_many_texts_is_an_error(trained):
    engine = TorchEngine(*trained)
    engine.translate_rows = lambda rows: ["text"] * (2 * len(rows))
    with pytest.raises(ValueError, match="the engine gave 2 texts for 1 sentences"):
        list(Translator(engine).translate(GOOD))


@pytest.mark.parametrize("sentences", ["nine", b"nine"])
def test_one_text_instead_of_a_list_is_refused(trained, sentences):
    with pytest.raises(ValueError, match=r"nine' is one text: give a list of sentences, \[text\]"):
        Translator(TorchEngine(*trained)).translate(sentences)


def test_progress_counts_every_line_once(trained, capsys):
    translator = Translator(FailsFor(trained, GOOD[1]), window=3)
    list(translator.translate([*GOOD, "", "\ud800"], progress=True))
    assert "7/7" in capsys.readouterr().err
