"""Only one training at a time writes into a folder."""

import os

import pytest

from hf_vanilla.training.preparation import locked


def test_a_folder_in_use_is_refused_with_the_process_that_holds_it(tmp_path):
    with (
        locked(tmp_path / "run"),
        pytest.raises(ValueError, match=rf"run is in use by process {os.getpid()} on .* since"),
        locked(tmp_path / "run"),
    ):
        pass
    with locked(tmp_path / "run"), locked(tmp_path / "other"):
        pass
    assert not list(tmp_path.iterdir())


def test_the_lock_of_a_killed_process_does_not_matter(program, tmp_path):
    killed = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from hf_vanilla.training.preparation import locked\n"
        "with locked(Path(sys.argv[1])):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = program("python", "-c", killed, tmp_path / "run")
    assert done.returncode < 0
    assert (tmp_path / "run.lock").exists()
    with locked(tmp_path / "run"):
        pass
    assert not (tmp_path / "run.lock").exists()
