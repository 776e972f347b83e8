"""A GPU in one call: decoding, training, and the peak memory of both.

    scripts/benchmarks/gpu.py                       on a machine with a GPU
    scripts/benchmarks/gpu.py --device cpu --tiny   tries the script itself

Training is `train()` itself, with worker processes that make the batches; decoding stands beside
MarianMTModel with the same weights, and beside CTranslate2 where that is installed. A case that
fails is recorded, and the others run. The output folder gets results.json and results.md; the exit
status is 1 if any case failed.
"""

import gc
import importlib
import importlib.util
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from train_engines import peak_megabytes
from transformers import PreTrainedTokenizerFast

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, train_tokenizer
from hf_vanilla.commands import run
from hf_vanilla.convert.ctranslate2 import to_ctranslate2
from hf_vanilla.convert.marian import to_marian
from hf_vanilla.files import read_json_lines, write_text
from hf_vanilla.options import Options, option
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train

Facts = dict[str, Any]
Cases = Iterator[tuple[str, Callable[[], Facts]]]
Batch = dict[str, Tensor]
Engine = Callable[[Batch], list[list[int]]]

PAPER_TOKENS = 100_000 * 25_000  # steps, and tokens of a step (5.1, 5.2)
SIZES = {"base": (512, 0.1), "big": (1024, 0.3)}  # d_model, dropout
BF16, GRAPHS = ("--mixed_precision", "bf16"), ("--length_buckets", "24")
WAYS = {
    "base, float32": ("base", ("--mixed_precision", "no")),
    "base, bf16": ("base", BF16),
    "base, bf16, graphs": ("base", (*BF16, *GRAPHS)),
    "base, bf16, graphs, compiled": ("base", (*BF16, *GRAPHS, "--compile", "true")),
    "big, bf16": ("big", BF16),
    "big, bf16, graphs, compiled": ("big", (*BF16, *GRAPHS, "--compile", "true")),
}
STEPS, WARMUP = 300, 200  # those that are not measured compile, and capture each shape
BEAMS = 4
OURS, MARIAN, CTRANSLATE2 = "hf_vanilla", "MarianMTModel", "CTranslate2"
# the only values that MarianMTModel can express, and decoding that all engines can do
MARIAN_FIELDS: dict[str, Any] = {"position_layout": "concatenated", "layer_norm_eps": 1e-5}
DECODING: dict[str, Any] = {
    "num_beams": BEAMS,
    "length_penalty_form": "power",
    "length_penalty": 1.0,
    "early_stopping": True,
    "max_tokens_beyond_source": None,
}
PAD, EOS = 0, 1


@dataclass(frozen=True, kw_only=True)
class GpuOptions(Options):
    """Measure training and decoding on a GPU."""

    output: str = option("gpu_benchmark", "folder for results.json and results.md")
    device: str = option("cuda", "cuda or cpu", choices=("cuda", "cpu"))
    tiny: bool = option(False, "tiny models and few steps, to try the script itself")

    @property
    def is_cuda(self) -> bool:
        """Whether everything runs on a GPU."""
        return self.device == "cuda"

    @property
    def vocabulary(self) -> int:
        """Entries of the models' vocabulary, the paper's by default."""
        return 290 if self.tiny else 37_000


def benchmark(options: GpuOptions) -> None:
    """Run all cases and write the results after each."""
    if options.is_cuda and not torch.cuda.is_available():
        raise ValueError("no CUDA device: give --device cpu --tiny to try the script without one")
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if options.is_cuda else "CPU"
    versions = {name: version(name) for name in ("hf_vanilla", "torch", "transformers")}
    rows: list[Facts] = []
    with tempfile.TemporaryDirectory() as data:
        for part, cases in (
            ("decoding", decoding_cases(options)),
            ("training", training_cases(options, Path(data))),
        ):
            for name, case in cases:
                rows.append({"part": part, "case": name, **result_of(case, options)})
                print(f"{part}: {name}: {described(rows[-1])}", flush=True)
                results = {"device": device, **versions, "tiny": options.tiny, "rows": rows}
                write_text(folder / "results.json", json.dumps(results, indent=1) + "\n")
                write_text(folder / "results.md", as_markdown(results))
    failed = sum("error" in row for row in rows)
    print(f"{folder / 'results.md'}: {failed} failed")
    if failed:
        sys.exit(1)


def result_of(case: Callable[[], Facts], options: GpuOptions) -> Facts:
    """Run one case; whatever it raises becomes its result."""
    gc.collect()  # a failed case may have left its tensors
    if options.is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    try:
        facts = case()
    except Exception as error:
        message = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        where = "".join(traceback.format_tb(error.__traceback__)[-2:])
        return {"error": message, "traceback": where}
    peak = torch.cuda.max_memory_allocated() / 2**20 if options.is_cuda else peak_megabytes()
    seconds = round(time.perf_counter() - started, 1)
    return {"facts": {**facts, "peak MiB": round(peak)}, "seconds": seconds}


