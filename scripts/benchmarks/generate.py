"""Beam search side by side: sentences per second, `MarianMTModel.generate` (sdpa) = 1.00.

    scripts/benchmarks/generate.py --model FOLDER --source test.en.gz --reference test.de.gz

The same weights in every engine, each in a process of its own; the same batches dealt to all in
turn, medians of the ratios of a batch. The model must be one that MarianMTModel can express
(--model.position_layout concatenated --model.layer_norm_eps 1e-5 in training), and should really
translate: which sentences end when decides the result. Every search ends with its `num_beams`-th
finished hypothesis, since CTranslate2 knows no other end, and scores hypotheses by their length's
first power.
"""

import importlib.util
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from train_engines import peak_megabytes
from transformers import AutoTokenizer, MarianMTModel, PreTrainedTokenizerBase

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.commands import run
from hf_vanilla.convert.export import ExportOptions, export
from hf_vanilla.convert.marian import to_marian
from hf_vanilla.data.bleu import score_translations
from hf_vanilla.data.lines import read_lines
from hf_vanilla.text.engines import load_engine
from hf_vanilla.text.loading import DTYPES, load_translator

MARIAN, PLAIN = "MarianMTModel", "hf_vanilla, transformers' search"
OURS = "hf_vanilla"
# as `Translator` loads it, by its name of the dtype
TRANSLATOR = {f"hf_vanilla, Translator {dtype}": dtype for dtype in DTYPES}
# by CTranslate2's names of what it computes in
CTRANSLATE2 = {"CTranslate2 float32": "float32", "CTranslate2 int8": "int8_float32"}
# the program of an exported folder, by its dtype
ONNX = {f"ONNX Runtime {dtype}": dtype for dtype in ("float32", "int8")}
LONGEST = 120  # tokens of a translation
PAUSE = 0.25  # seconds between two turns: threads of the last engine may still be spinning


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """Options of `compare`."""

    model: str = field(metadata={"help": "folder of a trained model"})
    source: str = field(metadata={"help": "text to translate, plain or .gz, a sentence a line"})
    reference: str | None = field(default=None, metadata={"help": "its translation, for BLEU"})
    batch_sizes: str = field(default="1,16,64", metadata={"help": "sentences at once, by commas"})
    rounds: int = field(default=7, metadata={"help": "batches of each size; 0: the whole text"})
    num_beams: int = field(default=4, metadata={"help": "hypotheses kept per sentence"})
    threads: int = field(default=2, metadata={"help": "of every engine"})

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        sizes = self.batch_sizes.split(",")
        if not all(size.strip().isdecimal() and int(size) for size in sizes):
            raise ValueError(f"batch_sizes={self.batch_sizes!r}: give numbers such as 1,16,64")
        for name, least in (("rounds", 0), ("num_beams", 1), ("threads", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: give {least} or more")

    @property
    def sizes(self) -> list[int]:
        """The batch sizes as numbers."""
        return [int(size) for size in self.batch_sizes.split(",")]


# --- the same weights for every engine ---------------------------------------------------------


def prepare(options: BenchmarkOptions, folder: Path) -> None:
    """Save the model with its decoding settings for every engine that is installed."""
    model, tokenizer = load_translator(options.model)
    model.generation_config.update(
        num_beams=options.num_beams,
        length_penalty_form="power",
        length_penalty=1.0,
        early_stopping=True,
        max_tokens_beyond_source=None,
        max_length=LONGEST,
    )
    model.save_pretrained(folder / "ours")
    tokenizer.save_pretrained(folder / "ours")
    to_marian(model).save_pretrained(folder / "marian")
    given = {"model": str(folder / "ours")}
    if importlib.util.find_spec("ctranslate2"):
        export(ExportOptions(**given, output=str(folder / "ctranslate2")))
    if importlib.util.find_spec("onnxscript"):
        for dtype in ONNX.values():
            output = str(folder / f"onnx-{dtype}")
            export(ExportOptions(**given, output=output, format="onnx", dtype=dtype))


def engines(options: BenchmarkOptions, folder: Path) -> dict[str, Callable[[], Any]]:
    """What loads each engine; an engine is a function of a padded batch."""
    found: dict[str, Callable[[], Any]] = {MARIAN: lambda: load_marian(folder)}
    for name in (PLAIN, OURS, *TRANSLATOR):
        found[name] = lambda name=name: load_ours(folder, name)
    if (folder / "ctranslate2").is_dir():
        for name, numbers in CTRANSLATE2.items():
            found[name] = lambda numbers=numbers: load_ctranslate2(options, folder, numbers)
    for name, dtype in ONNX.items():
        if (exported := folder / f"onnx-{dtype}").is_dir():
            found[name] = lambda exported=exported: load_onnx(options, exported)
    return found


def load_marian(folder: Path) -> Callable[..., Any]:
    """`MarianMTModel.generate`, its cache the default (dynamic)."""
    model = MarianMTModel.from_pretrained(folder / "marian", attn_implementation="sdpa")
    return model.eval().generate


def load_ours(folder: Path, name: str) -> Callable[..., Any]:
    """Our `generate()`, in one of its ways."""
    if name in TRANSLATOR:
        return load_engine(str(folder / "ours"), dtype=TRANSLATOR[name]).model.generate
    model = VanillaForConditionalGeneration.from_pretrained(folder / "ours").eval()
    if name == PLAIN:  # who listens hears transformers' own search
        model.register_forward_hook(lambda *_: None)
    return model.generate


def load_ctranslate2(options: BenchmarkOptions, folder: Path, numbers: str) -> Callable[..., Any]:
    """CTranslate2's `translate_batch` on ids, as ids."""
    library = importlib.import_module("ctranslate2")
    translator = library.Translator(
        str(folder / "ctranslate2"),
        inter_threads=1,
        intra_threads=options.threads,
        compute_type=numbers,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "ctranslate2")

    def generate(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[list[int]]:
        rows = [
            row[mask.bool()].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)
        ]
        found = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(row) for row in rows],
            beam_size=options.num_beams,
            length_penalty=1.0,
            max_decoding_length=LONGEST - 1,  # without the start token
        )
        return [tokenizer.convert_tokens_to_ids(each.hypotheses[0]) for each in found]

    return generate


