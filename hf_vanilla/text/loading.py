"""Load a model that translates, in float32, bfloat16 or int8; the models of the package."""

import json
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_vanilla.families import DEFAULT_TASK
from hf_vanilla.loading import (
    DEMO_MODELS,
    device_named,
    load_model,
    load_saved,
    model_folder,
    task_or_default,
)
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.onednn_vanilla import can_multiply, multiplies_bfloat16
from hf_vanilla.models.quantization_vanilla import is_quantized, quantize

logger = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "int8")
# what a model is loaded in, before int8 is made of it
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}
NOTE = (
    "it knows English number words and German ones; a few numbers of one word, such as one and "
    "four, come out wrong"
)
FACTS = "facts.json"  # of a demo model
_EXPORTED = "{} is a model for {}: add --engine {}, or give the model that it was made from"


def load_translator(
    name: str,
    *,
    dtype: str | None = None,
    device: str | torch.device | None = None,
    own: str = "",
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer of a folder or Hub id; the model is in evaluation mode.

    Args:
        name: folder or Hub id.
        dtype: as for `Translator`.
        device: where to compute; None: a GPU if there is one, for int8 always a CPU.
        own: how a message names a model that must be of this package; empty: it need not.

    Raises:
        ValueError: a local folder has no model, a damaged one or one that does not translate,
            or the dtype is not possible; or a model that must be of this package is not.
        OSError: no model is found under this name.
    """
    name = model_folder(name)
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        if (Path(name) / "adapter_config.json").is_file():
            raise ValueError(
                f"{name} is an adapter of PEFT, without its model: give what "
                "model.merge_and_unload().save_pretrained wrote, with the tokenizer"
            )
        if (Path(name) / "decoder.onnx").is_file():
            raise ValueError(_EXPORTED.format(name, "ONNX Runtime", "onnx"))
    if (Path(name) / "model.bin").is_file() and (Path(name) / "config.json").is_file():
        raise ValueError(_EXPORTED.format(name, "CTranslate2", "ctranslate2"))
    model = load_in(name, dtype, device)
    # before the tokenizer, which a model of another class may lack
    if own and not isinstance(model, VanillaForConditionalGeneration):
        raise ValueError(f"{own} holds {type(model).__name__}: convert it by hf-vanilla convert")
    return model, load_saved(AutoTokenizer, name)


def load_in(name: str, dtype: str | None, device: str | torch.device | None) -> PreTrainedModel:
    """Load a sequence-to-sequence model, in evaluation mode.

    Where the processor has no instructions for `dtype`, a float model computes in float32 and a
    warning says so, because the dtype would only make it slower.

    Args:
        name: folder or Hub id.
        dtype: one of `DTYPES`; None: as the model was saved.
        device: where to compute; None: a GPU if there is one, for int8 always a CPU.

    Raises:
        ValueError: the model does not translate, or the dtype is unknown, or not possible for
            this model or device.
        OSError: no model is found under this name.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: choose one of {', '.join(DTYPES)}")
    if (task := task_or_default(name)) != DEFAULT_TASK:
        raise ValueError(f"{name} is of {task}: give a translation model")
    if dtype == "int8":
        _require_cpu("dtype='int8'", device)
    place = device or ("cpu" if dtype == "int8" else None)
    used = dtype
    if dtype is not None and not multiplies_fast(dtype, device_named(place)):
        logger.warning("this processor has no instructions for %s: computing in float32", dtype)
        used = "float32"
    given: dict[str, Any] = {} if used is None else {"dtype": FLOATS[used]}
    model = load_model(AutoModelForSeq2SeqLM, name, **given)
    if not is_quantized(model):
        return quantize(model) if used == "int8" else model.to(device_named(place))
    if dtype in ("float32", "bfloat16"):
        raise ValueError(f"{name} has int8 weights: for {dtype}, give the float model")
    _require_cpu(f"{name} has int8 weights; int8", device)
    return model


def _require_cpu(what: str, device: str | torch.device | None) -> None:
    kind = str(device or "cpu").partition(":")[0]
    if kind != "cpu":
        raise ValueError(
            f"{what} is for CPUs, not {kind!r}: give a float model with dtype='bfloat16'"
        )


def multiplies_fast(dtype: str, device: torch.device) -> bool:
    """Whether products of this dtype are faster than those of float32."""
    if dtype == "int8":
        return can_multiply(torch.int8)
    return dtype == "float32" or device.type != "cpu" or multiplies_bfloat16()


def output_size(model: PreTrainedModel) -> int:
    """Tokens that a model can write, whether its layers are packed or not."""
    layer: Any = model.get_output_embeddings()
    # FSMT returns the embedding table that is also its output layer
    return getattr(layer, "out_features", None) or layer.num_embeddings


def require_float(model: PreTrainedModel, name: str) -> None:
    """Refuse a model with int8 weights where others are needed.

    Raises:
        ValueError: it has int8 weights.
    """
    if is_quantized(model):
        raise ValueError(f"{name} has int8 weights: give the float model that was quantized")


def demo_model(name: str = "numbers") -> str:
    """The folder of a model that comes with the package.

    Commands and `Translator` take the name itself too, unless a folder here has that name.

    Args:
        name: `"numbers"`, English number words to German; or `"help-en-de"`, sentences of the
            help of LibreOffice, English to German.

    Raises:
        ValueError: there is no such model.

    Examples:
        >>> from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
        >>> import hf_vanilla
        >>> model = AutoModelForSeq2SeqLM.from_pretrained(hf_vanilla.demo_model())
        >>> tokenizer = AutoTokenizer.from_pretrained(hf_vanilla.demo_model())
        >>> batch = tokenizer(["forty-two"], return_tensors="pt")
        >>> tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
        ['zweiundvierzig']
    """
    if name not in DEMO_MODELS:
        raise ValueError(f"demo_model({name!r}): choose one of {', '.join(DEMO_MODELS)}")
    return DEMO_MODELS[name]


def demo_model_facts(name: str) -> dict[str, Any]:
    """What the package knows of a model; of another one nothing.

    Args:
        name: of a demo model, or any model folder or Hub id.

    Returns:
        `recipe_sha256` of the recipe's file; `examples`, sentences for its page; and its scores on
        unseen data: `exact_match` of numbers in %, `bleu` and `chrf` of help-en-de.
    """
    folder = model_folder(name)
    if folder not in DEMO_MODELS.values():
        return {}
    return json.loads((Path(folder) / FACTS).read_text(encoding="utf-8"))
