"""Two processes of Accelerate share a file; the output equals that of one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import small_run

from hf_vanilla.translation.translator import translate

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "translate.py"
LINES = ["", *(source for source, _ in small_run.digit_pairs()[:31])]


def launch(folder, *arguments):
    """Two processes on a CPU, by torchrun."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"),
            *("--master_port", str(port), str(SCRIPT), *map(str, arguments)),
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_processes_write_the_translations_of_one(trained, trained_run, tmp_path):
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    arguments = (
        "--model",
        trained_run,
        "--input",
        "in",
        "--output",
        "out",
        "--tokens_per_batch",
        40,
    )
    done = launch(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "out\n"
    assert (tmp_path / "out").read_text(encoding="utf-8").split("\n") == [
        *translate(*trained, LINES),
        "",
    ]


def test_stdin_is_refused_with_two_processes(trained_run, tmp_path):
    done = launch(tmp_path, "--model", trained_run)
    assert done.returncode
    assert "error: 2 processes cannot read one stdin: give a file by --input" in done.stderr
