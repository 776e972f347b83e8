"""The models of the page of translation: any name, several visitors at once, ensembles."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from hf_vanilla.text import page_models as text_models
from hf_vanilla.text.attentions import attentions
from hf_vanilla.text.loading import load_engine, load_translator
from hf_vanilla.text.page_models import names_in
from hf_vanilla.text.page_search import Sampling, Search
from hf_vanilla.text.page_service import Service
from hf_vanilla.text.tokenizer_training import train_tokenizer
from hf_vanilla.text.translator import Translator, translate

SENTENCE = "three one four"
SENTENCES = [SENTENCE, "two", "eight seven", "five six zero one"]


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


def ask(name):
    return Service(max_tokens=40).translate(str(name), SENTENCE, Search(2))


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_a_broken_folder_is_reported_in_one_line_and_not_cached(copied, trained_run, damage):
    damage(copied)
    with pytest.raises(ValueError, match=r"^This model cannot be used\. \S") as caught:
        ask(copied)
    assert "\n" not in str(caught.value)
    shutil.rmtree(copied)
    shutil.copytree(trained_run, copied)  # repaired
    assert ask(copied).hypotheses


@pytest.mark.parametrize("name", ["nobody/nothing", "not there", "\0", "x" * 5000, "../..", "a:b"])
def test_a_name_of_no_model_is_reported(name):
    with pytest.raises(ValueError, match=r"This model cannot be used\. \S"):
        ask(name)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_reported(name):
    with pytest.raises(ValueError, match="No model is named"):
        ask(name)


# --- several visitors --------------------------------------------------------------------------


def test_visitors_at_once_get_the_results_of_one_visitor(copied, trained_run, trained):
    expected = dict(zip(SENTENCES, translate(*trained, SENTENCES), strict=True))
    service = Service(max_tokens=40)
    beams = trained[0].generation_config.num_beams

    def visit(turn):
        name = str((trained_run, copied)[turn % 2])
        sentence = SENTENCES[turn % len(SENTENCES)]
        result = service.translate(name, sentence, Search(beams))
        assert result.sentence == sentence
        sums = result.attentions.encoder.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))
        return result.hypotheses[0].text == expected[sentence]

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(visit, range(24)))


def test_a_model_that_many_ask_for_is_loaded_once(trained_run, monkeypatch):
    loaded = []

    def load(name, **options):
        loaded.append(name)
        return load_translator(name, **options)

    monkeypatch.setattr(text_models, "load_translator", load)
    service, together = Service(), threading.Barrier(4)

    def visit(_):
        together.wait()
        return service.describe(str(trained_run))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(visit, range(4)))) == 1
    assert loaded == [str(trained_run)]


def test_the_least_recently_used_model_is_dropped(trained_run, tmp_path, monkeypatch):
    loaded = []
    pair = load_translator(str(trained_run))
    monkeypatch.setattr(
        text_models, "load_translator", lambda name, **_: loaded.append(name) or pair
    )
    service = Service(cached_models=2)
    for name in ("a", "b", "a", "c", "a", "b"):
        service.describe(name)
    assert loaded == ["a", "b", "c", "b"]


# --- ensembles ---------------------------------------------------------------------------------


@pytest.fixture
def noisy(trained_run, tmp_path):
    """Folders of the same model with noise on its weights."""

    def write(seed):
        model, tokenizer = load_translator(str(trained_run))
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.3 * weight.std() * torch.randn_like(weight)
        folder = tmp_path / f"noisy{seed}"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return write


def test_an_ensemble_translates_as_the_command_and_shows_its_first_model(noisy, trained_run):
    first, others = noisy(0), [noisy(1), str(trained_run)]
    service = Service(max_tokens=40, cached_models=1)
    found = service.translate(" + ".join([first, *others]), SENTENCE, Search(3))
    engine = load_engine(first, ensemble=others, num_beams=3)
    (expected,) = Translator(engine).n_best([SENTENCE], 3)
    assert [(one.text, one.ids) for one in found.hypotheses] == (
        [(one.text, one.ids) for one in expected]
    )
    for one, by_command in zip(found.hypotheses, expected, strict=True):
        assert one.score == pytest.approx(by_command.score, abs=1e-5)
    alone = service.translate(first, SENTENCE, Search(3)).hypotheses
    assert abs(alone[0].score - found.hypotheses[0].score) > 1e-3
    seen = attentions(*load_translator(first), SENTENCE, translation=found.hypotheses[0].ids)
    torch.testing.assert_close(found.attentions.cross, seen.cross)
    ranked = [c for step in found.steps for c in step if c.rank >= 0]
    assert all(list(c.ids) == found.hypotheses[c.rank].ids for c in ranked)
    assert len(ranked) == 3


def test_an_ensemble_translates_greedily_as_the_command(noisy, trained_run):
    first, other = noisy(0), noisy(1)
    found = Service(max_tokens=40).translate(f"{first} + {other}", SENTENCE, Search(1))
    translator = Translator(first, ensemble=[other], num_beams=1)
    assert [found.hypotheses[0].text] == list(translator.translate([SENTENCE]))


def test_an_ensemble_obeys_phrases_and_keeps_markup(noisy, trained_run):
    name = f"{trained_run} + {noisy(1)}"
    search = Search(3, ["neun"], keep_markup=True)
    found = Service(max_tokens=40).translate(name, "<b>two</b>", search).hypotheses
    assert all("neun" in one.text and "</b>" in one.text for one in found)


def test_an_ensemble_is_described_by_its_first_model(noisy, trained_run):
    assert Service().describe(f"{trained_run} + {noisy(1)}") == (
        f"the views show the first of 2 models, {Service().describe(str(trained_run))}"
    )


@pytest.fixture
def foreign(tiny_model, tmp_path):
    tokenizer = train_tokenizer(["a b"] * 2, vocab_size=300)
    tiny_model.resize_token_embeddings(len(tokenizer))
    tiny_model.save_pretrained(tmp_path / "foreign")
    tokenizer.save_pretrained(tmp_path / "foreign")
    return str(tmp_path / "foreign")


@pytest.fixture
def t5(trained, tmp_path):
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=len(trained[1]), decoder_start_token_id=0, **sizes)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    trained[1].save_pretrained(tmp_path / "t5")
    return str(tmp_path / "t5")


def test_models_that_are_no_ensemble_are_refused(trained_run, foreign, t5):
    for name, problem in {
        f"{trained_run} + {foreign}": "have different vocabularies: an ensemble needs",
        f"{trained_run} + {t5}": "t5 is no model of this package: use it alone",
        f"{trained_run} + ": "No model is named",
        f"{trained_run} + nobody/nothing": "This model cannot be used. nobody/nothing",
        " + ".join([str(trained_run)] * 5): "^5 models are named; the limit is 4: name fewer",
    }.items():
        with pytest.raises(ValueError, match=problem):
            ask(name)


def test_an_ensemble_takes_no_sampling(noisy, trained_run):
    with pytest.raises(ValueError, match=r"^An ensemble takes no sampling: choose beam search"):
        Service().translate(
            f"{trained_run} + {noisy(1)}", SENTENCE, Search(2, sampling=Sampling(seed=1))
        )


def test_a_plus_in_the_name_of_a_folder_is_no_ensemble(copied):
    folder = copied.rename(copied.with_name("a + b"))
    assert names_in(str(folder)) == [str(folder)]
    assert ask(folder).hypotheses == ask(f"{folder}").hypotheses
    assert names_in("a + b") == ["a", "b"]
