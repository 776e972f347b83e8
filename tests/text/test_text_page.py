"""What the script of the page of translation gets from its functions."""

import base64
import json
import re
import shutil

import numpy as np
import pytest
import torch
from chromium import HOSTILE

from hf_vanilla import demo_model
from hf_vanilla.text.alignments import Aligner
from hf_vanilla.text.attentions import (
    CROSS,
    DECODER,
    ENCODER,
    KINDS,
    attentions,
    word_starts,
)
from hf_vanilla.text.loading import demo_model_facts
from hf_vanilla.text.n_best import best_translations
from hf_vanilla.text.page import TextPage
from hf_vanilla.text.page_answer import direction

SENTENCE = "three one four"


@pytest.fixture(scope="module")
def page(trained_run):
    return TextPage(str(trained_run))


@pytest.fixture
def ask(page):
    def ask(function="translate", **changes):
        asked = {"model": "trained", "text": SENTENCE, "beams": 3, **changes}
        found = getattr(page, function)(asked)
        json.dumps(found, allow_nan=False)
        return found

    return ask


def test_the_answer_has_the_n_best_list_with_penalties(ask, trained):
    found = ask()
    expected = best_translations(*trained, SENTENCE, num_beams=3)
    for shown, hypothesis in zip(found["hypotheses"], expected, strict=True):
        assert (shown["text"], shown["ids"]) == (hypothesis.text, hypothesis.ids)
        assert shown["score"] == pytest.approx(hypothesis.score, abs=1e-4)
        assert shown["penalty"] == pytest.approx(((5 + len(hypothesis.ids)) / 6) ** 0.6, abs=1e-4)
        assert shown["logProb"] == pytest.approx(shown["score"] * shown["penalty"], abs=1e-3)
    assert found["penalty"] == {"form": "gnmt", "alpha": 0.6}


def test_without_a_length_penalty_of_its_own_a_model_divides_by_the_length(page, ask, monkeypatch):
    decoding = page.served(page.model).model.generation_config
    monkeypatch.setattr(decoding, "length_penalty", None)
    monkeypatch.setattr(decoding, "length_penalty_form", "power")
    found = ask()
    assert found["penalty"] == {"form": "power", "alpha": 1.0}
    for shown in found["hypotheses"]:
        assert shown["penalty"] == len(shown["ids"])
        assert shown["logProb"] == pytest.approx(shown["score"] * len(shown["ids"]), abs=1e-3)


def test_sampled_translations_have_no_tree_and_follow_the_seed(ask):
    asked = {"temperature": "4", "top_k": "", "top_p": "", "seed": "5"}
    found = ask(sampling=asked)
    assert len(found["hypotheses"]) == 3
    assert found["steps"] == []
    assert ask(sampling=asked) == found
    assert ask(sampling={**asked, "seed": "6"}) != found


def test_visitors_see_the_models_name_and_never_its_folder_on_the_server(page, ask):
    told = [page.start(), ask(), ask("load"), ask(model=""), ask("attend", ids=[5])]
    assert page.start()["model"] == ask()["model"] == ask(model="")["model"] == "trained"
    assert all(str(page.model) not in json.dumps(one) for one in told)


def test_each_result_is_a_finished_node_of_the_tree_and_its_path_is_its_text(ask, trained):
    found = ask()
    steps = found["steps"]
    for rank, hypothesis in enumerate(found["hypotheses"]):
        ((step, node),) = [
            (t, n) for t, nodes in enumerate(steps) for n in nodes if n["rank"] == rank
        ]
        assert node["status"] == "finished"
        assert node["score"] == pytest.approx(hypothesis["score"], abs=2e-4)
        path = []
        for t in range(step, -1, -1):
            path.insert(0, node["token"])
            node = steps[t - 1][node["parent"]] if t else None
        seen = attentions(*trained, SENTENCE, translation=hypothesis["ids"])
        assert path == seen.target


@pytest.mark.parametrize("kind", KINDS)
def test_weights_travel_as_bytes_with_the_tokens_of_both_axes(ask, trained, kind):
    found = ask()
    seen = attentions(*trained, SENTENCE, translation=found["hypotheses"][0]["ids"])
    sent = found["attention"]["kinds"][kind]
    weights = np.frombuffer(base64.b64decode(sent["weights"]), np.uint8) / 255
    expected = seen.of(kind)
    assert sent["shape"] == list(expected.shape)
    np.testing.assert_allclose(weights, expected.flatten(), atol=0.5 / 255 + 1e-6)
    sides = {
        CROSS: (seen.target, seen.source),
        ENCODER: (seen.source, seen.source),
        DECODER: (seen.target, ["<start>", *seen.target[:-1]]),
    }
    assert (sent["queries"], sent["keys"]) == sides[kind]
    assert sent["words"] == [word_starts(side) for side in sides[kind]]
    assert np.array(sent["patterns"]).shape == expected.shape[:2]


def test_each_token_has_its_probability_and_the_best_others(ask, trained):
    second = ask()["hypotheses"][1]["ids"]
    found = ask("attend", ids=second)
    seen = attentions(*trained, SENTENCE, translation=second)
    probabilities = seen.log_probs.exp()
    for row, (step, chosen) in enumerate(zip(found["steps"], second, strict=True)):
        assert step["token"] == seen.target[row]
        assert step["probability"] == pytest.approx(probabilities[row, chosen].item(), abs=1e-4)
        others = probabilities[row].clone()
        others[chosen] = -1
        expected = others.topk(5).values
        shown = torch.tensor([other["probability"] for other in step["others"]])
        torch.testing.assert_close(shown, expected, rtol=0, atol=1e-4)
        assert step["rank"] == int((probabilities[row] > probabilities[row, chosen]).sum())


