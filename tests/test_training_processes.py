"""Two real processes train what one trains; two that cannot see each other are refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import small_run
import torch

from hf_vanilla.training import train

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
# half the budget of a step: one process makes two passes, two processes make one each
STEPS = {"max_steps": 7, "tokens_per_step": 240, "tokens_per_batch": 120, "eval_sentences": 5}


def launch(recipe, folder):
    """`scripts/train.py` in two processes, as torchrun starts them, on a free port."""
    path = folder / "two.yaml"
    path.write_text(recipe.to_yaml(), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return subprocess.run(
        [*command, "scripts/train.py", "--recipe", str(path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_processes_train_the_same_weights_as_one(corpus_files, tmp_path):
    # dropout stays on: it is seeded by the micro-batch's place in the run, not by the process
    folders = [tmp_path / name for name in ("one", "two")]
    recipes = [small_run.recipe(folder, corpus_files, **STEPS) for folder in folders]
    train(recipes[0])
    done = launch(recipes[1], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(folders[1])]  # said by one of them
    one, two = (small_run.weights(folder) for folder in folders)
    for name, weight in one.items():
        # gradients are float32 sums in another order, and Adam divides by their size; the weights
        # themselves move by about 1e-2 a step
        torch.testing.assert_close(two[name], weight, rtol=0, atol=2e-5)
    assert "2 processes on cpu" in (folders[1] / "README.md").read_text(encoding="utf-8")
    logs = [(folder / "log.jsonl").read_text().count("\n") for folder in folders]
    assert logs[0] == logs[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="with GPUs two processes find each other")
def test_two_processes_without_the_flag_are_refused_where_there_is_no_gpu(corpus_files, tmp_path):
    recipe = small_run.recipe(tmp_path / "run", corpus_files, **STEPS, use_cpu=False)
    done = launch(recipe, tmp_path)
    assert done.returncode != 0
    assert "2 processes were launched" in done.stderr
    assert "--use_cpu True" in done.stderr
    assert not (tmp_path / "run").exists()
