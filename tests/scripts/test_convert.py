"""`scripts/convert.py` as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import opus
import pytest

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"


def convert(folder, *arguments, fails=False):
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "convert.py"), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if fails else 0), done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_convert_prints_the_folder_and_what_a_check_found(tmp_path):
    opus.write_folder(tmp_path / "theirs")
    named = ["--format", "marian", "--input", "theirs", "--output", "ours", "--check"]
    done = convert(tmp_path, *named)
    assert done.stdout == "ours\n"
    assert "beam search gives the same tokens" in done.stderr
    again = convert(tmp_path, *named, fails=True)
    assert again.stderr.splitlines()[-1].endswith("is not an empty folder: choose another name")


def test_convert_tells_a_wrong_model_in_one_line(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text('{"model_type": "bart"}')
    done = convert(
        tmp_path, "--format", "marian", "--input", "theirs", "--output", "ours", fails=True
    )
    assert done.stderr.splitlines()[-1] == (
        "error: theirs is a model of type 'bart': give one of type 'marian'"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
