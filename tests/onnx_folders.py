"""The programs of exported folders, imported and started."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

# runs a program where torch and transformers cannot be imported
BLOCKED = """import runpy, sys
sys.modules.update(torch=None, transformers=None, hf_vanilla=None)
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def runner_of(folder, name="translate"):
    """The module of an exported program."""
    spec = importlib.util.spec_from_file_location(f"exported_{name}", Path(folder) / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def without_reader(command, text):
    """What a program does where nothing reads its stdout: its status and stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, input=text, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    return done.returncode, done.stderr
