"""Draw attention, positions, learning rates, training or BLEU by length: scripts/plot.py --help."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("plot")