def load_onnx(options: BenchmarkOptions, exported: Path) -> Callable[..., Any]:
    """The search of an exported folder on ids, as ids."""
    from hf_vanilla.text.onnx_search import Translator  # needs onnxruntime

    translator = Translator(exported, threads=options.threads)

    def generate(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[list[int]]:
        pairs = zip(input_ids, attention_mask, strict=True)
        found = translator.search([row[mask.bool()].tolist() for row, mask in pairs])
        return [hypotheses[0].ids for hypotheses in found]

    return generate


# --- the race ----------------------------------------------------------------------------------


def batches(
    options: BenchmarkOptions, size: int, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Any], list[int]]:
    """Batches in the order of the text, the first of them twice; and the lines they hold."""
    wanted = options.rounds * size or None
    lines = enumerate(map(str.strip, read_lines(options.source)))
    chosen = list(islice(((number, line) for number, line in lines if line), wanted))
    if not chosen:
        raise ValueError(f"{options.source} has no text")
    texts = [line for _, line in chosen]
    groups = [texts[begin : begin + size] for begin in range(0, len(texts), size)]
    made = [tokenizer(group, padding=True, return_tensors="pt") for group in [groups[0], *groups]]
    return made, [number for number, _ in chosen]


def serve(connection: Connection, options: BenchmarkOptions, folder: Path, name: str) -> None:
    """One engine's process: batches in; wall seconds, CPU seconds, ids and peak MiB out."""
    torch.set_num_threads(options.threads)
    generate = engines(options, folder)[name]()
    connection.send(name)  # it is loaded
    with torch.inference_mode():
        while (batch := connection.recv()) is not None:
            given = {key: torch.from_numpy(ids.copy()) for key, ids in batch.items()}
            wall, cpu = time.perf_counter(), time.process_time()
            found = generate(**given)
            spent = time.perf_counter() - wall, time.process_time() - cpu
            ids = found if isinstance(found, list) else found.tolist()
            connection.send((*spent, ids, peak_megabytes()))