def test_the_words_of_each_translation_are_aligned_as_by_the_command(ask, trained):
    found = ask()
    for hypothesis, seen in zip(
        found["hypotheses"],
        (found["attention"], ask("attend", ids=found["hypotheses"][1]["ids"])),
        strict=False,
    ):
        words = seen["words"]
        assert words["source"] == SENTENCE.split()
        assert words["target"] == hypothesis["text"].split()
        (links,) = Aligner(*trained).align([(SENTENCE, hypothesis["text"])])
        assert words["links"] == links
        assert words["head"] == {"layer": 0, "head": None, "is_next": False}


def test_the_words_are_aligned_by_the_head_that_is_saved_with_the_model(trained_run, tmp_path):
    model = shutil.copytree(trained_run, tmp_path / "model")
    best = {"layer": 0, "head": 1, "is_next": True}
    (model / "alignment.json").write_text(json.dumps({"best": best}))
    own = TextPage(str(model))
    asked = {"model": "model", "text": "two six", "beams": 2}
    found = own.translate(asked)
    assert found["attention"]["words"]["head"] == best
    assert found["attention"]["words"]["source"] == ["two", "six"]
    (model / "alignment.json").write_text("{")
    with pytest.raises(ValueError, match="names no layer: remove it"):
        own.translate(asked)


def test_the_vectors_of_a_layer_are_sent(ask):
    ids = ask()["hypotheses"][0]["ids"]
    found = ask("inside", ids=ids, kind=CROSS, layer=0, head=1, token=2)
    assert np.sum(found["weights"]) == pytest.approx(1, abs=1e-2)
    assert len(found["keys"]) == len(found["values"]) == len(found["weights"])


@pytest.mark.parametrize(
    ("function", "changes", "problem"),
    [
        ("translate", {"text": " "}, "There is no text"),
        ("translate", {"text": "x " * 100}, "the limit is 40"),
        ("translate", {"text": "x" * 10**6}, "1,000,000 characters"),
        ("translate", {"beams": 11}, "beams=11: give 1 to 10"),
        ("translate", {"sampling": {"temperature": "0"}}, "The temperature is '0': give a number"),
        ("translate", {"lengths": {"max_new_tokens": "x"}}, "The maximum length is 'x': give"),
        ("translate", {"model": "nobody/nothing"}, "nobody/nothing: there is no such model here"),
        ("load", {"model": HOSTILE}, "there is no such model here: give trained"),
        ("attend", {"ids": [10**9]}, "This translation is none of the model"),
        ("inside", {"ids": [1], "kind": "x", "layer": 0, "head": 0, "token": 0}, "kind='x'"),
        ("inside", {"ids": [1], "kind": CROSS, "layer": 9, "head": 0, "token": 0}, "layer=9"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_answered_is_one_line(page, function, changes, problem):
    asked = {"model": "trained", "text": SENTENCE, "beams": 3, **changes}
    with pytest.raises(ValueError, match=rf"^[^\n]*{re.escape(problem)}[^\n]*$"):
        getattr(page, function)(asked)


def test_visitors_read_no_folder_outside_the_given_one(trained_run, tmp_path, monkeypatch):
    models = tmp_path / "models"
    models.mkdir()
    (models / "copy").symlink_to(trained_run)  # it leads out
    shutil.copytree(trained_run, models / "own")
    none = TextPage(str(trained_run), demo_model())
    one = TextPage(str(trained_run), models_folder=str(models))
    assert not none.start()["isFixed"]  # two models to choose from
    monkeypatch.chdir(models)
    own = str(models / "own")
    for page, name in (
        *((none, own), (none, "own"), (none, str(trained_run))),
        *((one, "copy"), (one, str(tmp_path)), (one, ".."), (one, "own\0"), (one, "nothing")),
    ):
        with pytest.raises(ValueError, match="there is no such model here: give trained"):
            page.load({"model": name})
    for page, name in ((none, "trained"), (one, "own"), (one, own)):
        assert "1 + 1 layers" in page.load({"model": name})["about"]
    assert "number words" in none.load({"model": none.start()["models"][1]})["about"]


def test_the_field_of_the_app_takes_a_folder_as_the_command_does(trained_run, monkeypatch):
    page = TextPage(demo_model(), models_folder="/")
    monkeypatch.chdir(trained_run.parent)
    for name in (trained_run.name, str(trained_run)):
        assert "1 + 1 layers" in page.load({"model": name})["about"]


def test_examples_are_those_of_the_packages_models(trained_run):
    assert "forty-two" in TextPage(demo_model()).start()["examples"]
    assert (
        TextPage("help-en-de").start()["sentence"] == demo_model_facts("help-en-de")["examples"][0]
    )
    own = TextPage(str(trained_run)).start()
    assert (own["examples"], own["isFixed"]) == ([], True)
    assert own["about"].startswith("Translates: en to de. ")
    assert "1 + 1 layers, 2 + 2 heads" in own["about"]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["⟨D7⟩", "שלום"], "ltr"),  # hexadecimal is written from left to right
        (["␣", "שלום", "abc"], "rtl"),
        (["12", "مرحبا"], "rtl"),
        (["12", "abc", "مرحبا"], "ltr"),
        (["1", "!"], "ltr"),
        ([], "ltr"),
    ],
)
def test_direction_is_that_of_the_first_letter(tokens, expected):
    assert direction(tokens) == expected
