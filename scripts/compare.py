"""Compare the runs of a sweep: scripts/compare.py FILE."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("compare"))
