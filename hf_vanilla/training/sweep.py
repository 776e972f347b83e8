"""Train the runs of a list, each with several seeds: `hf-vanilla sweep FILE`."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import torch

from hf_vanilla.cpus import usable_cpus
from hf_vanilla.families import validation_measures
from hf_vanilla.files import read_json_lines, write_text
from hf_vanilla.options import Options, option, options_and_file
from hf_vanilla.plots.curves import LOG_FILE

from .processes import TERMINATED_STATUS
from .sweep_file import RECORD_FILE, TEST_FILE, Sweep, SweepRun, read_sweep

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options):
    """Train every run of FILE with every seed, and continue an interrupted sweep."""

    processes: int | None = option(
        None, "runs at a time; default: one per GPU, or one per CPU core without any", at_least=1
    )


def read_sweep_command(arguments: Sequence[str]) -> tuple[Path, SweepOptions]:
    """The file and the options of a command line.

    Raises:
        UsageError: there is not exactly one file, or an option is unknown.
    """
    return options_and_file(SweepOptions, arguments, "one YAML file of runs: hf-vanilla sweep FILE")


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
    waiting = sorted((r for r in sweep.runs if not _is_finished(r, sweep)), key=lambda r: r.seed)
    logger.info("%d of %d runs are finished", len(sweep.runs) - len(waiting), len(sweep.runs))
    gpus = visible_gpus()
    workers = options.processes or len(gpus) or usable_cpus()
    threads = threads_of_run(workers, usable_cpus(), os.environ.get("OMP_NUM_THREADS"))
    children = Children(environments(workers, threads, gpus))
    pool = ThreadPoolExecutor(max_workers=workers)
    with children.ended_by_sigterm():
        try:
            results = list(pool.map(lambda run: _train_and_test(run, sweep, children), waiting))
        finally:
            pool.shutdown(cancel_futures=True)
    failed = [run for run, is_done in zip(waiting, results, strict=True) if not is_done]
    if failed:
        logs = ", ".join(str(run.log) for run in failed)
        raise ValueError(f"{len(failed)} of {len(sweep.runs)} runs failed; see {logs}")
    return f"{len(sweep.runs)} runs are finished: hf-vanilla compare {path}"


def _is_finished(run: SweepRun, sweep: Sweep) -> bool:
    record = run.record()
    if record is None or sweep.test is None:
        return record is not None
    return run.has_translated(sweep.test, record)


def threads_of_run(workers: int, cpus: int, given: str | None) -> str:
    """The threads of each run: an equal share of the CPUs, or what the user chose.

    Args:
        workers: runs at a time.
        cpus: that this process may use.
        given: the variable `OMP_NUM_THREADS`; None where it is not set. The number of all CPUs is
            no choice: the package itself sets it where a container has a quota.
    """
    if given not in (None, str(cpus)):
        return given
    # two processes with two threads each are slower on two cores than with one each
    return str(max(1, cpus // workers))


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[:count] if given else [str(number) for number in range(count)]


def environments(workers: int, threads: str, gpus: Sequence[str]) -> list[dict[str, str]]:
    """The variables of each of the runs at a time: its threads and, where there are GPUs, its own.

    Args:
        workers: runs at a time; where there are more of them than GPUs, several share one.
        threads: of each run.
        gpus: names for `CUDA_VISIBLE_DEVICES`.
    """
    shared = [{"OMP_NUM_THREADS": threads} for _ in range(workers)]
    if not gpus:
        return shared
    return [
        {**variables, "CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]}
        for number, variables in enumerate(shared)
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
                process = subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **variables},
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


def _train_and_test(run: SweepRun, sweep: Sweep, children: Children) -> bool:
    """Train one run, translate the test set, note the result; False where a command failed."""
    started = time.monotonic()
    logger.info("%s, seed %d: started; log in %s", run.name, run.seed, run.log)
    record = run.record()
    commands = [run.command] if record is None else []
    if sweep.test is not None:
        model = ["--model", str(run.folder), "--overwrite", "True"]
        files = ["--input", sweep.test.source, "--output", str(run.folder / TEST_FILE)]
        commands.append([sys.executable, "-m", "hf_vanilla", "translate", *model, *files])
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    write_text(run.recipe_file, run.recipe().to_yaml())
    with run.log.open("ab") as log:
        for command in commands:
            status = children.run(command, log)
            if status:
                what = "stopped" if status == TERMINATED_STATUS else "failed"
                logger.warning("%s, seed %d: %s; see %s", run.name, run.seed, what, run.log)
                return False
    if record is None:
        seconds = round(time.monotonic() - started, 1)
        entries = read_json_lines(run.folder / LOG_FILE)
        final = [entry for entry in entries if entry.get("averaged_checkpoints")]
        names = {name: m.log_name or name for name, m in validation_measures(sweep.task).items()}
        values = {n: final[-1][key] for n, key in names.items() if final and key in final[-1]}
        record = {"values": values, "seconds": seconds}
    if sweep.test is not None:
        record["test_source"] = sweep.test.source_hash
    write_text(run.folder / RECORD_FILE, json.dumps(record, indent=2))
    shown = "  ".join(f"{name} {value:.4f}" for name, value in record["values"].items())
    logger.info("%s, seed %d: %.0f s  %s", run.name, run.seed, time.monotonic() - started, shown)
    return True
