"""Translate a file or stdin, a sentence a line: scripts/translate.py --model FOLDER < TEXT."""

from hf_vanilla.command_line import run
from hf_vanilla.translation import TranslateOptions, translate_file

if __name__ == "__main__":
    output = run(translate_file, TranslateOptions)
    if output is not None:
        print(output)
