"""Read the files of a folder of Marian itself: `.npz`, `decoder.yml`, vocabularies, SentencePiece.

Each file is checked, and each error names the file and the entry. Of an `.npz`, numpy reads plain
arrays only, so no code can run.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import yaml

from hf_vanilla.file_values import yaml_value
from hf_vanilla.options import install_hint

DECODER = "decoder.yml"
_ID = re.compile(r"[0-9]{1,9}")
FILE_LISTS, NUMBERS = ("models", "vocabs"), ("normalize", "word-penalty")


def npz_of(folder: Path) -> Path | None:
    """The weights of a folder of Marian itself; None where it is none.

    Raises:
        ValueError: there are several, of which `decoder.yml` does not name one, or only a `.bin`.
    """
    if not folder.is_dir() or (folder / "config.json").is_file():
        return None
    found = sorted(folder.glob("*.npz"))
    if not found and (folder / DECODER).is_file() and (binary := sorted(folder.glob("*.bin"))):
        raise ValueError(
            f"{binary[0]} is a binary model of Marian, as for 8-bit weights: give its .npz"
        )
    if len(found) <= 1:
        return found[0] if found else None
    names = {Path(name).name for name in decoder_settings(folder).get("models", [])}
    named = [path for path in found if path.name in names]
    if len(named) != 1:
        raise ValueError(f"{folder} has {len(found)} .npz files: keep one, or name it in {DECODER}")
    return named[0]


def read_yaml(text: str, origin: str) -> dict[str, Any]:
    """The settings in a YAML text; Marian writes one that is not set as null, and it is left out.

    Raises:
        ValueError: the text is no mapping.
    """
    content = yaml_value(text, origin)
    if not isinstance(content, dict):
        raise ValueError(f"{origin} must hold keys and values")
    return {name: value for name, value in content.items() if value is not None}


def finite_number(value: Any, name: str) -> float:
    """A number of a YAML file as a float; YAML 1.1 reads one like 1e-05 as text.

    Raises:
        ValueError: it is none, or not finite.
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name}={value!r} must be a finite number")
    return number


def decoder_settings(folder: Path) -> dict[str, Any]:
    """The settings in `decoder.yml`; numbers become floats. Empty without the file.

    Raises:
        ValueError: the file is damaged, or a value is impossible.
    """
    path = folder / DECODER
    settings = read_yaml(_text(path), str(path)) if path.is_file() else {}
    for name in FILE_LISTS:
        value = settings.get(name, [])
        if not isinstance(value, list) or not all(isinstance(file, str) for file in value):
            raise ValueError(f"{path}: {name}={value!r} must be a list of file names")
    beams = settings.get("beam-size", 1)
    if type(beams) is not int or beams < 1:
        raise ValueError(f"{path}: beam-size={beams!r} must be an integer, at least 1")
    for name in NUMBERS:
        if name in settings:
            settings[name] = finite_number(settings[name], f"{path}: {name}")
    return settings


def read_vocabularies(folder: Path) -> list[dict[str, int]]:
    """The ids of all pieces: one vocabulary, or those of source and target.

    Raises:
        ValueError: a file is missing or damaged, or its ids are not 0 to n - 1, each once.
    """
    names = [Path(name).name for name in decoder_settings(folder).get("vocabs", [])]
    paths = [folder / name for name in dict.fromkeys(names)]
    paths = paths or sorted(folder.glob("*vocab.yml"))
    if not paths or not all(path.is_file() for path in paths) or len(paths) > 2:
        raise ValueError(f"{folder} has no vocabulary: put the .yml that {DECODER} names there")
    for path in paths:
        if path.suffix not in (".yml", ".yaml", ".json"):
            kind = {".fsv": "factored", ".spm": "a SentencePiece model"}.get(path.suffix, "text")
            raise ValueError(
                f"{path}: this vocabulary is {kind}; only YAML or JSON with the id of each piece "
                "is read"
            )
    return [_vocabulary(path) for path in paths]


def check_sentencepiece(path: Path) -> None:
    """Check that a SentencePiece model is there and can be read.

    Raises:
        ValueError: it is missing or damaged.
        ImportError: sentencepiece is missing.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}: put both SentencePiece models there")
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise ImportError(f"{path} is a SentencePiece model: {install_hint('convert')}") from None
    try:
        SentencePieceProcessor(model_file=str(path))
    except Exception as error:  # damaged files raise many different exceptions
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read ({reason:.80}): download it again") from None


# --- inside -------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason}): download it again") from None


def _vocabulary(path: Path) -> dict[str, int]:
    entries = _entries(path)
    if not entries:
        raise ValueError(f"{path} must hold the id of each piece")
    ids: dict[str, int] = {}
    pieces: dict[int, str] = {}
    for piece, value in entries:
        if not isinstance(value, str) or not _ID.fullmatch(value):
            raise ValueError(f"{path}: piece {piece!r} has the id {value!r}: give an integer")
        if piece in ids:
            raise ValueError(f"{path}: piece {piece!r} is there twice: remove one")
        number = ids[piece] = int(value)
        if number >= len(entries):
            raise ValueError(
                f"{path}: piece {piece!r} has the id {number}, but {len(entries)} pieces must have "
                f"the ids 0 to {len(entries) - 1}"
            )
        if (other := pieces.setdefault(number, piece)) != piece:
            raise ValueError(f"{path}: pieces {other!r} and {piece!r} have the same id {number}")
    return ids


def _entries(path: Path) -> list[tuple[str, Any]]:
    """Pieces and ids as they are written.

    yaml-cpp, which Marian uses, leaves `no`, `01` and `<<` without quotes and reads every key as
    text. So the nodes are read here, without the types of YAML 1.1.
    """
    text = _text(path)
    try:
        if text.lstrip().startswith("{"):  # JSON has escapes that YAML has not
            content = json.loads(text, object_pairs_hook=tuple, parse_int=str)
            return list(content)
        root = yaml.compose(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is no YAML or JSON ({reason:.80}): download it again") from None
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{path} must hold the id of each piece")
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
            line = key.start_mark.line + 1
            raise ValueError(f"{path}, line {line}: each piece must be text, with one id")
    return [(key.value, value.value) for key, value in root.value]
