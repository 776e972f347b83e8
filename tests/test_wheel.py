"""What `python -m build` makes is whole, and works where there is no clone."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import small_run

import hf_vanilla
from hf_vanilla.commands import overview
from hf_vanilla.recipes.recipe import shipped_recipes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hf_vanilla"


def run(*command, cwd, fails=False):
    """A command in a process that knows no path to the clone."""
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) != fails, done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder of the sdist, and of the wheel that was made of it."""
    folder = tmp_path_factory.mktemp("dist")
    # without isolation: it would fetch the backend, which the `dev` extra brings, from a registry
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    run(*build, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """An environment with the wheel, the libraries of this one, and nothing of the clone."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", wheel, cwd=folder)
    found = sysconfig.get_path("purelib", vars={"base": str(folder)})
    # as a line of its own the folder is searched last, and .pth files inside it are not read: those
    # of an editable install would lead back to the clone
    (Path(found) / "libraries.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder / "bin"


@pytest.fixture(scope="module")
def trained_there(installed, tmp_path_factory):
    """Where `hf-vanilla train` has left a model in `run`, and what it printed."""
    folder = tmp_path_factory.mktemp("work")
    model = {**small_run.MODEL, "vocab_size": 300, "max_position_embeddings": 64}
    done = run(
        *(installed / "hf-vanilla", "train", "--recipe", "numbers", "--output_dir", "run"),
        *("--max_steps", "2", "--tokens_per_step", "512", "--tokens_per_batch", "512"),
        *("--save_steps", "1", "--eval_sentences", "0", "--use_cpu", "True", "--trackers", "none"),
        *(f"--model.{name}={value}" for name, value in model.items()),
        cwd=folder,
    )
    return folder, done.stdout


# --- what is in them ---------------------------------------------------------------------------


def test_the_sdist_holds_what_git_holds_and_nothing_else(built):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode or not listed.stdout:
        pytest.skip("an archive without history")
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert sum(member.size for member in archive.getmembers()) < 10_000_000
    known = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert names - known == {"PKG-INFO"}
    assert {n for n in known if n.startswith(("hf_vanilla/", "scripts/", "tests/"))} <= names


def test_the_wheel_holds_the_package_its_recipes_and_its_card(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"hf_vanilla-{hf_vanilla.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = [path.relative_to(ROOT).as_posix() for path in files]
    recipes = [f"hf_vanilla/recipes/{name}.yaml" for name in shipped_recipes()]
    others = ["hf_vanilla/model_card.md", "hf_vanilla_command.py"]
    assert names == {*files, *recipes, *others}
    assert "hf_vanilla/py.typed" in names


# --- where it is installed ---------------------------------------------------------------------


def test_the_command_helps_and_tells_its_version(installed, tmp_path):
    assert run(installed / "hf-vanilla", "--help", cwd=tmp_path).stdout == overview() + "\n"
    code = "import hf_vanilla; print(hf_vanilla.__version__, hf_vanilla.__file__)"
    version, _, place = run(installed / "python", "-c", code, cwd=tmp_path).stdout.partition(" ")
    assert version == hf_vanilla.__version__
    assert Path(place.strip()).is_relative_to(installed.parent)


def test_a_shipped_recipe_trains_by_its_name(trained_there):
    folder, printed = trained_there
    assert printed == "run\n"
    assert (folder / "run" / "model.safetensors").is_file()
    assert (folder / "run" / "README.md").read_text(encoding="utf-8").startswith("---\n")


def test_what_it_trained_translates(installed, trained_there):
    folder, _ = trained_there
    (folder / "in").write_text("seven\n\nforty-two\n", encoding="utf-8")
    told = ("--model", "run", "--input", "in", "--output", "out")
    done = run(installed / "hf-vanilla", "translate", *told, cwd=folder)
    assert done.stdout == "out\n"
    lines = (folder / "out").read_text(encoding="utf-8").split("\n")
    assert (len(lines), lines[1]) == (4, "")


def test_the_pipeline_is_registered(installed, trained_there):
    folder, _ = trained_there
    code = (
        "import hf_vanilla; from transformers import pipeline;"
        "print(pipeline('vanilla-translation', model='run')(['', 'seven'], max_new_tokens=3)[0])"
    )
    done = run(installed / "python", "-c", code, cwd=folder)
    assert done.stdout == "{'translation_text': ''}\n"


def test_an_error_there_is_one_line_and_names_the_shipped_recipes(installed, tmp_path):
    told = ("-m", "hf_vanilla", "train", "--recipe", "zzz")
    done = run(installed / "python", *told, cwd=tmp_path, fails=True)
    assert done.stderr.startswith("error: zzz: no such file, and no recipe of that name; there are")
    assert all(name in done.stderr for name in shipped_recipes())
    assert done.stderr.count("\n") == 1
