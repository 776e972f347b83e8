"""The card is filled by the run and readable for the Hub; a push brings everything."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.utils import EntryNotFoundError

from hf_vanilla.data.bleu import score_translations
from hf_vanilla.families import TASKS, load_part
from hf_vanilla.hub import push
from hf_vanilla.hub.card import bare_card, pushed_card, without_folders
from hf_vanilla.hub.push import PushOptions, push_folder
from hf_vanilla.loading import DEMO_MODELS
from hf_vanilla.text.alignments import saved_head
from hf_vanilla.text.card import translation_card

SCORES = score_translations(["ein altes Haus steht am See"], ["ein altes Haus stand am See"])
FACTS = {
    "title": "tiny",
    "dataset": "the built-in numbers",
    "languages": ("en", "de"),
    "license": "apache-2.0",
    "parameters": 1_234_567,
    "recipe": "max_steps: 7\nmodel:\n  d_model: 16\n",
    "training": "7 steps in no time for $5.",
    "scores": SCORES,
    "validation_nll": 1.23456,
}


def card_of(**changes):
    return translation_card(**{**FACTS, **changes})


# --- the card ----------------------------------------------------------------------------------


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
    assert "{{" not in text
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


def example_of(card):
    return re.search(r"```python\n(.*?)```", str(card), flags=re.DOTALL).group(1)


def test_the_card_of_every_family_loads_its_model_from_the_package_or_from_the_repositorys_code():
    for entry in TASKS.values():
        card = bare_card("mine", entry.model_types[0])
        assert load_part(entry.card).pipeline_tag == ModelCard(str(card)).data.pipeline_tag
        own = example_of(pushed_card(card, "me/mine", with_code=False))
        remote = example_of(pushed_card(card, "me/mine", with_code=True))
        assert "import hf_vanilla" in own
        loads = own.count('"me/mine")')
        assert loads >= 1
        assert remote.count('"me/mine", trust_remote_code=True)') == loads
        assert "hf_vanilla" not in remote
        for code in (own, remote):
            compile(code, "card", "exec")


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
    block = example_of((trained_run / "README.md").read_text(encoding="utf-8"))
    exec(block.replace("THIS_MODEL", str(trained_run)).replace("A sentence.", "one two"), {})
    assert "eins" in capsys.readouterr().out


# --- pushing -----------------------------------------------------------------------------------


class FakeRepository(str):
    """The address of a repository, as `create_repo` returns it."""

    __slots__ = ("repo_id",)

    def __new__(cls, repo_id):
        made = super().__new__(cls, f"https://hub/{repo_id}")
        made.repo_id = repo_id
        return made


class FakeHub:
    """Takes what the libraries would send."""

    def __init__(self, folder):
        self.folder, self.calls = folder, []

    def create_repo(self, repo_id, *, private=None, **_):
        self.calls.append(("create", repo_id, private))
        return FakeRepository(repo_id)

    def create_commit(self, repo_id, operations, **_):
        self.calls.append(("commit", repo_id))
        for operation in operations:
            with operation.as_file() as file:
                (self.folder / operation.path_in_repo).write_bytes(file.read())

    def download(self, repo_id, filename, **_):
        if not (self.folder / filename).is_file():
            raise EntryNotFoundError(filename, SimpleNamespace(headers={}, request=None))
        return str(self.folder / filename)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "hub").mkdir()
    fake = FakeHub(tmp_path / "hub")
    for name in ("create_repo", "create_commit"):
        monkeypatch.setattr(f"hf_vanilla.hub.push.{name}", getattr(fake, name))
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


def test_a_push_brings_the_head_that_aligns_words(hub, monkeypatch):
    push_folder(PushOptions(model=DEMO_MODELS["numbers"], repo_id="me/tiny"))
    monkeypatch.setattr("hf_vanilla.hub.card.hf_hub_download", hub.download)
    assert saved_head("me/tiny") == saved_head("numbers") is not None


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


def test_a_new_repository_is_private_when_requested_from_the_first_call_on(hub, trained_run):
    for private, made in ((True, True), (False, None)):  # None: as the account's default
        hub.calls.clear()
        push_folder(PushOptions(model=str(trained_run), repo_id="me/tiny", private=private))
        assert hub.calls == [("create", "me/tiny", made), ("commit", "me/tiny")]


def test_a_folder_without_a_model_is_refused_before_anything_is_sent(hub, tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        push_folder(PushOptions(model=str(tmp_path), repo_id="me/tiny"))
    assert hub.calls == []


def test_a_card_that_is_damaged_is_named_before_anything_is_sent(hub, trained, tmp_path):
    for part in trained:
        part.save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text("---\nlicense: a: b\n---\n# Mine\n")
    with pytest.raises(ValueError, match=r"README\.md: its metadata is not YAML: mapping values"):
        push_folder(PushOptions(model=str(tmp_path), repo_id="me/tiny"))
    assert hub.calls == []


def test_a_space_of_another_family_or_with_code_is_refused_before_anything_is_sent(hub, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vanilla_vit"}')
    for changes, message in (({}, "make a Docker Space"), ({"with_code": True}, "one of them")):
        options = PushOptions(model=str(tmp_path), repo_id="me/page", space=True, **changes)
        with pytest.raises(ValueError, match=message):
            push_folder(options)
    assert hub.calls == []


def test_a_model_folder_without_a_card_can_be_pushed(hub, trained, tmp_path):
    for part in trained:
        part.save_pretrained(tmp_path / "bare")
    push_folder(PushOptions(model=str(tmp_path / "bare"), repo_id="me/bare"))
    assert (hub.folder / "model.safetensors").is_file()
    assert Path(hub.folder / "tokenizer.json").is_file()


def test_a_card_pushed_with_code_loads_that_code_and_names_the_versions(hub, trained_run):
    push_folder(PushOptions(model=str(trained_run), repo_id="me/tiny", with_code=True))
    text = (hub.folder / "README.md").read_text(encoding="utf-8")
    assert (hub.folder / "modeling_vanilla.py").is_file()
    assert 'from_pretrained("me/tiny", trust_remote_code=True)' in example_of(text)
    assert re.search(r"It needs `transformers>=5\.\d+,<5\.\d+`", text)


def test_a_card_written_by_hand_is_pushed_as_it_is():
    card = ModelCard("---\nlicense: mit\n---\n# Mine\n\nUse THIS_MODEL well.\n")
    pushed = pushed_card(card, "me/tiny", with_code=True)
    assert str(pushed) == str(card).replace("THIS_MODEL", "me/tiny")


def test_a_card_names_no_folder_of_this_machine():
    recipe = "train_source: /home/me/secret/train.en\nrun: [/data/a, runs/b]\nmodel: ~/mine\n"
    assert without_folders(yaml.safe_load(recipe)) == {
        "train_source": "train.en",
        "run": ["a", "runs/b"],
        "model": "mine",
    }
    assert "/home/me" not in card_of(recipe=recipe).text


def test_a_fact_that_looks_like_a_template_stays_as_it_is():
    assert (
        "trained on {{ corpus }} for $5" in card_of(training="trained on {{ corpus }} for $5").text
    )


@pytest.mark.parametrize(("status", "is_asked"), [(404, False), (403, True), (None, True)])
def test_only_an_error_without_another_answer_asks_about_network_and_login(
    monkeypatch, status, is_asked
):
    answer = ConnectionError("refused")
    if status is not None:
        answer.response = SimpleNamespace(status_code=status)
    failed = RuntimeError("uploading model.safetensors")
    failed.__cause__ = answer
    monkeypatch.setattr(push, "create_repo", lambda *_, **__: None)
    options = PushOptions(model="x", repo_id="ada/x")
    with pytest.raises(OSError, match=r"ada/x: uploading .*: refused") as caught:  # noqa: SIM117
        with push._made(options):
            raise failed
    assert ("logged in" in str(caught.value)) is is_asked


def test_a_name_that_none_can_have_asks_about_neither(trained_run):
    with pytest.raises(OSError, match="cannot push to a/b/c: Repo id must be") as caught:
        push_folder(PushOptions(model=str(trained_run), repo_id="a/b/c"))
    assert "network" not in str(caught.value)
