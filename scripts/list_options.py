"""Write the options of all commands to hf_vanilla/command_options.json: scripts/list_options.py."""

import contextlib
import json
import sys
from argparse import ArgumentParser
from typing import Any
from unittest.mock import patch

from hf_vanilla import commands
from hf_vanilla.command_help import OPTIONS_FILE, described
from hf_vanilla.convert.formats import FORMATS
from hf_vanilla.families import TASKS
from hf_vanilla.options import parse_options
from hf_vanilla.plots.plot import all_figures


def variants(name: str) -> list[str]:
    """The arguments that choose among the helps of a command; empty: its first help."""
    chosen = {
        "train": [f"--task {task}" for task in TASKS],
        "convert": [f"--format {form}" for form in FORMATS],
        "plot": list(all_figures()),
    }
    return ["", *chosen.get(name, [])]


def help_parser(name: str, chosen: str) -> ArgumentParser:
    """The parser that prints the help of a command, made from its dataclasses."""
    found = []
    readers = [commands._resolve(reader) for reader in commands.COMMANDS[name].options]
    classes = [reader for reader in readers if isinstance(reader, type)]
    arguments = [*chosen.split(), "--help"]
    with (
        patch.object(sys, "argv", [f"{commands.PROGRAM} {name}"]),
        patch.object(ArgumentParser, "print_help", lambda parser, *_: found.append(parser)),
        contextlib.suppress(SystemExit),
    ):
        if classes:
            parse_options(classes, arguments)
        for reader in readers:
            reader(arguments)
    return found[0]


def options_of_all_commands() -> dict[str, dict[str, Any]]:
    """What `hf_vanilla/command_options.json` should contain."""
    listed: dict[str, dict[str, Any]] = {}
    for name in commands.COMMANDS:
        listed[name] = {}
        for chosen in variants(name):
            listed[name][chosen] = described(help_parser(name, chosen))
    return listed


if __name__ == "__main__":
    text = json.dumps(options_of_all_commands(), indent=1, ensure_ascii=False)
    OPTIONS_FILE.write_text(f"{text}\n", encoding="utf-8")
    print(OPTIONS_FILE)
