"""Help and completion from the file of options, against the dataclasses that declare them."""

import json
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints
from unittest.mock import patch

import pytest

from hf_vanilla import command_help, options
from hf_vanilla.command_help import (
    completion_script,
    declared_options,
    described_parser,
    fast_help,
    help_parser,
    listed_options,
    option_names,
    print_completion,
)
from hf_vanilla.commands import COMMANDS, main
from hf_vanilla.families import TASKS, load_part

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(ROOT / "scripts" / "hf_vanilla_command.py")
HELPS = {name: command.help for name, command in COMMANDS.items()}


@pytest.fixture(scope="module")
def listed():
    """The listed options, and every command with the arguments that choose among its helps."""
    options = listed_options()
    return options, [(name, chosen) for name, helps in options.items() for chosen in helps]


def test_the_list_of_options_is_frozen():
    frozen = (ROOT / "tests" / "options.txt").read_text(encoding="utf-8").splitlines()
    assert option_names() == frozen, "make options rewrites the list: is each one needed?"


def test_the_cache_is_written_once_and_again_when_a_source_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(command_help.sys, "platform", "linux")
    declared = [{"a": {}}, {"b": {}}]
    monkeypatch.setattr(command_help, "declared_options", lambda: declared.pop(0))
    assert listed_options() == listed_options() == {"a": {}}
    sources = command_help._sources()
    monkeypatch.setattr(command_help, "_sources", lambda: f"{sources} changed")
    assert listed_options() == listed_options() == {"b": {}}
    (file,) = (tmp_path / "hf_vanilla").iterdir()
    for damaged in ("", "[]", "{"):
        file.write_text(damaged)
        declared.append({"c": {}})
        assert listed_options() == {"c": {}}
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made there
    declared.append({"d": {}})
    assert listed_options() == {"d": {}}


def test_a_source_that_changes_in_size_or_time_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(command_help, "PACKAGE", tmp_path)
    states = [command_help._sources()]
    (tmp_path / "text").mkdir()
    for text in ("a = 1", "a = 2", "a = 10"):
        (tmp_path / "text" / "options.py").write_text(text)
        states.append(command_help._sources())
    assert len(set(states)) == len(states)


def classes_of_all_commands():
    """Every dataclass of options: those that the helps show, and those that a model chooses."""
    with patch.object(options, "_parser", side_effect=options._parser) as read:
        declared_options()
    found = dict.fromkeys(kind for call in read.call_args_list for kind in call.args[0])
    return {*found, *(load_part(entry.evaluate)[1] for entry in TASKS.values())}


def test_an_option_that_is_not_given_has_the_default_of_its_class():
    needed = {  # by class: one of several options that a command asks for
        "AlignOptions": {"gold": "numbers"},
        "EvaluateOptions": {"translations": "x"},
        "PlotLengthBleuOptions": {"translations": ["x"]},
        "PlotPatchesOptions": {"image": "x"},
    }
    classes = classes_of_all_commands()
    assert len(classes) > 40
    for kind in classes:
        types = get_type_hints(kind)
        names = [declared.name for declared in fields(kind) if options._is_required(declared)]
        values = {str: "x", int: 7, list[str]: ["x"]}
        given = {name: values[types[name]] for name in names} | needed.get(kind.__name__, {})
        texts = {name: v[0] if isinstance(v, list) else v for name, v in given.items()}
        arguments = [f"--{name}={text}" for name, text in texts.items()]
        assert options.parse_options(kind, arguments) == kind(**given)


