"""What `hf-vanilla` starts: the table of commands, without the package around it.

In a wheel this file lies beside the package, whose import takes seconds. The table needs the
standard library only and is read by its path, so that `hf-vanilla --help` answers at once.
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
    sys.modules[spec.name] = commands  # where dataclasses look for their module
    spec.loader.exec_module(commands)
    return commands.main()


if __name__ == "__main__":
    sys.exit(main())
