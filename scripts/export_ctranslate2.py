"""Export a model for CTranslate2: scripts/export_ctranslate2.py --model M --output FOLDER."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("export")
