"""Convert a model: scripts/convert.py --format NAME --input X --output FOLDER.

`--help` lists the formats, `--format NAME --help` the options of a format.
"""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("convert")
