"""The recipes of the package by name, and options of earlier versions in a recipe."""

import difflib
from pathlib import Path
from typing import Any

from hf_vanilla.file_values import shown, yaml_value
from hf_vanilla.options import pop_option

# options of earlier versions by their names of today
RENAMED = {f"adam_{name}": f"adam.{name}" for name in ("beta1", "beta2", "epsilon")}
# options of earlier versions: what replaces each, and its values without effect, which are dropped
RETIRED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "streaming": ("use hf-vanilla prepare --streaming true, and give prepared", (False,)),
    "window_pairs": ("leave it out: it was of streaming", (100_000,)),
    **{
        # without an old scene_column, a table was one scene
        f"{name}_column": (f"give columns {name}=NAME", () if name == "scene" else (name,))
        for name in ("frame", "agent", "x", "y", "scene")
    },
    "comet": ("score the translations with unbabel-comet's own command", ()),
}


def drop_retired(values: dict[str, Any], arguments: list[str]) -> None:
    """Remove retired options from a file's values and a command line.

    Raises:
        ValueError: one has a value with an effect; the message says what replaces it.
    """
    for name, (instead, off) in RETIRED.items():
        written = [values.pop(name)] if name in values else []
        for spelling in {f"--{name}", f"--{name.replace('_', '-')}"}:
            text = pop_option(arguments, spelling)
            written += [] if text is None else [yaml_value(text)]
        for value in written:
            if value is not None and value not in off:
                raise ValueError(f"{name}={shown(value)}: this option has gone; {instead}")


def shipped_recipes() -> dict[str, Path]:
    """The recipes in the package by name: `numbers`, or `table3/base` in a subfolder."""
    folder = Path(__file__).resolve().parents[1] / "recipes"
    files = sorted(folder.rglob("*.yaml"), key=lambda file: (len(file.parts), file))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def recipe_file(name: str) -> Path:
    """The file of a recipe, by its path or its name.

    Raises:
        FileNotFoundError: there is neither.
    """
    shipped = shipped_recipes()
    if Path(name).is_file():
        return Path(name)
    if name not in shipped:
        close = difflib.get_close_matches(name, shipped, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(shipped)}"
        raise FileNotFoundError(f"{name}: no such file, and no recipe of that name; {hint}")
    return shipped[name]
