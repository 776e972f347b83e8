"""`scripts/convert.py` as a user runs it."""

from pathlib import Path

import opus
import pytest

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"


@pytest.fixture
def convert(program, tmp_path):
    def convert(*arguments, fails=False):
        done = program("python", SCRIPTS / "convert.py", *arguments, cwd=tmp_path)
        assert done.returncode == (1 if fails else 0), done.stderr
        assert "Traceback" not in done.stderr
        return done

    return convert


def test_convert_prints_the_folder_and_what_a_check_found(convert, tmp_path):
    opus.write_folder(tmp_path / "theirs")
    named = ["--format", "marian", "--input", "theirs", "--output", "ours", "--check"]
    done = convert(*named)
    assert done.stdout == "ours\n"
    assert "beam search gives the same tokens" in done.stderr
    again = convert(*named, fails=True)
    assert again.stderr.splitlines()[-1].endswith("is not an empty folder: choose another name")


def test_convert_tells_a_wrong_model_in_one_line(convert, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text('{"model_type": "bart"}')
    done = convert("--format", "marian", "--input", "theirs", "--output", "ours", fails=True)
    assert done.stderr.splitlines()[-1] == (
        "error: theirs is of type 'bart': give one of type 'marian'"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
