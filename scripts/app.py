"""Translate in a browser and see where the model looks: what `make app` runs."""

from functools import partial
from pathlib import Path

from hf_vanilla.app import AppOptions, open_app
from hf_vanilla.command_line import run
from hf_vanilla.recipe import read_recipe

RECIPE = Path(__file__).parent / "recipes" / "numbers.yaml"

if __name__ == "__main__":
    space = run(partial(open_app, demo=read_recipe(["--recipe", str(RECIPE)])), AppOptions)
    if space is not None:
        print(space)
