"""Score a model: scripts/evaluate.py --model FOLDER --source FILE --reference FILE."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("evaluate"))
