"""The same run in 1, 2 and 4 processes."""

import subprocess
import sys
from pathlib import Path

import small_run
from torch.testing import assert_close

ROOT = Path(__file__).resolve().parents[1]


def assert_processes_agree(make_recipe, folder, *, ignored):
    """Four micro-batches of a step, 1 process x 4, 2 x 2 and 4 x 1, train the same weights.

    Args:
        make_recipe: a recipe for an output folder.
        folder: for runs and recipes.
        ignored: end (or ends) of the names of biases before a softmax, which ignores them: their
            gradient is rounding noise, which Adam scales.
    """
    found = {}
    for processes in (1, 2, 4):
        path = folder / f"{processes}.yaml"
        path.write_text(make_recipe(folder / str(processes)).to_yaml(), encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc_per_node={processes}", "scripts/train.py", "--recipe", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[processes] = small_run.weights(folder / str(processes))
    for processes in (2, 4):
        for name, weight in found[1].items():
            if not name.endswith(ignored):
                # float32 gradients are summed in another order, and Adam divides by their size
                assert_close(found[processes][name], weight, rtol=0, atol=5e-5)
