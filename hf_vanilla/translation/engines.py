"""What computes a translation: a batch of ids in, texts out; our own `generate()` or CTranslate2.

Every engine has a `tokenizer` and `translate_rows`.
"""

import copy
import json
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.data.batching import padded

ENGINES = ("torch", "ctranslate2")
# entries of a generation config that CTranslate2 can follow, or that say nothing about the search
CTRANSLATE2_DECODING = frozenset(
    {
        "bad_words_ids",
        "bos_token_id",
        "decoder_start_token_id",
        "early_stopping",
        "eos_token_id",
        "length_penalty",
        "length_penalty_form",
        "max_length",
        "max_new_tokens",
        "max_tokens_beyond_source",
        "no_repeat_ngram_size",
        "num_beams",
        "pad_token_id",
        "renormalize_logits",
        "transformers_version",
    }
)


class Engine(Protocol):
    """Ids of a batch of sentences to texts."""

    tokenizer: PreTrainedTokenizerBase

    def translate_rows(self, rows: list[list[int]]) -> list[str]:
        """One text for each row of ids, in their order; rows end in the end token."""


class TorchEngine:
    """`generate()` of a model of transformers, where the model is.

    Args:
        model: a sequence-to-sequence model in evaluation mode.
        tokenizer: its tokenizer.
        **generate_kwargs: passed on to `model.generate`.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **generate_kwargs: Any
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.generate_kwargs = generate_kwargs

    @torch.inference_mode()
    def translate_rows(self, rows: list[list[int]]) -> list[str]:
        """One text for each row of ids."""
        input_ids = padded(rows, self.tokenizer.pad_token_id)
        lengths = torch.tensor([len(row) for row in rows])
        attention_mask = (torch.arange(input_ids.shape[1]) < lengths.unsqueeze(1)).long()
        generated = self.model.generate(
            input_ids=input_ids.to(self.model.device),
            attention_mask=attention_mask.to(self.model.device),
            **self.generate_kwargs,
        )
        return self.tokenizer.batch_decode(generated, skip_special_tokens=True)


def store_by_columns(model: nn.Module) -> None:
    """Store a CPU's float32 linear layers column by column: shapes and values stay.

    Products of a few rows, as in decoding, then take a tenth to a fifth less time, and no more
    memory. A table that an embedding reads by rows stays as it is.
    """
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    for part in model.modules():
        if not isinstance(part, nn.Linear) or id(part.weight) in tables:
            continue
        weight = part.weight.data
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            part.weight.data = weight.t().contiguous().t()


class CTranslate2Engine:
    """A folder of `hf-vanilla export` in CTranslate2.

    Args:
        folder: what the export wrote.
        device: where to compute; None: a GPU if there is one.
        **decoding: entries of the generation config to change, such as `num_beams`.

    Raises:
        ImportError: `ctranslate2` is not installed.
        ValueError: the folder is no such export, or CTranslate2 cannot follow an entry.
    """

    def __init__(
        self, folder: str | Path, *, device: torch.device | None = None, **decoding: Any
    ) -> None:
        library = import_ctranslate2()
        folder = Path(folder)
        if not (folder / "model.bin").is_file() or not (folder / "tokenizer_config.json").is_file():
            raise ValueError(
                f"{folder} is no export for CTranslate2 (model.bin and a tokenizer): "
                "write one with hf-vanilla export"
            )
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.decoding = _changed(GenerationConfig.from_pretrained(folder), decoding)
        self._words = _vocabulary(folder, "source")
        self._target_words = _vocabulary(folder, "target")
        self._target_ids = {word: i for i, word in enumerate(self._target_words)}
        has_gpu = library.get_cuda_device_count() and (device is None or device.type == "cuda")
        self._translator = library.Translator(
            str(folder),
            device="cuda" if has_gpu else "cpu",
            device_index=(device.index or 0) if has_gpu and device is not None else 0,
        )

    def translate_rows(self, rows: list[list[int]]) -> list[str]:
        """One text for each row of ids.

        CTranslate2 has one limit for a batch and ours is one for each source, so that only
        sentences of one limit are decoded together.
        """
        texts = [""] * len(rows)
        places = sorted(range(len(rows)), key=lambda i: self._limit(len(rows[i])))
        for limit, group in groupby(places, key=lambda i: self._limit(len(rows[i]))):
            chosen = list(group)
            results = self._translator.translate_batch(
                [[self._words[token_id] for token_id in rows[i]] for i in chosen],
                max_decoding_length=limit,
                **self._search(),
            )
            found = [[self._target_ids[w] for w in r.hypotheses[0]] for r in results]
            decoded = self.tokenizer.batch_decode(found, skip_special_tokens=True)
            for i, text in zip(chosen, decoded, strict=True):
                texts[i] = text
        return texts

    def _limit(self, source_tokens: int) -> int:
        """Tokens of the longest translation, the end token included; one at least."""
        told = self.decoding
        beyond = getattr(told, "max_tokens_beyond_source", None)
        if told.max_new_tokens is not None:
            return told.max_new_tokens
        # transformers counts the start token
        asked = None if told.max_length is None else max(told.max_length - 1, 1)
        if beyond is None:
            return asked or GenerationConfig._get_default_generation_params()["max_length"] - 1
        limit = max(source_tokens + beyond, 1)
        return limit if asked is None else min(limit, asked)

    def _search(self) -> dict[str, Any]:
        told = self.decoding
        banned = [[self._target_words[i] for i in ids] for ids in told.bad_words_ids or []]
        return {
            "beam_size": told.num_beams or 1,
            "length_penalty": 1.0 if told.length_penalty is None else told.length_penalty,
            "no_repeat_ngram_size": told.no_repeat_ngram_size or 0,
            "suppress_sequences": banned or None,
            "max_input_length": 0,  # the tokenizer's limit is the only one
        }


def import_ctranslate2() -> ModuleType:
    """The library, or where to get it.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import ctranslate2
    except ImportError:
        raise ImportError("this needs CTranslate2: pip install 'hf-vanilla[ctranslate2]'") from None
    return ctranslate2


def _vocabulary(folder: Path, side: str) -> list[str]:
    """The words of CTranslate2's ids on one side, `"source"` or `"target"`."""
    own, shared = folder / f"{side}_vocabulary.json", folder / "shared_vocabulary.json"
    words = json.loads((own if own.is_file() else shared).read_text(encoding="utf-8"))
    return list(words)


def _changed(saved: GenerationConfig, decoding: dict[str, Any]) -> GenerationConfig:
    unknown = sorted(decoding.keys() - CTRANSLATE2_DECODING)
    if unknown:
        names = ", ".join(sorted(CTRANSLATE2_DECODING))
        raise ValueError(f"CTranslate2 does not decode with {', '.join(unknown)}: it has {names}")
    changed = copy.deepcopy(saved)
    for name, value in decoding.items():
        setattr(changed, name, value)
    return changed
