"""Push a model folder to the Hub: scripts/push_to_hub.py --model FOLDER --repo_id USER/NAME."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("push"))
