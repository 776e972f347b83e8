"""Translate a file or stdin, one sentence per line: scripts/translate.py --model FOLDER < TEXT."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("translate"))
