"""Recognize checkpoints of toolkits without a converter, to name them in error messages."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

PRE_NORM = "its layers are pre-norm: not the paper's model"
OPENNMT = f"an OpenNMT-py checkpoint; {PRE_NORM}"
JOEYNMT = "a JoeyNMT checkpoint; its layers are pre-norm by default, and there is no converter"
ANNOTATED = f"a checkpoint of the Annotated Transformer; {PRE_NORM}"
TENSOR2TENSOR = f"a tensor2tensor or other TensorFlow checkpoint; {PRE_NORM}"
MARIAN = "a checkpoint of Marian itself: give its folder to --format marian"
FSMT = "an FSMT model of transformers: use --format fsmt"

# beginnings of the names of pickled classes
CLASSES = {
    "onmt.": OPENNMT,
    "torchtext.": OPENNMT,
    "joeynmt.": JOEYNMT,
    "__main__.EncoderDecoder": ANNOTATED,
    "__main__.MultiHeadedAttention": ANNOTATED,
}
# parts of the names of weights, and keys beside them
NAMES = {
    ".self_attn.linear_keys.": OPENNMT,
    "model_state": JOEYNMT,
    ".src_src_att.": JOEYNMT,
    ".sublayer.0.norm.a_2": ANNOTATED,
}


def toolkit_of_classes(classes: Collection[str]) -> str | None:
    """What a file with these pickled classes, such as `onmt.Vocab`, is."""
    return _first(CLASSES, classes, str.startswith)


def toolkit_of_content(content: Any) -> str | None:
    """What a loaded checkpoint is, by the names in it and in its `model`."""
    if not isinstance(content, Mapping):
        return None
    inner = content.get("model")
    names = [str(name) for name in (*content, *(inner if isinstance(inner, Mapping) else ()))]
    return _first(NAMES, names, str.__contains__)


def toolkit_of_path(path: Path) -> str | None:
    """What a file, or a folder by its files, is."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if file.suffix == ".npz":
            return MARIAN
        if ".ckpt-" in file.name:  # a name that ends in .ckpt can be PyTorch Lightning's
            return TENSOR2TENSOR
        if file.name == "config.json" and '"fsmt"' in file.read_text("utf-8", errors="replace"):
            return FSMT
    return None


def _first(table: Mapping[str, str], names: Collection[str], matches: Any) -> str | None:
    return next(
        (what for part, what in table.items() if any(matches(name, part) for name in names)), None
    )
