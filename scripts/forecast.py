"""Predict future positions: scripts/forecast.py --model FOLDER --input FILE."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("forecast"))
