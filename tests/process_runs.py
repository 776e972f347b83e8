"""The same run in one process and in two."""

from pathlib import Path

import small_run
from torch.testing import assert_close

ROOT = Path(__file__).resolve().parents[1]


def assert_processes_agree(processes, make_recipe, folder, *, ignored):
    """Four micro-batches of a step, 1 process x 4 and 2 x 2, train the same weights.

    Args:
        processes: the fixture.
        make_recipe: a recipe for an output folder.
        folder: for runs and recipes.
        ignored: end (or ends) of the names of biases before a softmax, which ignores them: their
            gradient is rounding noise, which Adam scales.
    """
    found = {}
    for count in (1, 2):
        path = folder / f"{count}.yaml"
        path.write_text(make_recipe(folder / str(count)).to_yaml(), encoding="utf-8")
        for done in processes(count, "python", ROOT / "scripts/train.py", "--recipe", path):
            assert done.returncode == 0, done.stderr
        found[count] = small_run.weights(folder / str(count))
    for name, weight in found[1].items():
        if not name.endswith(ignored):
            # float32 gradients are summed in another order, and Adam divides by their size
            assert_close(found[2][name], weight, rtol=0, atol=5e-5)
