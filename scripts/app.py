"""Use a model in a browser and see its attention weights; `make app` runs this."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("app"))
