"""Push a model folder to the Hub: scripts/push_to_hub.py --model FOLDER --repo_id USER/NAME."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("push")
