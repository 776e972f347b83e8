"""Help and completion from the file of options, against the dataclasses that declare them."""

import runpy
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints
from unittest.mock import patch

import pytest

from hf_vanilla import options
from hf_vanilla.command_help import (
    completion_script,
    described_parser,
    fast_help,
    listed_options,
    print_completion,
)
from hf_vanilla.commands import COMMANDS, main
from hf_vanilla.families import TASKS, load_part

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(ROOT / "scripts" / "hf_vanilla_command.py")
LISTED = [(name, chosen) for name, variants in listed_options().items() for chosen in variants]
HELPS = {name: command.help for name, command in COMMANDS.items()}


@pytest.fixture(scope="module")
def listing():
    """The names of the script that writes the file."""
    return runpy.run_path(str(ROOT / "scripts" / "list_options.py"))


def test_the_list_of_options_is_frozen(listing):
    declared, listed = listing["options_of_all_commands"](), listed_options()
    assert {name: list(variants) for name, variants in declared.items()} == {
        name: list(variants) for name, variants in listed.items()
    }
    for name, chosen in LISTED:
        assert declared[name][chosen] == listed[name][chosen], "run scripts/list_options.py"


def classes_of_all_commands(listing):
    """Every dataclass of options: those that the helps show, and those that a model chooses."""
    with patch.object(options, "_without_notes", side_effect=options._without_notes) as read:
        listing["options_of_all_commands"]()
    found = dict.fromkeys(call.args[0] for call in read.call_args_list)
    return {*found, *(load_part(entry.evaluate_options) for entry in TASKS.values())}


def test_an_option_that_is_not_given_has_the_default_of_its_class(listing):
    needed = {  # by class: one of several options that a command asks for
        "AlignOptions": {"gold": "numbers"},
        "EvaluateOptions": {"translations": "x"},
        "PlotLengthBleuOptions": {"translations": ["x"]},
        "PlotPatchesOptions": {"image": "x"},
    }
    classes = classes_of_all_commands(listing)
    assert len(classes) > 50
    for kind in classes:
        types = get_type_hints(kind)
        names = [declared.name for declared in fields(kind) if options._is_required(declared)]
        values = {str: "x", int: 7, list[str]: ["x"]}
        given = {name: values[types[name]] for name in names} | needed.get(kind.__name__, {})
        texts = {name: v[0] if isinstance(v, list) else v for name, v in given.items()}
        arguments = [f"--{name}={text}" for name, text in texts.items()]
        assert options.parse_options(kind, arguments) == kind(**given)


@pytest.mark.parametrize(("name", "chosen"), LISTED, ids=str)
def test_fast_help_prints_the_text_of_the_parser(name, chosen, listing, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    fast = fast_help(name, [*chosen.split(), "--help"]).format_help()
    slow = listing["help_parser"](name, chosen)
    slow.prog = f"hf-vanilla {name}"
    assert fast == slow.format_help()


@pytest.mark.parametrize("name", ["train", "translate", "evaluate"])
def test_help_of_a_command_imports_no_torch(name):
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


@pytest.mark.parametrize(("name", "chosen"), LISTED, ids=str)
def test_help_spells_each_option_once(name, chosen):
    text = described_parser(listed_options()[name][chosen], "x").format_help()
    names = [line.split("  ")[1] for line in text.splitlines() if line.startswith("  -")]
    assert names
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
        (["plot", "pos"], ["positions"]),
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


def test_completion_is_printed_without_importing_torch():
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
