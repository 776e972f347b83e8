"""Options in the reference: an extension of griffe, which reads the docstrings for the site."""

import dataclasses
import importlib
from typing import Any

import griffe


class HelpOfOptions(griffe.Extension):
    """Lists the options of a dataclass with their help, which stands in its fields alone."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Add to the docstring what `--help` says."""
        if cls.docstring is None or "dataclass" not in cls.labels:
            return
        found = getattr(importlib.import_module(cls.module.path), cls.name)
        options = [f for f in dataclasses.fields(found) if f.metadata]
        if options:
            lines = [f"    {f.name}: {f.metadata['help']}{_default(f)}" for f in options]
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(lines)


def _default(option: dataclasses.Field) -> str:
    if option.default in (dataclasses.MISSING, None, ""):
        return ""  # where None means something, the help says what
    return f" (default `{option.default}`)"
