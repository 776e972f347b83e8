"""Help and shell completion of the commands from one file of options, without importing torch.

The options are declared by dataclasses in modules that import torch and transformers, which takes
seconds. What `--help` shows of them is in `command_options.json` of a wheel; elsewhere the first
`--help` writes it to the user's cache. This file imports only the standard library, and is loaded
by its path.
"""

import contextlib
import importlib
import io
import json
import os
import sys
import zlib
from argparse import Action, ArgumentDefaultsHelpFormatter, ArgumentParser, HelpFormatter
from argparse import RawDescriptionHelpFormatter as RawFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
OPTIONS_FILE = PACKAGE / "command_options.json"  # in a wheel
HELP_OPTIONS = ("-h", "--help")


class OptionFormatter(ArgumentDefaultsHelpFormatter):
    """One spelling of each option, one word for its value, and the default where it is a value.

    The help itself says what None stands for, and a switch is off. `--max-steps` is read as
    `--max_steps`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"max_help_position": 30, **kwargs})

    def _get_help_string(self, action: Action) -> str | None:
        has_value = str(action.default) not in ("None", "[]", "", "False")
        return super()._get_help_string(action) if has_value else action.help

    def _format_action_invocation(self, action: Action) -> str:
        shown = ", ".join(one_spelling(action.option_strings))
        if not shown:
            return super()._format_action_invocation(action)
        value = str(action.metavar or "VALUE")
        if action.choices is not None:
            value = f"{{{','.join(map(str, action.choices))}}}"
        return shown + {0: "", "?": "", "+": f" {value} ..."}.get(action.nargs, f" {value}")


def one_spelling(names: Sequence[str]) -> list[str]:
    """The names of an option without those that have dashes for underscores."""
    dashed = {f"--{name[2:].replace('_', '-')}" for name in names if "_" in name}
    return [name for name in names if name not in dashed]


# --- the file of options ------------------------------------------------------------------------


def described(parser: ArgumentParser) -> dict[str, Any]:
    """What the help of a parser shows, as values of JSON."""
    groups = [
        {"title": group.title, "options": [_described_option(a) for a in group._group_actions]}
        for group in parser._action_groups
        if group._group_actions
    ]
    return {
        "texts": {name: getattr(parser, name) for name in ("usage", "description", "epilog")},
        "is_raw": parser.formatter_class is RawFormatter,
        "groups": groups,
    }


def _described_option(action: Action) -> dict[str, Any]:
    facts = {
        "names": one_spelling(action.option_strings),
        "dest": action.dest,
        "help": action.help,
        "default": None if action.default in (None, []) else str(action.default),
        "nargs": action.nargs,
        "metavar": action.metavar,
        "choices": None if action.choices is None else [str(choice) for choice in action.choices],
    }
    return {name: value for name, value in facts.items() if value is not None}


def described_parser(facts: dict[str, Any], program: str) -> ArgumentParser:
    """A parser with the help of the one that `described` read; it converts no value.

    Args:
        facts: from `described`.
        program: how the command is called.
    """
    formatter: type[HelpFormatter] = RawFormatter if facts["is_raw"] else OptionFormatter
    parser = ArgumentParser(program, **facts["texts"], formatter_class=formatter, add_help=False)
    for described_group in facts["groups"]:
        group = parser.add_argument_group(described_group["title"])
        for option in described_group["options"]:
            add_option(group, option)
    return parser


def add_option(group: Any, option: dict[str, Any]) -> Action:
    """Add an option of the file to a parser or to a group of it."""
    given = {name: value for name, value in option.items() if name != "names"}
    if option["dest"] == "help":
        del given["default"], given["nargs"]
        return group.add_argument(*option["names"], action="help", **given)
    if given.get("nargs") == 0:
        del given["nargs"]
        return group.add_argument(*option["names"], action="store_false", **given)
    return group.add_argument(*option["names"], **given)


def listed_options() -> dict[str, Any]:
    """What `declared_options` returns, from the wheel's file or from the user's cache.

    The cache is written where it is missing, or of other sources.
    """
    if OPTIONS_FILE.is_file():
        return json.loads(OPTIONS_FILE.read_text(encoding="utf-8"))
    sources, file = _sources(), _cache_file()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["sources"] == sources:
            return stored["commands"]
    declared = declared_options()
    with contextlib.suppress(OSError):  # it cannot be written: the next help is slow too
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f"{file.name}.{os.getpid()}.partial")
        unfinished.write_text(json.dumps({"sources": sources, "commands": declared}), "utf-8")
        unfinished.replace(file)
    return declared


def _cache_file() -> Path:
    """One file for each place where the package is installed, in the platform's folder."""
    home = os.path.abspath(os.path.expanduser("~"))
    folder = {"win32": os.environ.get("LOCALAPPDATA"), "darwin": f"{home}/Library/Caches"}.get(
        sys.platform, os.environ.get("XDG_CACHE_HOME")
    )
    name = f"options-{zlib.crc32(str(PACKAGE).encode()):08x}.json"
    return Path(folder or f"{home}/.cache", "hf_vanilla", name)


