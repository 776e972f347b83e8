"""Detect objects: scripts/detect.py --model FOLDER IMAGES..."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("detect"))
