"""Train the runs of a list, each with several seeds: `hf-vanilla sweep FILE`."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from hf_vanilla.data.corpus import check_text_file
from hf_vanilla.files import read_json_lines, write_text
from hf_vanilla.options import (
    check_names,
    check_options,
    option,
    options_and_file,
    read_yaml,
)
from hf_vanilla.recipes.recipe import Recipe, read_recipe
from hf_vanilla.recipes.tasks import DEFAULT_TASK, validation_measures
from hf_vanilla.translation.evaluation import check_bleu_tokenizer

logger = logging.getLogger(__name__)

RECORD_FILE, TEST_FILE = "sweep.json", "test.txt"
FILE_KEYS = ("title", "about", "output_dir", "seeds", "options", "runs", "test")


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


@dataclass(frozen=True)
class SweepRun:
    """One training run of a sweep.

    Attributes:
        name: of its row; runs of one name differ in the seed.
        seed: of weights, order and dropout.
        folder: of the run; its log is beside it.
        arguments: of `hf-vanilla train`, without seed and folder.
    """

    name: str
    seed: int
    folder: Path
    arguments: tuple[str, ...]

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
        return read_recipe([*self.arguments, *self._own])

    @property
    def command(self) -> list[str]:
        """The command that trains it."""
        return [sys.executable, "-m", "hf_vanilla", "train", *self.arguments, *self._own]

    @property
    def _own(self) -> list[str]:
        return [f"--seed={self.seed}", f"--output_dir={self.folder}"]

    def record(self) -> dict[str, Any] | None:
        """What was noted at its end; None as long as it is not finished.

        Raises:
            ValueError: it was made with other options than the file has now.
        """
        path = self.folder / RECORD_FILE
        if not path.is_file():
            return None
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["arguments"] != list(self.arguments):
            raise ValueError(
                f"{self.folder} was trained with other options ({' '.join(record['arguments'])}): "
                "choose another output_dir, or delete the folder"
            )
        return record


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

    @property
    def names(self) -> list[str]:
        """The names of the rows, in order."""
        return list(dict.fromkeys(run.name for run in self.runs))


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Train every run of FILE with every seed, and continue an interrupted sweep."""

    processes: int | None = option(
        None, "runs at a time; default: one per CPU core, or 1 with a GPU", at_least=1
    )

    def __post_init__(self) -> None:
        check_options(self)


def read_sweep_command(arguments: Sequence[str]) -> tuple[Path, SweepOptions]:
    """The file and the options of a command line.

    Raises:
        UsageError: there is not exactly one file, or an option is unknown.
    """
    return options_and_file(SweepOptions, arguments, "one YAML file of runs: hf-vanilla sweep FILE")


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file; every recipe in it is checked.

    Raises:
        ValueError: a key is unknown, missing, or a value impossible.
        OSError: a file cannot be read.
    """
    values = read_yaml(path)
    check_names(str(path), values, FILE_KEYS)
    for key in ("output_dir", "seeds", "runs"):
        if not values.get(key):
            raise ValueError(f"{path}: {key} is missing")
    seeds = values["seeds"]
    if not isinstance(seeds, list) or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ValueError(f"{path}: seeds={seeds!r}: give a list of numbers, such as [0, 1, 2]")
    check_names(f"{path}: runs", values["runs"], values["runs"])
    runs, published, tasks = [], {}, set()
    for name, section in values["runs"].items():
        check_names(f"{path}: runs.{name}", section, section)
        own = dict(section)
        if "published" in own:
            published[name] = float(own.pop("published"))
        arguments = _arguments({**(values.get("options") or {}), **own})
        folders = [Path(values["output_dir"]) / f"{name}-seed-{seed}" for seed in seeds]
        of_name = [SweepRun(name, s, f, arguments) for s, f in zip(seeds, folders, strict=True)]
        try:
            tasks.add(of_name[0].recipe().task)
        except ValueError as error:
            raise ValueError(f"{path}: runs.{name}: {error}") from None
        runs += of_name
    if len(tasks) > 1:
        raise ValueError(f"{path}: runs of several tasks ({', '.join(sorted(tasks))})")
    (task,) = tasks
    test = _test_set(path, values.get("test"), task)
    page = {key: str(values[key]).strip() for key in ("title", "about") if values.get(key)}
    return Sweep(tuple(runs), test, published, task, **page)


def _arguments(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Options of a file as arguments of `hf-vanilla train`."""
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": entry for inner, entry in value.items()}
        else:
            flat[key] = value
    return tuple(f"--{key}={value}" for key, value in flat.items())


