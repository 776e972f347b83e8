"""From the command to the first step on much data: scripts/benchmarks/startup.py --folder DIR.

A made-up set of words is written as Parquet files and trained on for one step of a tiny model, in
fresh processes: once to prepare it (convert, tokenize), once to measure. The same with 10,000
pairs tells how much of time and memory is not due to the size of the set. `--images 100000`
measures a folder of so many JPEG files in 100 class folders instead, beside one of 1,000.
"""

import io
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
from PIL import Image

from hf_vanilla.commands import run
from hf_vanilla.options import Options, option
from hf_vanilla.text.tokenizer_training import train_tokenizer

FEW, AT_ONCE = 10_000, 250_000
FEW_IMAGES, CLASSES = 1_000, 100
TRAIN = Path(__file__).resolve().parent.parent / "train.py"
RECIPE = "--source_column en --target_column de --eval_sentences 0 --max_steps 1 --model.d_model 16"
RECIPE += " --model.encoder_layers 1 --model.decoder_layers 1 --average_checkpoints 1"
IMAGE_RECIPE = """
--task image_classification --images_per_step 32 --images_per_batch 32 --max_steps 1
--model.image_size 32 --model.patch_size 8 --model.d_model 16 --model.encoder_layers 1
--model.encoder_attention_heads 1 --model.encoder_ffn_dim 16 --average_checkpoints 1
"""
# the process's own memory, and with it the pages of mapped files that it has read (Linux)
PROGRAM = """
import contextlib, re, runpy, sys, time
sys.argv = sys.argv[1:]
with contextlib.suppress(SystemExit):
    runpy.run_path(sys.argv[0], run_name="__main__")
status = open("/proc/self/status").read()
own, resident = (re.search(name + r":\\s+(\\d+) kB", status)[1] for name in ("RssAnon", "VmRSS"))
print(time.process_time(), own, resident)
"""


@dataclass(frozen=True, kw_only=True)
class StartupOptions(Options):
    """How much to start up on."""

    folder: str = field(metadata={"help": "where sets, caches and runs are kept; 4 GB for 5 M"})
    pairs: int = option(5_000_000, "sentence pairs", at_least=1)
    images: int = option(0, "image files, in place of pairs", at_least=0)
    workers: int = option(1, "processes that prepare the set", at_least=1)


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


def write_images(folder: Path, images: int) -> None:
    """JPEG files of 128 x 96 pixels; those of a class are equal."""
    draw = np.random.default_rng(0)
    contents = []
    for name in range(CLASSES):
        (folder / f"class_{name:02d}").mkdir(parents=True)
        tiles = draw.integers(0, 255, (6, 8, 3), dtype=np.uint8).repeat(16, 0).repeat(16, 1)
        file = io.BytesIO()
        Image.fromarray(tiles).save(file, "JPEG")
        contents.append(file.getvalue())
    for number in range(images):
        name = number % CLASSES
        (folder / f"class_{name:02d}" / f"{number}.jpg").write_bytes(contents[name])


def train(folder: Path, options: str) -> list[float]:
    """One step in a process of its own: seconds, CPU seconds, its own and its resident MB."""
    os.environ.update(HF_HOME=str(folder / "cache"), HF_HUB_OFFLINE="1")
    options += f" --output_dir {folder}/run-{time.time_ns()} --trackers none"
    command = [sys.executable, "-c", PROGRAM, str(TRAIN), *options.split()]
    started = time.monotonic()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    cpu, *kilobytes = map(float, done.stdout.split()[-3:])
    return [time.monotonic() - started, cpu, *(size / 1024 for size in kilobytes)]


def print_memory(few: list[float], many: list[float], count: int) -> None:
    """Own and resident memory with much data, beside that with `count` rows."""
    for name, low, high in zip(("own", "resident"), few, many, strict=True):
        print(f"{name} memory {high:.0f} MB, {high - low:.0f} MB more than for {count:,}")


def measure_images(folder: Path, images: int) -> None:
    """Start, and print what it took."""
    memory = []
    for count in (FEW_IMAGES, images):
        place = folder / f"images-{count}"
        if not place.exists():
            write_images(place, count)
        seconds, cpu, *resident = train(folder, f"--dataset {place} {IMAGE_RECIPE}")
        memory.append(resident)
        print(f"{count:,} images: {seconds:.1f} s, {cpu:.1f} s of CPU")
    print_memory(*memory, FEW_IMAGES)


def measure_pairs(folder: Path, pairs: int, workers: int) -> None:
    """Prepare, start, and print what each took."""
    memory = []
    for count in (FEW, pairs):
        if not (folder / str(count)).exists():
            write_set(folder / str(count), count)
        if not (folder / "words").exists():
            text = sentences(np.random.default_rng(0), FEW).to_pylist()
            train_tokenizer(text, vocab_size=8000).save_pretrained(folder / "words")
        data = f"--dataset {folder}/{count} --tokenizer {folder}/words"
        for what in ("prepared", "started"):
            options = f"{data} --preprocessing_workers {workers} {RECIPE}"
            seconds, cpu, *resident = train(folder, options)
            print(f"{count:,} pairs {what}: {seconds:.1f} s, {cpu:.1f} s of CPU")
        memory.append(resident)
    print_memory(*memory, FEW)


def measure(options: StartupOptions) -> None:
    """Measure images or pairs."""
    folder = Path(options.folder).resolve()
    if options.images:
        measure_images(folder, options.images)
    else:
        measure_pairs(folder, options.pairs, options.workers)


if __name__ == "__main__":
    run(measure, StartupOptions)
