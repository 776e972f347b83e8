"""Push here, pull there: the real clients against the Hub's protocol on this machine."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import hub_server
import huggingface_hub
import pytest
from hub_server import HubServer
from huggingface_hub import ModelCard
from packaging.version import Version

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CLIENT, PROGRAM = ROOT / "tests/hub_client.py", ROOT / "tests/user_program.py"
PUBLIC, CODED, PRIVATE, TUNED, SCRIPTED = (
    f"{hub_server.USER}/{name}" for name in ("public", "coded", "private", "tuned", "scripted")
)
NOBODY = "http://127.0.0.1:9"
NUMBERS = ("ids", "logits", "loss", "sequences", "scores")


@pytest.fixture(scope="module")
def hub():
    with HubServer() as hub:
        yield hub


@pytest.fixture(scope="module")
def run(hub, program, program_without_package, tmp_path_factory):
    """A program in a process that knows this Hub and no other; `home` is its cache.

    The visitor does not have the package.
    """
    homes = tmp_path_factory.mktemp("homes")

    def run(*command, home, status=0, **changes):
        environment = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(homes / home),
            "HF_TOKEN": hub_server.TOKEN,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **changes,
        }
        environment = {name: text for name, text in environment.items() if text}
        start = program_without_package if home == "visit" else program
        done = start("python", *command, environment=environment, cwd=homes)
        assert done.returncode == status, done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def client(run, tmp_path_factory):
    """One role of `hub_client.py`; returns what it saw."""

    def client(role, *arguments, **told):
        output = tmp_path_factory.mktemp(role) / "seen.json"
        run(CLIENT, role, output, *arguments, **{"home": role, **told})
        return json.loads(output.read_text(encoding="utf-8"))

    return client


@pytest.fixture(scope="module")
def pushed(client, trained_run):
    return client("push", trained_run, PUBLIC, CODED)


@pytest.fixture(scope="module")
def script(run, trained_run):
    """Pushes the trained run to a repository."""

    def script(repo_id, *told, **environment):
        command = ("-m", "hf_vanilla", "push", "--model", trained_run, "--repo_id", repo_id)
        return run(*command, *told, home="script", **environment)

    return script


@pytest.fixture(scope="module")
def by_script(script):
    """What the script printed."""
    return script(PRIVATE, "--private", "True").stdout


@pytest.fixture(scope="module")
def tuned(client, trained_run, tmp_path_factory):
    return client("finetune", trained_run, tmp_path_factory.mktemp("tuned") / "run", TUNED)


@pytest.fixture(scope="module")
def pulled(client, pushed, by_script, tuned):
    return client("pull", PUBLIC, PRIVATE, TUNED)


@pytest.fixture(scope="module")
def visitor(client, pushed, by_script, script):
    script(SCRIPTED, "--with_code", "True", "--revision", "v1")
    return client("visit", PUBLIC, CODED, PRIVATE, SCRIPTED, HF_TOKEN="")


@pytest.fixture(scope="module")
def alone(client, pulled, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    return client("miss", PUBLIC, empty, home="pull", HF_ENDPOINT=NOBODY, HF_HUB_OFFLINE="1")


# --- push_to_hub and from_pretrained -------------------------------------------------------------


@pytest.mark.parametrize("what", NUMBERS)
def test_a_pulled_model_computes_every_number_of_the_pushed_one(pushed, pulled, what):
    assert pulled[PUBLIC][what] == pushed["main"][what]


def test_the_papers_decoding_travels_with_the_model(pushed, pulled):
    decoding = pulled[PUBLIC]["decoding"]
    assert decoding == pushed["main"]["decoding"]
    assert decoding["length_penalty_form"] == "gnmt"
    assert decoding["max_tokens_beyond_source"] == 50


def test_a_config_can_be_pushed_alone(pushed, pulled):
    left_out = {"_name_or_path", "architectures", "auto_map", "custom_pipelines"}
    for name in pushed["config"].keys() - left_out:
        assert pulled["config"][name] == pushed["config"][name], name


@pytest.mark.parametrize("what", NUMBERS)
def test_a_branch_holds_its_own_model(pushed, pulled, what):
    assert pulled["branch"][what] == pushed["branch"][what]
    assert pulled["branch"]["logits"] != pulled[PUBLIC]["logits"]


def test_a_plain_push_brings_no_code(hub, pushed):
    assert not [name for name in hub.files(PUBLIC) if name.endswith(".py")]


def test_the_weights_go_the_way_of_large_files(hub, pushed):
    repository = hub.repositories[PUBLIC]
    files = repository.commits[repository.sha("main")]
    assert [name for name, file in files.items() if file.is_large] == ["model.safetensors"]


# --- the script, its card, and privacy -----------------------------------------------------------


def test_the_script_prints_the_address(hub, by_script):
    assert by_script.startswith(f"{hub.endpoint}/{PRIVATE}")


@pytest.mark.parametrize("what", NUMBERS)
def test_what_the_script_pushed_is_the_trained_model(pushed, by_script, pulled, what):
    assert pulled[PRIVATE][what] == pushed["main"][what]


def test_the_pushed_card_is_the_runs_own_and_names_its_repository(hub, by_script, trained_run):
    card = hub.files(PRIVATE)["README.md"].decode()
    written = (trained_run / "README.md").read_text(encoding="utf-8")
    assert card.strip() == written.replace("THIS_MODEL", PRIVATE).strip()
    assert f'from_pretrained("{PRIVATE}")' in card


def test_the_metadata_of_the_pushed_card_are_such_as_the_hub_takes(hub, by_script):
    text = hub.files(PRIVATE)["README.md"].decode()
    assert hub_server.card_errors(text) == []
    data = ModelCard(text).data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "translation")
    assert data.language == ["en", "de"]


def test_a_model_is_private_when_asked_and_public_otherwise(hub, pushed, by_script):
    assert hub.repositories[PRIVATE].is_private
    assert not hub.repositories[PUBLIC].is_private


def test_a_private_model_is_refused_without_a_token(visitor):
    kind, text = visitor["private"]
    assert kind == "OSError"
    assert "private" in text
    assert PRIVATE in text


def test_a_name_without_an_owner_means_the_users_own(hub, script):
    script("ownerless")
    card = hub.files(f"{hub_server.USER}/ownerless")["README.md"].decode()
    assert f'from_pretrained("{hub_server.USER}/ownerless")' in card


def test_when_no_hub_answers_the_script_says_so_in_one_line(script):
    told = script(PUBLIC, status=1, HF_ENDPOINT=NOBODY).stderr
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert told.count("refused") == 1  # the client and its cause say the same


def test_a_push_is_one_commit_on_top_of_the_new_repository(hub, by_script):
    repository = hub.repositories[PRIVATE]
    assert len(repository.commits) == 2  # the empty one of create_repo, and the model


def test_a_failed_upload_leaves_no_half_of_a_model(hub, script):
    repo_id = f"{hub_server.USER}/half"
    hub.takes_large_files = False
    known, hub.uploads = hub.uploads, {}  # a file that the Hub has is not uploaded again
    try:
        told = script(repo_id, status=1).stderr
    finally:
        hub.takes_large_files, hub.uploads = True, known
    assert told.startswith(f"error: cannot push to {repo_id}: ")
    assert "uploading 'model.safetensors'" in told
    assert "no room for large files" in told  # the server's own words
    assert told.count("\n") == 1
    assert set(hub.files(repo_id)) <= {".gitattributes"}


def test_the_card_of_a_repository_with_code_loads_that_code(hub, visitor):
    card = hub.files(SCRIPTED, "v1")["README.md"].decode()
    assert f'from_pretrained("{SCRIPTED}", trust_remote_code=True)' in card
    assert "import hf_vanilla" not in card


def test_the_page_of_a_translator_is_pushed_as_a_static_space(hub, script, trained_run):
    repo_id = f"{hub_server.USER}/page"
    told = script(repo_id, "--space", "True").stdout
    assert f"{hub.endpoint}/spaces/{repo_id}" in told
    assert (hub.repositories[repo_id].kind, hub.repositories[repo_id].sdk) == ("space", "static")
    files = hub.files(repo_id)
    card = ModelCard(files["README.md"].decode()).data
    assert (card.title, card.sdk, card.app_file) == ("page", "static", "index.html")
    engine = {f"engine/{name}" for name in ("tokenizer.js", "model.js", "search.js", "index.js")}
    assert engine | {"index.html", "worker.js", "model/tokenizer.json"} <= files.keys()
    assert b"Content-Security-Policy" in files["index.html"]
    assert (
        len(files["model/model.safetensors"]) < (trained_run / "model.safetensors").stat().st_size
    )


# --- without the package -------------------------------------------------------------------------


def test_the_tokenizer_needs_no_package_of_ours(pushed, visitor):
    assert visitor["alone"]["ids"] == pushed["main"]["ids"]
    assert visitor["alone"]["module"].startswith("transformers.")


def test_without_package_and_trust_the_model_is_refused_by_name(visitor):
    assert visitor["not_trusted"][0] == "ValueError"
    assert "vanilla" in visitor["not_trusted"][1]


def test_pushed_code_runs_where_it_was_pulled(visitor):
    assert all(name.startswith("transformers_modules.") for name in visitor["modules"])


def of_code(what, number):
    """A number of the pushed code, which decodes by transformers' search: it sums otherwise."""
    return pytest.approx(number, rel=1e-5) if what == "scores" else number


