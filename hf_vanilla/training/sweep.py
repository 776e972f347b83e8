"""Train the runs of a file, each with several seeds: `hf-vanilla sweep FILE`."""

import hashlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import torch
from huggingface_hub.errors import StrictDataclassError

from hf_vanilla.cpus import usable_cpus
from hf_vanilla.data.bleu import check_bleu_tokenizer
from hf_vanilla.data.lines import check_text_file, read_lines, read_pairs
from hf_vanilla.families import DEFAULT_TASK, validation_measures
from hf_vanilla.file_values import check_names, is_finite_number, read_yaml, shown
from hf_vanilla.files import read_json_lines, write_text
from hf_vanilla.options import (
    Options,
    UsageError,
    made_section,
    option,
    options_and_paths,
    parse_options,
)
from hf_vanilla.plots.curves import LOG_FILE

from .preparation import locked
from .processes import TERMINATED_STATUS
from .recipe import Recipe, overridden, recipe_of

logger = logging.getLogger(__name__)

RECORD_FILE, TEST_FILE = "sweep.json", "test.txt"
FILE_KEYS = ("title", "about", "output_dir", "seeds", "options", "runs", "test")
# what the file sets for each run
OWN_OPTIONS = {"seed": "seeds", "output_dir": "output_dir of the file"}


# --- the file ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TestSet(Options):
    """Text that every finished translation model of a sweep translates."""

    source: str = option(text="file of source sentences")
    reference: str = option(text="file of their translations")
    tokenize: str = option("13a", "sacreBLEU's tokenizer")
    lowercase: bool = option(False, "ignore case")

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

    def beside(self, suffix: str) -> Path:
        """A file beside the folder: `.log`, what the run prints, or `.yaml`, what it reads."""
        return self.folder.with_name(self.folder.name + suffix)

    def recipe(self) -> Recipe:
        """The recipe with this run's options.

        Raises:
            ValueError: a key is unknown or a value impossible.
            OSError: the recipe cannot be read.
        """
        return recipe_of({**self.options, "seed": self.seed, "output_dir": str(self.folder)})

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
            raise ValueError(f"{path} is damaged: delete it, and the sweep writes it again")
        # output_dir: the same folder, perhaps moved
        if changes := self.recipe().changes_since(self.folder, free={"output_dir"}):
            raise ValueError(
                f"{self.folder} was trained with other options, which differ in {changes}: choose "
                "another output_dir, or delete the folder"
            )
        return record

    def is_done(self, record: Mapping[str, Any] | None, test: TestSet | None) -> bool:
        """Whether this run is finished and has translated the test set, where there is one.

        Args:
            record: of this run.
            test: the test set as it is now.
        """
        if record is None or test is None:
            return record is not None
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
    seeds, options = values["seeds"], values.get("options") or {}
    runs: list[SweepRun] = []
    published: dict[str, float] = {}
    tasks, folder = set(), Path(values["output_dir"])
    for name, section in values["runs"].items():
        where = f"{path}: runs.{name}"
        own = {} if section is None else section
        check_names(where, own, own)  # that it holds keys and values
        own = dict(own)
        if (score := own.pop("published", None)) is not None:
            if not is_finite_number(score):
                raise ValueError(f"{where}: published={shown(score)}: give a number, or none")
            published[str(name)] = score
        try:
            own = overridden(options, own)
            for key, instead in OWN_OPTIONS.items():
                if key in own:
                    raise ValueError(f"{key}={shown(own[key])}: give {instead}")
            of_name = [SweepRun(str(name), s, folder / f"{name}-seed-{s}", own) for s in seeds]
            tasks.add(of_name[0].recipe().task)
        except (ValueError, OSError, StrictDataclassError) as error:
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
    runs, options = values["runs"], values.get("options")
    check_names(f"{path}: runs", runs, runs)  # that it holds keys and values
    if options is not None:
        check_names(f"{path}: options", options, options)
    names = [str(name) for name in runs]
    if wrong := [n for n in names if {"/", "\\"}.intersection(n) or names.count(n) > 1]:
        raise ValueError(f"{path}: runs.{wrong[0]}: give a run a name of its own, without / and \\")
    seeds = values["seeds"]
    if not isinstance(seeds, list) or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ValueError(f"{path}: seeds={shown(seeds)}: give a list of numbers, such as [0, 1, 2]")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{path}: seeds={shown(seeds)}: give each seed once")


