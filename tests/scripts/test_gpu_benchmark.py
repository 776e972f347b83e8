"""The benchmark on a GPU, tried on the CPU: every case runs, failures are recorded."""

import importlib
import json
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "scripts" / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu")


@pytest.mark.release
def test_every_case_runs_on_a_cpu_and_a_failure_is_recorded(
    gpu, monkeypatch, tmp_path, fresh_accelerator
):
    way, real = "base, float32", gpu.speed
    monkeypatch.setattr(gpu, "WAYS", {"broken": ("base", ()), way: gpu.WAYS[way]})
    monkeypatch.setattr(gpu, "speed", lambda *given: 1 / (given[2] != "broken") and real(*given))
    with pytest.raises(SystemExit) as ended:
        gpu.benchmark(gpu.GpuOptions(device="cpu", tiny=True, output=str(tmp_path)))
    assert ended.value.code == 1
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    facts = {row["case"]: row.get("facts", row.get("error")) for row in rows}
    assert facts.pop("broken") == "ZeroDivisionError: division by zero"
    batches = [f"{size}, batch {sentences}" for size in ("base", "big") for sentences in (1, 3)]
    assert list(facts) == [*batches, way]
    assert facts[way]["tokens_per_second"] > 0
    assert all(facts[name]["equal to MarianMTModel"] == 1 for name in batches)
    assert all(each["peak MiB"] > 0 for each in facts.values())
    table = (tmp_path / "results.md").read_text()
    assert all(f"| {row['case']} | " in table for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_to_do(gpu, tmp_path):
    with pytest.raises(ValueError, match="no CUDA device: give --device cpu --tiny"):
        gpu.benchmark(gpu.GpuOptions(output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
