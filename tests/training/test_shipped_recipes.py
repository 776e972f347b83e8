"""The recipes of the package: every one is readable, and each is known by its name."""

import re
from pathlib import Path

import pytest

from hf_vanilla.training.recipe import read_recipe, shipped_recipes

FOLDER = Path(__file__).resolve().parents[2] / "hf_vanilla" / "recipes"
RECIPES = {p.relative_to(FOLDER).with_suffix("").as_posix(): p for p in FOLDER.rglob("*.yaml")}
DEMOS = {  # the folders that the demos leave
    "numbers": "demo",
    "digits_halves": "demo_images",
    "digit_scenes_halves": "demo_objects",
}


def test_every_published_recipe_is_readable_and_comes_back_the_same(tmp_path):
    for name in sorted(RECIPES):
        recipe = read_recipe(["--recipe", str(RECIPES[name])])
        (tmp_path / "again.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
        assert read_recipe(["--recipe", str(tmp_path / "again.yaml")]) == recipe
        assert recipe.train.output_dir == f"runs/{DEMOS.get(name, name)}"


def test_a_shipped_recipe_is_known_by_its_name_below_the_folder():
    assert shipped_recipes() == RECIPES
    assert {"numbers", "table3/D2_dropout_0.2"} <= RECIPES.keys()


def test_a_name_reads_the_same_recipe_as_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers").mkdir()  # a folder is no recipe
    by_file = read_recipe(["--recipe", str(RECIPES["numbers"]), "--max_steps", "7"])
    assert read_recipe(["--recipe", "numbers", "--max_steps", "7"]) == by_file


def test_a_file_is_preferred_to_a_shipped_recipe_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers").write_text("max_steps: 3\n", encoding="utf-8")
    assert read_recipe(["--recipe", "numbers"]).train.max_steps == 3


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("table3/bas", "did you mean 'table3/base'?"),
        ("zzz", "there are av2_small, av2_wayformer, "),
        ("aut", "did you mean 'auto'?"),
    ],
)
def test_a_recipe_that_is_nowhere_is_told_with_those_there_are(name, hint):
    told = f"{name}: no such file, and no recipe of that name; {hint}"
    with pytest.raises(FileNotFoundError, match=re.escape(told)):
        read_recipe(["--recipe", name])


@pytest.mark.parametrize(
    ("task", "has_auto"),
    [([], True), (["--task", "translation"], True), (["--task", "trajectories"], False)],
    ids=str,
)
def test_auto_is_among_the_recipes_of_its_task(task, has_auto):
    with pytest.raises(FileNotFoundError, match="there are av2_small") as caught:
        read_recipe(["--recipe", "zzz", *task])
    assert str(caught.value).endswith(", auto") == has_auto
