"""Translate a file or stdin, one sentence per line: scripts/translate.py --model FOLDER < TEXT."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("translate")
