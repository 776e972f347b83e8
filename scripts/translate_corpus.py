"""Translate any number of lines: scripts/translate_corpus.py --model M --input IN --output OUT.

The same command continues a stopped run. Several workers and clusters need Ray.
"""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("translate-corpus"))
