"""Train a model by a recipe: accelerate launch scripts/train.py --recipe FILE [--OPTION VALUE]."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("train"))