@pytest.mark.parametrize("what", [*NUMBERS, "decoding"])
def test_pushed_code_computes_every_number_of_the_package(pushed, visitor, what):
    assert visitor["coded"][what] == of_code(what, pushed["main"][what])


@pytest.mark.parametrize("what", [*NUMBERS, "decoding"])
def test_the_script_pushes_code_that_computes_every_number_of_the_package(pushed, visitor, what):
    assert visitor["scripted"][what] == of_code(what, pushed["main"][what])


@pytest.mark.parametrize("pushed_by", ["coded", "scripted"])
def test_pushed_code_brings_the_pipeline_for_translation(pushed, visitor, pushed_by):
    assert visitor["translations"][pushed_by] == pushed["main"]["translations"]


def test_the_pipeline_is_refused_where_its_code_is_not_trusted(visitor):
    kind, text = visitor["pipeline_not_trusted"]
    assert kind == "ValueError"
    assert "trust_remote_code=True" in text


def test_the_code_serves_the_bare_model_too(visitor):
    assert visitor["bare"] == ["VanillaModel", True]


def test_the_script_pushes_to_the_branch_it_is_told(hub, visitor):
    repository = hub.repositories[SCRIPTED]
    files = {name: set(repository.commits[repository.sha(name)]) for name in ("main", "v1")}
    assert "model.safetensors" not in files["main"]
    expected = {"README.md", "model.safetensors", "tokenizer.json", "generation_config.json"}
    assert expected | {"modeling_vanilla.py", "configuration_vanilla.py"} <= files["v1"]


