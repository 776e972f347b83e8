"""Train a tokenizer: scripts/train_tokenizer.py --files A.en A.de --output FOLDER."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("train-tokenizer"))
