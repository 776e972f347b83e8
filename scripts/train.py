"""Train a model by a recipe: accelerate launch scripts/train.py --recipe FILE [--OPTION VALUE]."""

from hf_vanilla.command_line import run
from hf_vanilla.recipe import read_recipe
from hf_vanilla.training import train

if __name__ == "__main__":
    print(run(train, read_recipe))
