"""The demo: its options, what it prints at its end, and what without matplotlib."""

import importlib.util
import re

import pytest
from datasets import Dataset

from hf_vanilla.app import demo
from hf_vanilla.commands import COMMANDS
from hf_vanilla.options import UsageError

CORPUS = Dataset.from_dict({"source": ["forty-two", "six"], "target": ["zweiundvierzig", "sechs"]})


def test_options_change_the_recipe_of_the_demo():
    recipe = demo.read_demo(["--max_steps", "7"])
    assert (recipe.train.max_steps, recipe.train.output_dir) == (7, "runs/demo")
    with pytest.raises(UsageError, match="did you mean --max_steps"):
        demo.read_demo(["--max_stepz", "7"])


def test_the_recipe_of_the_demo_validates_every_50_steps():
    assert demo.read_demo([]).train.eval_steps == 50


@pytest.mark.slow
def test_the_demo_ends_with_scores_files_and_the_next_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = "--max_steps 2 --tokens_per_step 512 --warmup_steps 2 --model.d_model 16"
    small += " --model.encoder_ffn_dim 16 --model.decoder_ffn_dim 16 --use_cpu True"
    monkeypatch.setattr(demo, "built_in_corpus", lambda: {"test": CORPUS})
    text = demo.demo(demo.read_demo(small.split()))
    assert "  forty-two\n    -> " in text
    assert "All 2 unseen numbers:\nBLEU " in text
    commands = re.findall(r"hf-vanilla (\S+) --model (\S+)", text)
    assert [name for name, _ in commands] == ["translate", "app"]
    assert {name for name, _ in commands} <= COMMANDS.keys()
    for _, folder in commands:
        assert (tmp_path / folder / "model.safetensors").is_file()
    figure = re.search(r"figure of attention: (\S+)", text)
    assert (tmp_path / figure[1]).is_file()


def test_without_matplotlib_the_demo_says_how_to_get_the_figure(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    expected = r"no figure of attention: it needs matplotlib (pip install -e '.[plot]')"
    assert demo._drawn_attention(tmp_path) == expected
