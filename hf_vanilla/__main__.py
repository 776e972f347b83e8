"""`python -m hf_vanilla`: the commands of `hf-vanilla`, for `accelerate launch -m` among others."""

import sys

from .commands import main

if __name__ == "__main__":
    sys.exit(main())
