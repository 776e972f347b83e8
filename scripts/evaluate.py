"""Score a model: scripts/evaluate.py --model FOLDER --source FILE --reference FILE."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("evaluate")
