"""Time and memory as they grow: length, beams, vocabulary, pairs. Writes a figure and its numbers.

    scripts/benchmarks/scaling.py --output scaling.png

Each point is a process of its own on one thread: CPU seconds, and the peak of memory above what the
process held before. Decoding is that of a random model of size small whose translations all have
the given length; the last panel is the order of training pairs with made-up lengths.
"""

import json
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from train_engines import SMALL

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.commands import run
from hf_vanilla.data.batching import TokenBatchSampler
from hf_vanilla.files import write_text
from hf_vanilla.plots.figures import figure_style, new_figure, save_figure

BATCH, LENGTH, BEAMS, VOCABULARY = 16, 32, 4, 8_000
PANELS = {
    "length": ("tokens of source and translation", (16, 32, 64, 128, 256, 512)),
    "beams": ("beams", (1, 2, 4, 8, 16)),
    "vocabulary": ("entries of the vocabulary", (8_000, 16_000, 32_000, 64_000)),
    "pairs": ("training pairs", (10**5, 10**6, 10**7, 10**8)),
}


@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """Draw how time and memory grow."""

    output: str = field(metadata={"help": "picture; the numbers are written beside it as JSON"})
    panels: str = field(default=",".join(PANELS), metadata={"help": "which to measure, by commas"})


def measure(options: ScalingOptions) -> Path:
    """Measure all points, write numbers and figure; returns the figure's path."""
    chosen = options.panels.split(",")
    if unknown := [name for name in chosen if name not in PANELS]:
        raise ValueError(f"panels={unknown[0]!r}: choose of {', '.join(PANELS)}")
    points = [(name, size) for name in chosen for size in PANELS[name][1]]
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[tuple[int, float, float]]] = {name: [] for name in chosen}
    for name, size in tqdm(points, unit="point"):
        with context.Pool(1) as pool:
            found[name].append((size, *pool.apply(_point, (name, size))))
    path = Path(options.output)
    write_text(path.with_suffix(".json"), json.dumps(found, indent=1) + "\n")
    _draw(found, path)
    return path


def _point(name: str, size: int) -> tuple[float, float]:
    """CPU seconds and MiB of one point."""
    torch.set_num_threads(1)
    work = _ordering(size) if name == "pairs" else _decoding(**{name: size})
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
    before = _memory("VmRSS")
    began = time.process_time()
    work()
    return time.process_time() - began, _memory("VmHWM") - before


def _decoding(
    *, length: int = LENGTH, beams: int = BEAMS, vocabulary: int = VOCABULARY
) -> Callable[[], object]:
    torch.manual_seed(0)
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=vocabulary, **SMALL)).eval()
    ids = torch.randint(5, vocabulary, (BATCH, length))
    given = {"num_beams": beams, "max_new_tokens": length, "min_new_tokens": length}
    model.generate(ids[:1, :4], num_beams=beams, max_new_tokens=2)  # warm-up
    return lambda: model.generate(ids, **given)


def _ordering(pairs: int) -> Callable[[], object]:
    draw = np.random.default_rng(0)
    source = np.minimum(1 + draw.geometric(1 / 25, pairs), 256).astype(np.int32)
    target = np.clip(source + draw.integers(-3, 4, pairs, dtype=np.int32), 1, 256)
    return lambda: TokenBatchSampler(source, target, tokens_per_batch=25_000).batch(0, 0)


def _memory(name: str) -> float:
    """MiB of a line of the process's status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def _draw(found: dict[str, list[tuple[int, float, float]]], path: Path) -> None:
    with figure_style() as theme:
        figure = new_figure((11, 2.9))
        for axes, (name, points) in zip(
            figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
        ):
            sizes, seconds, memory = zip(*points, strict=True)
            axes.loglog(sizes, seconds, marker="o", color=theme.lines[0], label="CPU seconds")
            axes.loglog(sizes, memory, marker="s", color=theme.lines[1], label="MiB")
            axes.set(xlabel=PANELS[name][0])
            # a figure's text is never read as a formula, and matplotlib's labels would be formulas
            axes.set_xticks(sizes, [_short(size) for size in sizes])
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
        figure.axes[0].legend()
        save_figure(figure, path)


def _short(size: int) -> str:
    """A number with k for thousands and M for millions."""
    for unit, letter in ((10**6, "M"), (10**3, "k")):
        if size >= unit:
            return f"{size / unit:g}{letter}"
    return str(size)


if __name__ == "__main__":
    run(measure, ScalingOptions)