def test_pushed_code_trains(visitor):
    first, second = visitor["losses"]
    assert second < first


# --- the Trainer ---------------------------------------------------------------------------------


def test_the_trainer_has_moved_the_weights(tuned):
    assert tuned["after"]["logits"] != tuned["before"]["logits"]


@pytest.mark.parametrize("what", [*NUMBERS, "decoding"])
def test_what_the_trainer_pushed_is_what_it_trained(tuned, pulled, what):
    assert pulled[TUNED][what] == tuned["after"][what]


def test_the_trainer_leaves_our_decoding_as_it_was(tuned, pulled):
    assert pulled[TUNED]["decoding"] == tuned["before"]["decoding"]


# --- nobody answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", NUMBERS)
def test_a_model_pulled_once_works_without_the_hub(alone, pushed, what):
    assert alone["warm"][what] == pushed["main"][what]


def test_a_model_never_pulled_is_refused_with_the_reason(alone):
    kind, text = alone["cold"]
    assert kind == "OSError"
    assert "couldn't find them in the cached files" in text
    assert "offline mode" in text


# --- the same program with another model ---------------------------------------------------------

MODELS = {
    "ours": ("hf_vanilla", "VanillaConfig", "VanillaForConditionalGeneration"),
    "theirs": ("transformers", "MarianConfig", "MarianMTModel"),
}


@pytest.mark.parametrize("whose", MODELS)
def test_a_users_program_needs_only_other_names(run, tiny_tokenizer, tmp_path, whose):
    tiny_tokenizer.save_pretrained(tmp_path / "tokenizer")
    repo_id = f"{hub_server.USER}/program-{whose}"
    run(PROGRAM, *MODELS[whose], tmp_path / "tokenizer", tmp_path, repo_id, home=f"user-{whose}")
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["class"] == MODELS[whose][2]
    assert len(found["losses"]) == 20
    assert found["losses"][-1] < 0.9 * found["losses"][0]
    assert found["from_hub"] == found["from_folder"]


# --- the server itself ---------------------------------------------------------------------------


def asked(hub, path, **headers):
    request = urllib.request.Request(hub.endpoint + path, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status, answer.read()


def test_a_repository_lives_as_on_the_hub(client):
    seen = client("manage", f"{hub_server.USER}/managed")
    assert seen["whoami"] == hub_server.USER
    assert seen["created"] == seen["exists"] == f"{hub_server.USER}/managed"
    files = [".gitattributes", "folder/a"]
    assert seen["files"] == [sorted([*files, "b"]), files]
    assert (seen["sizes"], seen["folder"]) == ([len("one more")], ["folder/a"])
    assert seen["branches"] == ["main"]
    errors = {
        "again": "HfHubHTTPError",
        "stale": "HfHubHTTPError",
        "no_revision": "RevisionNotFoundError",
        "no_entry": "RemoteEntryNotFoundError",
        "no_card": "ValueError",
        "deleted": "RepositoryNotFoundError",
    }
    if Version(huggingface_hub.__version__) < Version("2"):
        errors.pop("no_card")  # it asks a fixed address, not this server, what a card may say
    assert {name: seen[name][0] for name in errors} == errors
    assert seen["no_token"] is not None


def test_a_part_of_a_file_can_be_asked_for(hub, pushed):
    path = f"/{PUBLIC}/resolve/main/model.safetensors"
    weights = hub.files(PUBLIC)["model.safetensors"]
    assert asked(hub, path, Range="bytes=7-18") == (206, weights[7:19])
    assert asked(hub, path, Range="bytes=7-") == (206, weights[7:])


def test_the_server_is_gone_with_its_context():
    with HubServer() as hub:
        endpoint = hub.endpoint
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(endpoint, timeout=10)
