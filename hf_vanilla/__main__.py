"""`python -m hf_vanilla`: the commands of `hf-vanilla`, also for `accelerate launch -m`."""

import sys

from .commands import main

if __name__ == "__main__":
    sys.exit(main())