def described(row: Facts) -> str:
    """The result of a case in words."""
    if "error" in row:
        return f"failed: {row['error']}".replace("|", "/")
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value:,}"
        for name, value in row["facts"].items()
    )


def as_markdown(results: Facts) -> str:
    """One table of all cases."""
    names = ("device", "hf_vanilla", "torch", "transformers")
    facts = ", ".join(f"{name} {results[name]}" for name in names)
    lines = ["# Benchmark on a GPU", "", facts, ""]
    lines += ["| part | case | seconds | result |", "|---|---|---|---|"]
    lines += [
        f"| {row['part']} | {row['case']} | {row.get('seconds', '')} | {described(row)} |"
        for row in results["rows"]
    ]
    return "\n".join(lines) + "\n"


# --- training ----------------------------------------------------------------------------------


def training_cases(options: GpuOptions, folder: Path) -> Cases:
    """Each way to train; the corpus is written once, before the first."""
    write_corpus(options, folder)
    for name, (size, given) in WAYS.items():
        if options.is_cuda or "--compile" not in given:
            yield name, partial(speed, options, folder, name, size, given)


def write_corpus(options: GpuOptions, folder: Path) -> None:
    """Pairs of random words in Zipf's proportions and of usual lengths, and their tokenizer."""
    draw = np.random.default_rng(0)
    words, pairs = (200, 300) if options.tiny else (60_000, 60_000)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    spelled = np.array(["".join(draw.choice(letters, draw.integers(2, 9))) for _ in range(words)])
    shares = 1 / np.arange(10, words + 10)
    source = np.exp(draw.normal(2.9, 0.55, pairs))
    target = source * np.exp(draw.normal(0, 0.12, pairs))
    sentences: list[str] = []
    for side, lengths in (("source", source), ("target", target)):
        counts = np.clip(lengths.round(), 2, 12 if options.tiny else 90).astype(int)
        drawn = draw.choice(spelled, counts.sum(), p=shares / shares.sum())
        lines = [" ".join(line) for line in np.split(drawn, counts.cumsum()[:-1])]
        write_text(folder / side, "".join(f"{line}\n" for line in lines))
        sentences += lines
    train_tokenizer(sentences, vocab_size=options.vocabulary).save_pretrained(folder / "tokenizer")