def _test_set(path: Path, section: Any, task: str) -> TestSet | None:
    if section is None:
        return None
    if task != DEFAULT_TASK:
        raise ValueError(f"{path}: test is for task {DEFAULT_TASK}, and the task is {task}")
    test = made_section(TestSet, section, f"{path}: test")
    check_bleu_tokenizer(test.tokenize)
    for _ in read_pairs(check_text_file(test.source), check_text_file(test.reference)):
        pass  # each sentence has a translation
    return test


# --- the runs ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options):
    """Train every run of FILE with every seed, and continue an interrupted sweep."""

    processes: int | None = option(
        None, "runs at a time; default: one per GPU, or one per CPU core without any", at_least=1
    )


def options_and_file(kind: type, arguments: Sequence[str], use: str) -> tuple[Path, Any]:
    """The one file of a command line, and its options.

    Args:
        kind: dataclass of the options.
        arguments: of the command line.
        use: what the file is, and the command; for the message.

    Raises:
        UsageError: there is not exactly one file, or an option is unknown.
    """
    options, paths = options_and_paths(kind, arguments)
    parsed = parse_options(kind, options, chosen="FILE")
    if len(paths) != 1:
        raise UsageError(f"give {use}")
    return Path(paths[0]), parsed


# from a command line to the file and its options
read_sweep_command = partial(
    options_and_file, SweepOptions, use="one YAML file of runs: hf-vanilla sweep FILE"
)


def run_sweep(request: tuple[Path, SweepOptions]) -> str:
    """Train what is not finished yet; returns how many runs are.

    Each run is a process; its log is beside its folder. A run that was interrupted resumes from
    its newest checkpoint. Where only the test set has changed, finished runs translate it again.

    Raises:
        ValueError: the file is wrong; or, after all other runs are done, runs failed.
        OSError: a file cannot be read.
        SystemExit: SIGTERM; the runs have saved a checkpoint each.
    """
    path, options = request
    sweep = read_sweep(path)
    # seed by seed, so that a sweep that is not finished compares all runs
    waiting = [run for run in sweep.runs if not run.is_done(run.record(), sweep.test)]
    waiting.sort(key=lambda run: run.seed)
    for run in (run for run in waiting if run.record() is None):  # before others take their time
        for file in getattr(run.recipe().data, "named_files", ()):
            if not Path(file).exists():
                raise FileNotFoundError(f"{path}: runs.{run.name}: {file}: no such file")
    logger.info("finished: %d of %d runs", len(sweep.runs) - len(waiting), len(sweep.runs))
    variables = environments(options.processes)
    children, pool = Children(variables), ThreadPoolExecutor(max_workers=len(variables))
    with children.ended_by_sigterm():
        try:
            results = list(pool.map(lambda run: _is_trained(run, sweep, children), waiting))
        finally:
            pool.shutdown(cancel_futures=True)
    failed = [run for run, is_done in zip(waiting, results, strict=True) if not is_done]
    if failed:
        logs = ", ".join(str(run.beside(".log")) for run in failed)
        raise ValueError(f"{len(failed)} of {len(sweep.runs)} runs failed; see {logs}")
    count = len(sweep.runs)
    return f"finished: {count} of {count} runs; to compare them: hf-vanilla compare {path}"


