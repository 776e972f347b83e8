"""Hints to install an extra."""

import tomllib

from hf_vanilla import extras


def test_the_hint_is_that_of_a_clone_or_of_an_installed_package(monkeypatch, tmp_path):
    assert extras.install_hint("plot") == "pip install -e '.[plot]'"
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    assert extras.install_hint("plot") == "pip install 'hf-vanilla[plot]'"


def test_every_hint_names_an_extra_that_exists():
    project = tomllib.loads((extras.ROOT / "pyproject.toml").read_text())["project"]
    named = {
        text.split("install_hint(")[1].split(")")[0].strip("'\"")
        for path in (extras.ROOT / "hf_vanilla").rglob("*.py")
        for text in path.read_text(encoding="utf-8").splitlines()
        if "{install_hint(" in text
    }
    assert {"app", "ctranslate2", "eval", "plot", "ray"} <= named
    assert named <= project["optional-dependencies"].keys()
