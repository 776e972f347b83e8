"""Command lines and YAML files to options."""

import re
import tomllib
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from hf_vanilla.file_values import check_names, read_yaml, yaml_value
from hf_vanilla.options import given_options, install_hint, parse_options, parsed_values, pop_option


@dataclass(frozen=True, kw_only=True)
class SomeOptions:
    """Options of a test."""

    model: str = field(metadata={"help": "a folder"})
    count: int = field(default=3, metadata={"help": "how many"})


@dataclass(frozen=True, kw_only=True)
class OtherOptions:
    """More options of a test."""

    name: str | None = field(default=None, metadata={"help": "a name"})
    files: list[str] = field(default_factory=list, metadata={"help": "files"})
    sorts: bool = field(default=True, metadata={"help": "sort them; else not"})


def test_options_of_one_class_come_as_one_and_of_several_as_values_by_name():
    assert parse_options(SomeOptions, ["--model", "a"]) == SomeOptions(model="a")
    both = parsed_values([SomeOptions, OtherOptions], ["--name=b", "--model", "a"])
    assert both == {"model": "a", "name": "b"}


@pytest.mark.parametrize("typed", ["--files a b", "--files a --files b", "--files=a --files b"])
def test_an_option_of_several_values_may_be_given_several_times(typed):
    assert parse_options(OtherOptions, typed.split()).files == ["a", "b"]


def test_a_missing_option_is_named():
    with pytest.raises(ValueError, match="missing: --model; see --help"):
        parse_options(SomeOptions, ["--count", "5"])


def test_an_abbreviated_option_is_not_guessed():
    with pytest.raises(ValueError, match="unknown: --coun 5"):
        parse_options(SomeOptions, ["--model", "a", "--coun", "5"])


def test_help_lists_every_option_and_ends_with_the_epilog(capsys):
    with pytest.raises(SystemExit) as caught:
        parsed_values([SomeOptions, OtherOptions], ["--help"], epilog="last words")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{name}" in text for name in ("model", "count", "name"))
    assert text.count("sort them; else not") == 1
    assert "opposite of --sorts" in text.split("--no_sorts")[1]
    assert text.rstrip().endswith("last words")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("3E5", 3e5), ("no", "no"), ("true", True), ("7", 7), ("[1, 2]", [1, 2])],
)
def test_yaml_reads_numbers_and_switches_as_people_write_them(text, value):
    read = yaml_value(text)
    assert (read, type(read)) == (value, type(value))


def test_what_is_no_yaml_is_refused():
    with pytest.raises(ValueError, match="not YAML"):
        yaml_value("[")


@pytest.mark.parametrize("text", ["- a\n- b\n", "only words\n", ""])
def test_a_file_without_keys_is_refused_by_name(tmp_path, text):
    path = tmp_path / "list.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"list\.yaml must hold keys and values"):
        read_yaml(path)


def test_popping_an_option_takes_all_its_places_and_the_last_value():
    arguments = ["--a", "1", "--b=2", "--a=3", "rest"]
    assert pop_option(arguments, "--a") == "3"
    assert arguments == ["--b=2", "rest"]
    assert pop_option(arguments, "--a") is None
    arguments = ["--max-steps=1", "--max_steps", "2", "--max-step", "3"]
    assert pop_option(arguments, "--max_steps") == "2"
    assert arguments == ["--max-step", "3"]


def test_an_option_at_the_end_without_a_value_is_named():
    with pytest.raises(ValueError, match="--a needs a value"):
        pop_option(["--b=2", "--a"], "--a")


def test_given_options_know_dashes_from_underscores_and_values_from_names():
    assert given_options(["--max-steps", "5", "--seed=1", "file"]) == {"max_steps", "seed"}


def test_an_unknown_name_suggests_the_one_that_was_meant():
    check_names("recipe", {"seed": 1}, ["seed", "max_steps"])
    with pytest.raises(
        ValueError, match="recipe: unknown key 'max_step'; did you mean 'max_steps'"
    ):
        check_names("recipe", {"max_step": 1}, ["seed", "max_steps"])
    with pytest.raises(ValueError, match="known: max_steps, seed"):
        check_names("recipe", {"xyz": 1}, ["seed", "max_steps"])
    with pytest.raises(ValueError, match="recipe must hold keys and values"):
        check_names("recipe", ["seed"], ["seed"])


# --- installation hints --------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[1]


def test_no_text_installs_this_package_from_an_index_that_does_not_have_it():
    assert install_hint("plot") == "pip install -e '.[plot]' in a clone of hf_vanilla"
    folders = ("hf_vanilla", "scripts", "docs")
    files = [
        ROOT / "README.md",
        *(f for name in folders for f in (ROOT / name).rglob("*.[mp][dy]")),
    ]
    texts = {f: f.read_text(encoding="utf-8") for f in (ROOT / "README.md", *files)}
    from_index = re.compile(r"pip install ['\"]?hf[-_]vanilla")
    assert [file.name for file, text in texts.items() if from_index.search(text)] == []


def test_the_constraints_hold_every_library_the_lowest_ones_at_the_lowest_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [project["dependencies"], *project["optional-dependencies"].values()]
    needed = {r.name: r.specifier for line in chain(*lines) if (r := Requirement(line)).name}
    del needed["hf-vanilla"]
    for name in ("constraints.txt", "constraints-lowest.txt"):
        text = (ROOT / name).read_text(encoding="utf-8")
        pinned = [r for line in text.splitlines() if line[:1] != "#" and (r := Requirement(line))]
        versions = {r.name: next(iter(r.specifier)).version for r in pinned}
        assert len(versions) == len(pinned)
        assert needed.keys() <= versions.keys()
        for library, specifier in needed.items():
            assert specifier.contains(versions[library]), (name, library)
            if name == "constraints-lowest.txt":
                lowest = {Version(s.version) for s in specifier if s.operator == ">="}
                assert lowest == {Version(versions[library])}, library


def test_every_installation_hint_names_an_extra_that_exists():
    text = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "hf_vanilla").rglob("*.py"))
    hint = r"(?:install_hint\(|needs\([^()]+, )[\"'](\w+)[\"']\)"
    named = set(re.findall(hint, text))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"plot", "serve", "convert"} <= named <= set(project["optional-dependencies"])


def test_yaml_that_would_grow_or_nest_without_end_is_refused_in_one_line(tmp_path):
    grown = [f"&a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    bomb = f"a: [&a0 [x, x], {', '.join(grown)}]"  # 2 * 10^8 values
    for text, reason in {
        bomb: "it has the alias",
        "a: " + "[" * 5000: "more than 50 levels",
        "a: !!int x": "is not YAML",
        "a: !!timestamp x": "is not YAML",
        "a: 2021-99-99": "is not YAML",
        "? [1]\n: 2": "is not YAML",
    }.items():
        (tmp_path / "x.yaml").write_text(text)
        for read in (lambda: yaml_value(text), lambda: read_yaml(tmp_path / "x.yaml")):  # noqa: B023
            with pytest.raises(ValueError, match=reason) as caught:
                read()
            assert len(str(caught.value)) < 500
            assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"a must hold keys and values, not \[") as caught:
        check_names("a", list(range(10**6)), ())
    assert len(str(caught.value)) < 500
