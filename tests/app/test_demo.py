"""The demo without its training: options, and what it says without matplotlib."""

import importlib.util

import pytest

from hf_vanilla.app import demo
from hf_vanilla.options import UsageError


def test_options_change_the_recipe_of_the_demo():
    recipe = demo.read_demo(["--max_steps", "7"])
    assert (recipe.train.max_steps, recipe.train.output_dir) == (7, "runs/demo")
    with pytest.raises(UsageError, match="did you mean --max_steps"):
        demo.read_demo(["--max_stepz", "7"])


def test_without_matplotlib_the_demo_says_how_to_get_the_figure(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    expected = r"no figure of attention: it needs matplotlib (pip install -e '.[plot]')"
    assert demo._drawn_attention(tmp_path) == expected
