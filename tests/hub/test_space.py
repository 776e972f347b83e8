"""The folder of a Space: what the Hub reads in it, and that it runs without anything beside it."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from huggingface_hub import SpaceCard
from packaging.requirements import Requirement

from hf_vanilla import serve as server
from hf_vanilla.hub import space
from hf_vanilla.hub.space import SpaceOptions, requirements, write_space
from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_tracks import VanillaForTrajectoryPrediction

gradio = pytest.importorskip("gradio")

ROOT = Path(__file__).resolve().parents[2]
SHOWN = {"sentence": 'three "one" four', "max_tokens": 40}


@pytest.fixture(scope="module")
def folder(trained_run, tmp_path_factory):
    options = SpaceOptions(
        folder=str(tmp_path_factory.mktemp("spaces") / "mine"), model=str(trained_run), **SHOWN
    )
    return write_space(options)


def told(folder):
    """The options that a Space's app gives, by name."""
    calls = [n for n in ast.walk(ast.parse((folder / "app.py").read_text())) if type(n) is ast.Call]
    (options,) = [call for call in calls if getattr(call.func, "id", "") == "AppOptions"]
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in options.keywords}


def test_the_card_tells_the_hub_what_to_run(folder):
    data = SpaceCard.load(folder / "README.md").data
    assert (data.sdk, data.app_file) == ("gradio", "app.py")
    assert data.sdk_version == gradio.__version__
    assert (folder / data.app_file).is_file()
    pythons = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert Requirement(f"python{pythons}").specifier.contains(data.to_dict()["python_version"])


def test_the_requirements_are_the_packages_own_and_those_to_split_texts(folder, monkeypatch):
    assert (folder / "requirements.txt").read_text().splitlines() == requirements()
    needed = [
        "torch>=2.6",
        "accelerate<9,>=1.15",
        "gradio>=6; extra == 'app'",
        "ray; extra == 'ray'",
        "sentencex>=1; extra == 'text'",
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: needed)
    assert requirements() == ["accelerate<9,>=1.15", "sentencex>=1", "torch>=2.6"]


def test_visitors_of_a_space_come_from_anywhere_and_use_its_model_only(folder):
    assert told(folder) == {
        "model": "model",
        **SHOWN,
        "fixed_model": True,
        "host": "0.0.0.0",
        "port": space.PORT,
    }


def test_a_model_of_the_hub_is_named_and_not_copied(tmp_path):
    options = SpaceOptions(folder=str(tmp_path / "new"), model="ada/number-words", **SHOWN)
    folder = write_space(options)
    assert told(folder)["model"] == "ada/number-words"
    assert not (folder / "model").exists()
    assert SpaceCard.load(folder / "README.md").data.models == ["ada/number-words"]


def test_a_space_of_a_forecaster_serves_the_page_of_trajectories(tmp_path):
    config = VanillaTracksConfig(d_model=24, encoder_layers=1, decoder_layers=1)
    VanillaForTrajectoryPrediction(config).save_pretrained(tmp_path / "walks")
    options = SpaceOptions(
        folder=str(tmp_path / "new"), model=str(tmp_path / "walks"), task="trajectories", **SHOWN
    )
    folder = write_space(options)
    assert {*told(folder)} == {"model", "fixed_model", "host", "port"}
    assert "forecast" in SpaceCard.load(folder / "README.md").data.title
    model = VanillaForTrajectoryPrediction.from_pretrained(folder / "model")
    assert model.config.encoder_layers == 1


def test_every_page_of_the_app_can_be_a_space():
    assert {*space.PAGES} == {*server.PAGES, "translation"}


def test_a_task_without_a_page_is_refused_and_nothing_written(tmp_path):
    options = SpaceOptions(folder=str(tmp_path / "new"), model="ada/x", task="sums", **SHOWN)
    with pytest.raises(ValueError, match="model of sums, which has no page; there are translation"):
        write_space(options)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(FileExistsError, match="exists and is not an empty folder"):
        write_space(SpaceOptions(folder=str(tmp_path), model="ada/words", **SHOWN))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_without_a_model_is_refused_and_nothing_written(tmp_path):
    (tmp_path / "none").mkdir()
    options = SpaceOptions(folder=str(tmp_path / "new"), model=str(tmp_path / "none"), **SHOWN)
    with pytest.raises(ValueError, match="is not a model folder"):
        write_space(options)
    assert not (tmp_path / "new").exists()


RUN = """
import dataclasses, runpy, sys, urllib.request
sys.path.insert(0, "")
import hf_vanilla.serve as app
print(app.__file__)
serve = app.serve
def briefly(options):
    # another port than 7860, which may be taken here
    blocks = serve(dataclasses.replace(options, host="127.0.0.1", port=None), is_blocking=False)
    print("Sentence" in urllib.request.urlopen(blocks.local_url).read().decode())
    blocks.close()
app.serve = briefly
runpy.run_path("app.py", run_name="__main__")
"""


@pytest.mark.slow
def test_it_runs_from_its_own_folder_with_its_own_code(folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert Path(lines[0]) == folder.resolve() / "hf_vanilla" / "app" / "server.py"
    assert "True" in lines
