"""What `python -m build` writes is complete, and works without a clone."""

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
from hf_vanilla.training.recipe import shipped_recipes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hf_vanilla"


def run(*command, cwd, fails=False):
    """Run a command without the clone on its path."""
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
    """Folder with the sdist and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    # --no-isolation: use the build backend of the `dev` extra, without a download
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    run(*build, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """An environment with the wheel and the libraries of this one, without the clone."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", wheel, cwd=folder)
    found = sysconfig.get_path("purelib", vars={"base": str(folder)})
    # a folder in a .pth file is searched last, and .pth files inside it are ignored: those of an
    # editable install would put the clone on the path
    (Path(found) / "libraries.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder / "bin"


@pytest.fixture(scope="module")
def trained_model(installed, tmp_path_factory):
    """A folder with a model in `run` from `hf-vanilla train`, and what the command printed."""
    folder = tmp_path_factory.mktemp("work")
    model = {**small_run.MODEL, "vocab_size": 300, "max_position_embeddings": 64}
    files = small_run.write_corpus(folder)
    done = run(
        *(installed / "hf-vanilla", "train", "--recipe", "multi30k_tiny", "--output_dir", "run"),
        *(f"--{name}={path}" for name, path in files.items()),
        *("--max_steps", "2", "--tokens_per_step", "512", "--tokens_per_batch", "512"),
        *("--save_steps", "1", "--eval_sentences", "0", "--use_cpu", "True", "--trackers", "none"),
        *(f"--model.{name}={value}" for name, value in model.items()),
        cwd=folder,
    )
    return folder, done.stdout


# --- contents -----------------------------------------------------------------------------------


def test_the_sdist_contains_tracked_files_only(built):
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
        assert sum(member.size for member in archive.getmembers()) < 17_000_000
    known = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert names - known == {"PKG-INFO"}
    assert {n for n in known if n.startswith(("hf_vanilla/", "scripts/", "tests/"))} <= names


def test_the_wheel_contains_the_package_recipes_and_model_card(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"hf_vanilla-{hf_vanilla.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = [path.relative_to(ROOT).as_posix() for path in files]
    assert names == {*files, "hf_vanilla_command.py", "hf_vanilla/command_options.json"}
    recipes = {f"hf_vanilla/recipes/{name}.yaml" for name in shipped_recipes()}
    assert recipes | {"hf_vanilla/py.typed", "hf_vanilla/hub/model_card.md"} <= names


# --- after installation ------------------------------------------------------------------------


def test_the_command_prints_help_and_version(installed, tmp_path):
    assert run(installed / "hf-vanilla", "--help", cwd=tmp_path).stdout == overview() + "\n"
    code = "import hf_vanilla; print(hf_vanilla.__version__, hf_vanilla.__file__)"
    version, _, place = run(installed / "python", "-c", code, cwd=tmp_path).stdout.partition(" ")
    assert version == hf_vanilla.__version__
    assert Path(place.strip()).is_relative_to(installed.parent)


def test_a_shipped_recipe_trains_by_its_name(trained_model):
    folder, printed = trained_model
    assert printed == "run\n"
    assert (folder / "run" / "model.safetensors").is_file()
    assert (folder / "run" / "README.md").read_text(encoding="utf-8").startswith("---\n")


@pytest.mark.release
def test_the_trained_model_translates(installed, trained_model):
    folder, _ = trained_model
    (folder / "in").write_text("seven\n\nforty-two\n", encoding="utf-8")
    options = ("--model", "run", "--input", "in", "--output", "out")
    done = run(installed / "hf-vanilla", "translate", *options, cwd=folder)
    assert done.stdout == "out\n"
    lines = (folder / "out").read_text(encoding="utf-8").split("\n")
    assert (len(lines), lines[1]) == (4, "")


@pytest.mark.release
def test_the_pipeline_is_registered(installed, trained_model):
    folder, _ = trained_model
    code = (
        "import hf_vanilla; from transformers import pipeline;"
        "print(pipeline('vanilla-translation', model='run')(['', 'seven'], max_new_tokens=3)[0])"
    )
    done = run(installed / "python", "-c", code, cwd=folder)
    assert done.stdout == "{'translation_text': ''}\n"


@pytest.mark.release
def test_an_unknown_recipe_is_one_line_with_the_shipped_recipes(installed, tmp_path):
    command = ("-m", "hf_vanilla", "train", "--recipe", "zzz")
    done = run(installed / "python", *command, cwd=tmp_path, fails=True)
    assert done.stderr.startswith("error: zzz: no such file, and no recipe of that name; there are")
    assert all(name in done.stderr for name in shipped_recipes())
    assert done.stderr.count("\n") == 1
