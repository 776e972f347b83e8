"""The app without a browser: options, event handlers, and network access."""

import socket
import sys
import urllib.request
from dataclasses import fields, replace

import pytest
import torch

from hf_vanilla.app import page as page_module
from hf_vanilla.app import server as app
from hf_vanilla.app.attention_view import CROSS, DECODER, ENCODER, MEAN, attention_figure
from hf_vanilla.app.page import Page, message
from hf_vanilla.app.server import EXAMPLE, AppOptions, open_app, serve
from hf_vanilla.translation.demo_model import demo_model

gradio = pytest.importorskip("gradio")

SENTENCE = "three one four"


@pytest.fixture(scope="module")
def page(trained_run):
    return Page(str(trained_run), max_tokens=40)


@pytest.fixture
def ask(page):
    def ask(text=SENTENCE, beams=3, kind=CROSS, layer=0, head=MEAN, name=page.model):
        names = ["message", "column", "translation", "hypotheses", "result"]
        names += ["layer", "head", "figure"]
        got = page.translate(name, text, beams, kind, layer, head)
        return dict(zip(names, got, strict=True))

    return ask


# --- options -----------------------------------------------------------------------------------


def test_the_default_address_is_local():
    options = AppOptions()
    assert (options.host, options.share, options.fixed_model) == ("127.0.0.1", False, None)
    assert all(f.metadata["help"] for f in fields(AppOptions))


@pytest.mark.parametrize(
    ("changes", "message_part"),
    [
        ({"max_tokens": 0}, "max_tokens=0: give a positive number"),
        ({"port": 0}, "port=0: give a number from 1 to 65535"),
        ({"port": 65536}, "port=65536"),
    ],
    ids=str,
)
def test_an_impossible_option_is_refused(changes, message_part):
    with pytest.raises(ValueError, match=message_part):
        AppOptions(**changes)


def test_a_missing_model_is_refused_before_serving():
    with pytest.raises(ValueError, match=r"This model cannot be used. nobody/nothing"):
        serve(AppOptions(model="nobody/nothing"))
    with pytest.raises(ValueError, match="no model is named"):
        serve(AppOptions())


def test_an_address_in_use_is_refused_before_a_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"cannot listen on 127.0.0.1, port {port}: .*; give another --host or --port"
        with pytest.raises(OSError, match=expected):
            serve(AppOptions(model="nobody/nothing", port=port))
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1: "):
        serve(AppOptions(model="nobody/nothing", host="192.0.2.1"))


def test_a_missing_gradio_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[app\]'"):
        open_app(AppOptions())


# --- the model ---------------------------------------------------------------------------------


def test_without_a_model_the_one_of_the_package_is_served_with_an_example(monkeypatch):
    served = []
    monkeypatch.setattr(app, "serve", served.append)
    open_app(AppOptions())
    open_app(AppOptions(sentence="two"))
    open_app(AppOptions(model="mine"))
    assert served == [
        AppOptions(model=demo_model(), sentence=EXAMPLE),
        AppOptions(model=demo_model(), sentence="two"),
        AppOptions(model="mine"),  # without the sentence of the demo
    ]


def test_load_describes_the_model_or_reports_the_error(page):
    assert "1 + 1 layers, 2 + 2 heads" in page.load(f" {page.model} ")
    error = page.load("<b>nobody</b>/nothing")
    assert 'class="message error"' in error
    assert "&lt;b&gt;nobody&lt;/b&gt;" in error


@pytest.mark.parametrize(
    ("changes", "is_fixed"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "example.org"}, True),
        ({"share": True}, True),
        ({"share": True, "fixed_model": False}, False),
        ({"fixed_model": True}, True),
    ],
    ids=str,
)
def test_only_visitors_on_this_machine_choose_a_model_unless_told_otherwise(changes, is_fixed):
    assert AppOptions(**changes).is_model_fixed == is_fixed


def test_a_fixed_model_cannot_be_replaced(trained_run, ask):
    fixed = Page(str(trained_run), fixed_model=True)
    got = fixed.translate("nobody/nothing", SENTENCE, 3, CROSS, 1, MEAN)
    assert got[2] == ask()["translation"]
    labels = [block.label for block in fixed.blocks().blocks.values() if hasattr(block, "label")]
    assert "Model folder or Hub id" not in labels


# --- event handlers ----------------------------------------------------------------------------