def speed(options: GpuOptions, folder: Path, name: str, size: str, given: tuple[str, ...]) -> Facts:
    """Throughput of `train()`: the median of the log after the first steps."""
    steps, step_tokens = (4, 256) if options.tiny else (STEPS, 25_000)
    warmup = 2 if options.tiny else WARMUP
    width, dropout = (32, 0.1) if options.tiny else SIZES[size]
    values = {
        "output_dir": folder / name.replace(", ", "_"),
        "train_source": folder / "source",
        "train_target": folder / "target",
        "tokenizer": folder / "tokenizer",
        "max_steps": steps,
        "save_steps": steps,
        "logging_steps": 2 if options.tiny else 10,
        "average_checkpoints": 1,
        "tokens_per_step": step_tokens,
        "tokens_per_batch": step_tokens,
        "dataloader_workers": 1 if options.tiny else 4,
        "trackers": "none",
        "use_cpu": not options.is_cuda,
        "model.d_model": width,
        "model.dropout": dropout,
        **{f"model.{side}_layers": 1 if options.tiny else 6 for side in ("encoder", "decoder")},
        **{f"model.{side}_ffn_dim": 4 * width for side in ("encoder", "decoder")},
        **{f"model.{side}_attention_heads": max(1, width // 64) for side in ("encoder", "decoder")},
    }
    AcceleratorState._reset_state(reset_partial_state=True)  # another precision in one process
    words = [str(word) for key, value in values.items() for word in (f"--{key}", value)]
    output = train(read_recipe([*words, *given]))
    lines = [
        line
        for line in read_json_lines(output / "log.jsonl")
        if line["step"] > warmup and "tokens_per_second" in line
    ]
    facts = {
        key: statistics.median(line[key] for line in lines)
        for key in ("tokens_per_second", "padding_share", "mfu")
        if key in lines[0]
    }
    hours = PAPER_TOKENS / facts["tokens_per_second"] / 3600
    return {**facts, "hours of the paper": hours}


# --- decoding ----------------------------------------------------------------------------------


def decoding_cases(options: GpuOptions) -> Cases:
    """Base and big with several batch sizes; random weights, so most rows end at the limit."""
    for size in SIZES:
        engines: dict[str, Engine] = {}  # made by the first case, so that its errors are recorded
        for sentences in (1, 3) if options.tiny else (1, 64, 256, 1024):
            yield f"{size}, batch {sentences}", partial(compare, options, size, sentences, engines)
        engines.clear()  # frees their memory


def compare(options: GpuOptions, size: str, sentences: int, engines: dict[str, Engine]) -> Facts:
    """Sentences per second of each engine: the median of three batches, after a first one."""
    if not engines:
        engines.update(make_engines(options, size))
    rates: dict[str, list[float]] = {name: [] for name in engines}
    outputs: dict[str, list[list[int]]] = {}
    for number in range(2 if options.tiny else 4):
        batch = random_batch(sentences, options.vocabulary, seed=number)
        for name, engine in engines.items():
            started = time.perf_counter()
            outputs[name] = engine(batch)  # lists, so the GPU has computed everything
            rates[name].append(sentences / (time.perf_counter() - started))
    facts: Facts = {name: statistics.median(each[1:]) for name, each in rates.items()}
    facts |= {f"to {name}": facts[OURS] / facts[name] for name in engines if name != OURS}
    pairs = zip(outputs[OURS], outputs[MARIAN], strict=True)
    facts["equal to MarianMTModel"] = sum(ours == theirs for ours, theirs in pairs) / sentences
    return facts


def make_engines(options: GpuOptions, size: str) -> dict[str, Engine]:
    """The engines by name; CTranslate2 only where it is installed. Half precision on a GPU."""
    width = 32 if options.tiny else SIZES[size][0]
    longest = 8 if options.tiny else 40
    torch.manual_seed(0)
    config = VanillaConfig(
        vocab_size=options.vocabulary,
        d_model=width,
        encoder_layers=1 if options.tiny else 6,
        decoder_layers=1 if options.tiny else 6,
        encoder_attention_heads=max(1, width // 64),
        decoder_attention_heads=max(1, width // 64),
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        **MARIAN_FIELDS,
    )
    model = VanillaForConditionalGeneration(config).eval()
    model.generation_config.update(**DECODING, max_length=longest)
    theirs = to_marian(model).eval()
    engines: dict[str, Engine] = {}
    if importlib.util.find_spec("ctranslate2") is not None:
        engines[CTRANSLATE2] = ctranslate2_engine(options, model, longest)
    dtype = torch.float16 if options.is_cuda else torch.float32
    for name, each in ((MARIAN, theirs), (OURS, model)):
        engines[name] = partial(generate, each.to(options.device, dtype))
    return engines


def generate(model: Any, batch: Batch) -> list[list[int]]:
    """Token ids of a model's `generate()`, without what follows the end token."""
    with torch.inference_mode():
        ids = model.generate(**{name: value.to(model.device) for name, value in batch.items()})
    rows = [row[1:] for row in ids.tolist()]  # without the start token
    return [row[: row.index(EOS)] if EOS in row else row for row in rows]


def ctranslate2_engine(options: GpuOptions, model: Any, longest: int) -> Engine:
    """CTranslate2's `translate_batch` on ids."""
    ctranslate2 = importlib.import_module("ctranslate2")
    names = [f"token{number}" for number in range(model.config.vocab_size)]
    number_of = {name: number for number, name in enumerate(names)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(number_of, unk_token=names[2])),
        pad_token=names[PAD],
        eos_token=names[EOS],
        unk_token=names[2],
    )
    with tempfile.TemporaryDirectory() as folder:
        spec = to_ctranslate2(model, tokenizer, positions=512)
        spec.optimize(quantization="float16" if options.is_cuda else "float32")
        spec.save(folder)
        translator = ctranslate2.Translator(folder, device=options.device, intra_threads=1)

    def translate(batch: Batch) -> list[list[int]]:
        sides = (batch["input_ids"].tolist(), batch["attention_mask"].sum(1).tolist())
        rows = [[names[each] for each in ids[:count]] for ids, count in zip(*sides, strict=True)]
        results = translator.translate_batch(
            rows, beam_size=BEAMS, length_penalty=1.0, max_decoding_length=longest - 1
        )
        return [[number_of[token] for token in each.hypotheses[0]] for each in results]

    return translate


def random_batch(sentences: int, vocabulary: int, *, seed: int) -> Batch:
    """Random sources `(B, S)` of about 27 tokens, each with the end token, and their mask."""
    spread = np.exp(np.random.default_rng(0).normal(3.15, 0.55, sentences)).round()
    lengths = torch.from_numpy(np.clip(spread, 4, 60).astype(np.int64))
    draw = torch.Generator().manual_seed(seed)
    index = torch.arange(int(lengths.max()))
    ids = torch.randint(3, vocabulary, (sentences, len(index)), generator=draw)
    mask = index < lengths[:, None]
    ids[torch.arange(sentences), lengths - 1] = EOS
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


if __name__ == "__main__":
    run(benchmark, GpuOptions)