def test_fast_help_prints_the_text_of_the_parser(listed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name, chosen in listed[1]:
        fast = fast_help(name, [*chosen.split(), "--help"]).format_help()
        slow = help_parser(name, chosen)
        slow.prog = f"hf-vanilla {name}"
        assert fast == slow.format_help(), (name, chosen)


@pytest.mark.release
def test_the_options_of_all_commands_are_listed_without_pillow(listed):
    code = (
        "import json, sys\n"
        "sys.modules['PIL'] = None\n"
        "from hf_vanilla.command_help import declared_options\n"
        "print(json.dumps(declared_options()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == listed[0]


@pytest.mark.parametrize("name", ["train", "translate", "evaluate"])
def test_help_of_a_command_imports_no_torch(name, listed):
    code = (
        "import runpy, sys\n"
        f"sys.argv[1:] = [{name!r}, '--help']\n"
        f"main = runpy.run_path({PROGRAM!r})['main']\n"
        "try:\n    main()\nfinally:\n"
        "    print({'hf_vanilla', 'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout.startswith(f"usage: hf-vanilla {name} ")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "set()")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("train", ["--max_steps", "3"]),
        ("train", ["--recipe", "digits", "--help"]),
        ("evaluate", ["--model", "m", "--help"]),
        ("nothing", ["--help"]),
    ],
    ids=str,
)
def test_help_that_depends_on_more_than_the_arguments_is_not_in_the_file(name, arguments):
    assert fast_help(name, arguments) is None


def test_both_forms_of_a_chosen_format_have_the_same_help():
    spaced, joined = (
        fast_help("convert", [*form, "-h"]) for form in (["--format", "vit"], ["--format=vit"])
    )
    assert spaced.format_help() == joined.format_help()


def test_train_lists_recipe_and_task_before_the_options_of_every_task_and_of_its_own():
    for task in ("translation", "image_classification"):
        text = fast_help("train", ["--task", task, "--help"]).format_help()
        headings = ["recipe:", "  --recipe", "options of every task:", f"options of task {task}:"]
        places = [text.index(f"\n{heading}") for heading in headings]
        assert places == sorted(places)


def test_help_spells_each_option_once(listed):
    for name, chosen in listed[1]:
        text = described_parser(listed[0][name][chosen], "x").format_help()
        names = [line.split("  ")[1] for line in text.splitlines() if line.startswith("  -")]
        assert names or name == "plot"
        assert not [name for name in names if name.count("--") > 1]


def test_help_of_translate_fits_a_screen():
    text = described_parser(listed_options()["translate"][""], "hf-vanilla translate").format_help()
    assert len(text.splitlines()) <= 45


def unknown_option(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("train", "--recip", "numbers"), "--recipe"),
        (("train", "--taks", "translation"), "--task"),
        (("train", "--output-dri", "x"), "--output_dir"),
        (("demo", "--max-step", "3"), "--max_steps"),
        (("translate", "--model", "m", "--num_beam", "5"), "--num_beams"),
        (("average", "--run", "r", "--outptu", "x"), "--output"),
    ],
    ids=str,
)
def test_a_mistyped_option_names_the_one_that_was_meant(arguments, meant, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hf-vanilla"])
    unknown_option(*arguments)
    assert f"did you mean {meant}?" in capsys.readouterr().err


# --- completion ---------------------------------------------------------------------------------

COMPLETE = """
source "$0"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
$(complete -p hf-vanilla | sed 's/.*-F \\([^ ]*\\) .*/\\1/') hf-vanilla "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        (["trans"], ["translate", "translate-corpus"]),
        (["train", "--recip"], ["--recipe"]),
        (["train", "--num_crop"], []),
        (["plot", "pat"], ["patches"]),
    ],
    ids=str,
)
def test_bash_completes_commands_and_options(typed, completed, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    script = tmp_path / "completion"
    script.write_text(completion_script("bash", HELPS), encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", COMPLETE, script, "hf-vanilla", *typed],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.split()) == completed, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_accepted_by_its_shell(shell, tmp_path):
    text = completion_script(shell, HELPS)
    assert "train-tokenizer" in text
    assert "tokens_per_batch" in text
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "script").write_text(text, encoding="utf-8")
    subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_completion_is_printed_without_importing_torch(listed):
    code = (
        "import runpy, sys\n"
        "sys.argv[1:] = ['completion', 'bash']\n"
        f"status = runpy.run_path({PROGRAM!r})['main']()\n"
        "print(status, {'hf_vanilla', 'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "\ncomplete " in done.stdout
    assert done.stdout.endswith("0 set()\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["ksh"], "no shell 'ksh'; choose one of bash, zsh"), ([], "give a shell")],
    ids=str,
)
def test_an_unknown_shell_is_one_line(arguments, message, capsys):
    assert print_completion(arguments, HELPS) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
