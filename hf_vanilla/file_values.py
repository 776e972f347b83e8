"""Values of YAML and JSON files: reading them, and checks of their types and names."""

import difflib
import re
import reprlib
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

MOST_LEVELS = 50  # of lists and mappings inside each other
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 100
_short.maxlist = _short.maxdict = 10
TYPE_NAMES = {
    dict: "keys and values",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def shown(value: Any) -> str:
    """The `repr` of a value of a file, cut to a length that fits into a message."""
    return _short.repr(value)


class _Yaml(yaml.SafeLoader):
    """YAML 1.2 in three points: 1e-4 is a number, only true and false are switches, keys differ.

    Aliases are refused: nine of them, each of ten others, stand for a billion values.
    """

    level = 0

    yaml_implicit_resolvers = {  # noqa: RUF012 - yaml's form
        first: [r for r in resolvers if r[0] != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise yaml.composer.ComposerError(
                None, None, f"it has the alias *{event.anchor}: write the value out"
            )
        if self.level == MOST_LEVELS:
            raise yaml.composer.ComposerError(None, None, f"it has more than {MOST_LEVELS} levels")
        self.level += 1
        node = super().compose_node(parent, index)
        self.level -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float) and key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} has two values (the second in line {line}): keep one"
                )
            seen.add(key if isinstance(key, str | int | float) else None)
        return super().construct_mapping(node, deep=deep)


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def yaml_value(text: str, origin: str = "") -> Any:
    """The value of a piece of YAML.

    Args:
        text: the piece.
        origin: name of its file, for messages; empty: the text itself.

    Raises:
        ValueError: it is not YAML, gives one key two values, or has aliases or too many levels.
    """
    try:
        return yaml.load(text, _Yaml)
    except Exception as error:  # values that do not fit their tag raise many different exceptions
        reason = " ".join(str(error).split())
        raise ValueError(f"{origin or shown(text)} is not YAML: {reason:.200}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file.

    Raises:
        ValueError: it is not YAML, holds something else, or gives one key two values.
        OSError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    values = yaml_value(text, str(path))
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold keys and values, such as 'max_steps: 1000'")
    return values


def is_finite_number(value: Any) -> bool:
    """Whether a value is a number: no switch, NaN, infinity, or integer of more than 64 bits."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= (
        sys.maxsize if isinstance(value, int) else sys.float_info.max
    )


def checked(value: Any, kinds: type | tuple[type, ...], name: str) -> Any:
    """A value of a JSON or YAML file that has one of these types; true and false are no numbers.

    Args:
        value: of the file.
        kinds: the allowed types; None is allowed by `NoneType`.
        name: of the value, with its file or without, for the message.

    Raises:
        ValueError: it has another type.
    """
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wider = {int} if float in kinds else set()  # a whole number is a number
        named = [kind for kind in kinds if kind in TYPE_NAMES and kind not in wider]
        wanted = " or ".join(TYPE_NAMES[kind] for kind in named)
        raise ValueError(f"{name} is {shown(value)}: give {wanted}")
    return value


def check_names(
    section: str,
    given: Any,
    known: Collection[str],
    *,
    elsewhere: Collection[str] = (),
    error: type[ValueError] = ValueError,
) -> None:
    """Refuse a name that is not known, and suggest the one that was meant.

    Args:
        section: where the names were given, for the message.
        given: a dict by name.
        known: all names there are.
        elsewhere: names of other sections, which an unknown one may mean.
        error: what to raise for an unknown name.

    Raises:
        ValueError: a name is unknown, or `given` is no dict.
    """
    if not isinstance(given, dict):
        raise ValueError(f"{section} must hold keys and values, not {shown(given)}")
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), [*known, *elsewhere], n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
            raise error(f"{section}: unknown key {shown(name)}; {hint}")
