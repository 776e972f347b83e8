"""Draw attention, training curves, patches, objects or tracks: scripts/plot.py --help."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("plot"))
