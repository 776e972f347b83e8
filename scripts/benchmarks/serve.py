"""What the service bears: scripts/benchmarks/serve.py [--model DIR].

It starts `hf-vanilla serve` and measures, with sentences whose translations it first gets one by
one: throughput of many clients, latency at half of it, then many clients beside slow ones and
broken requests, and the growth of memory meanwhile (Linux); at last it kills the service, starts it
again, and ends it while many wait. An answer is right or wrong; refused, with a status from 400 on;
or lost, without one.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hf_vanilla.commands import run
from hf_vanilla.data.corpus import number_words
from hf_vanilla.options import Options, option

BROKEN = (
    b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n{{{{{",
    b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n\r\n",
    b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nq=o",
    b"\x16\x03\x01 no HTTP\r\n\r\n",
    b"",
)


@dataclass(frozen=True, kw_only=True)
class ServeBenchmarkOptions(Options):
    """How to load the service."""

    model: str | None = field(default=None, metadata={"help": "model folder; default: numbers"})
    file: str | None = field(default=None, metadata={"help": "sentences; default: number words"})
    sentences: int = option(256, "number of different sentences", at_least=1)
    clients: int = option(64, "clients of the throughput", at_least=1)
    crowd: int = option(200, "clients of the endurance", at_least=1)
    seconds: float = option(60, "of the endurance, at least", at_least=0)
    requests: int = option(10_000, "of the endurance, at least", at_least=1)
    dtype: str | None = field(default=None, metadata={"help": "as for hf-vanilla serve"})


class Service:
    """A process that serves, and what it used."""

    def __init__(self, options: ServeBenchmarkOptions) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        given = [f"--{name}={value}" for name in ("model", "dtype")
                 if (value := getattr(options, name))]  # fmt: skip
        self._program = [sys.executable, "-m", "hf_vanilla", "serve", f"--port={self.port}", *given]
        self.start()

    def start(self) -> None:
        """Start the process."""
        self.process = subprocess.Popen(self._program, stderr=subprocess.DEVNULL)

    async def started(self) -> None:
        """Wait until `/health` answers."""
        while self.process.poll() is None:
            with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
                async with Client(self.port) as client:
                    await client.ask("GET", "/health")
                    return
            await asyncio.sleep(0.1)
        raise OSError("the service ended")

    def cpu_seconds(self) -> float:
        """Of the process."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def mebibytes(self) -> float:
        """In memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("RssAnon")]
        return int(line.split()[1]) / 1024


class Client:
    """One connection for several requests."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict]:
        """Status and JSON value of an answer."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        (length,) = [line.split()[1] for line in lines if line.startswith("content-length")]
        return int(lines[0].split()[1]), json.loads(await self._reader.readexactly(int(length)))

    async def translate(self, texts: object) -> object:
        """The translation of a text, or of each of a list; of another status, its number."""
        status, found = await self.ask("POST", "/translate", {"q": texts, "target": ""})
        return found["translatedText"] if status == 200 else status


async def one_by_one(service: Service, sentences: list[str]) -> dict[str, object]:
    """The translation of each sentence, each requested after the one before."""
    async with Client(service.port) as client:
        return {sentence: await client.translate(sentence) for sentence in sentences}


async def together(service: Service, sentences: list[str], clients: int) -> dict[str, object]:
    """The same by many clients, each with one sentence at a time; None: lost."""
    left, found = list(sentences), dict.fromkeys(sentences)

    async def ask() -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with Client(service.port) as client:
                while left:
                    sentence = left.pop()
                    found[sentence] = await client.translate(sentence)

    await asyncio.gather(*(ask() for _ in range(clients)))
    return found


def verdict(found: object, expected: object) -> str:
    """What an answer is."""
    if found is None or expected is None:
        return "lost"
    if isinstance(found, int) or isinstance(expected, int):  # also if it was refused one by one
        return "refused"
    return "right" if found == expected else "wrong"


def counted(counts: Counter[str]) -> str:
    """For a table."""
    return ", ".join(f"{counts[one]:,} {one}" for one in ("right", "wrong", "refused", "lost"))


async def at_rate(service: Service, sentences: list[str], rate: float) -> np.ndarray:
    """Seconds of each answer; requests come at random, so many per second."""

    async def ask(sentence: str) -> float:
        started = time.monotonic()
        async with Client(service.port) as client:
            await client.translate(sentence)
        return time.monotonic() - started

    draw, answers = random.Random(1), []
    for sentence in sentences:
        answers.append(asyncio.create_task(ask(sentence)))
        await asyncio.sleep(draw.expovariate(rate))
    return np.array(await asyncio.gather(*answers))


async def crowd(
    service: Service, expected: dict[str, object], options: ServeBenchmarkOptions
) -> Counter[str]:
    """How many answers were right, wrong, refused and lost beside slow and broken requests."""
    end, counts = time.monotonic() + options.seconds, Counter[str]()
    sentences = list(expected)

    def goes_on() -> bool:
        return time.monotonic() < end or counts.total() < options.requests

    async def ask(number: int) -> None:
        draw = random.Random(number)
        async with Client(service.port) as client:
            while goes_on():
                sentence = draw.choice(sentences)
                try:
                    found = await client.translate(sentence)
                except (OSError, asyncio.IncompleteReadError):
                    counts["lost"] += 1
                    return
                counts[verdict(found, expected[sentence])] += 1

    async def disturb(number: int) -> None:
        while goes_on():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", service.port)
                for byte in BROKEN[number % len(BROKEN)]:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.01)  # slowly
                writer.close()
            await asyncio.sleep(0.1)

    await asyncio.gather(*map(ask, range(options.crowd)), *map(disturb, range(10)))
    return counts


def show(name: str, value: str) -> None:
    """Print a row of a table in Markdown."""
    print(f"| {name} | {value} |", flush=True)


async def throughput(
    service: Service, sentences: list[str], options: ServeBenchmarkOptions
) -> dict[str, object]:
    """Print rates and latencies; returns the translations of one client."""
    await one_by_one(service, sentences[:8])
    rates: dict[int, float] = {}
    expected: dict[str, object] = {}
    for clients in sorted({1, 8, options.clients}):
        started, used = time.monotonic(), service.cpu_seconds()
        found = await (
            one_by_one(service, sentences)
            if clients == 1
            else together(service, sentences, clients)
        )
        seconds = time.monotonic() - started
        rates[clients] = len(sentences) / seconds
        cpu = 1000 * (service.cpu_seconds() - used) / len(sentences)
        value = f"{rates[clients]:.1f} sentences/s, {cpu:.0f} ms of CPU each"
        show(f"{clients} client{'s' * (clients > 1)}", value)
        expected = expected or found
        counts = Counter(verdict(found[one], expected[one]) for one in sentences)
        show(f"answers, compared with those of 1 client: {clients}", counted(counts))
    ratio = rates[options.clients] / rates[1]
    show(f"{options.clients} clients : 1 client", f"{ratio:.1f}")
    half = rates[options.clients] / 2
    p50, p99 = np.percentile(await at_rate(service, sentences, half), [50, 99])
    show(f"at {half:.0f} requests/s", f"p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms")
    return expected


async def endurance(
    service: Service, expected: dict[str, object], options: ServeBenchmarkOptions
) -> None:
    """Print what a crowd gets, and the growth of memory meanwhile, after as much to warm up.

    Memory goes up and down by a tenth from batch to batch, so growth compares the medians of the
    first and of the last quarter of the time.
    """
    await crowd(service, expected, options)
    memory: list[float] = []

    async def watch() -> None:
        while True:
            memory.append(service.mebibytes())
            await asyncio.sleep(0.25)

    watching = asyncio.create_task(watch())
    started, used = time.monotonic(), service.cpu_seconds()
    counts = await crowd(service, expected, options)
    seconds, cpu = time.monotonic() - started, service.cpu_seconds() - used
    watching.cancel()
    name = (
        f"{options.crowd} clients, beside slow and broken ones, {seconds:.0f} s, {cpu:.0f} of CPU"
    )
    show(name, counted(counts))
    quarter = len(memory) // 4
    first, last = np.median(memory[:quarter]), np.median(memory[-quarter:])
    range_ = f"{min(memory):.0f} to {max(memory):.0f} MiB"
    show("growth of memory", f"{100 * (last / first - 1):.1f} % of {first:.0f} MiB ({range_})")


async def ends(
    service: Service, expected: dict[str, object], options: ServeBenchmarkOptions
) -> None:
    """Kill the service while clients wait; start it again, and do the same by SIGTERM."""
    for name in (signal.SIGKILL, signal.SIGTERM):
        sentences = random.Random(2).sample(list(expected), min(options.clients, len(expected)))
        asked = asyncio.create_task(together(service, sentences, len(sentences)))
        async with Client(service.port) as client:
            for _ in range(3):  # they are read before the last of these
                await client.ask("GET", "/health")
        service.process.send_signal(name)
        found = await asked
        counts = Counter(verdict(found[one], expected[one]) for one in sentences)
        show(f"{name.name} while {len(sentences)} clients wait", counted(counts))
        status = await asyncio.to_thread(service.process.wait)
        if name == signal.SIGKILL:
            service.start()
            await service.started()
        else:
            show("exit status", str(status))


async def measure(options: ServeBenchmarkOptions) -> None:
    """Print a table of what a service does."""
    if options.file is None:
        numbers = random.Random(0).sample(range(1000, 1_000_000), options.sentences)
        sentences = [number_words(number)["source"] for number in numbers]
    else:
        lines = Path(options.file).read_text(encoding="utf-8").splitlines()
        sentences = list(dict.fromkeys(line for line in lines if line.strip()))
        sentences = sentences[: options.sentences]
    service = Service(options)
    show("measure", "value")
    show("---", "---")
    try:
        await service.started()
        show("until `/health` answers, CPU seconds", f"{service.cpu_seconds():.1f}")
        expected = await throughput(service, sentences, options)
        await endurance(service, expected, options)
        await ends(service, expected, options)
    finally:
        service.process.terminate()
        service.process.wait()


def benchmark(options: ServeBenchmarkOptions) -> None:
    """Measure a service."""
    asyncio.run(measure(options))


if __name__ == "__main__":
    run(benchmark, ServeBenchmarkOptions)
