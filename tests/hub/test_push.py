"""The card is filled by the run and readable for the Hub; a push brings everything."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.utils import EntryNotFoundError

from hf_vanilla.hub.push import (
    CardFacts,
    PushOptions,
    card_template,
    model_card,
    push_folder,
)
from hf_vanilla.translation.evaluation import score_translations

SCORES = score_translations(["ein altes Haus steht am See"], ["ein altes Haus stand am See"])
FACTS = {
    "model_name": "tiny",
    "corpus": "the built-in numbers",
    "languages": ("en", "de"),
    "license": "apache-2.0",
    "parameters": 1_234_567,
    "recipe": "max_steps: 7\nmodel:\n  d_model: 16\n",
    "command": "`hf-vanilla train --recipe FILE`",
    "training": "7 steps in no time for $5.",
    "scores": SCORES,
    "validation_nll": 1.23456,
}


def card_of(**changes):
    return model_card(CardFacts(**{**FACTS, **changes}))


# --- the card ----------------------------------------------------------------------------------


def test_the_template_is_found():
    assert card_template().template.startswith("# $model_name")


def test_the_metadata_says_what_the_model_is():
    data = ModelCard(str(card_of())).data  # as the Hub reads it
    assert data.language == ["en", "de"]
    assert (data.license, data.library_name) == ("apache-2.0", "transformers")
    assert (data.pipeline_tag, data.model_name) == ("translation", "tiny")
    assert "hf-vanilla" in data.tags


def test_the_results_carry_their_signatures():
    bleu, chrf = ModelCard(str(card_of())).data.eval_results
    assert (bleu.metric_type, bleu.metric_value) == ("sacrebleu", round(SCORES.bleu, 2))
    assert SCORES.bleu_signature in bleu.metric_name
    assert (chrf.metric_type, chrf.metric_value) == ("chrf", round(SCORES.chrf, 2))
    assert SCORES.chrf_signature in chrf.metric_name
    for result in (bleu, chrf):
        assert (result.task_type, result.dataset_split) == ("translation", "validation")
        assert "the built-in numbers" in result.dataset_name


def test_the_metadata_is_plain_yaml():
    _, head, _ = str(card_of()).split("---\n", 2)
    assert yaml.safe_load(head)["model-index"][0]["name"] == "tiny"


def test_the_text_is_filled_and_nothing_is_left_open():
    text = card_of().text
    for name in card_template().get_identifiers():
        assert f"${name}" not in text
    for fact in (
        "# tiny",
        "1,234,567",
        "en to de",
        "for $5.",
        str(SCORES),
        "1.2346",
        "d_model: 16",
    ):
        assert fact in text


def test_the_recipe_in_the_card_is_one_that_can_be_read_again():
    block = re.search(r"```yaml\n(.*?)```", card_of().text, flags=re.DOTALL).group(1)
    assert yaml.safe_load(block) == {"max_steps": 7, "model": {"d_model": 16}}


def test_the_code_in_the_card_is_python_and_imports_what_it_uses():
    block = re.search(r"```python\n(.*?)```", card_of().text, flags=re.DOTALL).group(1)
    compile(block, "card", "exec")
    assert "AutoTokenizer.from_pretrained" in block


def test_what_is_not_known_is_not_claimed():
    card = card_of(scores=None, validation_nll=None, languages=(), license=None)
    data = ModelCard(str(card)).data
    assert not data.eval_results
    assert (data.language, data.license, data.metrics) == (None, None, None)
    assert card.text.count("not measured") == 2
    assert "Translates: not stated" in card.text


def test_a_run_writes_the_card_with_its_numbers(trained_run):
    card = ModelCard.load(trained_run / "README.md")
    assert card.data.language == ["en", "de"]
    assert "400 steps" in card.text
    assert "max_steps: 400" in card.text


def test_the_code_of_a_runs_card_works_as_it_stands(trained_run, monkeypatch, capsys):
    text = (trained_run / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL).group(1)
    exec(block.replace("THIS_MODEL", str(trained_run)).replace("A sentence.", "one two"), {})
    assert "eins" in capsys.readouterr().out


# --- pushing -----------------------------------------------------------------------------------


class FakeHub:
    """Takes what the libraries would send."""

    def __init__(self, folder):
        self.folder, self.calls = folder, []

    def create_repo(self, repo_id, *, private=None, **_):
        self.calls.append(("create", repo_id, private))
        return SimpleNamespace(repo_id=repo_id)

    def upload_file(self, *, path_or_fileobj, path_in_repo, repo_id, **_):
        self.calls.append(("upload", repo_id, path_in_repo))
        (self.folder / path_in_repo).write_bytes(path_or_fileobj)

    def create_commit(self, repo_id, operations, **_):
        for operation in operations:
            self.calls.append(("upload", repo_id, operation.path_in_repo))
            with operation.as_file() as file:
                (self.folder / operation.path_in_repo).write_bytes(file.read())
        return f"https://hub/{repo_id}"

    def download(self, repo_id, filename, **_):
        if not (self.folder / filename).is_file():
            raise EntryNotFoundError(filename, SimpleNamespace(headers={}, request=None))
        return str(self.folder / filename)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "hub").mkdir()
    fake = FakeHub(tmp_path / "hub")
    for name in ("create_repo", "create_commit"):
        method = getattr(fake, name)
        replaced = lambda _, *args, method=method, **told: method(*args, **told)  # noqa: E731
        monkeypatch.setattr(huggingface_hub.HfApi, name, replaced)
    monkeypatch.setattr("hf_vanilla.hub.push.create_repo", fake.create_repo)
    monkeypatch.setattr("hf_vanilla.hub.push.upload_file", fake.upload_file)
    monkeypatch.setattr("huggingface_hub.repocard.hf_hub_download", fake.download)
    monkeypatch.setattr(ModelCard, "validate", lambda *_, **__: None)  # asks the Hub
    return fake


def test_a_push_brings_card_tokenizer_model_and_decoding(hub, trained_run):
    address = push_folder(PushOptions(model=str(trained_run), repo_id="me/tiny"))
    assert "me/tiny" in address
    pushed = {path.name: path.read_bytes() for path in hub.folder.iterdir()}
    assert pushed["model.safetensors"] == (trained_run / "model.safetensors").read_bytes()
    assert json.loads(pushed["tokenizer.json"]) == json.loads(
        (trained_run / "tokenizer.json").read_text(encoding="utf-8")
    )
    assert json.loads(pushed["generation_config.json"])["length_penalty_form"] == "gnmt"
    assert json.loads(pushed["config.json"])["d_model"] == 16
    assert not [name for name in pushed if name.startswith("checkpoint") or name == "log.jsonl"]


def test_the_pushed_card_is_ours_to_the_end(hub, trained_run):
    push_folder(PushOptions(model=str(trained_run), repo_id="me/tiny"))
    card = ModelCard.load(hub.folder / "README.md")
    assert card.data.tags == ModelCard.load(trained_run / "README.md").data.tags
    assert "automatically generated" not in card.text
    assert "400 steps" in card.text


def test_the_pushed_card_shows_how_to_load_this_very_model(hub, trained_run):
    push_folder(PushOptions(model=str(trained_run), repo_id="me/tiny"))
    text = (hub.folder / "README.md").read_text(encoding="utf-8")
    assert 'from_pretrained("me/tiny")' in text
    assert "THIS_MODEL" not in text


@pytest.mark.parametrize("private", [True, False])
def test_a_new_repository_is_private_when_asked_from_the_first_call_on(hub, trained_run, private):
    push_folder(PushOptions(model=str(trained_run), repo_id="me/tiny", private=private))
    created = [call for call in hub.calls if call[0] == "create"]
    assert created
    assert {call[2] for call in created} == {private}
    assert hub.calls[0][0] == "create"


def test_a_folder_without_a_model_is_refused_before_anything_is_sent(hub, tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        push_folder(PushOptions(model=str(tmp_path), repo_id="me/tiny"))
    assert hub.calls == []


def test_a_model_folder_without_a_card_can_be_pushed(hub, trained, tmp_path):
    for part in trained:
        part.save_pretrained(tmp_path / "bare")
    push_folder(PushOptions(model=str(tmp_path / "bare"), repo_id="me/bare"))
    assert (hub.folder / "model.safetensors").is_file()
    assert Path(hub.folder / "tokenizer.json").is_file()
