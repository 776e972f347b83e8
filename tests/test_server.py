"""The service without a browser: its options, its address, and the files of a page."""

import json
import os
import shutil
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path

import pytest
from chromium import served

from hf_vanilla import images
from hf_vanilla.app.page import page_of_component
from hf_vanilla.app.server import POLICY, Metrics
from hf_vanilla.app.worker import Worker
from hf_vanilla.options import parse_options
from hf_vanilla.serve import AppOptions, ServeOptions, open_app, serve
from hf_vanilla.text.static_page import TITLE

# --- options -----------------------------------------------------------------------------------


def test_an_impossible_option_is_refused(tmp_path):
    nothing = str(tmp_path / "nothing")
    for kind, changes, problem in (
        (ServeOptions, {"port": 0}, "port=0: give a number from 1 to 65535"),
        (AppOptions, {"port": 65536}, "port=65536"),
        (ServeOptions, {"dtype": "int7"}, "dtype='int7': choose one of"),
        (ServeOptions, {"models_folder": nothing}, f"models_folder={nothing!r}: no such folder"),
    ):
        with pytest.raises(ValueError, match=problem):
            kind(**changes)


def test_models_of_the_service_may_be_given_together_and_one_by_one():
    given = parse_options(ServeOptions, ["--model", "a", "b", "--port=80", "--model=c"])
    assert given.model == ["a", "b", "c"]


def test_what_cannot_be_served_is_refused_before_serving():
    with pytest.raises(ValueError, match=r"This model cannot be used. nobody/nothing"):
        serve(ServeOptions(model=["nobody/nothing"]))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"cannot listen on 127.0.0.1, port {port}: .*; give another --host or --port"
        with pytest.raises(OSError, match=expected):
            serve(ServeOptions(model=["nobody/nothing"], port=port))
    for host in ("192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(OSError, match=f"cannot listen on {host}: "):
            serve(ServeOptions(host=host))


def test_two_models_of_one_name_are_refused(trained_run, tmp_path):
    copies = [tmp_path / parent / "mine" for parent in "ab"]
    for copied in copies:
        copied.mkdir(parents=True)
        shutil.copy(trained_run / "config.json", copied)
    with pytest.raises(ValueError, match="two models are named 'mine': rename a folder"):
        serve(ServeOptions(model=[*map(str, copies)]))


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "hf_vanilla.app.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r"needs uvicorn: pip install -e '\.\[serve\]'"):
        open_app(AppOptions())


def test_the_app_opens_the_page_of_the_packages_model_until_ctrl_c(monkeypatch, caplog):
    shown = []

    class Browser:
        def open(self, address):
            threading.Thread(target=self.show, args=[address]).start()

        def show(self, address):
            with urllib.request.urlopen(address) as result:
                shown.append((address, result.read().decode()))
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(webbrowser, "get", Browser)
    with caplog.at_level("INFO", "hf_vanilla"):
        open_app(AppOptions())
    ((address, text),) = shown
    assert address.startswith("http://127.0.0.1:")
    assert f"the page is at {address}" in caplog.text
    assert TITLE in text


# --- the page ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ask(trained_run):
    """Status and JSON value of an answer to a request to the service of a model."""
    with served(str(trained_run)) as address:

        def ask(path, body=None):
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            kind = {"content-type": "application/json"}
            request = urllib.request.Request(address + path, data, kind)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        ask.address = address
        yield ask


def test_the_line_below_the_title_is_escaped():
    index = page_of_component("A title", Path(images.__file__).parent, about="<b>")["index.html"]
    assert '<h1>A title</h1><p class="message" dir="auto">&lt;b&gt;</p>' in index


def test_the_page_loads_only_its_own_files(ask):
    for name, kind in (("", "text/html"), ("page.css", "text/css"), ("page.js", "javascript")):
        with urllib.request.urlopen(ask.address + name) as answer:
            text = answer.read().decode()
            assert kind in answer.headers["content-type"]
            assert answer.headers["content-security-policy"] == POLICY
            assert "uvicorn" not in str(answer.headers)
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "unsafe" not in POLICY


def test_the_functions_of_the_page_are_asked_by_post(ask):
    status, found = ask("v1/view/start", {})
    assert (status, found["model"]) == (200, "trained")
    status, found = ask("v1/view/translate", {"text": "three one four", "beams": 2})
    assert (status, len(found["hypotheses"])) == (200, 2)


def test_what_the_service_refuses_is_one_sentence(ask):
    not_understood = "The request is not one of this service"
    for path, body, status, problem in (
        ("v1/view/translate", {"text": " ", "beams": 2}, 400, "There is no text"),
        ("v1/view/translate", {"text": "two"}, 400, not_understood),
        ("v1/view/translate", {"text": "two", "beams": float("inf")}, 400, not_understood),
        ("v1/view/translate", {"text": "two", "beams": 2, "lengths": "long"}, 400, not_understood),
        ("v1/view/translate", [], 400, not_understood),
        ("v1/view/inside", {"text": "two", "ids": [1]}, 400, not_understood),
        ("v1/view/nothing", {}, 404, "Not Found"),
        ("v1/view/start", b"{", 400, "not JSON"),
        ("v1/view/start", b"[" * 10**6, 400, "not JSON"),
        ("v1/view/start", b"\xff", 400, "not JSON"),
        ("v1/view/start", None, 405, "Method Not Allowed"),
        ("..%2f..%2fpyproject.toml", None, 404, "Not Found"),
        ("nothing", None, 404, "Not Found"),
    ):
        found_status, found = ask(path, body)
        assert (found_status, list(found)) == (status, ["error"]), (path, found)
        assert problem in found["error"]
        assert "\n" not in found["error"]


def test_metrics_count_every_value_of_many():
    worker = Worker()
    worker.values, worker.seconds = 12_345_678, 1_234_567.25
    text = Metrics(worker).text()
    assert "hf_vanilla_batch_values_total 12345678\n" in text
    assert "hf_vanilla_batch_seconds_total 1234567.25\n" in text
    worker.close()


def test_serving_connects_to_no_other_machine(trained_run, monkeypatch):
    reached, connect = set(), socket.socket.connect

    def note(self, address):
        reached.add(address[0] if isinstance(address, tuple) else "file")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", note)
    with served(str(trained_run)) as address, urllib.request.urlopen(address) as answer:
        answer.read()
    assert reached == {"127.0.0.1"}  # by this test