def _sources() -> str:
    """Size and time of every source file, and the version of Python."""
    states = [
        (path, (state := os.stat(path)).st_size, state.st_mtime_ns)
        for folder, _, names in sorted(os.walk(PACKAGE))
        for path in (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py"))
    ]
    return repr((states, sys.version))


def declared_options() -> dict[str, Any]:
    """What the helps of all commands show, from their dataclasses; it imports them all.

    Returns:
        `{"convert": {"": ..., "--format marian": ...}, ...}`: by command, then by the arguments
        that choose among its helps, `described` parsers.
    """
    commands, families, formats, plots = (
        importlib.import_module(f"hf_vanilla.{name}")
        for name in ("commands", "families", "convert.formats", "plots.figures")
    )
    variants = {
        "train": [f"--task {task}" for task in families.TASKS],
        "convert": [f"--format {form}" for form in formats.FORMATS],
        "plot": list(plots.all_figures()),
    }
    declared: dict[str, Any] = {name: {} for name in commands.COMMANDS}
    for name, helps in declared.items():
        for chosen in ("", *variants.get(name, ())):
            with contextlib.suppress(ImportError):  # of an extra; the command itself reports it
                helps[chosen] = described(help_parser(name, chosen))
    return declared


def help_parser(name: str, chosen: str) -> ArgumentParser:
    """The parser that prints the help of a command, made from its dataclasses.

    Args:
        name: of the command.
        chosen: arguments that choose among its helps; empty: the first help.
    """
    commands, families, options = (
        importlib.import_module(f"hf_vanilla.{n}") for n in ("commands", "families", "options")
    )
    read = families.load_part(commands.COMMANDS[name].options)
    arguments = [*chosen.split(), "--help"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            if isinstance(read, type):
                options.parse_options(read, arguments)
            read(arguments)
    except options.HelpShown as shown:
        return shown.parser
    raise ValueError(f"{name} {chosen} has no help")


def option_names() -> list[str]:
    """`COMMAND --OPTION` of all commands, each once."""
    commands = declared_options().items()
    return sorted(f"{command} {name}" for command, helps in commands for name in options_of(helps))


def options_of(helps: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The options that the helps of a command describe, by name; without `--help`."""
    return {
        option["names"][0]: option
        for facts in helps.values()
        for group in facts["groups"]
        for option in group["options"]
        if option["dest"] != "help"
    }


def fast_help(name: str, arguments: Sequence[str]) -> ArgumentParser | None:
    """The parser whose help a command line asks for.

    Args:
        name: a command.
        arguments: what follows the name.

    Returns:
        None where no help is asked for, or where it depends on more than the arguments, such as
        on a recipe or on a model.
    """
    if not set(HELP_OPTIONS) & set(arguments):
        return None
    chosen = " ".join(a for a in arguments if a not in HELP_OPTIONS).replace("=", " ")
    facts = listed_options().get(name, {}).get(chosen)
    if facts is None:
        return None
    return described_parser(facts, f"hf-vanilla {name}")


# --- completion ---------------------------------------------------------------------------------


def completion_script(shell: str, commands: dict[str, str]) -> str:
    """The script that completes commands and their options in a shell.

    Args:
        shell: one of `shtab.SUPPORTED_SHELLS`, such as bash, zsh or fish.
        commands: help lines by name.

    Raises:
        ValueError: there is no completion for this shell.
    """
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise ValueError(f"no shell {shell!r}; choose one of {', '.join(shtab.SUPPORTED_SHELLS)}")
    parser = ArgumentParser("hf-vanilla", description="The original Transformer")
    subparsers = parser.add_subparsers()
    for name, variants in listed_options().items():
        command = subparsers.add_parser(name, help=commands[name], description=commands[name])
        first_words = [key for key in variants if key and not key.startswith("-")]
        if first_words:
            command.add_argument("kind", choices=first_words)
        for option in options_of(variants).values():
            action = add_option(command, {k: v for k, v in option.items() if k != "default"})
            if option["dest"].endswith(("model", "input", "output", "source", "target", "_dir")):
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads it
    return shtab.complete(parser, shell=shell)


def print_completion(arguments: Sequence[str], commands: dict[str, str]) -> int:
    """`hf-vanilla completion SHELL`; returns the exit status."""
    try:
        if len(arguments) != 1:
            raise ValueError("give a shell: hf-vanilla completion bash, zsh or fish")
        print(completion_script(arguments[0], commands))  # noqa: T201
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0
