"""Draw where a model looks: scripts/plot_attention.py --model FOLDER --sentence "TEXT"."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("plot")
