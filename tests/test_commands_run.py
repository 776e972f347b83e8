"""How a command runs: its options, one line for an error, its exit status."""

import logging
import sys
from dataclasses import dataclass, field

import pytest
import torch
from huggingface_hub.errors import (
    StrictDataclassClassValidationError,
    StrictDataclassDefinitionError,
)

from hf_vanilla.commands import run
from hf_vanilla.text.file_translation import TranslateOptions, translate_file
from hf_vanilla.training.recipe import read_recipe


@dataclass(frozen=True, kw_only=True)
class GreetOptions:
    """Options of a greeting."""

    name: str = field(metadata={"help": "whom to greet"})
    times: int = field(default=1, metadata={"help": "how often"})
    loud: bool = field(default=False, metadata={"help": "in capitals"})


@pytest.fixture(autouse=True)
def _quiet_root(monkeypatch):
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    package = logging.getLogger("hf_vanilla")
    level = package.level
    yield
    package.setLevel(level)


@pytest.fixture
def typed(monkeypatch):
    def type_in(*arguments):
        monkeypatch.setattr(sys, "argv", ["script.py", *arguments])

    return type_in


def error_of(caught):
    """What the interpreter would write on stderr; the exit status is then 1."""
    assert isinstance(caught.value.code, str)
    return caught.value.code


# --- options -----------------------------------------------------------------------------------


def test_options_reach_the_action_and_its_result_comes_back(typed):
    typed("--name", "Ada", "--times=3", "--loud")
    assert run(lambda options: options, GreetOptions) == GreetOptions(
        name="Ada", times=3, loud=True
    )


def test_a_function_may_read_the_arguments(typed):
    typed("--max_steps", "7")
    assert run(lambda recipe: recipe.train.max_steps, read_recipe) == 7


def test_action_and_options_may_be_given_by_name(typed):
    typed("--max_steps", "7")
    assert run("builtins:repr", "hf_vanilla.training.recipe:read_recipe").startswith(
        "Recipe(train="
    )


def test_dashes_in_options_mean_underscores(typed):
    typed("--max-steps", "7", "--model.d_model", "64")
    assert run(lambda recipe: recipe.train.max_steps, read_recipe) == 7


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ValueError, OSError, FileExistsError, ImportError])
def test_an_error_of_the_input_is_one_line_and_status_one(typed, kind, capsys):
    def action(_):
        raise kind("the cat sat on it")

    typed("--name", "Ada")
    with pytest.raises(SystemExit) as caught:
        run(action, GreetOptions)
    assert error_of(caught) == "error: the cat sat on it"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("below", ["", "deeper/folder"])
def test_a_file_in_place_of_a_folder_is_named(typed, tmp_path, below):
    (tmp_path / "file").touch()
    typed("--name", "Ada")
    with pytest.raises(SystemExit) as caught:
        run(lambda _: (tmp_path / "file" / below).mkdir(parents=True), GreetOptions)
    assert f"{tmp_path / 'file'} is a file, and a folder is needed" in error_of(caught)


@pytest.mark.parametrize(
    "error",
    [
        StrictDataclassDefinitionError("no such field"),
        StrictDataclassClassValidationError("validate_field", ValueError("no such field")),
    ],
)
def test_an_error_of_a_strict_dataclass_is_one_line_too(typed, error):
    def action(_):
        raise error from ValueError("no such field")

    typed("--name", "Ada")
    with pytest.raises(SystemExit) as caught:
        run(action, GreetOptions)
    assert error_of(caught) == "error: no such field"


OUT_OF_MEMORY = [
    (
        torch.OutOfMemoryError("CUDA out of memory. Tried to get 2 GiB.\nGPU 0"),
        "Tried to get 2 GiB. G",
    ),
    (MemoryError("Unable to allocate 8 TiB"), "Unable to allocate 8 TiB: "),
]


