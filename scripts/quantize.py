"""Quantize a translation model to int8: scripts/quantize.py --model M --output FOLDER."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("quantize"))
