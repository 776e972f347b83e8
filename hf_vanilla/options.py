"""Dataclasses of options: from YAML files and command lines, with constraints on their fields."""

import difflib
import re
import sys
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from operator import ge, gt, le, lt
from types import NoneType, UnionType
from typing import Any, TypedDict, Union, Unpack, get_args, get_origin, get_type_hints

from transformers.hf_argparser import string_to_bool

from hf_vanilla.command_help import OptionFormatter
from hf_vanilla.file_values import check_names, checked, is_finite_number, shown, yaml_value

PROGRESS_AFTER = 3.0  # seconds
TRUTHS = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")  # of `string_to_bool`


class UsageError(ValueError):
    """A command line that cannot be read: an option is unknown, missing, or not of its type.

    Args:
        message: one line.
        examples: command lines that can be read, shown below it.
    """

    def __init__(self, message: str, examples: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.examples = examples


class HelpShown(SystemExit):
    """The help of a parser was printed.

    Args:
        parser: whose help is printed.
    """

    def __init__(self, parser: ArgumentParser) -> None:
        parser.print_help()
        super().__init__(0)
        self.parser = parser


# --- one option ----------------------------------------------------------------------------------


class Facts(TypedDict, total=False):
    """What the field of an option states beside default and help.

    The limits and choices hold for each value of a list.

    Attributes:
        at_least: smallest allowed number.
        above: every allowed number is larger.
        at_most: largest allowed number.
        below: every allowed number is smaller.
        choices: allowed names.
        read: makes the value from its text on a command line or in a file; without it, the text is
            the value.
        may_change: a resumed run may have another value.
        of_data: the option describes the data set.
        chooses_data: it chooses one.
        repeats_model: it is the list of all `--model` after the first, or of all as `model` itself.
        is_section: `--NAME.KEY VALUE` gives one entry of it.
    """

    at_least: float
    above: float
    at_most: float
    below: float
    choices: Collection[str]
    read: Callable[[str], Any]
    may_change: bool
    of_data: bool
    chooses_data: bool
    repeats_model: bool
    is_section: bool


def option(default: Any = MISSING, text: str = "", **facts: Unpack[Facts]) -> Any:
    """A field of `Options` with its help and its constraints.

    Args:
        default: value where none is given, for a list of values a list; an option without one is
            required.
        text: help.
        **facts: see `Facts`.
    """
    if facts.get("is_section"):
        facts["read"] = yaml_value
    metadata = {"help": text, **facts}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of the dataclasses of options: compares every value with the constraints of its field.

    Raises:
        ValueError: a value is out of bounds, not finite, or not one of the choices.
    """

    def __post_init__(self) -> None:
        for declared in fields(self):
            value = getattr(self, declared.name)
            for one in value if isinstance(value, list | tuple) else [value]:
                if one is not None:
                    _check_value(declared, one)


# what is not allowed by each limit of `Facts`
OUTSIDE = {"at_least": lt, "above": le, "at_most": gt, "below": ge}


def _check_value(declared: Field, value: Any) -> None:
    name, limits = declared.name, declared.metadata
    choices = limits.get("choices", ())
    if choices and value not in choices:
        raise ValueError(f"{name}={shown(value)}: choose one of {', '.join(choices)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if not is_finite_number(value):
        raise ValueError(f"{name}={shown(value)}: give a finite number")
    if any(is_outside(value, limits[key]) for key, is_outside in OUTSIDE.items() if key in limits):
        raise ValueError(f"{name}={value}: give {_bounds(limits)}")


def _bounds(limits: Mapping[str, Any]) -> str:
    """The allowed numbers in words."""
    least, above = limits.get("at_least"), limits.get("above")
    if {"at_least", "at_most"} <= limits.keys():
        return f"a number from {least:g} to {limits['at_most']:g}"
    if "at_most" in limits or "below" in limits:
        low = f"({above:g}" if least is None else f"[{least:g}"
        high = f"{limits['at_most']:g}]" if "at_most" in limits else f"{limits['below']:g})"
        return f"a number in {low}, {high}"
    if above == 0 or least == 1:
        return "a positive number"
    return f"a number above {above:g}" if least is None else f"{least:g} or more"


def noted(options: Any, note: str) -> set[str]:
    """Names of the fields whose `option` has this note."""
    return {declared.name for declared in fields(options) if declared.metadata.get(note)}


# --- command lines -------------------------------------------------------------------------------


def parse_options(
    kind: type, arguments: Sequence[str], *, epilog: str | None = None, chosen: str = ""
) -> Any:
    """A dataclass of options from command-line arguments.

    Args:
        kind: the dataclass.
        arguments: as in `sys.argv[1:]`.
        epilog: as for `parsed_values`.
        chosen: likewise.

    Raises:
        UsageError: an option is unknown, missing or of the wrong type.
        ValueError: a value is impossible.
    """
    return made_options(kind, parsed_values([kind], arguments, epilog=epilog, chosen=chosen))


def parsed_values(
    classes: Sequence[type],
    arguments: Sequence[str],
    *,
    epilog: str | None = None,
    chosen: str = "",
    elsewhere: Collection[str] = (),
) -> dict[str, Any]:
    """The values that a command line gives, by name; `--help` prints all options and exits.

    A class attribute `_argument_group_name` puts the options of a class under a heading of its own
    in `--help`.

    Args:
        classes: dataclasses of options.
        arguments: as in `sys.argv[1:]`.
        epilog: last paragraph of `--help`.
        chosen: what was read from the command line before, for the usage line of `--help`.
        elsewhere: options that the caller reads, such as `model.d_model`, suggested where one is
            given without its section.

    Raises:
        UsageError: an option is unknown, missing or of the wrong type.
        ValueError: a text cannot be read as the option's value.
        HelpShown: `--help` is given.
    """
    parser = _parser(classes, epilog, chosen)
    if {"-h", "--help"} & set(arguments):
        raise HelpShown(parser)
    rest = _listed_models(arguments, classes)
    sections = sorted(name for kind in classes for name in noted(kind, "is_section"))
    entries = {name: pop_section(rest, name) for name in sections}
    known = [f.name for c in classes for f in fields(c)]
    _check_given(given_options(rest), classes, elsewhere)
    for action in parser._actions:
        action.choices = None  # they are for the help: the dataclass refuses other values
    # what was not given is left to the dataclass: the parser has its own defaults, for the help
    read = Namespace(**dict.fromkeys(known))
    try:
        _, unknown = parser.parse_known_args(rest, read)
    except ArgumentError as error:
        raise UsageError(str(error)) from None
    if unknown:
        hint = _meant(unknown[0].split("=")[0].removeprefix("--"), known, elsewhere)
        raise UsageError(f"unknown: {' '.join(unknown)}; {hint}")
    values = typed_values(classes, vars(read))
    return merged(values, {name: given for name, given in entries.items() if given}, sections)


def typed_values(classes: Sequence[type], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a file or a command line as the fields of these classes have them, without None.

    Args:
        classes: dataclasses of options.
        values: by name.

    Raises:
        ValueError: a value has not the type of its field.
    """
    typed = {}
    for kind in classes:
        types = get_type_hints(kind)
        for name, read in ((f.name, f.metadata.get("read")) for f in fields(kind)):
            value = values.get(name)
            if value is not None:
                value = read(value) if read and isinstance(value, str) else value
                typed[name] = checked(value, _runtime_types(types[name]), name)
    return typed


def _runtime_types(hint: Any) -> tuple[type, ...]:
    """What `isinstance` compares a value of a file with, for the annotation of its field."""
    union = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    types = [get_origin(one) or one for one in union]
    types = [dict if is_dataclass(one) else one for one in types]
    return (*types, int) if float in types else tuple(types)


def merged(
    values: Mapping[str, Any], changes: Mapping[str, Any], sections: Collection[str]
) -> dict[str, Any]:
    """Values with changes: those of a section change its entries, the others replace a value."""
    joined = {n: {**values[n], **changes[n]} for n in sections if n in values and n in changes}
    return {**values, **changes, **joined}


def made_options(kind: type, values: Mapping[str, Any]) -> Any:
    """A dataclass of options from those values that it has fields for.

    Raises:
        ValueError: a value is impossible.
    """
    own = {f.name: values[f.name] for f in fields(kind) if f.name in values}
    for name, section in get_type_hints(kind).items():
        if name in own and isinstance(section, type) and is_dataclass(section):
            own[name] = made_section(section, own[name], name)
    return kind(**own)


def made_section(kind: type, values: Any, where: str) -> Any:
    """A dataclass of options from a section of a file.

    Args:
        kind: the dataclass.
        values: the keys and values of the section.
        where: the section, for messages.

    Raises:
        ValueError: a key is unknown or missing, or a value impossible.
    """
    check_names(where, values, [declared.name for declared in fields(kind)])
    try:
        typed = typed_values([kind], values)
        for declared in fields(kind):
            if _is_required(declared) and declared.name not in typed:
                raise ValueError(f"{declared.name} is missing: {declared.metadata['help']}")
        return made_options(kind, typed)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def _parser(classes: Sequence[type], epilog: str | None, chosen: str) -> ArgumentParser:
    required = sorted({f.name for c in classes for f in fields(c) if _is_required(f)})
    needed = [f"--{name} {name.upper()}" for name in required]
    parser = ArgumentParser(
        usage=" ".join(filter(None, ["%(prog)s", chosen, *needed, "[OPTIONS]"])),
        allow_abbrev=False,
        exit_on_error=False,
        description=(classes[0].__doc__ or "").splitlines()[0],
        epilog=epilog,
        formatter_class=OptionFormatter,
    )
    for kind in classes:
        title, types = getattr(kind, "_argument_group_name", None), get_type_hints(kind)
        group = parser.add_argument_group(title) if title else parser
        for declared in fields(kind):
            _add_option(group, declared, types[declared.name])
    return parser


def _add_option(group: Any, declared: Field, hint: Any) -> None:
    """Add an option with its help, a word for its value, and a default that the help can show."""
    names = dict.fromkeys([f"--{declared.name}", f"--{declared.name.replace('_', '-')}"])
    text, types = declared.metadata.get("help", ""), _runtime_types(hint)
    facts: dict[str, Any] = {"help": text}
    if "read" not in declared.metadata:
        facts["default"] = None if declared.default is MISSING else declared.default
        facts["choices"] = declared.metadata.get("choices")
        if list in types:  # --input A --input B is --input A B
            facts |= {"nargs": "+", "action": "extend"}
    if bool in types:
        facts["type"] = string_to_bool
        if NoneType not in types:
            facts |= {"nargs": "?", "const": True}
    else:
        named = re.match(r"(?:\w+ )?(file|folder)\b", text)
        word = named[1] if named and str in types else "value"
        facts["metavar"] = "N" if int in types else word.upper()
        facts["type"] = next((kind for kind in (float, int) if kind in types), str)
    group.add_argument(*names, **facts)
    if declared.default is True:
        group.add_argument(
            f"--no_{declared.name}",
            f"--no-{declared.name.replace('_', '-')}",
            dest=declared.name,
            action="store_false",
            default=False,
            help=f"opposite of --{declared.name}",
        )


def _check_given(given: set[str], classes: Sequence[type], elsewhere: Collection[str]) -> None:
    """Refuse a command line without a required option; one that is misspelled is named.

    Raises:
        UsageError: an option is missing.
    """
    declared = [f for c in classes for f in fields(c)]
    known = [f.name for f in declared]
    missing = sorted({f.name for f in declared if _is_required(f)} - given)
    for name in sorted(given - set(known)):
        if difflib.get_close_matches(name, missing):
            raise UsageError(f"unknown: --{name}; {_meant(name, known, elsewhere)}")
    if missing:
        raise UsageError(f"missing: {', '.join(f'--{name}' for name in missing)}; see --help")


def _listed_models(arguments: Sequence[str], classes: Sequence[type]) -> list[str]:
    """The arguments with every `--model` after the first in the option that lists them.

    Raises:
        UsageError: there are several, and no option lists them or it is given too.
    """
    rest = list(arguments)
    has_model = any(declared.name == "model" for kind in classes for declared in fields(kind))
    models = pop_values(rest, "--model") if has_model else []
    lists = {name for kind in classes for name in noted(kind, "repeats_model")}
    if len(models) < 2 or "model" in lists:  # the parser joins the values of a list
        return list(arguments)
    if not lists:
        raise UsageError(f"--model has {len(models)} values, {', '.join(models)}: give one")
    for name in lists:
        if name in given_options(rest):
            raise UsageError(f"--{name} and several --model: give all models by one of them")
        rest += ["--model", models[0], f"--{name}", *models[1:]]
    return rest


def pop_section(arguments: list[str], name: str) -> dict[str, Any]:
    """Remove every `--NAME.KEY VALUE` of a section and return the YAML values by key.

    Raises:
        UsageError: a value is missing, or is not YAML.
    """
    entries: dict[str, Any] = {}
    for key in dict.fromkeys(a.split("=")[0] for a in arguments if a.startswith(f"--{name}.")):
        text = pop_option(arguments, key) or ""
        try:
            entries[key.removeprefix(f"--{name}.")] = yaml_value(text)
        except ValueError:
            raise UsageError(f"{key}={text!r} is not a YAML value") from None
    return entries


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
    """As `pop_values`, but the last value; None if there is none."""
    return next(reversed(pop_values(arguments, name)), None)


def pop_values(arguments: list[str], name: str) -> list[str]:
    """Remove every `name VALUE` and `name=VALUE` and return the values; dashes mean underscores.

    Raises:
        UsageError: the name is the last argument and has no value.
    """
    values, names = [], (name, f"--{name.removeprefix('--').replace('_', '-')}")
    for index in [i for i, a in enumerate(arguments) if a.split("=")[0] in names][::-1]:
        if "=" in arguments[index]:
            values.append(arguments.pop(index).split("=", 1)[1])
        elif index + 1 < len(arguments):
            values.append(arguments.pop(index + 1))
            del arguments[index]
        else:
            raise UsageError(f"{name} needs a value")
    return values[::-1]


def options_and_paths(kind: type, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options, fields of `kind`, with their values, and all other arguments; `-` is a path."""
    # a path may follow these
    flags = {declared.name for declared in fields(kind) if isinstance(declared.default, bool)}
    options: list[str] = []
    paths: list[str] = []
    remaining = [*arguments]
    while remaining:
        argument = remaining.pop(0)
        is_path = argument == "-" or not argument.startswith("-")
        (paths if is_path else options).append(argument)
        following = remaining[0] if remaining else "--"
        is_value = not following.startswith("--")
        if argument.removeprefix("--").replace("-", "_") in flags:
            is_value = following.lower() in TRUTHS
        if is_value and not is_path and "=" not in argument and argument not in ("-h", "--help"):
            options.append(remaining.pop(0))
    return options, paths


def progress_bar(
    items: Iterable[Any] | None = None,
    *,
    text: str,
    unit: str,
    total: int | None = None,
    is_hidden: bool = False,
) -> Any:
    """A bar of tqdm over `items`, or to update, on stderr from `PROGRESS_AFTER` seconds on."""
    from tqdm import tqdm  # `--help` needs none

    hidden = is_hidden or sys.stderr is None
    settings = {"desc": text, "unit": f" {unit}", "leave": False, "delay": PROGRESS_AFTER}
    return tqdm(items, total=total, disable=hidden, **settings)


def install_hint(extra: str) -> str:
    """The command that installs an extra of this package, which no package index has.

    Args:
        extra: a name of `[project.optional-dependencies]`.
    """
    return f"pip install -e '.[{extra}]' in a clone of hf_vanilla"


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Import optional libraries in the `with` block; where one is missing, say how to get it.

    Args:
        what: what needs which library, for the message.
        extra: that has it, as for `install_hint`.

    Raises:
        ImportError: a library is missing.
    """
    try:
        yield
    except ImportError:
        raise ImportError(f"{what}: {install_hint(extra)}") from None