def _test_set(path: Path, section: Any, task: str) -> TestSet | None:
    if section is None:
        return None
    check_names(f"{path}: test", section, [declared.name for declared in fields(TestSet)])
    if task != DEFAULT_TASK:
        raise ValueError(f"{path}: test is for task {DEFAULT_TASK}, and the task is {task}")
    if not {"source", "reference"} <= section.keys():
        raise ValueError(f"{path}: test needs source and reference")
    test = TestSet(**section)
    check_bleu_tokenizer(test.tokenize)
    for file in (test.source, test.reference):
        check_text_file(file)
    return test


def run_sweep(asked: tuple[Path, SweepOptions]) -> str:
    """Train what is not finished yet; returns how many runs are.

    Each run is a process with one thread; its log is beside its folder. A run that was interrupted
    resumes from its newest checkpoint.

    Raises:
        ValueError: the file is wrong; or, after all other runs are done, runs failed.
        OSError: a file cannot be read.
    """
    path, options = asked
    sweep = read_sweep(path)
    # seed by seed, so that a sweep that is not finished compares all runs
    waiting = sorted((run for run in sweep.runs if run.record() is None), key=lambda run: run.seed)
    logger.info("%d of %d runs are finished", len(sweep.runs) - len(waiting), len(sweep.runs))
    workers = options.processes or (1 if torch.cuda.is_available() else os.cpu_count() or 1)
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        results = list(pool.map(lambda run: _train_and_test(run, sweep), waiting))
    finally:
        pool.shutdown(cancel_futures=True)
    failed = [run for run, is_done in zip(waiting, results, strict=True) if not is_done]
    if failed:
        logs = ", ".join(str(run.log) for run in failed)
        raise ValueError(f"{len(failed)} of {len(sweep.runs)} runs failed; see {logs}")
    return f"{len(sweep.runs)} runs are finished: hf-vanilla compare {path}"


def _train_and_test(run: SweepRun, sweep: Sweep) -> bool:
    """Train one run, translate the test set, note the result; False where a command failed."""
    started = time.monotonic()
    logger.info("%s, seed %d: started; log in %s", run.name, run.seed, run.log)
    commands = [run.command]
    if sweep.test is not None:
        model = ["--model", str(run.folder), "--overwrite", "True"]
        files = ["--input", sweep.test.source, "--output", str(run.folder / TEST_FILE)]
        commands.append([sys.executable, "-m", "hf_vanilla", "translate", *model, *files])
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    # two processes with two threads each are slower on two cores than with one each
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with run.log.open("ab") as log:
        for command in commands:
            status = subprocess.run(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
            ).returncode
            if status:
                logger.warning("%s, seed %d: failed; see %s", run.name, run.seed, run.log)
                return False
    seconds = time.monotonic() - started
    measured = _final_values(run, sweep.task)
    record = {"arguments": list(run.arguments), "values": measured, "seconds": round(seconds, 1)}
    write_text(run.folder / RECORD_FILE, json.dumps(record, indent=2))
    shown = "  ".join(f"{name} {value:.4f}" for name, value in measured.items())
    logger.info("%s, seed %d: %.0f s  %s", run.name, run.seed, seconds, shown)
    return True


def _final_values(run: SweepRun, task: str) -> dict[str, float]:
    """The validation of the finished model, by measure."""
    entries = read_json_lines(run.folder / "log.jsonl")
    final = [entry for entry in entries if entry.get("averaged_checkpoints")]
    names = {name: m.log_name or name for name, m in validation_measures(task).items()}
    return {name: final[-1][key] for name, key in names.items() if final and key in final[-1]}
