"""Every example in a docstring runs and shows what it says."""

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
PUBLIC = [getattr(hf_vanilla, name) for name in hf_vanilla.__all__]
EXAMPLES = [
    test
    for module in (hf_vanilla, *MODULES)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module)
    if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_shows_what_happens(example):
    told = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    failed, tried = runner.run(example, out=told.append)
    assert tried
    assert not failed, "".join(told)


@pytest.mark.parametrize(
    "thing", [t for t in PUBLIC if inspect.isclass(t)], ids=lambda thing: thing.__name__
)
def test_every_public_class_has_an_example(thing):
    assert [e for e in EXAMPLES if e.name == f"{thing.__module__}.{thing.__qualname__}"]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_module_says_what_it_is(module):
    assert (module.__doc__ or "").strip()
