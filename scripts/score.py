"""Score given translations: scripts/score.py --model FOLDER --source FILE --target FILE."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("score")
