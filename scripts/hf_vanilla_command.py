"""The console script `hf-vanilla`: runs commands.py without importing the package around it.

Importing the package takes seconds. commands.py imports only the standard library and is loaded by
its path, so `hf-vanilla --help` is fast. In a wheel this file is installed beside the package.
"""

import importlib.util
import sys
from pathlib import Path


def main() -> int:
    """Run the command line; returns its exit status."""
    package = importlib.util.find_spec("hf_vanilla")  # found, not imported
    if package is None or package.origin is None:
        sys.exit("error: hf_vanilla is not installed: pip install hf-vanilla")
    path = Path(package.origin).with_name("commands.py")
    spec = importlib.util.spec_from_file_location("hf_vanilla_commands", path)
    commands = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = commands  # dataclasses look their module up there
    spec.loader.exec_module(commands)
    return commands.main()


if __name__ == "__main__":
    sys.exit(main())
