"""Average a run's last checkpoints: scripts/average_checkpoints.py --run FOLDER --output FOLDER."""

from hf_vanilla.checkpointing import AverageOptions, average_run
from hf_vanilla.command_line import run

if __name__ == "__main__":
    print(run(average_run, AverageOptions))
