"""Print the parameters of Table 3, ours and the paper's: scripts/count_parameters.py."""

from hf_vanilla.commands import run
from hf_vanilla.training.parameter_table import ParameterTableOptions, parameter_table

if __name__ == "__main__":
    print(run(parameter_table, ParameterTableOptions))
