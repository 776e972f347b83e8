"""The benchmark on a GPU, tried on the CPU: every part runs, failures are recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import small_run

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "scripts" / "benchmarks"
NEED_A_GPU = {
    "flash attention",
    "flex attention",
    "compiled model",
    "base, compiled",
    "base, compiled, fused linear and loss",
    "base, static shapes, compiled",
    "base, static shapes, CUDA graphs",
    "big, compiled",
}


def benchmark(*arguments):
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def data(tmp_path):
    """Files with the names that the recipe's text has."""
    pairs, folder = small_run.digit_pairs(), tmp_path / "data"
    folder.mkdir()
    parts = {"train": pairs[:61], "val": pairs[61:66], "test_2016_flickr": pairs[66:]}
    for name, part in parts.items():
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in part)
            (folder / f"{name}.lc.norm.tok.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_every_part_runs_on_a_cpu_and_what_needs_a_gpu_says_so(data, tmp_path):
    output = tmp_path / "out"
    done = benchmark(
        *("--device", "cpu", "--tiny", "--data", data, "--seeds", "1", "--output", output)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((output / "results.json").read_text())["parts"]
    assert list(parts) == ["paths", "training", "decoding", "recipe"]
    rows = {row["case"]: row for part in parts.values() for row in part}
    skipped = {name for name, row in rows.items() if row["status"] == "skipped"}
    assert skipped == NEED_A_GPU
    assert {rows[name]["error"] for name in skipped} == {"no CUDA device"}
    assert {row["status"] for row in rows.values()} == {"done", "skipped"}
    assert rows["resumed training"]["facts"]["weight_difference"] == 0
    assert rows["beam search as on the CPU"]["facts"]["equal"] == 1
    assert rows["base, batch 3"]["facts"]["equal to MarianMTModel"] == 1
    assert rows["base, eager"]["facts"]["tokens_per_second"] > 0
    assert rows["all seeds"]["facts"]["seeds"] == 1
    table = (output / "results.md").read_text()
    assert all(f"| {name} | " in table for name in rows)


def test_a_failure_is_recorded_and_the_other_cases_run(tmp_path):
    output = tmp_path / "out"
    done = benchmark(
        *("--device", "cpu", "--tiny", "--parts", "recipe", "--seeds", "2"),
        *("--data", tmp_path / "none", "--output", output),
    )
    assert done.returncode == 1
    rows = json.loads((output / "results.json").read_text())["parts"]["recipe"]
    assert [row["status"] for row in rows] == ["failed", "failed", "skipped"]
    assert "train.lc.norm.tok.en" in rows[0]["error"]
    assert "2 failed" in done.stdout


def test_without_a_gpu_one_line_says_what_to_do(tmp_path):
    done = benchmark("--output", tmp_path / "out")
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "no CUDA device: give --device cpu --tiny" in line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--device", "tpu"), "device='tpu': choose one of cuda, cpu"),
        (("--parts", "paths,speed"), "parts='paths,speed': choose from paths, training"),
        (("--minutes", "0"), "minutes=0.0: give a positive number"),
        (("--seeds", "0"), "seeds=0: give 1 or more"),
    ],
)
def test_wrong_options_are_refused_in_one_line(arguments, told, tmp_path):
    done = benchmark(*arguments, "--output", tmp_path / "out")
    assert done.returncode == 1
    assert f"error: {told}" in done.stderr
    assert not (tmp_path / "out").exists()
