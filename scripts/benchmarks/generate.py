"""Beam search side by side: sentences per CPU second, `MarianMTModel.generate` (sdpa) = 1.00.

    scripts/benchmarks/generate.py --model FOLDER --source test.en.gz
    scripts/benchmarks/generate.py --model FOLDER --source test.en.gz --size base

The same weights in every engine, batches dealt to them in turn, medians of the ratios of a batch.
A model must be one that MarianMTModel can express (position_layout concatenated, layer_norm_eps
1e-5), and should really translate: which sentences end when decides the result. `--size base`
takes the model's tokenizer only: weights of the paper's base size are drawn at random, and each
sentence is made to end at the length of its source.
"""

import copy
import importlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.command_line import run
from hf_vanilla.convert.to_marian import to_marian
from hf_vanilla.corpus import read_lines
from hf_vanilla.generation_vanilla import SourceLengthEnd
from hf_vanilla.translation import load_translator

SIZES = ("own", "base")


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """Options of `compare`."""

    model: str = field(metadata={"help": "folder of a trained model"})
    source: str = field(metadata={"help": "text to translate, plain or .gz, a sentence a line"})
    size: str = field(default="own", metadata={"help": "own: the model's; base: the paper's"})
    batch_size: int = field(default=16, metadata={"help": "sentences decoded together"})
    rounds: int = field(default=7, metadata={"help": "batches for each engine"})
    num_beams: int = field(default=4, metadata={"help": "hypotheses kept per sentence"})
    only: str | None = field(
        default=None, metadata={"help": "run this engine alone and print its peak MiB"}
    )
    threads: int = field(default=1, metadata={"help": "threads of torch"})

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"size={self.size!r}: choose one of {', '.join(SIZES)}")


def base_size(vocab_size: int) -> VanillaForConditionalGeneration:
    """The paper's base model with random weights, as Marian can express it."""
    torch.manual_seed(0)
    config = VanillaConfig(
        vocab_size=vocab_size, position_layout="concatenated", layer_norm_eps=1e-5
    )
    return VanillaForConditionalGeneration(config).eval()


def settings(options: BenchmarkOptions, model: VanillaForConditionalGeneration) -> Any:
    """Decoding that every engine can be told: no penalty of ours, one limit for all."""
    decoding = copy.deepcopy(model.generation_config)
    decoding.update(
        num_beams=options.num_beams,
        length_penalty_form="power",
        length_penalty=1.0,
        early_stopping=False,
        max_tokens_beyond_source=None,
        max_length=120,
    )
    return decoding


def engines(
    options: BenchmarkOptions, ours: VanillaForConditionalGeneration, model_folder: str
) -> dict[str, Callable[..., Any]]:
    """Each engine as a function of a padded batch and of further arguments of `generate()`."""
    ours.generation_config = settings(options, ours)
    theirs = to_marian(ours).eval()
    theirs.set_attn_implementation("sdpa")
    found: dict[str, Callable[..., Any]] = {"MarianMTModel": theirs.generate}
    hooked = copy.deepcopy(ours)
    hooked.register_forward_hook(lambda *_: None)  # who listens hears transformers' own search
    found["hf_vanilla, plain"] = hooked.generate
    found["hf_vanilla"] = ours.generate
    if options.size == "own":
        found |= ctranslate2_engine(options, model_folder)
    return found


def ctranslate2_engine(options: BenchmarkOptions, folder: str) -> dict[str, Callable[..., Any]]:
    """CTranslate2 in float32, where it is installed."""
    try:
        ctranslate2 = importlib.import_module("ctranslate2")
        convert = importlib.import_module("hf_vanilla.convert.ctranslate2")
    except ImportError:
        return {}
    exported = Path(tempfile.mkdtemp()) / "model"
    convert.export_ctranslate2(convert.ExportCTranslate2Options(model=folder, output=str(exported)))
    translator = ctranslate2.Translator(
        str(exported), inter_threads=1, intra_threads=options.threads, compute_type="float32"
    )
    _, tokenizer = load_translator(folder)

    def generate(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[list[int]]:
        rows = [
            row[mask.bool()].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)
        ]
        tokens = [tokenizer.convert_ids_to_tokens(row) for row in rows]
        found = translator.translate_batch(
            tokens, beam_size=options.num_beams, length_penalty=1.0, max_decoding_length=119
        )
        return [tokenizer.convert_tokens_to_ids(each.hypotheses[0]) for each in found]

    return {"CTranslate2 float32": generate}


def batches(options: BenchmarkOptions, tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """As many batches as rounds, and one to warm up with, in the order of the text."""
    wanted = options.batch_size * (options.rounds + 1)
    lines = list(islice(filter(None, map(str.strip, read_lines(options.source))), wanted))
    groups = [
        lines[begin : begin + options.batch_size]
        for begin in range(0, len(lines), options.batch_size)
    ]
    return [tokenizer(group, padding=True, return_tensors="pt") for group in groups]


def given_to_all(options: BenchmarkOptions, batch: Any, end_id: int) -> dict[str, Any]:
    """Arguments of `generate()`; those of random weights say where each sentence ends."""
    given = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if options.size == "base":
        lengths = batch["attention_mask"].sum(dim=1) + 1
        given["logits_processor"] = [SourceLengthEnd(lengths, end_id)]
    return given


@torch.inference_mode()
def run_through(
    options: BenchmarkOptions,
) -> tuple[dict[str, list[float]], dict[str, list[str]]]:
    """CPU seconds of each engine for each batch, and its translations."""
    torch.set_num_threads(options.threads)
    model, tokenizer = load_translator(options.model)
    ours: Any = model if options.size == "own" else base_size(len(tokenizer))
    ways = engines(options, ours, options.model)
    if options.only:
        ways = {options.only: ways[options.only]}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    texts: dict[str, list[str]] = {name: [] for name in ways}
    for number, batch in enumerate(batches(options, tokenizer)):
        for name, generate in ways.items():
            given = given_to_all(options, batch, ours.config.eos_token_id)
            begin = time.process_time()
            found = generate(**given)
            if number:  # the first batch warms up
                seconds[name].append(time.process_time() - begin)
                texts[name] += tokenizer.batch_decode(found, skip_special_tokens=True)
    return seconds, texts


def peak_mib(name: str) -> float:
    """Greatest resident memory of a process of its own that translates with this engine."""
    command = [sys.executable, *sys.argv, "--only", name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def compare(options: BenchmarkOptions) -> str:
    """A table of engines: speed, peak memory, and how many outputs equal Marian's."""
    seconds, texts = run_through(options)
    if options.only:
        return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}"
    base, expected = seconds["MarianMTModel"], texts["MarianMTModel"]
    lines = ["| engine | speed | peak MiB | equal |", "|---|---|---|---|"]
    for name, times in seconds.items():
        ratio = statistics.median(b / t for b, t in zip(base, times, strict=True))
        same = sum(a == b for a, b in zip(texts[name], expected, strict=True))
        equal = f"{same} of {len(expected)}"
        lines.append(f"| {name} | {ratio:.2f} | {peak_mib(name):.0f} | {equal} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(run(compare, BenchmarkOptions))
