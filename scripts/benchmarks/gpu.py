"""A GPU in one call: every code path, training, decoding, the published recipe.

    scripts/benchmarks/gpu.py                       on a machine with a GPU, within 10 minutes
    scripts/benchmarks/gpu.py --device cpu --tiny   tries the script itself

It needs nothing but the package; CTranslate2 and flash_attn are used where they are installed. Each
part has a process and a time limit of its own. A case that fails is recorded, and the others run.
The output folder gets results.json and results.md; the exit status is 1 if any case failed.
"""

import gc
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from gpu_decoding import decoding
from gpu_options import Cases, Facts, GpuOptions, SkippedError
from gpu_paths import code_paths
from gpu_training import recipe, training

from hf_vanilla.commands import run
from hf_vanilla.files import write_text

# each part, and its share of the time that is left for it and the parts after it
RUNNERS: dict[str, tuple[Callable[[GpuOptions], Cases], float]] = {
    "paths": (code_paths, 1.0),
    "training": (training, 2.0),
    "decoding": (decoding, 2.0),
    "recipe": (recipe, 5.0),
}
DONE, SKIPPED, FAILED = "done", "skipped", "failed"
ERROR_LETTERS = 300


def device_facts(options: GpuOptions) -> Cases:
    """Name and memory of the device, and versions."""

    def facts() -> Facts:
        if options.is_cuda and not torch.cuda.is_available():
            raise RuntimeError("no CUDA device")
        found: Facts = {name: version(name) for name in ("hf_vanilla", "torch", "transformers")}
        if not options.is_cuda:
            return {"device": "CPU", **found}
        known = torch.cuda.get_device_properties(0)
        return {"device": known.name, "memory_gib": round(known.total_memory / 2**30), **found}

    yield "device", facts


def work(connection: Connection, cases: Callable[[GpuOptions], Cases], options: GpuOptions) -> None:
    """The process of one part: sends the result of each case, then None."""
    name = "first case"
    try:
        for name, case in cases(options):
            connection.send(result_of(name, case))
            gc.collect()  # a failed case may have left its tensors
    except Exception as error:
        connection.send(failure(name, error))
    connection.send(None)


def result_of(name: str, case: Callable[[], Facts]) -> Facts:
    """Run one case; whatever it raises becomes its result."""
    started = time.perf_counter()
    try:
        result = {"case": name, "status": DONE, "facts": case()}
    except SkippedError as error:
        result = {"case": name, "status": SKIPPED, "error": str(error)}
    except Exception as error:
        result = failure(name, error)
    return {**result, "seconds": round(time.perf_counter() - started, 2)}


def failure(name: str, error: Exception) -> Facts:
    """The result of a case that failed, with the place in the code."""
    message = f"{type(error).__name__}: {error}".replace("\n", " ")[:ERROR_LETTERS]
    place = "".join(traceback.format_tb(error.__traceback__)[-2:])
    return {"case": name, "status": FAILED, "error": message, "traceback": place}


def results_of_part(
    cases: Callable[[GpuOptions], Cases], options: GpuOptions, *, seconds: float
) -> Iterator[Facts]:
    """Results of the cases of one part as they come; at the time limit its process is ended."""
    # the parent touches no GPU, so a forked process may, and has imported everything
    context, deadline = multiprocessing.get_context("fork"), time.monotonic() + seconds
    patience = 0.0
    connection, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, cases, options))
    process.start()
    theirs.close()
    try:
        while connection.poll(max(0.0, deadline - time.monotonic())):
            result = connection.recv()
            if result is None:
                patience = 10.0  # seconds in which it ends by itself
                return
            yield result
        message = f"not finished within {seconds:.3g} seconds"
        yield {"case": "time limit", "status": FAILED, "error": message}
    except EOFError:
        process.join()
        message = f"its process ended with exit code {process.exitcode}"
        yield {"case": "process", "status": FAILED, "error": message}
    finally:
        process.join(patience)
        process.kill()
        process.join()
        connection.close()


def benchmark(options: GpuOptions) -> None:
    """Run the chosen parts and write the results after each."""
    (device,) = results_of_part(device_facts, options, seconds=120)
    if device["status"] == FAILED:
        raise ValueError(
            f"{device['error']}: give --device cpu --tiny to try the script without one"
        )
    folder, ends = Path(options.output), time.monotonic() + 60 * options.minutes
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {**device["facts"], "options": vars(options), "parts": {}}
    chosen = options.chosen
    for number, part in enumerate(chosen):
        cases, share = RUNNERS[part]
        all_shares = sum(RUNNERS[each][1] for each in chosen[number:])
        rows = results["parts"][part] = []
        limit = max(1.0, (ends - time.monotonic()) * share / all_shares)
        for row in results_of_part(cases, options, seconds=limit):
            rows.append(row)
            print(f"{part}: {row['case']}: {told(row)}", flush=True)
        write_text(folder / "results.json", json.dumps(results, indent=1) + "\n")
        write_text(folder / "results.md", as_markdown(results))
    failed = [row for rows in results["parts"].values() for row in rows if row["status"] == FAILED]
    print(f"{folder / 'results.md'}: {len(failed)} failed")
    if failed:
        sys.exit(1)


def as_markdown(results: Facts) -> str:
    """One table per part."""
    names = ("device", "memory_gib", "hf_vanilla", "torch", "transformers")
    facts = ", ".join(f"{name} {results[name]}" for name in names if name in results)
    lines = ["# Benchmark on a GPU", "", facts]
    for part, rows in results["parts"].items():
        lines += ["", f"## {part}", "", "| case | seconds | result |", "|---|---|---|"]
        lines += [f"| {row['case']} | {row.get('seconds', '')} | {told(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def told(row: Facts) -> str:
    """The result of a case in words."""
    if row["status"] != DONE:
        return f"{row['status']}: {row['error']}".replace("|", "/")
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row["facts"].items()
    )


if __name__ == "__main__":
    run(benchmark, GpuOptions)
