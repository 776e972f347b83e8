"""The table of commands, and the exit status and output of `hf-vanilla`."""

import importlib
import importlib.util
import io
import logging
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

import hf_vanilla
from hf_vanilla import commands
from hf_vanilla.commands import COMMANDS, Command, LinesAboveBars, main, overview, run_command

ROOT = Path(__file__).resolve().parent.parent
NAMES = [
    *("demo", "train", "translate", "translate-corpus", "classify", "detect"),
    *("inspect-data", "forecast", "evaluate", "score", "align", "convert"),
    *(
        "export",
        "quantize",
        "distill",
        "plot",
        "push",
        "serve",
        "app",
        "page",
        "train-tokenizer",
        "prepare",
    ),
    *("sweep", "compare", "average"),
]


@pytest.fixture(autouse=True)
def _own_process(monkeypatch):
    """A command sets up logging for its process; undo that here."""
    monkeypatch.setattr(sys, "argv", ["hf-vanilla"])
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    level = logging.getLogger("hf_vanilla").level
    yield
    logging.getLogger("hf_vanilla").setLevel(level)


def test_the_list_of_commands_is_frozen():
    assert list(COMMANDS) == NAMES


def test_help_of_a_command_lists_its_options_and_never_none(capsys):
    for name in NAMES:
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        usage, empty, description = text.splitlines()[:3]
        assert usage.startswith(f"usage: hf-vanilla {name} ")
        assert empty == ""
        assert not description.startswith(("Options of", "options:"))
        assert "default: None" not in text


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (["plot", "attention"], "plot attention --model MODEL --sentence SENTENCE [OPTIONS]"),
        (["convert", "--format=marian"], "convert --format marian --input INPUT --output OUTPUT"),
        (["translate"], "translate [OPTIONS]"),
        (["train"], "train [OPTIONS]"),
    ],
    ids=str,
)
def test_the_usage_line_contains_the_required_options(arguments, usage, capsys):
    with pytest.raises(SystemExit):
        main([*arguments, "--help"])
    assert f"usage: hf-vanilla {usage}" in capsys.readouterr().out


def test_every_name_in_the_table_can_be_imported():
    for name in NAMES:
        for path in (COMMANDS[name].action, COMMANDS[name].options):
            module, thing = path.split(":")
            assert callable(getattr(importlib.import_module(module), thing))


# --- without a command -----------------------------------------------------------------


@pytest.mark.parametrize("asked", ["--help", "-h", "help"])
def test_help_lists_every_command(asked, capsys):
    assert main([asked]) == 0
    text = capsys.readouterr().out
    assert text == overview() + "\n"
    for name, command in COMMANDS.items():
        assert f"  {name} " in text
        assert command.help in text
    assert max(map(len, text.splitlines())) <= 80


def test_version_prints_the_version_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hf-vanilla {hf_vanilla.__version__}\n"


