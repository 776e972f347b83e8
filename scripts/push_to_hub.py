"""Push a model folder to the Hub: scripts/push_to_hub.py --model FOLDER --repo_id USER/NAME."""

from hf_vanilla.command_line import run
from hf_vanilla.hub import PushOptions, push_folder

if __name__ == "__main__":
    print(run(push_folder, PushOptions))
