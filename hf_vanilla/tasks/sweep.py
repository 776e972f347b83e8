"""Train the runs of a list, each with several seeds: `hf-vanilla sweep FILE`."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from hf_vanilla.cpus import usable_cpus
from hf_vanilla.files import read_json_lines, write_text
from hf_vanilla.options import check_options, option, options_and_file
from hf_vanilla.recipes.tasks import validation_measures

from .sweep_file import RECORD_FILE, TEST_FILE, Sweep, SweepRun, read_sweep

logger = logging.getLogger(__name__)


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


def run_sweep(asked: tuple[Path, SweepOptions]) -> str:
    """Train what is not finished yet; returns how many runs are.

    Each run is a process; its log is beside its folder. A run that was interrupted resumes from
    its newest checkpoint. Where only the test set has changed, finished runs translate it again.

    Raises:
        ValueError: the file is wrong; or, after all other runs are done, runs failed.
        OSError: a file cannot be read.
    """
    path, options = asked
    sweep = read_sweep(path)
    # seed by seed, so that a sweep that is not finished compares all runs
    waiting = sorted((r for r in sweep.runs if not _is_finished(r, sweep)), key=lambda r: r.seed)
    logger.info("%d of %d runs are finished", len(sweep.runs) - len(waiting), len(sweep.runs))
    workers = options.processes or (1 if torch.cuda.is_available() else usable_cpus())
    threads = threads_of_run(workers, usable_cpus(), os.environ.get("OMP_NUM_THREADS"))
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        results = list(pool.map(lambda run: _train_and_test(run, sweep, threads), waiting))
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


def _train_and_test(run: SweepRun, sweep: Sweep, threads: str) -> bool:
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
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    with run.log.open("ab") as log:
        for command in commands:
            status = subprocess.run(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
            ).returncode
            if status:
                logger.warning("%s, seed %d: failed; see %s", run.name, run.seed, run.log)
                return False
    if record is None:
        seconds = round(time.monotonic() - started, 1)
        record = {"values": _final_values(run, sweep.task), "seconds": seconds}
    if sweep.test is not None:
        record["test_source"] = sweep.test.source_hash
    write_text(run.folder / RECORD_FILE, json.dumps(record, indent=2))
    shown = "  ".join(f"{name} {value:.4f}" for name, value in record["values"].items())
    logger.info("%s, seed %d: %.0f s  %s", run.name, run.seed, time.monotonic() - started, shown)
    return True


def _final_values(run: SweepRun, task: str) -> dict[str, float]:
    """The validation of the finished model, by measure."""
    entries = read_json_lines(run.folder / "log.jsonl")
    final = [entry for entry in entries if entry.get("averaged_checkpoints")]
    names = {name: m.log_name or name for name, m in validation_measures(task).items()}
    return {name: final[-1][key] for name, key in names.items() if final and key in final[-1]}
