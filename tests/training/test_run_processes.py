"""Two real processes train what one trains; two that cannot see each other are refused."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_run
import torch

from hf_vanilla.files import read_json_lines
from hf_vanilla.training.options import Adam
from hf_vanilla.training.run import train

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
# half the budget of a step: one process makes two passes, two processes make one each
STEPS = {"max_steps": 7, "tokens_per_step": 240, "tokens_per_batch": 120, "eval_sentences": 5}


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def written(recipe, folder):
    path = folder / "two.yaml"
    path.write_text(recipe.to_yaml(), encoding="utf-8")
    return path


@pytest.fixture
def launch(processes, tmp_path):
    """`scripts/train.py` in several processes; exit status, stdout and stderr of all of them."""

    def launch(recipe, count=2):
        program = ("python", ROOT / "scripts/train.py", "--recipe", written(recipe, tmp_path))
        done = processes(count, *program)
        stdout, stderr = ("".join(getattr(d, name) for d in done) for name in ("stdout", "stderr"))
        return max(one.returncode for one in done), stdout, stderr

    return launch


def test_two_processes_train_the_same_weights_as_one(corpus_files, tmp_path, launch):
    # dropout stays on: it is seeded by the micro-batch's place in the run, not by the process
    folders = [tmp_path / name for name in ("one", "two")]
    recipes = [small_run.recipe(folder, corpus_files, **STEPS) for folder in folders]
    train(recipes[0])
    status, stdout, stderr = launch(recipes[1])
    assert status == 0, stderr
    assert stdout.split() == [str(folders[1])]  # said by one of them
    one, two = (small_run.weights(folder) for folder in folders)
    for name, weight in one.items():
        # gradients are float32 sums in another order, and Adam divides by their size; the weights
        # themselves move by about 1e-2 a step
        torch.testing.assert_close(two[name], weight, rtol=0, atol=2e-5)
    assert "2 processes on cpu" in (folders[1] / "README.md").read_text(encoding="utf-8")
    logs = [read_json_lines(folder / "log.jsonl") for folder in folders]
    assert len(logs[0]) == len(logs[1])
    of_one, of_two = ([e["validation_nll"] for e in log if "validation_nll" in e] for log in logs)
    assert of_two == pytest.approx(of_one, rel=1e-4)  # over the pairs of both processes


def test_two_processes_replace_a_run_without_a_step(corpus_files, tmp_path, launch):
    failing = small_run.recipe(tmp_path / "run", corpus_files, learning_rate_of={"backbne": 1e-5})
    with pytest.raises(ValueError, match="no trained weight"):
        train(failing)
    model = {"vocab_size": 280}
    status, _, stderr = launch(small_run.recipe(tmp_path / "run", corpus_files, model=model))
    assert status == 0, stderr
    assert len(small_run.weights(tmp_path / "run")["model.shared.weight"]) == 280


@pytest.mark.skipif(torch.cuda.is_available(), reason="with GPUs two processes find each other")
def test_two_processes_without_the_flag_are_refused_where_there_is_no_gpu(
    corpus_files, tmp_path, launch
):
    recipe = small_run.recipe(tmp_path / "run", corpus_files, **STEPS, use_cpu=False)
    status, _, stderr = launch(recipe)
    assert status != 0
    assert "2 processes were launched" in stderr
    assert "--use_cpu True" in stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.release
def test_one_two_and_four_processes_train_the_same_weights(corpus_files, tmp_path, launch):
    # no Adam: epsilon as large as this makes its step nearly the gradient's, as SGD's is
    options = {"max_steps": 20, "tokens_per_step": 240, "tokens_per_batch": 60}
    options |= {"adam": Adam(epsilon=1.0), "save_steps": 20, "average_checkpoints": 1}
    folders = {n: tmp_path / str(n) for n in (1, 2, 4)}
    for count, folder in folders.items():
        status, _, stderr = launch(small_run.recipe(folder, corpus_files, **options), count)
        assert status == 0, stderr
        assert f"{count} process(es) x {4 // count} micro-batch(es) of up to 60" in stderr
    one, *others = (small_run.weights(folder) for folder in folders.values())
    for other in others:
        for name, weight in one.items():
            # float32 sums in another order, twenty times
            torch.testing.assert_close(other[name], weight, rtol=1e-5, atol=1e-6)


@pytest.mark.release
def test_accelerate_launches_the_command_by_our_configuration_for_a_cpu(corpus_files, tmp_path):
    recipe = written(small_run.recipe(tmp_path / "run", corpus_files, **STEPS), tmp_path)
    config = ROOT / "scripts" / "accelerate" / "cpu_2_processes.yaml"
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    done = subprocess.run(
        [*launcher, "-m", "hf_vanilla", "train", "--recipe", str(recipe), "--warmup_steps", "1"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'run'}\n"  # of two processes one prints it
    assert done.stderr.count("learning_rate is ") == 1
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "2 processes on cpu" in card


@pytest.mark.release
@pytest.mark.parametrize(
    ("script", "result"), [("sharded_program.py", "whole"), ("two_processes_program.py", "agreed")]
)
def test_a_program_of_two_processes_agrees(script, result, processes, tmp_path):
    """A sharded model is saved and measured whole; what processes share is the same for both."""
    done = processes(2, "python", ROOT / "tests" / script, tmp_path)
    assert all(one.returncode == 0 for one in done), done
    assert "".join(one.stdout for one in done) == f"{result}\n"


@pytest.mark.release
def test_ctrl_c_ends_two_processes_without_a_traceback_of_ours(corpus_files, tmp_path):
    endless = small_run.recipe(tmp_path / "run", corpus_files, **{**STEPS, "max_steps": 10**6})
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    process = subprocess.Popen(
        [*launcher, "--nproc_per_node=2", "scripts/train.py", "--recipe",
         str(written(endless, tmp_path))],
        cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not list((tmp_path / "run").glob("checkpoint-*[0-9]")):
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to launcher and processes alike
    _, told = process.communicate(timeout=120)
    assert "hf_vanilla/training.py" not in told  # the launcher's own traceback does not name us
    assert process.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # none of them is left


LITTLE_ROOM = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_full_disk_is_told_in_one_line_and_loses_nothing(corpus_files, tmp_path, program):
    train(small_run.recipe(tmp_path / "whole", corpus_files))
    recipe = small_run.recipe(tmp_path / "run", corpus_files, max_steps=2)
    train(recipe)
    before = {path.name for path in (tmp_path / "run").iterdir()} - {"README.md"}
    longer = small_run.recipe(tmp_path / "run", corpus_files)
    command = ("scripts/train.py", "--recipe", written(longer, tmp_path))
    done = program("python", "-c", LITTLE_ROOM, "30000", *command, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: cannot write {tmp_path / 'run' / 'checkpoint-4'}: ")
    assert "make room, and the same command resumes" in last
    assert "Traceback" not in done.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} >= before
    assert not list((tmp_path / "run").glob("*.partial"))
    train(longer)
    whole, resumed = (
        small_run.weights(tmp_path / name / "checkpoint-6") for name in ("whole", "run")
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.release
def test_a_run_killed_in_each_phase_ends_in_the_very_same_weights():
    command = [sys.executable, "scripts/benchmarks/kill_test.py", "5"]
    path = {**environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all weights after 5 kills and after none: identical\n")
    for phase in ("steps", "checkpoint writing", "pruning", "final writing"):
        assert f"{phase}: 0 kills" not in done.stdout
