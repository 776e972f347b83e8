"""Token shards: speed of tokenizing, of 1 to 8 readers, and start-up on many pairs.

    scripts/benchmarks/prepare.py --folder DIR --pairs 100000000

Sentences are made-up words; lengths are those of text (geometric, 25 tokens on average). Readers
are processes that each take every n-th batch of an epoch, as those of a training do. For the
start-up, only lengths are made, since it reads nothing else.
"""

import multiprocessing
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset

from hf_vanilla import demo_model, load_translator
from hf_vanilla.commands import run
from hf_vanilla.data.batching import PairCollator, TokenBatchSampler
from hf_vanilla.data.corpus import number_words
from hf_vanilla.text.encoding import LengthLimits, read_shards, write_shards

TEXTS = 100_000  # different pairs; longer corpora repeat them
LIMITS = LengthLimits(256)
SECONDS = 10.0  # of reading
MEAN_TOKENS, BUDGET = 25, 25_000


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """How much to measure."""

    folder: str = field(metadata={"help": "where shards are kept; 0.3 GB for a million pairs"})
    stored: int = field(default=1_000_000, metadata={"help": "pairs in the shards that are read"})
    pairs: int = field(default=100_000_000, metadata={"help": "pairs of the start-up"})
    readers: str = field(default="1,2,8", metadata={"help": "numbers of processes, by commas"})


def measure(options: BenchmarkOptions) -> str:
    """All three tables."""
    lines = [_tokenizing(options)]
    lines += [_reading(options, int(count)) for count in options.readers.split(",")]
    return "\n".join([*lines, _starting(options.pairs)])


def _tokenizing(options: BenchmarkOptions) -> str:
    folder = Path(options.folder)
    draw = np.random.default_rng(0)
    texts = [number_words(int(n)) for n in draw.integers(0, 10**6, TEXTS)]
    pairs = Dataset.from_list(texts).select(np.arange(options.stored) % TEXTS)
    _, tokenizer = load_translator(demo_model())
    began = time.process_time()
    count = write_shards(pairs, tokenizer, folder, pairs_per_shard=200_000).pairs
    spent = time.process_time() - began
    return f"{count:,} pairs in {spent:.1f} s: {count / spent:,.0f} pairs per CPU second"


def _reading(options: BenchmarkOptions, count: int) -> str:
    context = multiprocessing.get_context("spawn")
    with context.Pool(count) as pool:
        work = [(options.folder, rank, count) for rank in range(count)]
        found = pool.starmap(_read, work)
    pairs = sum(each[0] for each in found)
    cpu = sum(each[1] for each in found)
    memory = max(each[2] for each in found)
    return (
        f"{count} readers: {pairs / SECONDS:,.0f} pairs per second, {pairs / cpu:,.0f} per CPU "
        f"second; {memory:.0f} MiB each"
    )


def _read(folder: str, rank: int, count: int) -> tuple[int, float, float]:
    """Pairs read, CPU seconds, MiB of memory of its own."""
    torch.set_num_threads(1)
    encoded = read_shards(Path(folder), LIMITS)
    sampler = TokenBatchSampler(
        encoded.source_lengths, encoded.target_lengths, tokens_per_batch=BUDGET
    )
    rows, collate = encoded.rows.with_format("arrow"), PairCollator(0)
    pairs, number = 0, rank
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < SECONDS:
        chosen = sampler.batch(*divmod(number, len(sampler)))
        collate(rows[chosen])
        pairs, number = pairs + len(chosen), number + count
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    return pairs, time.process_time() - cpu, own / 1024


def _starting(pairs: int) -> str:
    draw = np.random.default_rng(0)
    source = np.minimum(1 + draw.geometric(1 / MEAN_TOKENS, pairs), LIMITS.max_length)
    source = source.astype(np.int32)
    target = np.clip(source + draw.integers(-3, 4, pairs, dtype=np.int32), 1, LIMITS.max_length)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    sampler = TokenBatchSampler(source, target, tokens_per_batch=BUDGET)
    made = time.process_time() - began
    sampler.batch(0, 0)
    first = time.process_time() - began - made
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    return (
        f"order of {pairs:,} pairs: {made:.1f} CPU s, the first batch of an epoch {first:.1f} s; "
        f"peak of memory {peak:.1f} GiB above the lengths"
    )


if __name__ == "__main__":
    print(run(measure, BenchmarkOptions))
