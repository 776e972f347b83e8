"""Report on a detection data set: scripts/inspect_data.py --dataset FILE..."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("inspect-data"))
