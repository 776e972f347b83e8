"""Run the tests at both ends of the supported versions: scripts/check_transformers_compat.py.

Each end has an environment in `runs/compat`, set up by its constraints file and used again.
"""

import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

from hf_vanilla.commands import run

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = {"lowest": "constraints-lowest.txt", "newest": "constraints.txt"}


@dataclass
class CompatOptions:
    """What to check."""

    ends: list[str] = field(
        default_factory=lambda: list(CONSTRAINTS), metadata={"help": "lowest, newest, or both"}
    )
    folder: str = field(default="runs/compat", metadata={"help": "where the environments lie"})
    suites: str | None = field(
        default=None,
        metadata={"help": "checkout of transformers whose common model suites run too"},
    )


def python_of(end: str, folder: Path) -> Path:
    """The interpreter of one end's environment, which is set up if it is not there."""
    python, ready = folder / end / "bin/python", folder / end / ".ready"
    if not ready.is_file():
        venv.create(folder / end, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / CONSTRAINTS[end]]
        index = os.environ.get("TORCH_INDEX")  # of CPU builds, for torch alone
        subprocess.run([*pip, "torch", *(["--index-url", index] if index else [])], check=True)
        subprocess.run([*pip, "--editable", f"{ROOT}[dev]"], check=True)
        ready.touch()
    return python


def check(options: CompatOptions) -> None:
    """Run the tests at each end; exits with status 1 where some fail."""
    if unknown := set(options.ends) - CONSTRAINTS.keys():
        sys.exit(f"error: no end called {', '.join(unknown)}: give lowest, newest or both")
    pythons = {end: python_of(end, Path(options.folder).resolve()) for end in options.ends}
    runs = {"pip check": ["pip", "check"], "tests": ["pytest", ROOT / "tests"]}
    if options.suites:  # their marks are not ours, so ours must not be strict
        files = [ROOT / "tests" / f"common_suites{which}.py" for which in ("", "_images")]
        runs["the common suites"] = ["pytest", "-o", "addopts=", *files]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": options.suites or ""}
    failed = []
    for end, python in pythons.items():
        for name, arguments in runs.items():
            done = subprocess.run([python, "-m", *arguments], cwd=ROOT, env=environment)
            failed += [f"{name} at the {end} versions"] * bool(done.returncode)
    sys.exit(f"error: failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    run(check, CompatOptions)