@pytest.mark.parametrize(("error", "detail"), OUT_OF_MEMORY, ids=("of a GPU", "of numpy"))
def test_a_lack_of_memory_is_one_line_with_a_remedy(typed, error, detail):
    typed()

    def fails(_):
        raise error

    with pytest.raises(SystemExit) as caught:
        run(fails, lambda _: None)
    assert error_of(caught).startswith(f"error: out of memory: {detail}")
    assert "options with batch or at_once in their name take less" in error_of(caught)
    assert "\n" not in error_of(caught)


def test_an_array_that_no_cpu_has_room_for_is_a_lack_of_memory(typed):
    typed()
    with pytest.raises(SystemExit) as caught:
        run(lambda _: torch.empty(1 << 60), lambda _: None)
    assert error_of(caught).startswith("error: out of memory: you tried to allocate ")


def test_any_other_exception_keeps_its_traceback(typed):
    typed("--name", "Ada")
    with pytest.raises(ZeroDivisionError):
        run(lambda _: 1 / 0, GreetOptions)


def test_ctrl_c_ends_with_its_own_status(typed, capsys):
    def action(_):
        raise KeyboardInterrupt

    typed("--name", "Ada")
    with pytest.raises(SystemExit) as caught:
        run(action, GreetOptions)
    assert caught.value.code == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing: --name"),
        (("--name", "Ada", "--tims", "3"), "--tims"),
        (("--name", "Ada", "--times", "often"), "times"),
        (("--name", "Ada", "extra"), "extra"),
        (("--name",), "name"),
    ],
    ids=["missing", "unknown", "wrong kind", "left over", "no value"],
)
def test_a_mistyped_option_is_one_line_and_status_two(typed, capsys, arguments, message):
    typed(*arguments)
    with pytest.raises(SystemExit) as caught:
        run(lambda _: None, GreetOptions)
    assert caught.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed
    assert printed.count("\n") == 1


def test_a_section_without_a_value_is_status_two(typed, capsys):
    typed("--model.d_model")
    with pytest.raises(SystemExit) as caught:
        run(lambda _: None, read_recipe)
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: --model.d_model needs a value\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model.d_model", "7"),
        ("--model.d_model", "wide"),
        ("--model.dropout", "2"),
        ("--decoding.num_beams", "-1"),
        ("--recipe", "nowhere.yaml"),
        ("--max_steps", "0"),
    ],
    ids=" ".join,
)
def test_an_invalid_recipe_is_one_line(typed, arguments):
    typed(*arguments)
    with pytest.raises(SystemExit) as caught:
        run(lambda _: None, read_recipe)
    assert "\n" not in error_of(caught).strip()


def test_a_recipe_file_that_is_no_yaml_is_one_line(typed, tmp_path):
    (tmp_path / "broken.yaml").write_text("model: [\n")
    typed("--recipe", str(tmp_path / "broken.yaml"))
    with pytest.raises(SystemExit) as caught:
        run(lambda _: None, read_recipe)
    assert "broken.yaml" in error_of(caught)
    assert "\n" not in error_of(caught).strip()


def test_a_missing_model_is_one_line(typed, tmp_path):
    (tmp_path / "in").write_text("a\n")
    typed("--model", "nobody/nothing", "--input", str(tmp_path / "in"))
    with pytest.raises(SystemExit) as caught:
        run(translate_file, TranslateOptions)
    assert "nobody/nothing" in error_of(caught)
    assert "\n" not in error_of(caught).strip()


# --- help --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (GreetOptions, ["--name", "--times", "--loud", "whom to greet"]),
        (read_recipe, ["--max_steps", "--recipe", "--model.KEY", "optimizer steps"]),
    ],
    ids=["small", "recipe"],
)
def test_help_lists_the_options(typed, capsys, options, names):
    typed("--help")
    with pytest.raises(SystemExit) as caught:
        run(lambda _: None, options)
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in names)
    assert "default: None" not in text
