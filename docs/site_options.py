"""Show options in the reference: an extension of griffe, which reads the docstrings."""

import dataclasses
import importlib
from typing import Any

import griffe


class HelpOfOptions(griffe.Extension):
    """Lists the options of a dataclass with the help texts of their fields."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Add the help texts to the docstring of the class."""
        if cls.docstring is None or "dataclass" not in cls.labels:
            return
        found = getattr(importlib.import_module(cls.module.path), cls.name)
        options = [f for f in dataclasses.fields(found) if f.metadata]
        if options:
            lines = [f"    {f.name}: {f.metadata['help']}{_default(f)}" for f in options]
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(lines)


def _default(option: dataclasses.Field) -> str:
    if option.default in (dataclasses.MISSING, None, ""):
        return ""  # the help explains the meaning of None
    return f" (default `{option.default}`)"