def start(options: BenchmarkOptions, folder: Path) -> dict[str, Connection]:
    """A process for each engine."""
    context, connections = multiprocessing.get_context("spawn"), {}
    for name in engines(options, folder):
        connections[name], theirs = context.Pipe()
        arguments = (theirs, options, folder, name)
        context.Process(target=serve, args=arguments, daemon=True).start()
        theirs.close()
        connections[name].recv()
    return connections


def race(connections: dict[str, Connection], dealt: list[Any]) -> dict[str, Any]:
    """What each engine sends for each batch; the first only warms up."""
    seen: dict[str, list[Any]] = {name: [] for name in connections}
    for number, batch in enumerate(dealt):
        given = {name: batch[name].numpy() for name in ("input_ids", "attention_mask")}
        print(f"\rbatch {number} of {len(dealt) - 1} ", end="", file=sys.stderr)
        for name, connection in connections.items():
            time.sleep(PAUSE)
            connection.send(given)
            answer = connection.recv()
            if number:
                seen[name].append(answer)
    print(file=sys.stderr)
    return seen


def ratios(seen: dict[str, list[Any]], name: str) -> str:
    """How many times as fast as Marian: by wall time, and by CPU time in brackets."""
    both = [
        statistics.median(theirs[clock] / own[clock] for theirs, own in zip(*pair, strict=True))
        for clock in (0, 1)
        for pair in [(seen[MARIAN], seen[name])]
    ]
    return f"{both[0]:.2f} ({both[1]:.2f})"


def compare(options: BenchmarkOptions) -> str:
    """A table of engines: speed at each batch size, peak memory, outputs, BLEU."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(options, folder)
        tokenizer = AutoTokenizer.from_pretrained(folder / "ours")
        connections = start(options, folder)
        raced = {size: batches(options, size, tokenizer) for size in options.sizes}
        seen = {size: race(connections, dealt) for size, (dealt, _) in raced.items()}
        for connection in connections.values():
            connection.send(None)
    texts = {
        name: {size: texts_of(runs[name], tokenizer) for size, runs in seen.items()}
        for name in connections
    }
    titles = ["engine", *(f"batch {size}" for size in seen), "peak MiB", "equal", "BLEU"]
    rows = [titles, ["---"] * len(titles)]
    for name in connections:
        pairs = [
            (own, theirs)
            for size in seen
            for own, theirs in zip(texts[name][size], texts[MARIAN][size], strict=True)
        ]
        equal = f"{sum(own == theirs for own, theirs in pairs)} of {len(pairs)}"
        speed = [ratios(runs, name) for runs in seen.values()]
        lines = raced[max(seen)][1]
        peak = f"{max(answer[-1] for runs in seen.values() for answer in runs[name]):.0f}"
        rows.append([name, *speed, peak, equal, bleu(options, texts[name], lines)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def texts_of(runs: list[Any], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The translations of all batches."""
    return [
        text
        for *_, found, _ in runs
        for text in tokenizer.batch_decode(found, skip_special_tokens=True)
    ]


def bleu(options: BenchmarkOptions, texts: dict[int, list[str]], lines: list[int]) -> str:
    """Of the largest batches, whose translations are of these lines."""
    if options.reference is None:
        return ""
    references = list(read_lines(options.reference))
    return f"{score_translations(texts[max(texts)], [references[n] for n in lines]).bleu:.2f}"


if __name__ == "__main__":
    print(run(compare, BenchmarkOptions))
