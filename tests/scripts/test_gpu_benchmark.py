"""The benchmark on a GPU, tried on the CPU: every part runs, failures are recorded."""

import importlib
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import small_run
import torch

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


@pytest.mark.release
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


@pytest.fixture
def gpu(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu")


def test_a_failure_is_recorded_and_the_other_cases_run(gpu, monkeypatch, tmp_path):
    def cases(options):
        yield "first", lambda: {"equal": 0.25}
        yield "second", lambda: 1 / 0
        yield "third", lambda: os._exit(3)

    output = tmp_path / "out"
    monkeypatch.setitem(gpu.RUNNERS, "paths", (cases, 1.0))
    with pytest.raises(SystemExit) as ended:
        gpu.benchmark(gpu.GpuOptions(device="cpu", tiny=True, parts="paths", output=str(output)))
    assert ended.value.code == 1
    rows = json.loads((output / "results.json").read_text())["parts"]["paths"]
    assert [(row["case"], row["status"]) for row in rows] == [
        ("first", "done"),
        ("second", "failed"),
        ("process", "failed"),
    ]
    assert rows[1]["error"] == "ZeroDivisionError: division by zero"
    assert rows[2]["error"] == "its process ended with exit code 3"
    assert "equal 0.25 |" in (output / "results.md").read_text()


def test_a_part_ends_at_its_time_limit(gpu):
    def cases(options):
        yield "first", dict
        yield "second", threading.Event().wait

    first, late = gpu.results_of_part(cases, gpu.GpuOptions(device="cpu"), seconds=5)
    assert (first["case"], first["status"]) == ("first", "done")
    assert late["status"] == "failed"
    assert late["error"] == "not finished within 5 seconds"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_to_do(gpu, tmp_path):
    told = "no CUDA device: give --device cpu --tiny"
    with pytest.raises(ValueError, match=told):
        gpu.benchmark(gpu.GpuOptions(output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"device": "tpu"}, "device='tpu': choose one of cuda, cpu"),
        ({"parts": "paths,speed"}, "parts='paths,speed': choose from paths, training"),
        ({"parts": ","}, "parts=',': choose from"),
        ({"minutes": 0}, "minutes=0: give a positive number"),
        ({"seeds": 0}, "seeds=0: give 1 or more"),
    ],
)
def test_wrong_options_are_refused(given, told, gpu):
    with pytest.raises(ValueError, match=re.escape(told)):
        gpu.GpuOptions(**given)


def test_the_loss_by_blocks_is_the_plain_loss(gpu, monkeypatch):
    training = importlib.import_module("gpu_training")
    monkeypatch.setattr(training.FusedLinearLoss, "BLOCK", 4)  # so that there are several
    options = gpu.GpuOptions(device="cpu", tiny=True)
    model = importlib.import_module("gpu_options").model_of(options, "base", dropout=0.0).train()
    ((batch, _),) = training.make_batches(options, 97, training.Way(), 1)
    found = []
    for loss_of in (training.plain_loss, training.fused_loss):
        loss = loss_of(model, batch)
        loss.backward()
        found.append([loss.detach(), *(weight.grad for weight in model.parameters())])
        model.zero_grad(set_to_none=True)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_rounded_lengths_give_few_shapes(gpu):
    training = importlib.import_module("gpu_training")
    options = gpu.GpuOptions(device="cpu", tiny=True)
    batches = training.make_batches(options, 97, training.Way(is_static=True), 20)
    shapes = {
        (tuple(batch["input_ids"].shape), tuple(batch["labels"].shape)) for batch, _ in batches
    }
    widths = {shape[1] for of_batch in shapes for shape in of_batch}
    assert widths <= set(training.ROUNDED)
    assert len(shapes) == len(widths) > 1
