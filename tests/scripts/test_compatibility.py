"""The supported versions: what pyproject promises is what the check installs and runs."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "check_transformers_compat.py"


def pins(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


LOWEST, NEWEST = pins("constraints-lowest.txt"), pins("constraints.txt")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = {
    requirement.name: requirement for requirement in map(Requirement, PROJECT["dependencies"])
}


def test_both_ends_are_allowed_and_pinned():
    for name in REQUIREMENTS:
        assert Version(LOWEST[name]) in REQUIREMENTS[name].specifier
        assert Version(NEWEST[name]) in REQUIREMENTS[name].specifier


def test_the_lower_bound_is_the_version_that_is_run():
    for name in [name for name in REQUIREMENTS if name != "torch"]:
        bounds = [s.version for s in REQUIREMENTS[name].specifier if s.operator == ">="]
        assert [Version(bound) for bound in bounds] == [Version(LOWEST[name])]


def test_the_upper_bound_of_transformers_is_the_next_minor_version():
    major, minor, _ = Version(NEWEST["transformers"]).release
    bounds = [s.version for s in REQUIREMENTS["transformers"].specifier if s.operator == "<"]
    assert bounds == [f"{major}.{minor + 1}"]


@pytest.fixture
def check(tmp_path):
    """Runs the script where each environment's python notes its arguments and fails as told."""

    def check(*arguments, status):
        for end in ("lowest", "newest"):
            python = tmp_path / end / "bin/python"
            python.parent.mkdir(parents=True)
            (tmp_path / end / ".ready").touch()
            python.write_text(f'#!/bin/sh\necho "{end} $PYTHONPATH $*"\nexit {status[end]}\n')
            python.chmod(0o755)
        command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)

    return check


def test_every_end_runs_the_tests_and_a_failure_is_named(check):
    done = check(status={"lowest": 1, "newest": 0})
    assert done.stdout.splitlines() == [
        f"{end}  -m {run}"
        for end in ("lowest", "newest")
        for run in ("pip check", f"pytest {ROOT}/tests")
    ]
    assert done.returncode == 1
    told = "pip check at the lowest versions, tests at the lowest versions"
    assert re.search(rf"^error: failed: {told}$", done.stderr, re.MULTILINE)


def test_the_common_suites_are_taken_from_the_checkout(check):
    told = ("--ends", "newest", "--suites", "checkout")
    done = check(*told, status={"lowest": 1, "newest": 0})
    assert done.returncode == 0
    last = done.stdout.splitlines()[-1]
    files = f"{ROOT}/tests/common_suites.py {ROOT}/tests/common_suites_images.py"
    assert last == f"newest checkout -m pytest -o addopts= {files}"


def test_an_unknown_end_is_refused(check):
    done = check("--ends", "middle", status={"lowest": 0, "newest": 0})
    assert done.returncode == 1
    assert "error: no end called middle: give lowest, newest or both" in done.stderr
