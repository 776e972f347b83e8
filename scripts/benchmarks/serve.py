"""What the service bears: scripts/benchmarks/serve.py [--model DIR].

It starts `hf-vanilla serve` and measures, with sentences whose translations it first gets one by
one: throughput of many clients, latency at half of it, then many clients for a minute beside slow
ones and broken requests: answers that are lost or differ, and the growth of memory (Linux).
"""

import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from num2words import num2words

from hf_vanilla.commands import run

WARM_UP_SECONDS = 15.0  # until torch has the memory of the largest batches
BROKEN = (
    b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n{{{{{",
    b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n\r\n",
    b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nq=o",
    b"\x16\x03\x01 no HTTP\r\n\r\n",
    b"",
)


@dataclass(frozen=True, kw_only=True)
class ServeBenchmarkOptions:
    """How to load the service."""

    model: str | None = field(default=None, metadata={"help": "model folder; default: numbers"})
    file: str | None = field(default=None, metadata={"help": "sentences; default: number words"})
    sentences: int = field(default=256, metadata={"help": "number of different sentences"})
    clients: int = field(default=64, metadata={"help": "clients of the throughput"})
    crowd: int = field(default=200, metadata={"help": "clients of the endurance"})
    seconds: float = field(default=60, metadata={"help": "of the endurance"})
    dtype: str | None = field(default=None, metadata={"help": "as for hf-vanilla serve"})


class Service:
    """A process that serves, and what it used."""

    def __init__(self, options: ServeBenchmarkOptions) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        given = [f"--{name}={value}" for name in ("model", "dtype")
                 if (value := getattr(options, name))]  # fmt: skip
        program = [sys.executable, "-m", "hf_vanilla", "serve", f"--port={self.port}", *given]
        self.process = subprocess.Popen(program, stderr=subprocess.DEVNULL)

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

    async def translate(self, text: str) -> str:
        """The translation; of another status, its number, which is never right."""
        status, found = await self.ask("POST", "/translate", {"q": text, "target": ""})
        return found["translatedText"] if status == 200 else f"status {status}"


async def one_by_one(service: Service, sentences: list[str]) -> dict[str, str]:
    """The translation of each sentence, each requested after the one before."""
    async with Client(service.port) as client:
        return {sentence: await client.translate(sentence) for sentence in sentences}


async def together(service: Service, sentences: list[str], clients: int) -> dict[str, str]:
    """The same by many clients, each with one sentence at a time."""
    left, found = list(sentences), {}

    async def ask() -> None:
        async with Client(service.port) as client:
            while left:
                sentence = left.pop()
                found[sentence] = await client.translate(sentence)

    await asyncio.gather(*(ask() for _ in range(clients)))
    return found


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
    service: Service, expected: dict[str, str], options: ServeBenchmarkOptions
) -> dict[str, int]:
    """How many answers were right, wrong and lost beside slow clients and broken requests."""
    end, counts = time.monotonic() + options.seconds, {"right": 0, "wrong": 0, "lost": 0}
    sentences = list(expected)

    async def ask(number: int) -> None:
        draw = random.Random(number)
        async with Client(service.port) as client:
            while time.monotonic() < end:
                sentence = draw.choice(sentences)
                try:
                    found = await client.translate(sentence)
                except (OSError, asyncio.IncompleteReadError):
                    counts["lost"] += 1
                    return
                counts["right" if found == expected[sentence] else "wrong"] += 1

    async def disturb(number: int) -> None:
        while time.monotonic() < end:
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


async def measure(options: ServeBenchmarkOptions) -> None:
    """Print a table of what a service does."""
    if options.file is None:
        numbers = random.Random(0).sample(range(1000, 1_000_000), options.sentences)
        sentences = [num2words(number).replace(",", "") for number in numbers]
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
        await one_by_one(service, sentences[:8])
        rates, expected = {}, {}
        for clients in (1, options.clients):
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
            differing = sum(expected[sentence] != found[sentence] for sentence in sentences)
        refused = sum(text.startswith("status") for text in found.values())
        show("answers that differ", f"{differing} of {len(sentences)}, {refused} of them refused")
        ratio = rates[options.clients] / rates[1]
        show(f"{options.clients} clients : 1 client", f"{ratio:.1f}")
        half = rates[options.clients] / 2
        p50, p99 = np.percentile(await at_rate(service, sentences, half), [50, 99])
        value = f"p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms"
        show(f"at {half:.0f} requests/s", value)
        await crowd(service, expected, replace(options, seconds=WARM_UP_SECONDS))
        before = service.mebibytes()
        counts = await crowd(service, expected, options)
        growth = 100 * (service.mebibytes() / before - 1)
        value = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        name = f"{options.crowd} clients for {options.seconds:g} s, with slow and broken ones"
        show(name, value)
        show("growth of memory", f"{growth:.1f} % of {before:.0f} MiB")
    finally:
        service.process.terminate()
        service.process.wait()


def benchmark(options: ServeBenchmarkOptions) -> None:
    """Measure a service."""
    asyncio.run(measure(options))


if __name__ == "__main__":
    run(benchmark, ServeBenchmarkOptions)
