"""Convert a model: scripts/convert.py --format NAME --input X --output FOLDER.

`--help` lists the formats, `--format NAME --help` the options of a format.
"""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("convert"))
