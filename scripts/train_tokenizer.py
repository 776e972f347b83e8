"""Train a tokenizer: scripts/train_tokenizer.py --files A.en A.de --output FOLDER."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("train-tokenizer")
