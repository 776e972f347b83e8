"""Command lines and YAML files to dataclasses of options."""

import difflib
import re
from argparse import Action, ArgumentDefaultsHelpFormatter, ArgumentError
from collections.abc import Collection, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser


class UsageError(ValueError):
    """A command line that cannot be read: an option is unknown, missing, or not of its type."""


class _HelpFormatter(ArgumentDefaultsHelpFormatter):
    """Names the default where it is a value; what None stands for is told by the help itself."""

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default in (None, []) else super()._get_help_string(action)


def parse_options(
    options: type | Sequence[type],
    arguments: Sequence[str],
    *,
    epilog: str | None = None,
    chosen: str = "",
    elsewhere: Collection[str] = (),
) -> Any:
    """One dataclass of options, or a tuple of several, from command-line arguments.

    Args:
        options: a dataclass, or several.
        arguments: as in `sys.argv[1:]`.
        epilog: last words of `--help`.
        chosen: what was read from the command line before, for the usage line of `--help`.
        elsewhere: options that the caller reads, such as `model.d_model`, to be suggested where one
            is given without its section.

    Raises:
        UsageError: an option is unknown, missing or of the wrong type.
        ValueError: a value is impossible.
    """
    classes = [options] if isinstance(options, type) else list(options)
    required = {f.name for c in classes for f in fields(c) if _is_required(f)}
    told = [f"--{name} {name.upper()}" for name in sorted(required)]
    parser = HfArgumentParser(
        classes,
        usage=" ".join(filter(None, ["%(prog)s", chosen, *told, "[OPTIONS]"])),
        allow_abbrev=False,
        exit_on_error=False,
        description=(classes[0].__doc__ or "").splitlines()[0],
        epilog=epilog,
        formatter_class=_HelpFormatter,
    )
    given, known = given_options(arguments), [f.name for c in classes for f in fields(c)]
    missing = sorted(required - given)
    misspelled = [name for name in sorted(given) if difflib.get_close_matches(name, missing)]
    for name in set(misspelled) - set(known):
        raise UsageError(f"unknown: --{name}; {_meant(name, known, elsewhere)}")
    if missing and not {"-h", "--help"} & set(arguments):
        raise UsageError(f"missing: {', '.join(f'--{name}' for name in missing)}; see --help")
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(
            list(arguments), return_remaining_strings=True, look_for_args_file=False
        )
    except ArgumentError as error:
        raise UsageError(str(error)) from None
    if unknown:
        hint = _meant(unknown[0].split("=")[0].removeprefix("--"), known, elsewhere)
        raise UsageError(f"unknown: {' '.join(unknown)}; {hint}")
    return parsed[0] if isinstance(options, type) else tuple(parsed)


def _meant(name: str, known: Collection[str], elsewhere: Collection[str]) -> str:
    """Which option stands for one that is not there, in words."""
    close = [option for option in elsewhere if option.rpartition(".")[2] == name]
    close = close or difflib.get_close_matches(name, known, n=1)
    return f"did you mean --{close[0]}?" if close else "see --help"


def _is_required(option: Field) -> bool:
    return option.init and option.default is MISSING and option.default_factory is MISSING


def given_options(arguments: Sequence[str]) -> set[str]:
    """Names of the options on a command line; the parser takes them with dashes too."""
    names = {argument.split("=")[0] for argument in arguments if argument.startswith("--")}
    return {name.removeprefix("--").replace("-", "_") for name in names}


def pop_option(arguments: list[str], name: str) -> str | None:
    """Remove every `name VALUE` and `name=VALUE` and return the last value; None if there is none.

    Raises:
        UsageError: the name stands at the end without a value.
    """
    value = None
    for place in [i for i, a in enumerate(arguments) if a.split("=")[0] == name][::-1]:
        if "=" in arguments[place]:
            found = arguments.pop(place).split("=", 1)[1]
        elif place + 1 < len(arguments):
            found = arguments.pop(place + 1)
            del arguments[place]
        else:
            raise UsageError(f"{name} needs a value")
        value = found if value is None else value
    return value


class _Yaml(yaml.SafeLoader):
    """YAML in which 1e-4 is a number, as in YAML 1.2, and only true and false are switches."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - yaml's form
        first: [r for r in resolvers if r[0] != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def yaml_value(text: str) -> Any:
    """What a piece of YAML says.

    Raises:
        ValueError: it says nothing that YAML knows.
    """
    try:
        return yaml.load(text, _Yaml)
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r} is not YAML: {error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file.

    Raises:
        ValueError: it is not YAML, or holds something else.
        OSError: it cannot be read.
    """
    try:
        values = yaml_value(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a YAML file: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold keys and values, such as 'max_steps: 1000'")
    return values


def install_hint(extra: str) -> str:
    """The command that installs an extra of this package, here or in a clone of it.

    Args:
        extra: a name of `[project.optional-dependencies]`.
    """
    is_clone = (Path(__file__).resolve().parents[1] / "pyproject.toml").is_file()
    return f"pip install -e '.[{extra}]'" if is_clone else f"pip install 'hf-vanilla[{extra}]'"


def check_names(
    place: str, given: Any, known: Collection[str], *, error: type[ValueError] = ValueError
) -> None:
    """Refuse a name that is not known, and suggest the one that was meant.

    Args:
        place: where the names were given, for the message.
        given: a dict by name.
        known: all names there are.
        error: what to raise for an unknown name.

    Raises:
        ValueError: a name is unknown, or `given` is no dict.
    """
    if not isinstance(given, dict):
        raise ValueError(f"{place} must hold keys and values, not {given!r}")
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
            raise error(f"{place}: unknown key {name!r}; {hint}")
