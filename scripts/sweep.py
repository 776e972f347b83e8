"""Train the runs of a list: scripts/sweep.py FILE."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("sweep"))
