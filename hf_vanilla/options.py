"""Dataclasses of options: from YAML files and command lines, with constraints on their fields."""

import difflib
import json
import math
import re
import reprlib
from argparse import ArgumentError, Namespace
from collections.abc import Collection, Sequence
from dataclasses import MISSING, Field, field, fields, make_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from transformers import HfArgumentParser

from hf_vanilla.command_help import OptionFormatter


class UsageError(ValueError):
    """A command line that cannot be read: an option is unknown, missing, or not of its type.

    Args:
        message: one line.
        examples: command lines that can be read, shown below it.
    """

    def __init__(self, message: str, examples: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.examples = examples


TYPE_NAMES = {
    dict: "keys and values",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
# metadata that HfArgumentParser understands
ARGUMENT_KEYS = {"help", "choices", "aliases", "nargs", "const"}

# --- one option ----------------------------------------------------------------------------------


def option(
    default: Any = MISSING,
    text: str = "",
    *,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[str] = (),
    **notes: bool,
) -> Any:
    """A dataclass field with its help and its constraints, which `check_options` enforces.

    Args:
        default: value where none is given, for a list of values a list; an option without one is
            required.
        text: help.
        at_least: smallest allowed number.
        above: every allowed number is larger.
        below: every allowed number is smaller.
        choices: allowed names.
        **notes: facts that the owner of the class reads from `field.metadata`:
            `may_change=True` where a resumed run may have another value; `of_data=True` where the
            option describes the data set; `chooses_data=True` where it chooses one;
            `repeats_model=True` where it is the list of all `--model` behind the first;
            `is_section=True` where `--NAME.KEY VALUE` gives one entry of it.
    """
    limits = {"at_least": at_least, "above": above, "below": below, "choices": tuple(choices)}
    given = {name: value for name, value in limits.items() if value not in (None, ())}
    metadata = {"help": text, **given, **notes}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_options(options: Any) -> None:
    """Compare every value of a dataclass with the constraints of its field.

    Raises:
        ValueError: a value is out of bounds, not finite, or not one of the choices.
    """
    for declared in fields(options):
        value = getattr(options, declared.name)
        if value is not None:
            _check_value(declared, value)


def check_multiple(options: Any, name: str, of: str) -> None:
    """Compare two whole numbers of a dataclass.

    Raises:
        ValueError: the first is not a multiple of the second.
    """
    value, divisor = getattr(options, name), getattr(options, of)
    if value % divisor:
        raise ValueError(f"{name}={value} is not a multiple of {of}={divisor}: change either")


def _check_value(declared: Field, value: Any) -> None:
    name, limits = declared.name, declared.metadata
    choices = limits.get("choices", ())
    if choices and value not in choices:
        raise ValueError(f"{name}={shown(value)}: choose one of {', '.join(choices)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if not math.isfinite(value):
        raise ValueError(f"{name}={value}: give a finite number")
    at_least, above, below = (limits.get(key) for key in ("at_least", "above", "below"))
    is_inside = (
        (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (below is None or value < below)
    )
    if not is_inside:
        raise ValueError(f"{name}={value}: give {_bounds(at_least, above, below)}")


def is_finite_number(value: Any) -> bool:
    """Whether a value of a file is a number: no switch, NaN or infinity."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def checked(value: Any, kinds: type | tuple[type, ...], told: str) -> Any:
    """A value of a JSON or YAML file that has one of these types; true and false are no numbers.

    Args:
        value: of the file.
        kinds: the allowed types; None is allowed by `NoneType`.
        told: file and place, for the message.

    Raises:
        ValueError: it has another type.
    """
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(TYPE_NAMES[kind] for kind in kinds if kind in TYPE_NAMES)
        raise ValueError(f"{told} is {shown(value)}: give {wanted}")
    return value


def _bounds(at_least: float | None, above: float | None, below: float | None) -> str:
    if below is not None:
        low = "-inf" if at_least is None else f"{at_least:g}"
        return f"a number in [{low}, {below:g})"
    if above == 0 or at_least == 1:
        return "a positive number"
    return f"{at_least:g} or more" if at_least is not None else f"a number above {above:g}"


def noted(options: Any, note: str) -> set[str]:
    """Names of the fields whose `option` has this note."""
    return {declared.name for declared in fields(options) if declared.metadata.get(note)}


# --- command lines -------------------------------------------------------------------------------


def parse_options(
    options: type | Sequence[type],
    arguments: Sequence[str],
    *,
    epilog: str | None = None,
    chosen: str = "",
    elsewhere: Collection[str] = (),
) -> Any:
    """One dataclass of options, or a tuple of several, from command-line arguments.

    A class attribute `_argument_group_name` puts the options of a class under a heading of its own
    in `--help`.

    Args:
        options: a dataclass, or several.
        arguments: as in `sys.argv[1:]`.
        epilog: last paragraph of `--help`.
        chosen: what was read from the command line before, for the usage line of `--help`.
        elsewhere: options that the caller reads, such as `model.d_model`, suggested where one is
            given without its section.

    Raises:
        UsageError: an option is unknown, missing or of the wrong type.
        ValueError: a value is impossible.
    """
    classes = [options] if isinstance(options, type) else list(options)
    required = {f.name for c in classes for f in fields(c) if _is_required(f)}
    shown = [f"--{name} {name.upper()}" for name in sorted(required)]
    parser = HfArgumentParser(
        [_without_notes(kind) for kind in classes],
        usage=" ".join(filter(None, ["%(prog)s", chosen, *shown, "[OPTIONS]"])),
        allow_abbrev=False,
        exit_on_error=False,
        description=(classes[0].__doc__ or "").splitlines()[0],
        epilog=epilog,
        formatter_class=OptionFormatter,
    )
    _set_apart_foreign_options(parser, classes)
    arguments = _joined_sections(_listed_models(arguments, classes), classes)
    given, known = given_options(arguments), [f.name for c in classes for f in fields(c)]
    missing = sorted(required - given)
    misspelled = [name for name in sorted(given) if difflib.get_close_matches(name, missing)]
    for name in set(misspelled) - set(known):
        raise UsageError(f"unknown: --{name}; {_meant(name, known, elsewhere)}")
    if missing and not {"-h", "--help"} & set(arguments):
        raise UsageError(f"missing: {', '.join(f'--{name}' for name in missing)}; see --help")
    # what was not given is left to the dataclass: the parser has its own defaults, for the help
    read = Namespace(**dict.fromkeys(known, MISSING))
    try:
        _, unknown = parser.parse_known_args(list(arguments), read)
    except ArgumentError as error:
        raise UsageError(str(error)) from None
    if unknown:
        hint = _meant(unknown[0].split("=")[0].removeprefix("--"), known, elsewhere)
        raise UsageError(f"unknown: {' '.join(unknown)}; {hint}")
    values = {name: value for name, value in vars(read).items() if value is not MISSING}
    made = [
        kind(**{f.name: values[f.name] for f in fields(kind) if f.name in values})
        for kind in classes
    ]
    return made[0] if isinstance(options, type) else tuple(made)


def _listed_models(arguments: Sequence[str], classes: Sequence[type]) -> list[str]:
    """The arguments with every `--model` behind the first in the option that lists them.

    Raises:
        UsageError: there are several, and no option lists them or it is given too.
    """
    rest, models = list(arguments), []
    if any(declared.name == "model" for kind in classes for declared in fields(kind)):
        while (model := _pop_first(rest, "--model")) is not None:
            models.append(model)
    if len(models) < 2:
        return list(arguments)
    lists = {name for kind in classes for name in noted(kind, "repeats_model")}
    if not lists:
        raise UsageError(f"--model has {len(models)} values, {', '.join(models)}: give one")
    for name in lists:
        if name in given_options(rest):
            raise UsageError(f"--{name} and several --model: give all models by one of them")
        rest += ["--model", models[0], f"--{name}", *models[1:]]
    return rest


def _pop_first(arguments: list[str], name: str) -> str | None:
    """Remove the first `name VALUE` or `name=VALUE` and return the value; None if there is none."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return arguments.pop(index).split("=", 1)[1]
        if argument == name and index + 1 < len(arguments):
            del arguments[index]
            return arguments.pop(index)
    return None


def _joined_sections(arguments: Sequence[str], classes: Sequence[type]) -> list[str]:
    """The arguments with `--NAME.KEY VALUE` of a section as one `--NAME={"KEY": VALUE}`."""
    rest = list(arguments)
    for section in sorted(name for kind in classes for name in noted(kind, "is_section")):
        entries: dict[str, Any] = {}
        for key in dict.fromkeys(a.split("=")[0] for a in rest if a.startswith(f"--{section}.")):
            text = pop_option(rest, key) or ""
            try:
                entries[key.removeprefix(f"--{section}.")] = yaml_value(text)
            except ValueError:
                raise UsageError(f"{key}={text!r} is not a YAML value") from None
        if entries:
            whole = pop_option(rest, f"--{section}")
            earlier = {} if whole is None else yaml_value(whole)
            rest.append(f"--{section}={json.dumps({**earlier, **entries})}")
    return rest


def _set_apart_foreign_options(parser: HfArgumentParser, classes: Sequence[type]) -> None:
    """Show the options of other libraries' classes last, under a heading of their own."""
    foreign = [kind.__name__ for kind in classes if kind.__module__.startswith("transformers.")]
    if foreign:
        parser._optionals.title = f"{', '.join(foreign)} of transformers"
        parser._action_groups.sort(key=lambda group: group is parser._optionals)


def _without_notes(kind: type) -> type:
    """The same options with their help alone: the parser would take all metadata for arguments.

    Other libraries' classes, which have no notes of ours, stay as they are.
    """
    if all(declared.metadata.keys() <= ARGUMENT_KEYS for declared in fields(kind)):
        return kind
    types = get_type_hints(kind)
    columns = [
        (
            declared.name,
            types[declared.name],
            field(
                default=declared.default,
                default_factory=declared.default_factory,
                metadata={"help": declared.metadata.get("help")},
            ),
        )
        for declared in fields(kind)
    ]
    group = {"_argument_group_name": getattr(kind, "_argument_group_name", kind.__name__)}
    return make_dataclass(kind.__name__, columns, namespace=group, kw_only=True)


def _meant(name: str, known: Collection[str], elsewhere: Collection[str]) -> str:
    """A hint which option was meant by an unknown name."""
    close = [other for other in elsewhere if other.rpartition(".")[2] == name]
    close = close or difflib.get_close_matches(name, [*known, *elsewhere], n=1)
    return f"did you mean --{close[0]}?" if close else "see --help"


def _is_required(declared: Field) -> bool:
    return declared.init and declared.default is MISSING and declared.default_factory is MISSING


def given_options(arguments: Sequence[str]) -> set[str]:
    """Names of the options on a command line; the parser accepts dashes for underscores."""
    names = {argument.split("=")[0] for argument in arguments if argument.startswith("--")}
    return {name.removeprefix("--").replace("-", "_") for name in names}


def pop_option(arguments: list[str], name: str) -> str | None:
    """Remove every `name VALUE` and `name=VALUE` and return the last value; None if there is none.

    Raises:
        UsageError: the name is the last argument and has no value.
    """
    value = None
    for index in [i for i, a in enumerate(arguments) if a.split("=")[0] == name][::-1]:
        if "=" in arguments[index]:
            found = arguments.pop(index).split("=", 1)[1]
        elif index + 1 < len(arguments):
            found = arguments.pop(index + 1)
            del arguments[index]
        else:
            raise UsageError(f"{name} needs a value")
        value = found if value is None else value
    return value


def options_and_paths(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of a command line with their values, and all other arguments; `-` is a path."""
    options, paths, remaining = [], [], iter(arguments)
    for argument in remaining:
        if argument == "-" or not argument.startswith("-"):
            paths.append(argument)
            continue
        options.append(argument)
        if "=" not in argument and argument not in ("-h", "--help"):
            options.extend([value] if (value := next(remaining, None)) is not None else [])
    return options, paths


def options_and_file(kind: type, arguments: Sequence[str], use: str) -> tuple[Path, Any]:
    """The one file of a command line, and its options.

    Args:
        kind: dataclass of the options.
        arguments: of the command line.
        use: what the file is, and the command; for the message.

    Raises:
        UsageError: there is not exactly one file, or an option is unknown.
    """
    options, paths = options_and_paths(arguments)
    parsed = parse_options(kind, options, chosen="FILE")
    if len(paths) != 1:
        raise UsageError(f"give {use}")
    return Path(paths[0]), parsed


# --- YAML ----------------------------------------------------------------------------------------


MOST_LEVELS = 50  # of lists and mappings inside each other
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 100
_short.maxlist = _short.maxdict = 10


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


def install_hint(extra: str) -> str:
    """The command that installs an extra of this package, which no package index has.

    Args:
        extra: a name of `[project.optional-dependencies]`.
    """
    return f"pip install -e '.[{extra}]' in a clone of hf_vanilla"


def check_names(
    section: str, given: Any, known: Collection[str], *, error: type[ValueError] = ValueError
) -> None:
    """Refuse a name that is not known, and suggest the one that was meant.

    Args:
        section: where the names were given, for the message.
        given: a dict by name.
        known: all names there are.
        error: what to raise for an unknown name.

    Raises:
        ValueError: a name is unknown, or `given` is no dict.
    """
    if not isinstance(given, dict):
        raise ValueError(f"{section} must hold keys and values, not {shown(given)}")
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
            raise error(f"{section}: unknown key {shown(name)}; {hint}")
