"""Read models that are converted: files of other toolkits, and translators of ours.

No code runs that a pickle can contain.
"""

import json
import re
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard
from zipfile import is_zipfile

import numpy as np
import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals
from transformers import PreTrainedTokenizerBase

from hf_vanilla.file_values import checked
from hf_vanilla.loading import one_line, read_settings
from hf_vanilla.text.loading import load_translator, require_float

# what to do about a file that can run code, by `trust_pickle` of `read_checkpoint`
REMEDIES = {
    False: "add --trust_pickle only if you trust its author",
    None: "save the tensors alone, as torch.save(model.state_dict(), FILE) does",
}
_REFUSED = re.compile(r"[Uu]nsupported (?:global: )?GLOBAL (\S+)")


def read_checkpoint(
    path: str | Path, *, allowed: Sequence[type] = (), trust_pickle: bool | None = None
) -> Any:
    """The content of a file of `torch.save` or safetensors, on the CPU.

    Loading a pickle can run any code. So the file may contain only tensors, plain Python values and
    the classes in `allowed`.

    Args:
        path: a file.
        allowed: classes that files of this format contain.
        trust_pickle: load any class, which can run code; only for files of a trusted author. None:
            the format has no such option.

    Raises:
        OSError: there is no such file, or it is a folder.
        ValueError: it is incomplete, is no checkpoint or one of another toolkit, or contains
            classes that are not allowed; the message names all of them.
        ImportError: it is trusted, and contains classes of a package that is not installed.
    """
    path = Path(path)
    check_toolkit(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a checkpoint file")
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            with safe_globals(list(allowed)):
                content = torch.load(path, map_location="cpu", weights_only=not trust_pickle)
    except ModuleNotFoundError as error:
        raise ImportError(f"{path} contains classes of {error.name}: install it") from None
    except Exception as error:  # damaged files raise many different exceptions
        foreign = _foreign_classes(path, allowed, str(error))
        if toolkit := _first(CLASSES, foreign, str.startswith):
            raise ValueError(f"{path} is {toolkit}") from None
        if foreign and not trust_pickle:
            raise ValueError(
                f"{path} contains more than tensors: {', '.join(foreign)}; loading them can run "
                f"code from the file: {REMEDIES[trust_pickle]}"
            ) from None
        # torch goes on with the advice to run the file's code
        why = f"{type(error).__name__}: {error}".splitlines()[0].partition(". ")[0]
        raise ValueError(f"{path} is incomplete or no checkpoint ({why}): get it again") from None
    if toolkit := _toolkit_of_content(content):
        raise ValueError(f"{path} is {toolkit}")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The keys and values of a JSON file.

    Raises:
        ValueError: it is damaged, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): download it again") from None
    return checked(content, dict, str(path))


