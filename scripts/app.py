"""Translate in a browser and see attention weights: what `make app` runs."""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("app")
