"""The app without a browser: its options, what a visitor's touch brings about, and its reach."""

import socket
import sys
import urllib.request
from dataclasses import fields, replace

import pytest
import small_run
import torch

from hf_vanilla.app import server as app
from hf_vanilla.app.attention_view import CROSS, DECODER, ENCODER, MEAN, attention_page
from hf_vanilla.app.server import EXAMPLE, AppOptions, Page, message, open_app, serve

gradio = pytest.importorskip("gradio")

SENTENCE = "three one four"


@pytest.fixture(scope="module")
def page(trained_run):
    return Page(AppOptions(model=str(trained_run), max_tokens=40))


@pytest.fixture
def ask(page):
    def ask(text=SENTENCE, beams=3, kind=CROSS, layer=0, head=MEAN, name=page.model):
        names = ["told", "column", "translation", "hypotheses", "answer", "layer", "head", "view"]
        got = page.translate(name, text, beams, kind, layer, head)
        return dict(zip(names, got, strict=True))

    return ask


# --- options -----------------------------------------------------------------------------------


def test_it_listens_to_this_machine_only_unless_told_otherwise():
    options = AppOptions()
    assert (options.host, options.share, options.fixed_model) == ("127.0.0.1", False, False)
    assert all(f.metadata["help"] for f in fields(AppOptions))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_tokens": 0}, "max_tokens=0: give a positive number"),
        ({"port": 0}, "port=0: give a number from 1 to 65535"),
        ({"port": 65536}, "port=65536"),
    ],
    ids=str,
)
def test_an_impossible_option_is_told(changes, told):
    with pytest.raises(ValueError, match=told):
        AppOptions(**changes)


def test_a_model_that_is_nowhere_is_told_before_anything_is_served():
    with pytest.raises(ValueError, match=r"This model cannot be used. nobody/nothing"):
        serve(AppOptions(model="nobody/nothing"))
    with pytest.raises(ValueError, match="no model is named"):
        serve(AppOptions())


def test_an_address_that_cannot_be_had_is_told_before_a_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = f"cannot listen to 127.0.0.1, port {port}: .*; give another --host or --port"
        with pytest.raises(OSError, match=told):
            serve(AppOptions(model="nobody/nothing", port=port))
    with pytest.raises(OSError, match=r"cannot listen to 192\.0\.2\.1: "):
        serve(AppOptions(model="nobody/nothing", host="192.0.2.1"))


def test_without_gradio_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match=r"pip install 'hf-vanilla\[app\]'"):
        open_app(AppOptions(), None)


# --- the model ---------------------------------------------------------------------------------


def test_the_demos_model_is_trained_if_it_is_missing_and_only_then(
    corpus_files, tmp_path, monkeypatch
):
    served = []
    monkeypatch.setattr(app, "serve", served.append)
    demo = small_run.recipe(tmp_path / "demo", corpus_files, max_steps=2)
    open_app(AppOptions(), demo)
    written = (tmp_path / "demo" / "model.safetensors").stat()
    assert served == [AppOptions(model=str(tmp_path / "demo"), sentence=EXAMPLE)]
    monkeypatch.setattr(app, "train", lambda _: pytest.fail("trained again"))
    open_app(AppOptions(sentence="two"), demo)
    assert served[1].sentence == "two"
    assert (tmp_path / "demo" / "model.safetensors").stat().st_mtime_ns == written.st_mtime_ns


