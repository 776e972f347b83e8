"""From the command to the first step on millions of pairs: scripts/benchmarks/startup.py.

A made-up set of words is written as Parquet files and trained on for one step of a tiny model, in
fresh processes: once to prepare it (convert, tokenize), once to measure. The same with 10,000
pairs tells how much of time and memory is not due to the size of the set.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hf_vanilla.commands import run
from hf_vanilla.data.tokenizer_training import train_tokenizer

FEW, AT_ONCE = 10_000, 250_000
TRAIN = Path(__file__).resolve().parent.parent / "train.py"
RECIPE = "--source_column en --target_column de --eval_sentences 0 --max_steps 1 --model.d_model 16"
RECIPE += " --model.encoder_layers 1 --model.decoder_layers 1 --average_checkpoints 1"
# the process's own memory, and with it the pages of mapped files that it has read (Linux)
PROGRAM = """
import re, runpy, sys, time
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
status = open("/proc/self/status").read()
own, resident = (re.search(name + r":\\s+(\\d+) kB", status)[1] for name in ("RssAnon", "VmRSS"))
print(time.process_time(), own, resident)
"""


@dataclass(frozen=True, kw_only=True)
class StartupOptions:
    """How much to start up on."""

    folder: str = field(metadata={"help": "where sets, caches and runs are kept; 4 GB for 5 M"})
    pairs: int = field(default=5_000_000, metadata={"help": "sentence pairs"})
    workers: int = field(default=1, metadata={"help": "processes that prepare the set"})


def sentences(draw: np.random.Generator, count: int) -> pa.Array:
    """Made-up sentences with lengths as text has them, 8 words on average."""
    words = pa.array([np.base_repr(37 * n + 1000, 36).lower() for n in range(20_000)])
    ends = np.cumsum(np.clip(draw.lognormal(1.9, 0.55, count), 1, 80).astype(np.int32))
    chosen = words.take(
        pa.array(20_000 * draw.random(ends[-1]) ** 3, pa.float64()).cast("int32", safe=False)
    )
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(offsets, chosen), " ")


def write_set(folder: Path, pairs: int) -> None:
    """Parquet files of `en` and `de`, as sets on the Hub have them."""
    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, pairs, AT_ONCE)):
        draw, count = np.random.default_rng(number), min(AT_ONCE, pairs - first)
        table = pa.table({"en": sentences(draw, count), "de": sentences(draw, count)})
        pq.write_table(table, folder / f"train-{number:05d}.parquet")


def train(folder: Path, pairs: int, name: str, workers: int) -> list[float]:
    """One step in a process of its own: seconds, CPU seconds, its own and its resident MB."""
    options = f"--dataset {folder}/{pairs} --tokenizer {folder}/words --output_dir {folder}/{name} "
    options += f"--preprocessing_workers {workers} {RECIPE}"
    os.environ.update(HF_HOME=str(folder / "cache"), HF_HUB_OFFLINE="1")
    command = [sys.executable, "-c", PROGRAM, str(TRAIN), *options.split()]
    started = time.monotonic()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    cpu, *kilobytes = map(float, done.stdout.split()[-3:])
    return [time.monotonic() - started, cpu, *(size / 1024 for size in kilobytes)]


def measure(options: StartupOptions) -> None:
    """Prepare, start, and print what each took."""
    folder, memory = Path(options.folder).resolve(), {}
    for pairs in (FEW, options.pairs):
        if not (folder / str(pairs)).exists():
            write_set(folder / str(pairs), pairs)
        if not (folder / "words").exists():
            text = sentences(np.random.default_rng(0), FEW).to_pylist()
            train_tokenizer(text, vocab_size=8000).save_pretrained(folder / "words")
        for what, workers in (("prepared", options.workers), ("started", options.workers)):
            name = f"run-{pairs}-{what}-{time.time_ns()}"
            seconds, cpu, *memory[pairs] = train(folder, pairs, name, workers)
            print(f"{pairs:,} pairs {what}: {seconds:.1f} s, {cpu:.1f} s of CPU")
    for name, few, many in zip(
        ("own", "resident"), memory[FEW], memory[options.pairs], strict=True
    ):
        print(f"{name} memory {many:.0f} MB, {many - few:.0f} MB more than for {FEW:,}")


if __name__ == "__main__":
    run(measure, StartupOptions)
