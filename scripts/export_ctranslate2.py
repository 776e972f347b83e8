"""Export a model for CTranslate2: scripts/export_ctranslate2.py --model M --output FOLDER."""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("export"))