def test_a_model_that_is_named_is_not_trained(corpus_files, tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr(app, "serve", served.append)
    monkeypatch.setattr(app, "train", lambda _: pytest.fail("trained"))
    demo = small_run.recipe(tmp_path / "demo", corpus_files)
    open_app(AppOptions(model="mine"), demo)
    assert served == [AppOptions(model="mine")]  # the demo's sentence is of no use to it


def test_loading_tells_what_was_loaded_or_why_not(page):
    assert "1 + 1 layers, 2 + 2 heads" in page.load(f" {page.model} ")
    told = page.load("<b>nobody</b>/nothing")
    assert 'class="message error"' in told
    assert "&lt;b&gt;nobody&lt;/b&gt;" in told


def test_a_fixed_model_is_the_only_one(trained_run, ask):
    fixed = Page(AppOptions(model=str(trained_run), fixed_model=True))
    got = fixed.translate("nobody/nothing", SENTENCE, 3, CROSS, 1, MEAN)
    assert got[2] == ask()["translation"]
    labels = [block.label for block in fixed.blocks().blocks.values() if hasattr(block, "label")]
    assert "Model folder or Hub id" not in labels


# --- what a visitor does -----------------------------------------------------------------------


def test_translating_shows_translation_beams_scores_and_attention(ask):
    got = ask()
    answer = got["answer"]
    assert f'dir="auto">{answer.hypotheses[0].text}</p>' in got["translation"]
    labels = [label for label, _ in got["hypotheses"]["choices"]]
    assert [place for _, place in got["hypotheses"]["choices"]] == [0, 1, 2]
    for label, hypothesis in zip(labels, answer.hypotheses, strict=True):
        assert label == f"{hypothesis.score:.3f}\u2003\u2068{hypothesis.text}\u2069"
    assert got["view"] == attention_page(answer.seen, CROSS, 0, MEAN)
    assert got["column"]["visible"]
    assert got["told"] == message("")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"text": " "}, "There is no text"),
        ({"text": "x " * 100}, "at most 40 are translated"),
        ({"text": "x" * 10**6}, "1,000,000 characters"),
        ({"name": "nobody/nothing"}, "This model cannot be used"),
        ({"name": ""}, "No model is named"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_answered_is_told_and_leaves_no_old_answer(ask, changes, told):
    got = ask(**changes)
    assert told in got["told"]
    assert 'role="alert"' in got["told"]
    assert (got["answer"], got["view"], got["translation"]) == (None, "", "")
    assert not got["column"]["visible"]
    assert got["hypotheses"]["choices"] == []


def test_choosing_another_kind_keeps_layer_and_head_where_they_exist(page, ask):
    answer = ask()["answer"]
    seen = replace(
        answer.seen,
        encoder=torch.ones(3, 5, *answer.seen.encoder.shape[2:]),
        decoder=torch.ones(2, 2, *answer.seen.decoder.shape[2:]),
    )
    answer = replace(answer, seen=seen)
    layer, head, view = page.choose_kind(answer, ENCODER, 0, 4)
    assert (layer["value"], head["value"]) == (0, 4)
    assert layer["choices"] == [(str(n), n) for n in range(3)] or layer["choices"] == [0, 1, 2]
    assert view == attention_page(seen, ENCODER, 0, 4)
    layer, head, view = page.choose_kind(answer, DECODER, 2, 4)
    assert (layer["value"], head["value"]) == (1, MEAN)  # the last layer
    assert view == attention_page(seen, DECODER, 1, MEAN)


def test_choosing_another_hypothesis_looks_into_it(page, ask):
    got = ask()
    answer, text, view = page.choose_hypothesis(got["answer"], 1, CROSS, 0, 1)
    assert answer.chosen == 1
    assert f">{answer.hypotheses[1].text}</p>" in text
    assert view == attention_page(answer.seen, CROSS, 0, 1)
    assert view != got["view"]


def test_touching_the_view_before_any_answer_shows_nothing(page):
    assert page.view(None, CROSS, 0, 0) == ""
    assert page.choose_kind(None, CROSS, 0, 0)[-1] == ""
    assert page.choose_hypothesis(None, 0, CROSS, 0, 0) == [None, "", ""]


def test_a_model_that_is_gone_is_told_where_the_view_was(page, ask):
    answer = replace(ask()["answer"], model="nobody/nothing")
    assert "This model cannot be used" in page.choose_hypothesis(answer, 1, CROSS, 0, 0)[-1]


def test_a_translation_is_text_whatever_it_says(ask):
    answer = ask()["answer"]
    hostile = replace(answer.hypotheses[0], text="<b>&amp;")
    shown = app.translated(replace(answer, hypotheses=[hostile]))
    assert ">&lt;b&gt;&amp;amp;</p>" in shown


def test_a_message_is_text_whatever_it_says():
    assert "<b>" not in message("<b>")
    assert "&lt;b&gt;" in message("<b>")


# --- its reach ---------------------------------------------------------------------------------


def test_programs_get_no_door_of_their_own(page):
    blocks = page.blocks()
    assert blocks.analytics_enabled is False
    assert {fn.api_visibility for fn in blocks.fns.values()} == {"private"}


def test_the_page_is_served_and_nothing_but_this_machine_is_reached(trained_run, monkeypatch):
    reached, connect = set(), socket.socket.connect

    def note(self, address):
        reached.add(address[0] if isinstance(address, tuple) else "file")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", note)
    blocks = serve(AppOptions(model=str(trained_run)), is_blocking=False)
    try:
        assert blocks.local_url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(blocks.local_url) as answer:
            text = answer.read().decode("utf-8")
    finally:
        blocks.close()
    assert app.TITLE in text
    assert "fonts.googleapis" not in text
    assert "127.0.0.1" in reached  # so that something was noted
    assert reached <= {"127.0.0.1", "localhost", "file"}
