"""What loading from the Hub requires of every file in `hf_vanilla/models/`."""

import ast
import sys
from pathlib import Path

import hf_vanilla.models

FOLDER = Path(hf_vanilla.models.__path__[0])
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py")
INSTALLED = {"torch", "transformers", "tokenizers", "huggingface_hub"}


def is_guard(node):
    """`if is_..._available():`, behind which a module may be missing."""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Call):
        return False
    name = ast.unparse(node.test.func)
    return name.startswith("is_") and name.endswith("_available")


def imports_outside_guards(node):
    """Import statements at any depth, except those behind a guard."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    children = node.orelse if is_guard(node) else ast.iter_child_nodes(node)
    for child in children:
        yield from imports_outside_guards(child)


def faults(source, siblings):
    """Import statements that the loader of the Hub cannot follow."""
    found = []
    for node in imports_outside_guards(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            is_followed = node.level == 1 and node.module in siblings
        else:
            is_from = isinstance(node, ast.ImportFrom)
            names = [node.module] if is_from else [alias.name for alias in node.names]
            roots = {name.split(".")[0] for name in names}
            is_followed = roots <= INSTALLED | sys.stdlib_module_names
        if not is_followed:
            found.append(ast.unparse(node))
    return found


def test_an_uploaded_file_imports_only_siblings_and_what_every_user_has():
    siblings = {other.stem for other in FILES}
    found = {path.name: faults(path.read_text(encoding="utf-8"), siblings) for path in FILES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_an_uploaded_file_states_its_licence_in_the_first_line():
    for path in FILES:
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        assert first.startswith("# Copyright"), path.name
        assert "SPDX-License-Identifier: Apache-2.0" in first, path.name


def test_the_check_tells_apart_what_the_loader_follows():
    cases = [
        ("from .other import X", False),
        ("from .missing import X", True),
        ("from . import other", True),
        ("from ..other import X", True),
        ("from .sub.other import X", True),
        ("from hf_vanilla.models.other import X", True),
        ("def f():\n    import numpy", True),
        ("if is_scipy_available():\n    import scipy", False),
        ("if is_scipy_available():\n    pass\nelse:\n    import numpy", True),
        ("import torch.nn, math", False),
    ]
    for statement, is_fault in cases:
        assert bool(faults(statement, {"other"})) is is_fault


def test_no_text_looks_like_an_import_of_a_file_that_is_not_there():
    """The loader reads lines, so that a docstring can name a file by mistake."""
    siblings = {path.stem for path in FILES}
    for path in FILES:
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[:1] == ["from"] and len(words) > 2 and words[1].startswith("."):
                assert words[1][1:] in siblings, f"{path.name}: {line}"