def environments(processes: int | None) -> list[dict[str, str]]:
    """The variables of each of the runs at a time: its threads and, where there are GPUs, its own.

    The threads are an equal share of the CPUs, or what the user chose.

    Args:
        processes: runs at a time; where there are more of them than GPUs, several share one. None:
            as many as GPUs, or as CPUs without any.
    """
    cpus, count = usable_cpus(), torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = given.split(",")[:count] if given else [str(number) for number in range(count)]
    workers = processes or len(gpus) or cpus
    threads = os.environ.get("OMP_NUM_THREADS")
    # the number of all CPUs is no choice: the package sets it where a container has a quota
    if threads in (None, str(cpus)):
        # two processes with two threads each are slower on two cores than with one each
        threads = str(max(1, cpus // workers))
    return [
        {"OMP_NUM_THREADS": threads}
        | ({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {})
        for number in range(workers)
    ]


class Children:
    """The processes of a sweep, which end with it.

    Args:
        environments: variables of each of the processes at a time.
    """

    def __init__(self, environments: Sequence[dict[str, str]]) -> None:
        self._free: SimpleQueue[dict[str, str]] = SimpleQueue()
        for variables in environments:
            self._free.put(variables)
        self._running: set[subprocess.Popen] = set()
        self._is_ending, self._lock = False, threading.Lock()

    def run(self, command: Sequence[str], log: IO[bytes]) -> int:
        """Run a command with a free environment; returns its exit status."""
        variables = self._free.get()
        try:
            with self._lock:
                if self._is_ending:
                    return TERMINATED_STATUS
                env = {**os.environ, **variables}
                process = subprocess.Popen(
                    command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env
                )
                self._running.add(process)
            status = process.wait()
            with self._lock:
                self._running.discard(process)
            return status
        finally:
            self._free.put(variables)

    @contextmanager
    def ended_by_sigterm(self) -> Iterator[None]:
        """Hand a SIGTERM to all processes, which then save and end; wait for them."""

        def end(*_: Any) -> None:
            with self._lock:
                self._is_ending = True
                for process in self._running:
                    process.terminate()
            raise SystemExit(TERMINATED_STATUS)

        before = signal.signal(signal.SIGTERM, end)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _is_trained(run: SweepRun, sweep: Sweep, children: Children) -> bool:
    """Train and test one run; False where that failed, so that the others go on."""
    try:
        with locked(run.beside(".sweep")):
            # another sweep may have finished it meanwhile
            is_done = run.is_done(run.record(), sweep.test)
            return is_done or _train_and_test(run, sweep, children)
    except (ValueError, OSError) as error:
        logger.warning("%s, seed %d: failed: %s", run.name, run.seed, error)
        return False


def _train_and_test(run: SweepRun, sweep: Sweep, children: Children) -> bool:
    """Train one run, translate the test set, note the result; False where a command failed."""
    started = time.monotonic()
    logger.info("%s, seed %d: started; log in %s", run.name, run.seed, run.beside(".log"))
    record, recipe_file = run.record(), run.beside(".yaml")
    program = [sys.executable, "-m", "hf_vanilla"]
    commands = [[*program, "train", "--recipe", str(recipe_file)]] if record is None else []
    if sweep.test is not None:
        model = ["--model", str(run.folder), "--overwrite", "True"]
        files = ["--input", sweep.test.source, "--output", str(run.folder / TEST_FILE)]
        commands.append([*program, "translate", *model, *files])
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    write_text(recipe_file, run.recipe().to_yaml())
    with run.beside(".log").open("ab") as log:
        for command in commands:
            status = children.run(command, log)
            if status:
                # a command that has just started does not handle signals yet
                signals = (signal.SIGINT, signal.SIGTERM)
                what = "stopped" if -status in signals or status - 128 in signals else "failed"
                logger.warning("%s, seed %d: %s; see %s", run.name, run.seed, what, log.name)
                return False
    if record is None:
        seconds = round(time.monotonic() - started, 1)
        record = {"values": _final_scores(run, sweep), "seconds": seconds}
    if sweep.test is not None:
        record["test_source"] = sweep.test.source_hash
    write_text(run.folder / RECORD_FILE, json.dumps(record, indent=2))
    shown = "  ".join(f"{name} {value:.4f}" for name, value in record["values"].items())
    logger.info("%s, seed %d: %.0f s  %s", run.name, run.seed, time.monotonic() - started, shown)
    return True


def _final_scores(run: SweepRun, sweep: Sweep) -> dict[str, float]:
    """Validation scores of a trained run's finished model; none without validation data."""
    path = run.folder / LOG_FILE
    entries = read_json_lines(path)
    names = {name: m.log_name or name for name, m in validation_measures(sweep.task).items()}
    final = [entry for entry in entries if entry.get("averaged_checkpoints")]
    if final:
        return {name: final[-1][key] for name, key in names.items() if key in final[-1]}
    if any(key in entry for entry in entries for key in names.values()):
        raise ValueError(f"{path} has no line of the finished model: delete {run.folder}")
    if sweep.test is None:
        raise ValueError(
            f"{run.folder} has no scores: give the run validation data, or add test to the sweep"
        )
    return {}
