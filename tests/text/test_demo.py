"""The demo: its options, what it prints at its end, and what without matplotlib."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from datasets import Dataset

from hf_vanilla.commands import COMMANDS
from hf_vanilla.data import corpus
from hf_vanilla.options import UsageError
from hf_vanilla.text import demo
from hf_vanilla.training.recipe import read_recipe

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Dataset.from_dict({"source": ["forty-two", "six"], "target": ["zweiundvierzig", "sechs"]})


def test_options_change_the_recipe_of_the_demo():
    recipe = demo.read_demo(["--max_steps", "7"])
    assert (recipe.train.max_steps, recipe.train.output_dir) == (7, "runs/demo")
    with pytest.raises(UsageError, match="did you mean --max_steps"):
        demo.read_demo(["--max_stepz", "7"])
    with pytest.raises(UsageError, match="train --recipe numbers has all options"):
        demo.read_demo(["--tokens_per_step", "7"])


def test_without_options_the_demo_is_its_recipe():
    assert demo.read_demo([]) == read_recipe(["--recipe", "numbers"])


def installed_by(extra, extras):
    """Names of the libraries of an extra, those of the extras it contains included."""
    names = set()
    for requirement in extras[extra]:
        if inner := re.fullmatch(r"hf-vanilla\[(.+)\]", requirement):
            names = names.union(*(installed_by(name, extras) for name in inner[1].split(",")))
        else:
            names.add(re.match(r"[\w-]+", requirement)[0])
    return names


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_demo_installs_the_libraries_of_the_demo_alone_and_shows_its_progress(tmp_path):
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "demo", f"VENV={tmp_path / 'new'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    installs = [line for line in done.stdout.splitlines() if "pip install --constraint" in line]
    assert [line.split()[-1] for line in installs] == ["torch", '".[demo]"']
    assert not any("--quiet" in line for line in installs)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = installed_by("demo", project["optional-dependencies"])
    assert "matplotlib" in names
    assert names.isdisjoint({"mkdocs", "playwright", "peft", "mypy", "pytest", "uvicorn"})


@pytest.mark.slow
def test_the_demo_ends_with_scores_files_and_the_next_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = (
        "--recipe numbers --max_steps 2 --tokens_per_step 512 --warmup_steps 2 --model.d_model 16"
        " --model.encoder_ffn_dim 16 --model.decoder_ffn_dim 16 --use_cpu True --eval_sentences 0"
    )
    for name, count in (("DENSE", 100), ("SPARSE", 100), ("EVALUATION_PAIRS", 12)):
        monkeypatch.setattr(corpus, name, count)  # tens of thousands take long
    monkeypatch.setattr(demo, "built_in_corpus", lambda: {"test": CORPUS})
    text = demo.demo(read_recipe(small.split()))
    assert "  forty-two\n    -> " in text
    assert "All 2 unseen numbers:\nBLEU " in text
    sentence, app = text.split("\nNext:\n")[1].splitlines()
    program = shlex.split(sentence.split("|")[1])[0]
    assert shutil.which(program)  # whether or not the tests' environment is on the PATH
    done = subprocess.run(sentence, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    assert app == f"  {program} app --model runs/demo"
    commands = re.findall(r"hf-vanilla (\S+) --model (\S+)", text)
    assert [name for name, _ in commands] == ["translate", "app"]
    assert {name for name, _ in commands} <= COMMANDS.keys()
    for _, folder in commands:
        assert (tmp_path / folder / "model.safetensors").is_file()
    figure = re.search(r"figure of attention: (\S+)", text)
    assert (tmp_path / figure[1]).is_file()


def test_without_matplotlib_the_demo_says_how_to_get_the_figure(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    text = demo._drawn_attention(tmp_path)
    assert text.startswith("no figure of attention: it needs matplotlib (pip install -e '.[plot]'")


def test_the_program_of_the_next_commands_is_the_one_that_this_environment_has(
    monkeypatch, tmp_path
):
    for folder in (tmp_path / "my env", tmp_path / "bare"):
        (folder / "bin").mkdir(parents=True)
    program = tmp_path / "my env" / "bin" / "hf-vanilla"
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    monkeypatch.setenv("PATH", "")
    assert demo._program() == f"'{program}'"
    monkeypatch.chdir(tmp_path)
    assert demo._program() == "'my env/bin/hf-vanilla'"
    monkeypatch.setenv("PATH", str(program.parent))
    assert demo._program() == "hf-vanilla"
    monkeypatch.setattr(sys, "executable", "/x/python")
    assert demo._program() == "/x/python -m hf_vanilla"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_app_opens_the_named_model():
    command = ["make", "--no-print-directory", "--dry-run", "app", "MODEL=runs/demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith('hf-vanilla app --model "runs/demo"\n')
