"""Options of a file, a recipe or a sweep, as arguments of the command line."""

import json
from collections.abc import Mapping
from typing import Any

SECTIONS = ("model", "decoding")


def option_arguments(values: Mapping[str, Any]) -> list[str]:
    """Options of a file as arguments of the command line; without those that are null.

    Args:
        values: by name; a section is a dict, or its entries are named `model.KEY`.
    """
    arguments = []
    for name, value in values.items():
        section, _, key = str(name).partition(".")
        if section in SECTIONS and key:  # null is a value there
            arguments.append(f"--{name}={_json(value)}")
        elif section in SECTIONS and isinstance(value, dict):
            arguments += [f"--{name}.{key}={_json(entry)}" for key, entry in value.items()]
        elif value is not None:
            arguments.append(f"--{name}={_option_text(name, value)}")
    return arguments


def _option_text(name: str, value: Any) -> str:
    """A value of a file as the option of that name reads it."""
    if name == "trackers" and isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    if name == "learning_rate_of" and isinstance(value, dict):
        return ",".join(f"{prefix}={rate}" for prefix, rate in value.items())
    return _json(value) if isinstance(value, list | dict) else str(value)


def _json(value: Any) -> str:
    """A value as JSON, which is YAML too; dates, which JSON does not have, as text."""
    return json.dumps(value, ensure_ascii=False, default=str)
