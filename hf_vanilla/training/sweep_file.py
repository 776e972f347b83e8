"""A sweep file: runs, seeds and a test set; which of its runs are finished."""

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_vanilla.data.bleu import check_bleu_tokenizer
from hf_vanilla.data.lines import check_text_file, read_lines
from hf_vanilla.families import DEFAULT_TASK
from hf_vanilla.file_values import check_names, is_finite_number, read_yaml, shown
from hf_vanilla.options import typed_values
from hf_vanilla.plots.curves import RECIPE_FILE

from .recipe import Recipe, read_recipe, recipe_of

RECORD_FILE, TEST_FILE = "sweep.json", "test.txt"
FILE_KEYS = ("title", "about", "output_dir", "seeds", "options", "runs", "test")
# what the file sets for each run
OWN_OPTIONS = {"seed": "seeds", "output_dir": "output_dir of the file"}


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """Text that every finished translation model of a sweep translates.

    Attributes:
        source: file of source sentences.
        reference: file of their translations.
        tokenize: sacreBLEU's tokenizer.
        lowercase: ignore case.
    """

    source: str
    reference: str
    tokenize: str = "13a"
    lowercase: bool = False

    __test__ = False  # not a test of pytest

    @cached_property
    def source_hash(self) -> str:
        """SHA-256 of the source sentences, by which a changed file is noticed."""
        text = "\n".join(read_lines(self.source))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class SweepRun:
    """One training run of a sweep.

    Attributes:
        name: of its row; runs of one name differ in the seed.
        seed: of weights, order and dropout.
        folder: of the run; its log is beside it.
        options: as in a recipe, which `recipe` names, without seed and folder.
    """

    name: str
    seed: int
    folder: Path
    options: dict[str, Any]

    @property
    def log(self) -> Path:
        """What the run prints."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def recipe(self) -> Recipe:
        """The recipe with this run's options.

        Raises:
            ValueError: a key is unknown or a value impossible.
            OSError: the recipe cannot be read.
        """
        return recipe_of({**self.options, "seed": self.seed, "output_dir": str(self.folder)})

    @property
    def recipe_file(self) -> Path:
        """Where the command that trains it reads its recipe."""
        return self.folder.with_name(f"{self.folder.name}.yaml")

    @property
    def command(self) -> list[str]:
        """The command that trains it."""
        return [sys.executable, "-m", "hf_vanilla", "train", "--recipe", str(self.recipe_file)]

    def record(self) -> dict[str, Any] | None:
        """What was noted at its end; None as long as it is not finished.

        Raises:
            ValueError: it was trained by another recipe than the file names now, or the record is
                damaged.
        """
        path = self.folder / RECORD_FILE
        if not path.is_file():
            return None
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            values = [float(value) for value in record["values"].values()]
        except (ValueError, KeyError, TypeError, AttributeError):
            values = [math.nan]
        if not all(map(math.isfinite, values)):
            raise ValueError(
                f"{path} is damaged: delete it, and hf-vanilla sweep FILE writes it again"
            )
        self._check_trained()
        return record

    def _check_trained(self) -> None:
        written = self.folder / RECIPE_FILE
        changed = self.recipe().changes_from(read_recipe(["--recipe", str(written)]))
        changed.pop("output_dir", None)  # the same folder, perhaps moved
        if changed:
            shown = ", ".join("{} ({!r}, now {!r})".format(n, *changed[n]) for n in sorted(changed))
            raise ValueError(
                f"{self.folder} was trained with other options, which differ in {shown}: choose "
                "another output_dir, or delete the folder"
            )

    def has_translated(self, test: TestSet, record: Mapping[str, Any]) -> bool:
        """Whether this finished run has the translation of a test set.

        Args:
            test: the test set as it is now.
            record: of this run.
        """
        is_same = record.get("test_source") == test.source_hash
        return is_same and (self.folder / TEST_FILE).is_file()


@dataclass(frozen=True)
class Sweep:
    """What a sweep file asks for.

    Attributes:
        runs: in the order of the file, all seeds of a run together.
        test: what finished models translate; None: nothing.
        published: a published score by name of the run, for those that have one.
        task: of all runs.
        title: of a page about it.
        about: text of that page.
    """

    runs: tuple[SweepRun, ...]
    test: TestSet | None
    published: Mapping[str, float]
    task: str
    title: str = "A sweep"
    about: str = ""

    def published_difference(self, name: str, baseline: str) -> float | None:
        """A published score minus the baseline's; None for itself, or where one is missing."""
        value, base = self.published.get(name), self.published.get(baseline)
        return None if value is None or base is None or name == baseline else round(value - base, 6)

    @property
    def names(self) -> list[str]:
        """The names of the rows, in order."""
        return list(dict.fromkeys(run.name for run in self.runs))


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file; every recipe in it is checked.

    Raises:
        ValueError: a key is unknown, missing, or a value impossible.
        OSError: a file cannot be read.
    """
    values = read_yaml(path)
    check_names(str(path), values, FILE_KEYS)
    _check_values(path, values)
    seeds, options = _seeds(path, values["seeds"]), values.get("options") or {}
    runs: list[SweepRun] = []
    published: dict[str, float] = {}
    tasks, folder = set(), Path(values["output_dir"])
    for name, section in values["runs"].items():
        where = f"{path}: runs.{name}"
        check_names(where, section, section)
        own = dict(section)
        if (score := own.pop("published", None)) is not None:
            if not is_finite_number(score):
                raise ValueError(
                    f"{where}: published={shown(score)}: give a number, or leave it out"
                )
            published[str(name)] = score
        own = {**options, **own}
        for option, instead in OWN_OPTIONS.items():
            if option in own:
                raise ValueError(f"{where}: {option}={shown(own[option])}: give {instead}")
        of_name = [SweepRun(str(name), s, folder / f"{name}-seed-{s}", own) for s in seeds]
        try:
            tasks.add(of_name[0].recipe().task)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        runs += of_name
    if len(tasks) > 1:
        raise ValueError(f"{path}: runs of several tasks ({', '.join(sorted(tasks))})")
    (task,) = tasks
    test = _test_set(path, values.get("test"), task)
    page = {key: str(values[key]).strip() for key in ("title", "about") if values.get(key)}
    return Sweep(tuple(runs), test, published, task, **page)


def _check_values(path: Path, values: Mapping[str, Any]) -> None:
    """Check that what every sweep needs is there, and of its type."""
    for key in ("output_dir", "seeds", "runs"):
        if not values.get(key):
            raise ValueError(f"{path}: {key} is missing")
    if not isinstance(values["output_dir"], str):
        raise ValueError(f"{path}: output_dir={shown(values['output_dir'])}: give a folder")
    for name in ("options", "runs"):
        section = values.get(name) or {}
        check_names(f"{path}: {name}", section, section)  # that it holds keys and values


def _seeds(path: Path, seeds: Any) -> list[int]:
    if not isinstance(seeds, list) or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ValueError(f"{path}: seeds={shown(seeds)}: give a list of numbers, such as [0, 1, 2]")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{path}: seeds={shown(seeds)}: give each seed once")
    return seeds


def _test_set(path: Path, section: Any, task: str) -> TestSet | None:
    if section is None:
        return None
    check_names(f"{path}: test", section, [declared.name for declared in fields(TestSet)])
    if task != DEFAULT_TASK:
        raise ValueError(f"{path}: test is for task {DEFAULT_TASK}, and the task is {task}")
    if not {"source", "reference"} <= section.keys():
        raise ValueError(f"{path}: test needs source and reference")
    try:
        test = TestSet(**typed_values([TestSet], section))
    except ValueError as error:
        raise ValueError(f"{path}: test.{error}") from None
    check_bleu_tokenizer(test.tokenize)
    sizes = [sum(1 for _ in read_lines(check_text_file(f))) for f in (test.source, test.reference)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"{path}: test: {test.source} has {sizes[0]} lines, but {test.reference} {sizes[1]}"
        )
    if not sizes[0]:
        raise ValueError(f"{path}: test: {test.source} is empty: give sentences")
    return test
