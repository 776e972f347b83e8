"""The app without a browser: options, the choice of models, and network access."""

import socket
import sys
import urllib.request
from dataclasses import fields

import pytest

from hf_vanilla import serve as app
from hf_vanilla.app.component import message
from hf_vanilla.serve import EXAMPLE, AppOptions, open_app, serve
from hf_vanilla.text.loading import demo_model
from hf_vanilla.text.page import TITLE

gradio = pytest.importorskip("gradio")


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


def test_a_folder_of_models_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"models_folder='.*nothing': no such folder"):
        AppOptions(models_folder=str(tmp_path / "nothing"))


# --- network -----------------------------------------------------------------------------------


def test_messages_are_escaped():
    assert message("<b>") == '<p class="message" dir="auto">&lt;b&gt;</p>'


def test_serving_connects_to_no_other_machine_and_names_its_address(
    trained_run, monkeypatch, capsys, caplog
):
    reached, connect = set(), socket.socket.connect

    def note(self, address):
        reached.add(address[0] if isinstance(address, tuple) else "file")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", note)
    with caplog.at_level("INFO", "hf_vanilla"):
        blocks = serve(AppOptions(model=str(trained_run)), is_blocking=False)
    try:
        assert f"the page is at {blocks.local_url}" in caplog.text
        assert "share=True" not in "".join(capsys.readouterr())  # which would publish the page
        assert blocks.local_url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(blocks.local_url) as result:
            text = result.read().decode("utf-8")
    finally:
        blocks.close()
    assert TITLE in text
    assert "fonts.googleapis" not in text
    assert "127.0.0.1" in reached  # connections are recorded
    assert reached <= {"127.0.0.1", "localhost", "file"}
