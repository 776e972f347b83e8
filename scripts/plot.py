"""Draw attention, positions, learning rates, training or BLEU by length: scripts/plot.py --help."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("plot"))
