"""Train on the built-in corpus, translate unseen numbers, score, draw: what `make demo` runs."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("demo"))
