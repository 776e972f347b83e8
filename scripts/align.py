"""Align given translations: scripts/align.py --model FOLDER --source FILE --target FILE."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("align"))
