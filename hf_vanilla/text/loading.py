"""Load what translates: a model with its tokenizer, or an engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.loading import load_saved
from hf_vanilla.models.packing_vanilla import pack
from hf_vanilla.models.search_vanilla_decoder import Ensemble

from .engines import (
    ENGINES,
    CTranslate2Engine,
    Engine,
    TorchEngine,
)
from .generation_fields import check_own_search, check_token_ids
from .precision import check_dtype, load_in


def load_engine(
    name: str,
    engine: str = "torch",
    *,
    device: torch.device | None = None,
    dtype: str | None = None,
    ensemble: Sequence[str] = (),
    ensemble_average: str = "probabilities",
    **generate_kwargs: Any,
) -> Engine:
    """Load the engine of a model folder or Hub id.

    Args:
        name: folder or Hub id; for `"ctranslate2"` a folder of `hf-vanilla export`.
        engine: `"torch"` or `"ctranslate2"`.
        device: where to compute; None: a GPU if there is one.
        dtype: as for `Translator`.
        ensemble: further models, which decode together with the first one.
        ensemble_average: mean of their `"probabilities"` or `"log_probabilities"`.
        **generate_kwargs: changes to the model's generation config.

    Raises:
        ValueError: the engine is unknown, the folder has no model for it, the dtype is not
            possible, a token id is beyond the vocabulary, the models of an ensemble have
            different vocabularies, or an ensemble is to sample.
        OSError: no model is found under this name.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: choose one of {', '.join(ENGINES)}")
    check_dtype(dtype)
    if engine == "ctranslate2" and dtype is not None:
        raise ValueError(
            f"dtype={dtype!r} is for the engine torch: choose the numbers of CTranslate2 by "
            "hf-vanilla export --quantization"
        )
    if engine == "ctranslate2" and ensemble:
        raise ValueError("an ensemble needs the engine torch")
    if engine == "ctranslate2":
        return CTranslate2Engine(name, device=device, **generate_kwargs)
    model, tokenizer = load_translator(name, dtype=dtype, device=device)
    target_vocab_size = getattr(model.config, "target_vocab_size", None)
    check_token_ids(generate_kwargs, target_vocab_size or model.config.vocab_size)
    if ensemble:
        what = "an ensemble needs greedy or beam search"
        check_own_search(what, model.generation_config, generate_kwargs)
    others = [_further_model(name, tokenizer, other, dtype, device) for other in ensemble]
    for one in (model, *others):
        pack(one)
    if others:
        generate_kwargs["ensemble"] = Ensemble(others, ensemble_average)
    return TorchEngine(model, tokenizer, **generate_kwargs)


def _further_model(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    other: str,
    dtype: str | None,
    device: torch.device | None,
) -> PreTrainedModel:
    """Load the model `other`, whose vocabulary must be the one of `tokenizer`, of model `name`."""
    model, its_tokenizer = load_translator(other, dtype=dtype, device=device)
    check_same_vocabulary(name, tokenizer, other, its_tokenizer)
    return model


def check_same_vocabulary(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    other: str,
    its_tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Check that two models of an ensemble, `name` and `other`, have the same tokens.

    Raises:
        ValueError: they have not.
    """
    if its_tokenizer.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"{name} and {other} have different vocabularies: an ensemble needs models of one "
            "tokenizer"
        )


def load_translator(
    name: str, *, dtype: str | None = None, device: torch.device | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer of a folder or Hub id; the model is in evaluation mode.

    Args:
        name: folder or Hub id.
        dtype: as for `Translator`.
        device: where to compute; None: a GPU if there is one, for int8 always a CPU.

    Raises:
        ValueError: a local folder has no model, a damaged one or one that does not translate,
            or the dtype is not possible.
        OSError: no model is found under this name.
    """
    check_dtype(dtype)
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise ValueError(
            f"{name} is not a model folder: it has no config.json; "
            "give the folder that training or save_pretrained wrote"
        )
    if (Path(name) / "model.bin").is_file() and (Path(name) / "config.json").is_file():
        raise ValueError(f"{name} is a model for CTranslate2: translate with --engine ctranslate2")
    return load_in(name, dtype, device), load_saved(AutoTokenizer, name)
