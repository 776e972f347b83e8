"""Average a run's last checkpoints: scripts/average_checkpoints.py --run FOLDER --output FOLDER."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("average")
