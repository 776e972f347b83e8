"""The console script `hf-vanilla`: runs commands.py without importing the package around it.

Importing the package takes seconds, and imports torch. commands.py imports only the standard
library and is loaded by its path, so `hf-vanilla --help` is fast, and variables for torch's threads
are set in time. In a wheel this file is installed beside the package.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def main(command: str | None = None) -> int:
    """Run the command line; returns its exit status.

    Args:
        command: a command for the arguments of `sys.argv`; None: their first names it.
    """
    arguments = sys.argv[1:] if command is None else [command, *sys.argv[1:]]
    return _load_commands().main(arguments)


def _load_commands() -> ModuleType:
    if "hf_vanilla.commands" in sys.modules:
        return sys.modules["hf_vanilla.commands"]
    package = importlib.util.find_spec("hf_vanilla")  # found, not imported
    if package is None or package.origin is None:
        sys.exit("error: hf_vanilla is not installed: pip install . in a clone of it")
    path = Path(package.origin).with_name("commands.py")
    spec = importlib.util.spec_from_file_location("hf_vanilla_commands", path)
    commands = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = commands  # dataclasses look their module up there
    spec.loader.exec_module(commands)
    return commands


if __name__ == "__main__":
    sys.exit(main())
