"""Average a run's last checkpoints: scripts/average_checkpoints.py --run FOLDER --output FOLDER."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("average"))
