"""Convert from or to another toolkit: scripts/convert.py --format NAME --input X --output FOLDER.

`--help` lists the formats, `--format NAME --help` the options of one.
"""

from hf_vanilla.command_line import run
from hf_vanilla.convert.formats import convert, read_conversion

if __name__ == "__main__":
    print(run(convert, read_conversion))