def test_translate_shows_translation_n_best_list_and_attention(ask):
    got = ask()
    result = got["result"]
    assert f'dir="auto">{result.hypotheses[0].text}</p>' in got["translation"]
    labels = [label for label, _ in got["hypotheses"]["choices"]]
    assert [index for _, index in got["hypotheses"]["choices"]] == [0, 1, 2]
    for label, hypothesis in zip(labels, result.hypotheses, strict=True):
        assert label == f"{hypothesis.score:.3f}\u2003\u2068{hypothesis.text}\u2069"
    assert got["figure"] == attention_figure(result.attentions, CROSS, 0, MEAN)
    assert got["column"]["visible"]
    assert got["message"] == message("")


@pytest.mark.parametrize(
    ("changes", "message_part"),
    [
        ({"text": " "}, "There is no text"),
        ({"text": "x " * 100}, "the limit is 40"),
        ({"text": "x" * 10**6}, "1,000,000 characters"),
        ({"name": "nobody/nothing"}, "This model cannot be used"),
        ({"name": ""}, "No model is named"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_refused_text_shows_a_message_and_no_old_result(ask, changes, message_part):
    got = ask(**changes)
    assert message_part in got["message"]
    assert 'role="alert"' in got["message"]
    assert (got["result"], got["figure"], got["translation"]) == (None, "", "")
    assert not got["column"]["visible"]
    assert got["hypotheses"]["choices"] == []


def test_another_kind_keeps_layer_and_head_if_they_exist(page, ask):
    result = ask()["result"]
    weights = replace(
        result.attentions,
        encoder=torch.ones(3, 5, *result.attentions.encoder.shape[2:]),
        decoder=torch.ones(2, 2, *result.attentions.decoder.shape[2:]),
    )
    result = replace(result, attentions=weights)
    layer, head, figure = page.choose_kind(result, ENCODER, 0, 4)
    assert (layer["value"], head["value"]) == (0, 4)
    assert layer["choices"] == [(str(n), n) for n in range(3)] or layer["choices"] == [0, 1, 2]
    assert figure == attention_figure(weights, ENCODER, 0, 4)
    layer, head, figure = page.choose_kind(result, DECODER, 2, 4)
    assert (layer["value"], head["value"]) == (1, MEAN)  # the last layer
    assert figure == attention_figure(weights, DECODER, 1, MEAN)


def test_choosing_a_hypothesis_shows_its_attention(page, ask):
    got = ask()
    result, text, figure = page.choose_hypothesis(got["result"], 1, CROSS, 0, 1)
    assert result.selected == 1
    assert f">{result.hypotheses[1].text}</p>" in text
    assert figure == attention_figure(result.attentions, CROSS, 0, 1)
    assert figure != got["figure"]


def test_events_before_a_result_show_nothing(page):
    assert page.figure(None, CROSS, 0, 0) == ""
    assert page.choose_kind(None, CROSS, 0, 0)[-1] == ""
    assert page.choose_hypothesis(None, 0, CROSS, 0, 0) == [None, "", ""]


def test_a_model_that_cannot_be_loaded_again_is_reported(page, ask):
    result = replace(ask()["result"], model="nobody/nothing")
    assert "This model cannot be used" in page.choose_hypothesis(result, 1, CROSS, 0, 0)[-1]


def test_translations_are_escaped(ask):
    result = ask()["result"]
    hostile = replace(result.hypotheses[0], text="<b>&amp;")
    shown = page_module.translation_html(replace(result, hypotheses=[hostile]))
    assert ">&lt;b&gt;&amp;amp;</p>" in shown


def test_messages_are_escaped():
    assert "<b>" not in message("<b>")
    assert "&lt;b&gt;" in message("<b>")


# --- network -----------------------------------------------------------------------------------


def test_no_event_is_offered_as_an_api(page):
    blocks = page.blocks()
    assert blocks.analytics_enabled is False
    assert {fn.api_visibility for fn in blocks.fns.values()} == {"private"}


def test_serving_connects_to_no_other_machine(trained_run, monkeypatch):
    reached, connect = set(), socket.socket.connect

    def note(self, address):
        reached.add(address[0] if isinstance(address, tuple) else "file")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", note)
    blocks = serve(AppOptions(model=str(trained_run)), is_blocking=False)
    try:
        assert blocks.local_url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(blocks.local_url) as result:
            text = result.read().decode("utf-8")
    finally:
        blocks.close()
    assert page_module.TITLE in text
    assert "fonts.googleapis" not in text
    assert "127.0.0.1" in reached  # connections are recorded
    assert reached <= {"127.0.0.1", "localhost", "file"}
