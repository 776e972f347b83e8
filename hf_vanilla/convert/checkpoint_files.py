"""Read checkpoint files of other toolkits without running the code that a pickle can contain."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from .other_toolkits import toolkit_of_classes, toolkit_of_path

_REFUSED = re.compile(r"[Uu]nsupported (?:global: )?GLOBAL (\S+)")


def read_checkpoint(
    path: str | Path, *, allowed: Sequence[type] = (), trust_pickle: bool = False
) -> Any:
    """The content of a file of `torch.save` or safetensors, on the CPU.

    Loading a pickle can run any code. So the file may contain only tensors, plain Python values and
    the classes in `allowed`.

    Args:
        path: a file.
        allowed: classes that files of this format contain.
        trust_pickle: load any class, which can run code; only for files of a trusted author.

    Raises:
        OSError: there is no such file, or it is a folder.
        ValueError: it is incomplete, is no checkpoint or one of another toolkit, or contains
            classes that are not allowed; the message names all of them.
        ImportError: it is trusted, and contains classes of a package that is not installed.
    """
    path = _checked(Path(path))
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with safe_globals(list(allowed)):
            return torch.load(path, map_location="cpu", weights_only=not trust_pickle)
    except ModuleNotFoundError as error:
        raise ImportError(f"{path} contains classes of {error.name}: install it") from None
    except Exception as error:  # damaged files raise many different exceptions
        foreign = _foreign_classes(path, allowed, str(error))
        if toolkit := toolkit_of_classes(foreign):
            raise ValueError(f"{path} is {toolkit}") from None
        if foreign and not trust_pickle:
            raise ValueError(
                f"{path} contains more than tensors: {', '.join(foreign)}; loading them can run "
                "code from the file: add --trust_pickle only if you trust its author"
            ) from None
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path} is incomplete or no checkpoint ({reason}): download or save it again"
        ) from None


def _checked(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if toolkit := toolkit_of_path(path):
        raise ValueError(f"{path} is {toolkit}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a checkpoint file")
    return path


def _foreign_classes(path: Path, allowed: Sequence[type], message: str) -> list[str]:
    known = {f"{kind.__module__}.{kind.__qualname__}" for kind in allowed}
    try:
        return sorted(set(get_unsafe_globals_in_checkpoint(path)) - known)
    except Exception:  # no zip archive: written before torch 1.6, or damaged
        return _REFUSED.findall(message)
