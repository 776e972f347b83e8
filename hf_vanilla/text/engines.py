"""Engines translate a batch of token ids: `generate()` of a model, CTranslate2, ONNX Runtime."""

import inspect
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_vanilla.cpus import return_freed_memory
from hf_vanilla.loading import load_saved
from hf_vanilla.models.generation_vanilla import merged_settings
from hf_vanilla.models.packing_vanilla import pack
from hf_vanilla.models.search_vanilla_constraints import Constraints, Phrase
from hf_vanilla.models.search_vanilla_decoder import STEPS_AT_ONCE, Ensemble
from hf_vanilla.models.stacks_vanilla import VanillaTextPreTrainedModel
from hf_vanilla.options import needs

from .decoding import generated_texts
from .generation_fields import check_own_search, check_token_ids
from .loading import load_translator, output_size
from .n_best import Hypothesis, n_best_of_rows
from .terminology import Term

SHORTEST = 2  # tokens of a sentence: one and the end
ENGINES = ("torch", "ctranslate2", "onnx")
# fields that a call may change with ONNX Runtime; the others are in its graphs
ONNX_DECODING = frozenset((
    "early_stopping", "length_penalty", "length_penalty_form", "max_length", "max_new_tokens",
    "max_tokens_beyond_source", "num_beams",
))  # fmt: skip
# fields that a call may change with CTranslate2
CTRANSLATE2_CHANGES = (ONNX_DECODING - {"early_stopping", "length_penalty_form"}) | {
    "bad_words_ids", "min_length", "min_new_tokens", "no_repeat_ngram_size",
    "num_return_sequences", "renormalize_logits",
}  # fmt: skip
# fields of a generation config that CTranslate2 supports, or that do not concern the search
CTRANSLATE2_DECODING = CTRANSLATE2_CHANGES | {
    "_from_model_config", "bos_token_id", "decoder_start_token_id", "early_stopping",
    "eos_token_id", "length_penalty_form", "pad_token_id", "transformers_version", "use_cache",
}  # fmt: skip


class Engine(Protocol):
    """Translates a batch of tokenized sentences."""

    tokenizer: PreTrainedTokenizerBase

    def translate_rows(self, rows: list[list[int]]) -> list[str]:
        """One text per row of input ids, in the same order; each row ends in the end token."""


