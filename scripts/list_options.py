"""The names of all options for tests/options.txt, and what `--help` shows of them for wheels.

`make options` rewrites tests/options.txt, whose lines are the pairs of command and option. As a
hook of hatch, this file adds `command_options.json` to a wheel that is built where torch and
transformers are installed. Without it, the first `--help` writes it to the user's cache.
"""

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]


class OptionsHook(BuildHookInterface):
    """Adds the file of options to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file into the folder of the build; nothing for an editable install."""
        if version == "editable" or find_spec("torch") is None:  # as in an isolated build
            return
        sys.path.insert(0, self.root)
        from hf_vanilla.command_help import OPTIONS_FILE, declared_options

        file = Path(self.directory, OPTIONS_FILE.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(declared_options(), ensure_ascii=False), encoding="utf-8")
        build_data["force_include"][str(file)] = f"hf_vanilla/{OPTIONS_FILE.name}"


if __name__ == "__main__":
    argparse.ArgumentParser(description="Write tests/options.txt.").parse_args()
    from hf_vanilla.command_help import option_names

    (ROOT / "tests" / "options.txt").write_text("".join(f"{name}\n" for name in option_names()))
