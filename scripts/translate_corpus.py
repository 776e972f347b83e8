"""Translate any number of lines: scripts/translate_corpus.py --model M --input IN --output OUT.

The same command continues a stopped run. Several workers and clusters need Ray.
"""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("translate-corpus")
