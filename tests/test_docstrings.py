"""The examples in docstrings run and print what they show."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import hf_vanilla

MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(hf_vanilla.__path__, "hf_vanilla.")
    if module.name != "hf_vanilla.__main__"
]
EXAMPLES = [
    test
    for module in (hf_vanilla, *MODULES)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module)
    if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_prints_what_it_shows(example):
    printed = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    failed, _ = runner.run(example, out=printed.append)
    assert not failed, "".join(printed)


def test_every_public_class_has_an_example():
    public = [getattr(hf_vanilla, name) for name in hf_vanilla.__all__]
    classes = {f"{c.__module__}.{c.__qualname__}" for c in public if inspect.isclass(c)}
    assert classes <= {example.name for example in EXAMPLES}
