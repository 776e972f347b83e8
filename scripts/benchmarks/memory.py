"""Memory of a search: scripts/benchmarks/memory.py [--model FOLDER] [--source FILE].

By default one batch with random weights of base size, whose translations all have `--steps` tokens;
with `--source`, the lines of a file in batches as `hf-vanilla translate` forms them. Each dtype has
a process of its own on one thread. MiB beyond the imports: after loading, and at the peak.
"""

import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from hf_vanilla import Translator, VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.commands import run
from hf_vanilla.text.loading import demo_model


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """Memory of a loaded translation model and of a search."""

    model: str | None = field(default=None, metadata={"help": "model folder; default: random"})
    source: str | None = field(default=None, metadata={"help": "text to translate, one per line"})
    sentences: int = field(default=64, metadata={"help": "of the one batch"})
    tokens: int = field(default=24, metadata={"help": "of each sentence of it"})
    steps: int = field(default=32, metadata={"help": "of its search"})
    dtypes: list[str] = field(
        default_factory=lambda: ["float32", "bfloat16", "int8"], metadata={"help": "to measure"}
    )


def measure(options: MemoryOptions) -> None:
    """Print the figures of each dtype."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        name = options.model or random_model(folder)
        for dtype in options.dtypes:
            with ProcessPoolExecutor(1, context) as pool:
                loaded, peak = pool.submit(memory_of, name, dtype, options).result()
            print(f"{dtype}: {loaded:.0f} MiB loaded, {peak:.0f} MiB at the peak", flush=True)


def random_model(folder: str) -> str:
    """A folder with random weights of base size and a tokenizer of the package."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(demo_model("help-en-de"))
    config = VanillaConfig(vocab_size=len(tokenizer))
    VanillaForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def memory_of(name: str, dtype: str, options: MemoryOptions) -> tuple[float, float]:
    """MiB beyond the imports: after loading, and at the peak of the search."""
    torch.set_num_threads(1)
    imports = memory("VmRSS")
    translator: Any = Translator(name, dtype=dtype, device="cpu", num_beams=4)
    loaded = memory("VmRSS") - imports
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
    if options.source is not None:
        lines = Path(options.source).read_text(encoding="utf-8").splitlines()
        assert all(translator.translate(lines))
    else:
        model = translator.engine.model
        shape = (options.sentences, options.tokens)
        ids = torch.randint(5, model.config.vocab_size, shape)
        model.generation_config.eos_token_id = None  # no translation ends before the limit
        model.generate(ids, num_beams=4, max_new_tokens=options.steps)
    return loaded, memory("VmHWM") - imports


def memory(kind: str) -> float:
    """MiB of a line of `/proc/self/status`."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{kind}:")[1].split()[0]) / 1024


if __name__ == "__main__":
    run(measure, MemoryOptions)
