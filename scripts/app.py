"""Translate in a browser and see the attention weights; `make app` runs this."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("app")
