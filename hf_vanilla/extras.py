"""How to install the libraries of an extra of this package."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def install_hint(extra: str) -> str:
    """The command that installs an extra: in a clone that of the clone."""
    if (ROOT / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]'"
    return f"pip install 'hf-vanilla[{extra}]'"