class TorchEngine:
    """Translates by `generate()` of a transformers model, on the model's device.

    Args:
        model: a sequence-to-sequence model in evaluation mode.
        tokenizer: its tokenizer.
        seed: of sampling: what is drawn for a batch is a function of the seed and its sentences;
            None: torch's generator as it is.
        **generate_kwargs: passed on to `model.generate`. Of several returned sequences the first,
            which beam search ranks best, is the translation.

    Raises:
        ValueError: `generate()` has no such option.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        seed: int | None = None,
        **generate_kwargs: Any,
    ) -> None:
        settings = vars(GenerationConfig()).keys() | vars(model.generation_config).keys()
        known = settings | inspect.signature(GenerationMixin.generate).parameters.keys()
        if unknown := ", ".join(sorted(generate_kwargs.keys() - known - {"ensemble"})):
            raise ValueError(
                f"{unknown}: no option of generate(); the size of batches is tokens_per_batch"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.seed = seed
        self.generate_kwargs = generate_kwargs

    @property
    def search(self) -> tuple[GenerationConfig, dict[str, Any]]:
        """The model's generation config, and the changes of every call."""
        return self.model.generation_config, self.generate_kwargs

    def translate_rows(self, rows: list[list[int]]) -> list[str]:
        """One text per row of input ids."""
        return [text for text, _ in self._translations(rows)]

    def constrained_rows(self, rows: list[list[int]], constraints: Constraints) -> list[str]:
        """One text per row of input ids, which has the phrases of its row.

        Only the rows whose usual translation lacks a phrase are searched under constraints.

        Raises:
            ValueError: phrases do not fit into the length of a translation; they are named.
        """
        phrases = constraints.phrases
        found = self._translations(rows)
        lacking = [
            row
            for row, of_one in enumerate(phrases)
            if not all(_has(*found[row], phrase) for phrase in of_one)
        ]
        if lacking:
            required = Constraints([phrases[row] for row in lacking])
            others = self._translations([rows[row] for row in lacking], constraints=required)
            for row, other in zip(lacking, others, strict=True):
                found[row] = other
        return [text for text, _ in found]

    def _translations(self, rows: list[list[int]], **changes: Any) -> list[tuple[str, list[int]]]:
        with self._drawing(rows):
            options = {**self.generate_kwargs, **changes}
            return generated_texts(self.model, self.tokenizer, rows, **options)

    def n_best_rows(self, rows: list[list[int]], n: int) -> list[list[Hypothesis]]:
        """The n best hypotheses per row of input ids, by beam search or sampling."""
        with self._drawing(rows):
            return n_best_of_rows(self.model, self.tokenizer, rows, n, **self.generate_kwargs)

    @contextmanager
    def _drawing(self, rows: list[list[int]]) -> Iterator[None]:
        """Draw by the seed and these rows; torch's generators then go on as before."""
        if self.seed is None:
            yield
            return
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            # the generator of a CPU reads 32 bits of a seed
            torch.manual_seed(zlib.crc32(repr((self.seed, rows)).encode()))
            yield

    def sentence_bytes(self, source: int) -> int:
        """An upper bound of the memory that one sentence of a batch takes beside the weights.

        It holds for our own search, as if no hypothesis ended before its limit.

        Args:
            source: tokens of the longest sentence of the batch.
        """
        settings, _ = merged_settings(*self.search)
        beams, steps = settings.num_beams or 1, most_new_tokens(settings, source)
        # the cache grows in parts, and the old storage of a layer is copied to the new one
        slots = beams * (steps + max(STEPS_AT_ONCE, steps // 4))
        total = 8 * 2 * 8 * beams * steps  # int64 ids and parents: active, finished, candidates
        models = self.generate_kwargs.get("ensemble")
        for model in (self.model, *(models.models if models else ())):
            config, heads = model.config, model.config.decoder_attention_heads
            width = heads * sum(config.head_widths(heads))  # of keys and values
            encoder = source * (6 * config.d_model + 2 * config.encoder_ffn_dim)
            encoder += 2 * config.encoder_attention_heads * source**2
            cache = (config.decoder_layers + 1) * (slots + source) * width
            scores = 3 * heads * beams * max(slots, source)
            logits = 3 * beams * config.target_vocab_size
            total += (encoder + cache + scores) * model.dtype.itemsize + 4 * logits
        return total

    def sentences_within(self, limit: float, source: int) -> int:
        """Number of sentences in a batch that a limit of memory allows; at least 1.

        Args:
            limit: MiB beside the weights.
            source: tokens of the longest sentence.

        Raises:
            ValueError: one alone may need more.
        """
        needed = self.sentence_bytes(source) / 2**20
        if needed > limit:
            raise ValueError(
                f"max_batch_memory={limit}: a sentence of {source} tokens may need "
                f"{math.ceil(needed)} MiB: give {math.ceil(needed)} or more, or fewer num_beams"
            )
        return int(limit / needed)


def check_memory_limit(limit: float, engine: Engine, instead: str) -> None:
    """Refuse a limit of memory that no sentence meets, or whose need is not known.

    Args:
        limit: MiB that a batch may take beside the weights.
        engine: translates.
        instead: what a user can do if the need is not known.

    Raises:
        ValueError: of an engine other than torch, a model of others, or a limit too small.
    """
    if not isinstance(engine, TorchEngine) or not isinstance(
        engine.model, VanillaTextPreTrainedModel
    ):
        raise ValueError(
            f"max_batch_memory={limit} needs the engine torch and a model of hf_vanilla: {instead}"
        )
    engine.sentences_within(limit, SHORTEST)


def check_n_best(n: int, saved: GenerationConfig, changes: dict[str, Any]) -> None:
    """Refuse an n-best list that a search cannot give; sampling without beams gives any.

    Args:
        n: hypotheses per sentence.
        saved: the model's generation config.
        changes: to it, by this call.

    Raises:
        ValueError: `n` is below 1 or above the number of beams, or there is no beam search.
    """
    if n < 1:
        raise ValueError(f"n_best={n}: give a positive number")
    beams = changes.get("num_beams", saved.num_beams) or 1
    if not changes.get("do_sample", saved.do_sample) or beams > 1:
        check_beams(f"n_best={n}", max(n, 2), saved, changes)


def check_beams(what: str, wanted: int, saved: GenerationConfig, changes: dict[str, Any]) -> None:
    """Refuse a search with fewer beams than wanted.

    Args:
        what: needs them.
        wanted: number of beams.
        saved: the model's generation config.
        changes: to it, by this call.

    Raises:
        ValueError: there are fewer.
    """
    beams = changes.get("num_beams", saved.num_beams) or 1
    if beams < wanted:
        raise ValueError(f"{what}, but num_beams={beams}: add --num_beams {wanted}")


def _has(text: str, ids: list[int], phrase: Phrase) -> bool:
    """Whether a translation has a phrase: its tokens, or its text where a word begins."""
    places = Term(phrase.text).places(text) if phrase.text else []
    return phrase.is_in(ids) or any(not text[:first][-1:].isalnum() for first, _ in places)


class CTranslate2Engine:
    """Translates by CTranslate2, with a folder that `hf-vanilla export` wrote.

    Args:
        folder: output of the export.
        device: where to compute; None: a GPU if there is one.
        **decoding: changes to the generation config, such as `num_beams`.

    Raises:
        ImportError: `ctranslate2` is not installed.
        ValueError: the folder is not such an export, or CTranslate2 cannot change a field.
    """

    def __init__(
        self, folder: str | Path, *, device: str | torch.device | None = None, **decoding: Any
    ) -> None:
        library = import_ctranslate2()
        folder = Path(folder)
        if not (folder / "model.bin").is_file() or not (folder / "tokenizer_config.json").is_file():
            raise ValueError(f"{folder} is no export for CTranslate2: use hf-vanilla export")
        self.tokenizer = load_saved(AutoTokenizer, folder)
        self.decoding = load_saved(GenerationConfig, folder)
        others = decoding.keys() - CTRANSLATE2_CHANGES
        if unknown := sorted(n for n in others if decoding[n] != getattr(self.decoding, n, None)):
            names = ", ".join(sorted(CTRANSLATE2_CHANGES))
            raise ValueError(f"CTranslate2 does not support {', '.join(unknown)}, only {names}")
        for name, value in decoding.items():
            setattr(self.decoding, name, value)
        self._source_tokens = _vocabulary(folder, "source")
        self._target_tokens = _vocabulary(folder, "target")
        self._target_ids = {token: i for i, token in enumerate(self._target_tokens)}
        place = torch.device(device or "cuda")
        if not library.get_cuda_device_count() or place.type != "cuda":
            place = torch.device("cpu")
        self._translator = library.Translator(
            str(folder), device=place.type, device_index=place.index or 0
        )

    def translate_rows(self, rows: list[list[int]]) -> list[str]:
        """One text per row of input ids.

        CTranslate2 takes one length limit per batch, and ours depends on the source length, so
        only sentences with the same limit form a batch.
        """
        config = self.decoding
        banned = [[self._target_tokens[i] for i in ids] for ids in config.bad_words_ids or []]
        least = config.min_new_tokens
        if least is None:  # min_length includes the start token
            least = max((config.min_length or 0) - 1, 0)
        options = {
            "beam_size": config.num_beams or 1,
            "length_penalty": 1.0 if config.length_penalty is None else config.length_penalty,
            "min_decoding_length": least,  # CTranslate2's own default is 1
            "no_repeat_ngram_size": config.no_repeat_ngram_size or 0,
            "suppress_sequences": banned or None,
            "max_input_length": 0,  # no limit here: the translator has cut long sentences
        }
        texts = [""] * len(rows)
        limits = [most_new_tokens(config, len(row)) for row in rows]
        for limit in sorted(set(limits)):
            batch = [i for i, own in enumerate(limits) if own == limit]
            results = self._translator.translate_batch(
                [[self._source_tokens[token_id] for token_id in rows[i]] for i in batch],
                max_decoding_length=limit,
                **options,
            )
            found = [[self._target_ids[token] for token in r.hypotheses[0]] for r in results]
            decoded = self.tokenizer.batch_decode(found, skip_special_tokens=True)
            for i, text in zip(batch, decoded, strict=True):
                texts[i] = text
        return texts


def most_new_tokens(settings: GenerationConfig, source: int) -> int:
    """Most tokens of a translation, the end token included; at least 1.

    Args:
        settings: of the call.
        source: tokens of the sentence.
    """
    if settings.max_new_tokens is not None:
        return settings.max_new_tokens
    # max_length includes the start token
    limits = [] if settings.max_length is None else [settings.max_length - 1]
    if (beyond := getattr(settings, "max_tokens_beyond_source", None)) is not None:
        limits.append(source + beyond)
    default = GenerationConfig._get_default_generation_params()["max_length"] - 1
    return max(min(limits, default=default), 1)


def import_ctranslate2() -> ModuleType:
    """Import the library.

    Raises:
        ImportError: it is not installed.
    """
    with needs("this needs CTranslate2", "ctranslate2"):
        import ctranslate2
    return ctranslate2


def _vocabulary(folder: Path, side: str) -> list[str]:
    """The tokens of one side, `"source"` or `"target"`, in the order of CTranslate2's ids."""
    own, shared = folder / f"{side}_vocabulary.json", folder / "shared_vocabulary.json"
    return json.loads((own if own.is_file() else shared).read_text(encoding="utf-8"))


class OnnxEngine:
    """Translates by ONNX Runtime, with a folder that `hf-vanilla export --format onnx` wrote.

    Args:
        folder: output of the export.
        **decoding: changes to the generation config, of `ONNX_DECODING`.

    Raises:
        ImportError: `onnxruntime` is not installed.
        ValueError: the folder is not such an export, or a field is not among these.
    """

    def __init__(self, folder: str | Path, **decoding: Any) -> None:
        with needs("this needs ONNX Runtime", "onnx"):
            from .onnx_search import Translator
        if not (Path(folder) / "decoder.onnx").is_file():
            raise ValueError(f"{folder} is no export for ONNX: use hf-vanilla export --format onnx")
        if unknown := sorted(decoding.keys() - ONNX_DECODING):
            names = ", ".join(sorted(ONNX_DECODING))
            raise ValueError(f"engine onnx does not change {', '.join(unknown)}; it has {names}")
        self.tokenizer = load_saved(AutoTokenizer, folder)
        self._searcher = Translator(folder, threads=torch.get_num_threads(), **decoding)

    def translate_rows(self, rows: list[list[int]]) -> list[str]:
        """One text per row of input ids."""
        found = [hypotheses[0].ids for hypotheses in self._searcher.search(rows)]
        return self.tokenizer.batch_decode(found, skip_special_tokens=True)


# --- loading -------------------------------------------------------------------------------------


def load_engine(
    name: str,
    engine: str = "torch",
    *,
    device: str | torch.device | None = None,
    dtype: str | None = None,
    ensemble: Sequence[str] = (),
    ensemble_average: str = "probabilities",
    **generate_kwargs: Any,
) -> Engine:
    """Load the engine of a model folder or Hub id.

    Args:
        name: folder or Hub id; for `"ctranslate2"` and `"onnx"` a folder of `hf-vanilla export`.
        engine: one of `ENGINES`.
        device: where to compute; None: a GPU if there is one. `"onnx"` computes on the CPU.
        dtype: as for `Translator`.
        ensemble: further models, which decode together with the first one.
        ensemble_average: mean of their `"probabilities"` or `"log_probabilities"`.
        **generate_kwargs: changes to the model's generation config.

    Raises:
        ValueError: the engine is unknown, the folder has no model for it, the dtype is not
            possible, an option is unknown, a token id is beyond the vocabulary, the models of an
            ensemble have different vocabularies, or an ensemble is to sample.
        OSError: no model is found under this name.
    """
    _check_choice(engine, dtype, ensemble)
    if engine == "onnx":
        return OnnxEngine(name, **generate_kwargs)
    if engine == "ctranslate2":
        return CTranslate2Engine(name, device=device, **generate_kwargs)
    model, tokenizer = load_translator(name, dtype=dtype, device=device)
    check_token_ids(generate_kwargs, output_size(model))
    if ensemble:
        what = "an ensemble needs greedy or beam search"
        check_own_search(what, model.generation_config, generate_kwargs)
    others = []
    for other in ensemble:
        further, its_tokenizer = load_translator(other, dtype=dtype, device=device)
        if its_tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ValueError(
                f"{name} and {other} have different vocabularies: give models of one tokenizer"
            )
        others.append(further)
    for one in (model, *others):
        pack(one)
    return_freed_memory()  # 40 MiB of the float weights, where they are now int8
    if others:
        generate_kwargs["ensemble"] = Ensemble(others, ensemble_average)
    return TorchEngine(model, tokenizer, **generate_kwargs)


def _check_choice(engine: str, dtype: str | None, ensemble: Sequence[str]) -> None:
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: choose one of {', '.join(ENGINES)}")
    if engine == "torch":
        return
    if dtype is not None:
        raise ValueError(
            f"dtype={dtype!r} is for the engine torch: give it to hf-vanilla export instead"
        )
    if ensemble:
        raise ValueError("an ensemble needs the engine torch")
