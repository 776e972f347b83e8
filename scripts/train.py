"""Train a model by a recipe: accelerate launch scripts/train.py --recipe FILE [--OPTION VALUE]."""

from accelerate import PartialState

from hf_vanilla.command_line import run
from hf_vanilla.recipe import read_recipe
from hf_vanilla.training import train

if __name__ == "__main__":
    folder = run(train, read_recipe)
    if PartialState().is_main_process:
        print(folder)
