"""The engine of the page gives the JSON of the service: the same model, the same requests."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hf_vanilla import demo_model
from hf_vanilla.text.attentions import KINDS
from hf_vanilla.text.page import TextPage
from hf_vanilla.text.static_page import PageOptions, write_page

NODE = shutil.which("node")
RUNNER = Path(__file__).with_name("run_page.mjs")
REFUSED = (
    {"text": ""},
    {"text": " \t\n"},
    {"text": "x" * 100_000},
    {"text": "one " * 2_000},
    {"text": "one", "beams": 11},
    {"text": "one", "lengths": {"max_new_tokens": "many"}},
    {"text": "one", "lengths": {"max_new_tokens": "0"}},
)
ODD = ("\0", "a\ud800b", "one  two\nthree", "שלום עולם", "<b>one</p>", "Wie geht es?")


def requests_of(page):
    """Calls with their requests, and the answers of the service."""
    common = {"model": page.start()["model"], "beams": 3, "lengths": {}}
    calls = []
    for text in ("seven hundred forty-two", *ODD):
        calls.append(("translate", {**common, "text": text}))
        found = answered(page, *calls[-1])
        ids = [one["ids"] for one in found["hypotheses"]]
        calls.append(("attend", {**common, "text": text, "ids": ids[-1]}))
        for place, kind in enumerate(KINDS):
            token = len(found["attention"]["kinds"][kind]["queries"]) - 1
            request = {"kind": kind, "layer": place % 2, "head": place, "token": token}
            calls.append(("inside", {**common, "text": text, "ids": ids[0], **request}))
    calls.append(("translate", {**common, "beams": 1, "text": "forty-two"}))
    calls.append(("translate", {**common, "text": "forty-two", "lengths": {"max_new_tokens": "2"}}))
    calls.append(("translate", {**common, "text": "six", "lengths": {"length_penalty": "2"}}))
    return [*calls, *(("translate", {**common, **changes}) for changes in REFUSED)]


def answered(page, call, request):
    try:
        return json.loads(json.dumps(getattr(page, call)(request)))
    except ValueError as error:
        return {"error": str(error)}


def assert_same(ours, theirs, path):
    assert type(ours) is type(theirs) or {type(ours), type(theirs)} <= {int, float}, path
    if isinstance(ours, dict):
        assert set(ours) == set(theirs), path
        for name in ours:
            assert_same(ours[name], theirs[name], f"{path} {name}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), path
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*pair, f"{path} {index}")
    elif path.endswith(" weights"):  # bytes
        pair = [
            np.frombuffer(base64.b64decode(one), np.uint8).astype(int) for one in (ours, theirs)
        ]
        assert np.abs(pair[0] - pair[1]).max() <= 1, path
    else:
        assert ours == (pytest.approx(theirs, abs=2e-4) if isinstance(ours, float) else theirs), (
            path
        )


@pytest.mark.slow
@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_engine_and_service_answer_every_request_alike(tmp_path):
    folder = write_page(PageOptions(output=str(tmp_path / "page"), dtype="float32")).resolve()
    index = (folder / "index.html").read_text()
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', index)[1])["models"][0]
    page = TextPage(demo_model(), dtype="float32")
    calls = requests_of(page)
    job = {"facts": facts, "folder": str(folder / "model"), "requests": calls}
    (tmp_path / "jobs.json").write_text(json.dumps(job))
    files = [folder / "answer.js", tmp_path / "jobs.json", tmp_path / "answers.json"]
    subprocess.run([NODE, RUNNER, *files], check=True, timeout=300)
    answers = json.loads(files[2].read_text())
    for (call, request), answer in zip(calls, answers, strict=True):
        assert_same(answer, answered(page, call, request), f"{call} {request['text'][:20]}")
        assert ("error" in answer) == any(request | one == request for one in REFUSED)
