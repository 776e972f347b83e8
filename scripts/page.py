"""Write a page that translates in the browser: scripts/page.py --model M --output FOLDER."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("page"))
