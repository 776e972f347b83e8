"""Draw attention, positions, learning rates, training or BLEU by length: scripts/plot.py --help."""

from hf_vanilla.command_line import run
from hf_vanilla.plot import plot, read_plot

if __name__ == "__main__":
    print(run(plot, read_plot))
