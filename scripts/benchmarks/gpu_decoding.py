"""Beam search on a GPU: sentences per second beside MarianMTModel and CTranslate2, same weights."""

import importlib
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpu_options import EOS, PAD, Cases, Facts, GpuOptions, model_of, sentence_lengths, synchronize
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from hf_vanilla.convert.ctranslate2 import to_ctranslate2
from hf_vanilla.convert.to_marian import to_marian

BEAMS = 4
MARIAN, OURS, CTRANSLATE2 = "MarianMTModel", "hf_vanilla", "CTranslate2"
# the only values that MarianMTModel can express, and decoding that all engines can do
MARIAN_FIELDS: dict[str, Any] = {"position_layout": "concatenated", "layer_norm_eps": 1e-5}
DECODING: dict[str, Any] = {
    "num_beams": BEAMS,
    "length_penalty_form": "power",
    "length_penalty": 1.0,
    "early_stopping": True,
    "max_tokens_beyond_source": None,
}
Batch = dict[str, Tensor]
Engine = Callable[[Batch], list[list[int]]]


def decoding(options: GpuOptions) -> Cases:
    """Base and big, each with several batch sizes.

    The weights are random, so most translations end at the limit of length.
    """
    sizes = (1, 3) if options.tiny else (1, 64, 256, 1024)
    for size in ("base", "big"):
        engines: dict[str, Engine] = {}  # made by the first case, so that its errors are counted
        for sentences in sizes:
            name = f"{size}, batch {sentences}"
            yield name, partial(compare, options, size, sentences, engines)
        engines.clear()  # frees their memory


def compare(options: GpuOptions, size: str, sentences: int, engines: dict[str, Engine]) -> Facts:
    """Sentences per second of each engine: the median of three batches, after a first one."""
    if not engines:
        engines.update(make_engines(options, size))
    vocabulary = 97 if options.tiny else 37_000
    lengths = torch.from_numpy(sentence_lengths(sentences, 60)[0])
    rounds: dict[str, list[float]] = {name: [] for name in engines}
    outputs: dict[str, list[list[int]]] = {}
    for number in range(2 if options.tiny else 4):
        batch = random_batch(lengths, vocabulary, seed=number)
        for name, engine in engines.items():
            synchronize(options)
            started = time.perf_counter()
            outputs[name] = engine(batch)
            synchronize(options)
            rounds[name].append(sentences / (time.perf_counter() - started))
    facts: Facts = {name: statistics.median(rates[1:]) for name, rates in rounds.items()}
    facts["to MarianMTModel"] = facts[OURS] / facts[MARIAN]
    if CTRANSLATE2 in engines:
        facts["to CTranslate2"] = facts[OURS] / facts[CTRANSLATE2]
    pairs = zip(outputs[OURS], outputs[MARIAN], strict=True)
    facts["equal to MarianMTModel"] = sum(a == b for a, b in pairs) / sentences
    return facts


def make_engines(options: GpuOptions, size: str) -> dict[str, Engine]:
    """The engines by name; CTranslate2 only where it is installed. Half precision on a GPU."""
    longest = 8 if options.tiny else 40
    model = model_of(options, size, **MARIAN_FIELDS).eval()
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
        rows = [
            [names[number] for number, is_real in zip(*row, strict=True) if is_real]
            for row in zip(
                batch["input_ids"].tolist(), batch["attention_mask"].tolist(), strict=True
            )
        ]
        found = translator.translate_batch(
            rows, beam_size=BEAMS, length_penalty=1.0, max_decoding_length=longest - 1
        )
        return [[number_of[token] for token in each.hypotheses[0]] for each in found]

    return translate


def random_batch(lengths: Tensor, vocabulary: int, *, seed: int) -> Batch:
    """Random sources `(B, S)` of the given lengths, each with the end token, and their mask."""
    draw = torch.Generator().manual_seed(seed)
    index = torch.arange(int(lengths.max()))
    ids = torch.randint(3, vocabulary, (len(lengths), len(index)), generator=draw)
    mask = index < lengths[:, None]
    ids[torch.arange(len(lengths)), lengths - 1] = EOS
    return {"input_ids": ids * mask, "attention_mask": mask.long()}
