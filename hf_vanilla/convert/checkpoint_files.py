"""Foreign files of weights, read without running what is in them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

_REFUSED = re.compile(r"[Uu]nsupported (?:global: )?GLOBAL (\S+)")


def read_checkpoint(
    path: str | Path, *, allowed: Sequence[type] = (), trust_pickle: bool = False
) -> Any:
    """What `torch.save` or safetensors wrote, on the CPU.

    A pickle can run any program while it is read. So this one may hold tensors and plain Python
    values only, besides the classes in `allowed`.

    Args:
        path: a file.
        allowed: classes that the format is known to contain.
        trust_pickle: read whatever it holds, and run it; for files whose author you trust.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is cut off or is something else, or it holds classes that are not allowed;
            the message names them all.
        ImportError: it is trusted, and holds classes of a package that is not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with safe_globals(list(allowed)):
            return torch.load(path, map_location="cpu", weights_only=not trust_pickle)
    except ModuleNotFoundError as error:
        raise ImportError(f"{path} holds things of {error.name}: install that, too") from None
    except Exception as error:  # a damaged file fails in many ways, and none of them says so
        foreign = _foreign_classes(path, allowed, str(error))
        if foreign and not trust_pickle:
            raise ValueError(
                f"{path} holds more than tensors: {', '.join(foreign)}; reading these runs code "
                "from the file, so allow it only for an author you trust (--trust_pickle)"
            ) from None
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path} is cut off, or no file of weights ({told}): download or save it again"
        ) from None


def _foreign_classes(path: Path, allowed: Sequence[type], message: str) -> list[str]:
    known = {f"{kind.__module__}.{kind.__qualname__}" for kind in allowed}
    try:
        return sorted(set(get_unsafe_globals_in_checkpoint(path)) - known)
    except Exception:  # no zip archive: a file older than torch 1.6, or a damaged one
        return _REFUSED.findall(message)
