"""Write a model for CTranslate2: scripts/export_ctranslate2.py --model FOLDER --output FOLDER."""

from hf_vanilla.command_line import run
from hf_vanilla.convert.ctranslate2 import ExportCTranslate2Options, export_ctranslate2

if __name__ == "__main__":
    print(run(export_ctranslate2, ExportCTranslate2Options))
