"""Print the parameters of Table 3, ours and the paper's: scripts/count_parameters.py."""

from pathlib import Path

from hf_vanilla.command_line import run
from hf_vanilla.options import parse_options
from hf_vanilla.parameter_table import ParameterTableOptions, parameter_table

TABLE_3 = ["--folder", str(Path(__file__).parent / "recipes" / "table3")]

if __name__ == "__main__":
    print(run(parameter_table, lambda given: parse_options(ParameterTableOptions, TABLE_3 + given)))
