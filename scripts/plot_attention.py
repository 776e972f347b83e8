"""Draw where a model looks: scripts/plot_attention.py --model FOLDER --sentence "TEXT"."""

from hf_vanilla.command_line import run
from hf_vanilla.visualization import PlotAttentionOptions, plot_attention

if __name__ == "__main__":
    print(run(plot_attention, PlotAttentionOptions))
