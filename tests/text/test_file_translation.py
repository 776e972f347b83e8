"""translate_file: files, stdin and stdout, line by line."""

import gzip
import importlib
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import small_run

from hf_vanilla.text import file_translation
from hf_vanilla.text import translator as translation
from hf_vanilla.text.engines import TorchEngine, load_engine
from hf_vanilla.text.file_translation import TranslateOptions, translate_file
from hf_vanilla.text.translator import translate

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "translate.py"
PAIRS = small_run.digit_pairs()
SOURCES = [source for source, _ in PAIRS[:19]]


@pytest.fixture
def files(tmp_path, trained_run):
    """Options that translate one file into another, and the two paths."""
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(line + "\n" for line in SOURCES), encoding="utf-8")

    def options(**changes):
        default = {"model": str(trained_run), "input": str(source), "output": str(output)}
        return TranslateOptions(**{**default, **changes})

    return options, source, output


# --- files -------------------------------------------------------------------------------------


def lines_of(path):
    return path.read_text(encoding="utf-8").split("\n")


def test_line_i_of_the_output_translates_line_i_of_the_input(files, trained):
    options, _, output = files
    translate_file(options())
    assert lines_of(output) == [*translate(*trained, SOURCES), ""]


def test_blank_lines_and_other_line_ends_keep_line_numbers(files, trained):
    options, source, output = files
    source.write_bytes(b"one\r\n\r\n  \r\ntwo\xe2\x80\xa8three\r\nfour")
    translate_file(options())
    expected = translate(*trained, ["one", "", "", "two\u2028three", "four"])
    assert lines_of(output) == [*expected, ""]


def test_a_compressed_input_is_read(files, trained, tmp_path):
    options, source, output = files
    compressed = tmp_path / "in.txt.gz"
    compressed.write_bytes(gzip.compress(source.read_bytes()))
    translate_file(options(input=str(compressed)))
    assert lines_of(output) == [*translate(*trained, SOURCES), ""]
    translate_file(options(output=str(tmp_path / "out.txt.gz")))
    assert gzip.decompress((tmp_path / "out.txt.gz").read_bytes()) == output.read_bytes()


def test_an_empty_input_gives_an_empty_output(files):
    options, source, output = files
    source.write_text("")
    translate_file(options())
    assert output.read_bytes() == b""


def test_stdin_is_translated_to_stdout(files, trained, monkeypatch, capsys):
    options, source, _ = files
    stdin = io.TextIOWrapper(io.BytesIO(source.read_bytes()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stdin)
    translate_file(options(input="-", output="-"))
    assert capsys.readouterr().out.split("\n") == [*translate(*trained, SOURCES), ""]


def test_num_beams_is_the_models_unless_given(files, monkeypatch):
    options, _, _ = files
    calls = []
    original = translation.load_engine
    monkeypatch.setattr(
        translation,
        "load_engine",
        lambda *a, **options: calls.append(options) or original(*a, **options),
    )
    translate_file(options())
    translate_file(options(num_beams=7, overwrite=True))
    assert "num_beams" not in calls[0]
    assert calls[1]["num_beams"] == 7


def test_a_line_feed_in_a_translation_becomes_a_space(files, monkeypatch):
    options, source, output = files
    source.write_text("one\ntwo\n", encoding="utf-8")
    monkeypatch.setattr(TorchEngine, "translate_rows", lambda _, rows: ["two\nlines"] * len(rows))
    translate_file(options())
    assert output.read_text(encoding="utf-8") == "two lines\ntwo lines\n"


# --- refused -----------------------------------------------------------------------------------


def test_an_existing_output_is_refused_and_not_changed(files):
    options, _, output = files
    output.write_text("earlier")
    with pytest.raises(FileExistsError, match="choose another name or add --overwrite"):
        translate_file(options())
    assert output.read_text() == "earlier"


def test_an_output_named_after_another_compression_than_gzip_is_refused(files):
    options, _, output = files
    for name in ("out.bz2", "out.de.xz", "out.zst"):
        with pytest.raises(ValueError, match=rf"{name}: give a name that ends in \.gz"):
            translate_file(options(output=str(output.with_name(name))))
        assert not output.with_name(name).exists()


def test_overwrite_replaces_an_existing_output(files, trained):
    options, _, output = files
    output.write_text("earlier")
    translate_file(options(overwrite=True))
    assert lines_of(output)[:-1] == translate(*trained, SOURCES)


def test_a_file_can_be_replaced_by_its_own_translation(files, trained):
    options, source, _ = files
    translate_file(options(output=str(source), overwrite=True))
    assert lines_of(source)[:-1] == translate(*trained, SOURCES)


def test_a_byte_that_is_not_utf8_is_named_and_no_output_is_left(files):
    options, source, output = files
    source.write_bytes(b"one\ntwo\nthr\xe9e\n")
    with pytest.raises(ValueError, match=r"in\.txt, line 3: byte 4 is not UTF-8"):
        translate_file(options())
    assert not output.exists()


@pytest.mark.parametrize("compressor", ["bz2", "lzma"])
def test_a_compressed_file_is_named(files, compressor):
    options, source, _ = files
    source.write_bytes(importlib.import_module(compressor).compress(b"one\ntwo\n"))
    with pytest.raises(ValueError, match=r"in\.txt is compressed: give plain text, or a \.gz file"):
        translate_file(options())


def test_a_failure_does_not_change_an_existing_output(files):
    options, source, output = files
    output.write_text("earlier")
    source.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        translate_file(options(overwrite=True))
    assert output.read_text() == "earlier"


def test_a_byte_on_stdin_that_is_not_utf8_is_named(files, monkeypatch):
    options, _, _ = files
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\xff\n")))
    with pytest.raises(ValueError, match="stdin, line 2"):
        translate_file(options(input="-", output="-"))


def test_a_missing_input_is_named(files):
    options, _, output = files
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        translate_file(options(input="nowhere"))
    assert not output.exists()


@pytest.mark.parametrize("name", ["num_beams", "tokens_per_batch"])
@pytest.mark.parametrize("value", [0, -2])
def test_an_option_below_1_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}: give a positive number"):
        TranslateOptions(model="m", **{name: value})


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="engine='marian': choose one of torch, ctranslate2, onnx"):
        TranslateOptions(model="m", engine="marian")
    with pytest.raises(ValueError, match="engine='marian': choose one of torch, ctranslate2, onnx"):
        load_engine("m", "marian")


