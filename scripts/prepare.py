"""Tokenize a corpus into shards: scripts/prepare.py --tokenizer T --dataset D --output FOLDER."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("prepare"))
