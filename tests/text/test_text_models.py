"""The models of the service of translation: any name, several visitors at once."""

import asyncio
import shutil

import pytest

from hf_vanilla.app.worker import Worker
from hf_vanilla.text import served_models
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.page import TextPage
from hf_vanilla.text.served_models import served_model
from hf_vanilla.text.translator import translate

SENTENCE = "three one four"
SENTENCES = [SENTENCE, "two", "eight seven", "five six zero one"]


def at_once(function, values):
    """Results of a function of the page for visitors who ask at once."""
    worker = Worker()
    view = worker.alone(function)  # as the server wraps each function of the page

    async def visit():
        return await asyncio.gather(*map(view, values))

    try:
        return asyncio.run(visit())
    finally:
        worker.close()


def without_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


BROKEN = {
    "empty": lambda folder: [path.unlink() for path in folder.iterdir() if path.is_file()],
    "config": lambda folder: (folder / "config.json").write_text("{"),
    "another kind": lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'),
    "weights": lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 99),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "no tokenizer": without_tokenizer,
}


@pytest.fixture
def copied(trained_run, tmp_path):
    skipped = shutil.ignore_patterns("checkpoint-*", "trackers")
    return shutil.copytree(trained_run, tmp_path / "model", ignore=skipped)


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_a_broken_folder_is_reported_in_one_line_and_not_cached(copied, trained_run, damage):
    damage(copied)
    page = TextPage(str(trained_run))
    with pytest.raises(ValueError, match=r"^This model cannot be used\. \S") as caught:
        page.served(str(copied))
    assert "\n" not in str(caught.value)
    shutil.rmtree(copied)
    shutil.copytree(trained_run, copied)  # repaired
    assert page.served(str(copied)).model


@pytest.mark.parametrize("name", ["nobody/nothing", "not there", "\0", "x" * 5000, "../..", "a:b"])
def test_a_name_of_no_model_is_reported(name):
    with pytest.raises(ValueError, match=r"This model cannot be used\. \S"):
        served_model(name)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_reported(name):
    with pytest.raises(ValueError, match="No model is named"):
        served_model(name)


# --- several visitors --------------------------------------------------------------------------


def test_visitors_at_once_get_the_results_of_one_visitor(copied, trained_run, trained):
    expected = dict(zip(SENTENCES, translate(*trained, SENTENCES), strict=True))
    page = TextPage(str(trained_run), str(copied))
    beams = trained[0].generation_config.num_beams

    def visit(turn):
        sentence = SENTENCES[turn % len(SENTENCES)]
        model = page.start()["models"][turn % 2]
        found = page.translate({"text": sentence, "beams": beams, "model": model})
        assert found["sentence"] == sentence
        return found["hypotheses"][0]["text"] == expected[sentence]

    assert all(at_once(visit, range(24)))


def test_a_model_that_many_ask_for_is_loaded_once(trained_run, monkeypatch):
    loaded = []

    def load(name, **options):
        loaded.append(name)
        return load_translator(name, **options)

    monkeypatch.setattr(served_models, "load_translator", load)
    found = at_once(TextPage(str(trained_run)).served, [str(trained_run)] * 4)
    assert len({id(served.model) for served in found}) == 1
    assert loaded == [str(trained_run)]


def test_the_least_recently_used_model_is_dropped(trained_run, tmp_path, monkeypatch):
    loaded = []

    def load(name, **_):
        loaded.append(name)
        return load_translator(str(trained_run))

    monkeypatch.setattr(served_models, "load_translator", load)
    page = TextPage("a")  # keeps two models
    for name in ("b", "a", "c", "a", "b"):
        page.served(name)
    assert loaded == ["a", "b", "c", "b"]