def settings_of_type(
    name: str | Path, model_type: str, *, foreign: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The content of `config.json` of a model of this type.

    Args:
        name: folder or Hub id.
        model_type: as in the file.
        foreign: other types, and what sets them apart.

    Raises:
        ValueError: it is another type of model, or damaged.
        OSError: nothing is found under that name.
    """
    settings = read_settings(name)
    if (kind := settings.get("model_type")) is None:
        raise ValueError(f"{name} has no config.json with a model_type: give another folder")
    if kind != model_type:
        why = f" ({reason})" if (reason := (foreign or {}).get(str(kind))) else ""
        raise ValueError(f"{name} is of type {kind!r}{why}: give one of type {model_type!r}")
    return settings


def load_encoder_decoder(name: str) -> tuple[Any, PreTrainedTokenizerBase]:
    """A translator of ours that can be converted, on the CPU, and its tokenizer.

    Raises:
        ValueError: it is another model, or has int8 weights.
        OSError: nothing is found under that name.
    """
    model, tokenizer = load_translator(name, device="cpu", own=name)
    require_float(model, name)
    return model, tokenizer


def read_weights(source: Path) -> dict[str, Tensor]:
    """The tensors by name of a checkpoint file, at its top or under `model`, or of a model folder.

    Raises:
        ValueError: a file is as `read_checkpoint` refuses it, or holds something else; or the
            folder has none.
        OSError: there is no such file.
    """
    files = [source]
    if source.is_dir():
        files = sorted(source.glob("*.safetensors")) or sorted(source.glob("pytorch_model*.bin"))
    if not files:
        raise ValueError(f"{source} has neither model.safetensors nor pytorch_model.bin")
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= weights_of(read_checkpoint(file, allowed=[Namespace]), file)
    return weights


def weights_of(content: Any, origin: Path) -> dict[str, Tensor]:
    """The tensors by name of a checkpoint, at its top or under `model`.

    Args:
        content: of the file.
        origin: the file, for messages.

    Raises:
        ValueError: it holds something else.
    """
    weights = content.get("model", content) if isinstance(content, dict) else None
    if not is_state_dict(weights):
        raise ValueError(f"{origin} holds no state dict, at its top or under 'model'")
    return weights


def is_state_dict(content: Any) -> TypeGuard[dict[str, Tensor]]:
    """Whether part of a checkpoint is tensors by name."""
    return isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(weight, Tensor) for name, weight in content.items()
    )


def local_folder(name: str, files: Sequence[str] | None = None) -> Path:
    """A local folder, or the files of a Hub id.

    Args:
        name: folder or Hub id.
        files: those that are needed; None: all.

    Raises:
        OSError: nothing is found under that name.
    """
    if Path(name).is_dir():
        return Path(name)
    with one_line(name, "files"):
        return Path(snapshot_download(name, allow_patterns=files))


def read_arrays(path: Path) -> dict[str, Tensor]:
    """All arrays of an `.npz` file as tensors; numpy reads plain ones only, so no code can run.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged or has object arrays.
    """
    if not path.is_file():
        what = "a folder; give the .npz file in it" if path.is_dir() else "no such file"
        raise FileNotFoundError(f"{path}: {what}")
    if not is_zipfile(path):
        raise ValueError(f"{path} cannot be read (it is no zip archive): download it again")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files}
    except Exception as error:  # damaged files raise many different exceptions
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if "allow_pickle" in reason:
            raise ValueError(f"{path} has object arrays, which can run code: no model") from None
        raise ValueError(f"{path} cannot be read ({reason}): download it again") from None


def pieces_by_id(path: Path, ids: Mapping[str, Any], size: int) -> list[str]:
    """The pieces of a vocabulary in the order of their ids.

    Args:
        path: of its file, for messages.
        ids: by piece, as the file has them.
        size: how many there must be.

    Raises:
        ValueError: the ids are not 0 to `size - 1`, each once.
    """
    for piece, number in ids.items():
        if type(number) is not int:
            raise ValueError(f"{path}: piece {piece!r} has the id {number!r}: give an integer")
    ordered = sorted(ids, key=lambda piece: ids[piece])
    wrong = [piece for number, piece in enumerate(ordered) if ids[piece] != number]
    if wrong or len(ids) != size:
        found = f"piece {wrong[0]!r} has the id {ids[wrong[0]]}" if wrong else f"it has {len(ids)}"
        raise ValueError(f"{path} must have the ids 0 to {size - 1}, each once, and {found}")
    return ordered


def _foreign_classes(path: Path, allowed: Sequence[type], message: str) -> list[str]:
    known = {f"{kind.__module__}.{kind.__qualname__}" for kind in allowed}
    try:
        return sorted(set(get_unsafe_globals_in_checkpoint(path)) - known)
    except Exception:  # no zip archive: written before torch 1.6, or damaged
        return _REFUSED.findall(message)


PRE_NORM = "its layers are pre-norm: not the paper's model"
OPENNMT = f"an OpenNMT-py checkpoint; {PRE_NORM}"
JOEYNMT = "a JoeyNMT checkpoint; its layers are pre-norm by default, and there is no converter"
ANNOTATED = f"a checkpoint of the Annotated Transformer; {PRE_NORM}"
TENSOR2TENSOR = f"a tensor2tensor or other TensorFlow checkpoint; {PRE_NORM}"
NPZ = "of Marian or a ViT of Google: --format marian takes the folder, vit-google the .npz file"
FSMT = "an FSMT model of transformers: use --format fsmt"

# beginnings of the names of pickled classes
CLASSES = {
    "onmt.": OPENNMT,
    "torchtext.": OPENNMT,
    "joeynmt.": JOEYNMT,
    "__main__.EncoderDecoder": ANNOTATED,
    "__main__.MultiHeadedAttention": ANNOTATED,
}
# whole parts of the names of weights, and keys beside them
NAMES = {
    ".self_attn.linear_keys.": OPENNMT,
    ".model_state.": JOEYNMT,
    ".src_src_att.": JOEYNMT,
    ".sublayer.0.norm.a_2.": ANNOTATED,
}


def _toolkit_of_content(content: Any) -> str | None:
    """What a loaded checkpoint is, by the names in it and in its `model`."""
    if not isinstance(content, Mapping):
        return None
    inner = content.get("model")
    names = [f".{name}." for name in (*content, *(inner if isinstance(inner, Mapping) else ()))]
    return _first(NAMES, names, str.__contains__)


def check_toolkit(path: Path) -> None:
    """Refuse a file, or a folder by its files, of a toolkit that has another converter or none.

    Raises:
        ValueError: it is one.
        FileNotFoundError: it does not exist.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        toolkit = NPZ if file.suffix == ".npz" else None
        if ".ckpt-" in file.name:  # a name that ends in .ckpt can be PyTorch Lightning's
            toolkit = TENSOR2TENSOR
        if file.name == "config.json" and '"fsmt"' in file.read_text("utf-8", errors="replace"):
            toolkit = FSMT
        if toolkit:
            raise ValueError(f"{path} is {toolkit}")


def _first(table: Mapping[str, str], names: Collection[str], matches: Any) -> str | None:
    found = (what for part, what in table.items() if any(matches(name, part) for name in names))
    return next(found, None)