def test_a_missing_command_prints_the_help_to_stderr_and_exits_with_two(capsys):
    assert main([]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", overview() + "\n")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("trian", "no command 'trian'; did you mean 'train'?"),
        ("translate_corpus", "no command 'translate_corpus'; did you mean 'translate-corpus'?"),
        ("zzz", f"no command 'zzz'; choose one of {', '.join(NAMES)}"),
        (
            "finetune",
            "no command 'finetune' any more; use hf-vanilla train --initial_model MODEL with the "
            "data options of train, or transformers' Trainer as scripts/finetune.py does",
        ),
        ("--model", "the command comes first: hf-vanilla COMMAND --model"),
    ],
)
def test_an_unknown_command_is_one_line_and_exits_with_two(typed, message, capsys):
    assert main([typed, "x"]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_help_imports_neither_the_package_nor_torch():
    code = (
        "import runpy, sys\n"
        "sys.argv[1:] = ['--help']\n"
        f"main = runpy.run_path({str(ROOT / 'scripts' / 'hf_vanilla_command.py')!r})['main']\n"
        "print(main(), {'hf_vanilla', 'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == overview() + "\n0 set()\n"


@pytest.mark.parametrize(
    ("command", "spin"),
    [
        (["scripts/train.py", "--recipe", "numbers"], "3000"),
        (["-m", "hf_vanilla", "train", "--recipe", "numbers"], "3000"),
        (["-c", "import hf_vanilla", "-m", "hf_vanilla"], "None"),
    ],
    ids=["script", "module", "library"],
)
def test_commands_set_the_threads_before_torch_is_imported_and_the_library_never(
    tmp_path, command, spin
):
    (tmp_path / "torch").mkdir()
    stand_in = "import os; print(os.environ.get('GOMP_SPINCOUNT'), flush=True); os._exit(0)"
    (tmp_path / "torch" / "__init__.py").write_text(stand_in)
    unset = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**unset, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert done.stdout == f"{spin}\n", done.stderr


@pytest.mark.parametrize(("typed", "status"), [(["--help"], 0), (["trian"], 2)])
def test_the_program_exits_with_the_status_of_the_command(typed, status):
    command = [sys.executable, str(ROOT / "scripts" / "hf_vanilla_command.py"), *typed]
    done = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == status


def test_a_missing_package_is_one_line(monkeypatch):
    program = runpy.run_path(str(ROOT / "scripts" / "hf_vanilla_command.py"))
    monkeypatch.delitem(sys.modules, "hf_vanilla.commands")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="error: hf_vanilla is not installed"):
        program["main"]()


# --- streams --------------------------------------------------------------------------------------


STREAMS = """
import sys
sys.argv = ["hf-vanilla"]
import importlib.util
spec = importlib.util.spec_from_file_location("hf_vanilla_commands", PATH)
commands = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = commands
spec.loader.exec_module(commands)
def run(action, *options):
    opened = open(PATH)
    return f"{opened.fileno()} \u00fc\u4e2d"
commands.run = run
commands.run_command("train", [])
"""


def run_with_streams(redirections, **environment):
    code = STREAMS.replace("PATH", repr(str(ROOT / "hf_vanilla" / "commands.py")))
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {redirections}', sys.executable, code],
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_closed_stdin_and_stderr_do_not_break_a_command():
    done = run_with_streams("<&- 2>&-")
    assert int(done.stdout.split()[0]) > 2  # 0, 1 and 2 are not used for files
    assert done.returncode == 0


def test_closed_stdout_is_one_line():
    done = run_with_streams(">&-")
    assert done.stderr == b"error: stdout is closed: redirect it to a file or to /dev/null\n"
    assert done.returncode == 1


def test_output_is_utf8_in_any_locale():
    done = run_with_streams("", PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert (done.stdout.decode().rstrip("\n"), done.returncode) == ("3 \u00fc\u4e2d", 0)


# --- running a command -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["train", "--recipe", "numbrs"], 1, "did you mean 'numbers'?"),
        (["train", "--max_stepz", "3"], 2, "did you mean --max_steps?"),
        (["train", "--vocab_size", "600"], 2, "did you mean --model.vocab_size?"),
        (["train", "--recipe", "numbers", "--model.d_model", "63"], 1, "error: d_model=63 is"),
        (["evaluate", "--translations", ".", "--reference", "."], 1, "error: .: is a directory"),
        (["train", "--num_beams", "5"], 2, "did you mean --decoding.num_beams?"),
        (["evaluate"], 2, "missing: --reference; see --help"),
        (["evaluate", "--reference", "r"], 2, "give --model MODEL --source FILE, or --transl"),
        (["evaluate", "--reference", "r", "--model", "numbers"], 2, "missing: --source, for"),
        (["evaluate", "--model", "nowhere", "--dataset", "d"], 1, "nowhere: no such folder"),
        (["train", "--initial_model", "nowhere", "--stride", "2"], 1, "nowhere: no such folder"),
        (["evaluate", "--model", "m", "--source", "s", "--reference", "r"], 1, "no such file"),
        (["push", "--model", "nowhere", "--repo_id", "me/x"], 1, "nowhere: no such folder"),
        (["plot"], 2, "first comes one of curves, attention, "),
        (["plot", "atention"], 2, "did you mean 'attention'?"),
        (["app", "--port", "0"], 1, "port=0: give a number from 1 to 65535"),
        (["convert", "--format", "onnx"], 1, "choose one of agentformer, detr, fairseq"),
        (["average", "--run", "nowhere", "--output", "mean"], 1, "nowhere"),
    ],
    ids=str,
)
def test_a_failing_command_is_one_line_and_its_status(
    arguments, status, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    code = caught.value.code  # a string: the interpreter prints it and exits with 1
    message_line = code if isinstance(code, str) else capsys.readouterr().err.rstrip("\n")
    assert (1 if isinstance(code, str) else code) == status
    assert message_line.startswith("error: ")
    assert message in message_line
    assert "\n" not in message_line


@pytest.mark.parametrize(
    "told", ["No module named 'PIL'", "AutoImageProcessor requires the PIL library but it was not"]
)
def test_missing_pillow_is_named_with_its_extra(told):
    def action(_):
        raise ImportError(told)

    with pytest.raises(SystemExit, match=r"images need Pillow: pip install -e '\.\[vision\]'"):
        commands.run(action, lambda _: None)


def test_ctrl_c_during_imports_is_no_traceback(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands.importlib, "import_module", interrupted)
    with pytest.raises(SystemExit) as caught:
        run_command("train", [])
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_closed_pipe_behind_stdout_is_no_traceback():
    command = [sys.executable, str(ROOT / "scripts" / "hf_vanilla_command.py"), "--help"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(("rank", "printed"), [(None, "2\n"), ("0", "2\n"), ("1", "")])
def test_the_first_process_prints_the_result(monkeypatch, capsys, rank, printed):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    monkeypatch.setitem(COMMANDS, "count", Command("count", "builtins:len", "builtins:sorted"))
    assert main(["count", "a", "b"]) == 0
    assert capsys.readouterr().out == printed


def test_a_result_of_none_is_not_printed(monkeypatch, capsys):
    command = Command("none", "logging:captureWarnings", "builtins:len")
    monkeypatch.setitem(COMMANDS, "none", command)
    assert main(["none", "a"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_python_m_translates_stdin_without_the_libraries_of_datasets(trained_run):
    code = """if True:
        import atexit, runpy, sys
        libraries = {"datasets", "pandas", "pyarrow"}
        atexit.register(lambda: print(sorted(libraries & set(sys.modules))))
        runpy.run_module("hf_vanilla", run_name="__main__")
    """
    done = subprocess.run(
        [sys.executable, "-c", code, "translate", "--model", trained_run],
        input="one two\n",
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (0, "eins zwei\n[]\n"), done.stderr


# --- messages beside progress bars -------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says it is a terminal, or not."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_message_does_not_stand_behind_a_progress_bar(is_terminal):
    stream = Terminal(is_terminal)
    record = logging.LogRecord("name", logging.WARNING, "", 0, "line 7 is empty", None, None)
    with tqdm(total=9, file=stream) as bar:
        bar.update(3)
        bar.refresh()
        handler = LinesAboveBars(stream)
        handler.emit(record)
        lines = stream.getvalue().split("\r")
    told = [line for line in lines if "line 7 is empty" in line]
    assert told == ["line 7 is empty\n"] if is_terminal else told[0].startswith(" 33%")
