"""Training speed beside other libraries: scripts/benchmarks/train.py [--source F --target F].

Each engine has its own process, and in each round each engine makes one step. Rates are target
tokens without padding per second of forward, backward and update. A ratio is the median over the
rounds of the ratio to MarianMT on the same bucketed batches. Plain batches hold other sentences, so
the last column divides all tokens by all seconds.
"""

import multiprocessing
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import train_engines
from torch import Tensor
from train_engines import SIZES

from hf_vanilla.commands import run
from hf_vanilla.data.batching import PairCollator, TokenBatchSampler
from hf_vanilla.data.corpus import built_in_corpus, pairs_from_files
from hf_vanilla.models.loss_vanilla import IGNORED_LABEL
from hf_vanilla.text.encoding import LengthLimits, encode_pairs
from hf_vanilla.text.tokenizer_training import train_tokenizer

REFERENCE, PLAIN = "MarianMT", "MarianMT, plain batches"
# what is measured: engine, whether its batches are a plain collator's, whether it runs in bfloat16
CONTESTANTS = {
    REFERENCE: ("MarianMT", False, False),
    PLAIN: ("MarianMT", True, False),
    "torch.nn.Transformer": ("torch.nn.Transformer", False, False),
    "hf_vanilla": ("hf_vanilla", False, False),
    "MarianMT, bf16": ("MarianMT", False, True),
    "hf_vanilla, bf16": ("hf_vanilla", False, True),
}


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """Training speed of hf_vanilla beside other libraries."""

    source: str | None = field(
        default=None, metadata={"help": "source text, plain or .gz; none: the built-in corpus"}
    )
    target: str | None = field(default=None, metadata={"help": "its translation, line by line"})
    size: str = field(default="small", metadata={"help": f"model: {' or '.join(SIZES)}"})
    vocab_size: int = field(default=8000, metadata={"help": "entries of the BPE learned here"})
    tokens_per_batch: int = field(default=2500, metadata={"help": "padded tokens, bucketed"})
    sentences_per_batch: int = field(default=64, metadata={"help": "of a plain batch"})
    rounds: int = field(default=7, metadata={"help": "steps measured of each engine"})
    warmup: int = field(default=5, metadata={"help": "steps before them"})
    threads: int = field(default=1, metadata={"help": "of each process"})

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        if self.size not in SIZES:
            raise ValueError(f"size={self.size!r}: choose one of {', '.join(SIZES)}")
        if (self.source is None) != (self.target is None):
            raise ValueError("give both --source and --target, or neither")
        least = {"rounds": 1, "warmup": 0, "threads": 1, "sentences_per_batch": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name}={getattr(self, name)}: give {bound} or more")


def make_batches(options: BenchmarkOptions) -> dict[bool, list[dict[str, Tensor]]]:
    """As many batches as there are steps: bucketed, and (key True) plain ones in file order."""
    corpus = built_in_corpus()["train"] if options.source is None else None
    pairs = corpus if corpus is not None else pairs_from_files(options.source, options.target)
    texts = (text for row in pairs for text in (row["source"], row["target"]))
    tokenizer = train_tokenizer(texts, vocab_size=options.vocab_size)
    limits = LengthLimits(min(1024, options.tokens_per_batch))
    encoded = encode_pairs(pairs, tokenizer, limits)
    sampler = TokenBatchSampler(
        encoded.source_lengths, encoded.target_lengths, tokens_per_batch=options.tokens_per_batch
    )
    steps, each = options.warmup + options.rounds, options.sentences_per_batch
    plain = [range(first, first + each) for first in range(0, len(encoded.rows) - each + 1, each)]
    if not plain:
        raise ValueError(f"sentences_per_batch={each}, but there are {len(encoded.rows)} pairs")
    collate = PairCollator(tokenizer.pad_token_id)

    def first_batches(chosen: Sequence[Sequence[int]]) -> list[dict[str, Tensor]]:
        batches = (chosen[number % len(chosen)] for number in range(steps))
        return [collate([encoded.rows[int(i)] for i in rows]) for rows in batches]

    return {False: first_batches(sampler.batches(0)), True: first_batches(plain)}


def ask(connection: Connection, batch: dict[str, Tensor], *, is_profile: bool = False) -> Any:
    """One step in the other process."""
    connection.send(({name: ids.numpy() for name, ids in batch.items()}, is_profile))
    return connection.recv()


def start(options: BenchmarkOptions) -> dict[str, Connection]:
    """A process for each contestant."""
    context, connections = multiprocessing.get_context("spawn"), {}
    for name, (engine, _, bf16) in CONTESTANTS.items():
        connections[name], theirs = context.Pipe()
        facts = {"threads": options.threads, "vocab_size": options.vocab_size, "bf16": bf16}
        arguments = (theirs, engine, SIZES[options.size], facts)
        context.Process(target=train_engines.serve, args=arguments, daemon=True).start()
        theirs.close()
    return connections


def table(measured: dict[str, list[Any]], tokens: dict[bool, list[int]]) -> str:
    """Rates, ratios and memory as Markdown."""

    def rates(name: str, clock: int) -> list[float]:
        counts = tokens[CONTESTANTS[name][1]]
        return [n / result[clock] for n, result in zip(counts, measured[name], strict=True)]

    def overall(name: str) -> float:
        return sum(tokens[CONTESTANTS[name][1]]) / sum(result[1] for result in measured[name])

    lines = [
        "| engine | tokens per CPU second | ratio | tokens per second | ratio | to plain | MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, steps in measured.items():
        cells = []
        for clock in (0, 1):
            own, reference = rates(name, clock), rates(REFERENCE, clock)
            ratio = statistics.median(a / b for a, b in zip(own, reference, strict=True))
            cells += [f"{statistics.median(own):,.0f}", f"{ratio:.2f}"]
        cells.append(f"{overall(name) / overall(PLAIN):.2f}")
        lines.append(
            f"| {name} | {' | '.join(cells)} | {max(result[2] for result in steps):,.0f} |"
        )
    return "\n".join(lines)


def benchmark(options: BenchmarkOptions) -> None:
    """Measure and print."""
    batches, connections = make_batches(options), start(options)
    measured: dict[str, list[Any]] = {name: [] for name in connections}
    for number in range(options.warmup + options.rounds):
        for name, connection in connections.items():
            result = ask(connection, batches[CONTESTANTS[name][1]][number])
            if number >= options.warmup:
                measured[name].append(result)
        print(f"\rstep {number + 1}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    counts = {}
    for is_plain, all_batches in batches.items():
        kept = [batch["labels"] != IGNORED_LABEL for batch in all_batches[options.warmup :]]
        counts[is_plain] = [int(real.sum()) for real in kept]
        padding = 1 - sum(counts[is_plain]) / sum(real.numel() for real in kept)
        name = "plain" if is_plain else "bucketed"
        print(f"{name} batches: {100 * padding:.1f} % of the target is padding")
    print("\n" + table(measured, counts))
    print("\nShare of a step of hf_vanilla:\n\n| operations | float32 | bf16 |\n|---|---|---|")
    one, other = (
        ask(connections[name], batches[False][-1], is_profile=True)[3]
        for name in ("hf_vanilla", "hf_vanilla, bf16")
    )
    for group in one:
        print(f"| {group} | {100 * one[group]:.0f} % | {100 * other[group]:.0f} % |")
    for connection in connections.values():
        connection.send(None)


if __name__ == "__main__":
    run(benchmark, BenchmarkOptions)