# --- pipes, devices, closed streams ------------------------------------------------------------


def test_failed_lines_are_an_error_after_the_output_is_written(files, trained, monkeypatch):
    options, _, output = files
    monkeypatch.setattr(file_translation, "read_lines", lambda _: iter(["one", "two \udcff"]))
    expected = r"1 of the lines could not be translated and are empty: 2; --accept_failures True"
    with pytest.raises(ValueError, match=expected):
        translate_file(options())
    assert lines_of(output) == [*translate(*trained, ["one"]), "", ""]
    assert translate_file(options(overwrite=True, accept_failures=True)) == output


def run_script(trained_run, *arguments, shell='exec "$@"', **environment):
    """scripts/translate.py in its own process; `shell` may redirect its streams."""
    command = [sys.executable, str(SCRIPT), "--model", str(trained_run), "--num_beams", "1"]
    return subprocess.run(
        ["bash", "-c", shell, "bash", *command, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        check=False,
    )


@pytest.mark.release
@pytest.mark.parametrize(
    ("shell", "message"),
    [
        ('exec "$@" <&-', "error: stdin is closed: give a file by --input"),
        (
            'exec "$@" --input /dev/null >&-',
            "error: stdout is closed: redirect it to a file or to /dev/null",
        ),
    ],
)
def test_a_closed_stream_is_named(trained_run, shell, message):
    done = run_script(trained_run, shell=shell)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == message


@pytest.mark.release
def test_a_closed_stderr_changes_nothing(trained, trained_run, tmp_path):
    (tmp_path / "in").write_text("one\n")
    arguments = ("--input", tmp_path / "in", "--output", tmp_path / "out")
    done = run_script(trained_run, *arguments, shell='exec "$@" 2>&-')
    assert done.returncode == 0
    assert lines_of(tmp_path / "out") == [*translate(*trained, ["one"], num_beams=1), ""]


@pytest.mark.release
def test_stdout_is_utf8_in_every_locale(trained, trained_run, tmp_path):
    expected = translate(*trained, SOURCES, num_beams=1)
    assert not "".join(expected).isascii()
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in SOURCES))
    settings = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = run_script(trained_run, "--input", tmp_path / "in", **settings)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode("utf-8").split("\n") == [*expected, ""]


@pytest.mark.release
def test_a_process_substitution_is_an_input(trained, trained_run):
    shell = 'exec "$@" --input <(echo one; echo two)'
    done = run_script(trained_run, shell=shell)
    assert done.stdout.decode("utf-8").split("\n") == [
        *translate(*trained, ["one", "two"], num_beams=1),
        "",
    ]


def test_named_pipes_are_inputs_and_outputs(files, trained, tmp_path):
    options, source, _ = files
    pipes = {name: tmp_path / name for name in ("input", "output")}
    for pipe in pipes.values():
        os.mkfifo(pipe)
    found = []
    threads = [
        threading.Thread(target=lambda: pipes["input"].write_bytes(source.read_bytes())),
        threading.Thread(target=lambda: found.append(pipes["output"].read_text("utf-8"))),
    ]
    for thread in threads:
        thread.start()
    translate_file(options(**{name: str(pipe) for name, pipe in pipes.items()}))
    for thread in threads:
        thread.join()
    assert found[0].split("\n") == [*translate(*trained, SOURCES), ""]
    assert pipes["output"].is_fifo()


def test_a_device_is_written_through(files, tmp_path):
    options, _, _ = files
    link = tmp_path / "device"
    link.symlink_to("/dev/null")
    assert translate_file(options(output=str(link))) == link
    assert link.is_symlink()
    assert link.is_char_device()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": "{}"}, "is a folder: give the name of a file"),
        ({"output": "{}/none/out"}, "none: no such folder"),
        ({"input": "{}"}, "is a folder: give a text file"),
    ],
    ids=str,
)
def test_impossible_files_are_refused_before_the_model_is_loaded(
    files, tmp_path, monkeypatch, changes, message
):
    monkeypatch.setattr(TranslateOptions, "open_translator", None)  # a call would fail
    options = files[0](**{name: value.format(tmp_path) for name, value in changes.items()})
    with pytest.raises(OSError, match=message):
        translate_file(options)
