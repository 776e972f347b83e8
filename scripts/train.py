"""Train a model by a recipe: accelerate launch scripts/train.py --recipe FILE [--OPTION VALUE]."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("train")
