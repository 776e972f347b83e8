"""Read models of Marian itself: weights in `.npz`, `decoder.yml`, SentencePiece and vocabulary.

The result is a MarianMTModel in memory and a tokenizer, which `marian.py` converts. Of an `.npz`,
numpy reads plain arrays only, so no code can run.
"""

import json
import logging
import math
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor
from transformers import AutoTokenizer, MarianConfig, MarianMTModel, PreTrainedTokenizerBase

from hf_vanilla.file_values import checked, yaml_value
from hf_vanilla.options import install_hint

from .checkpoint_files import read_arrays

logger = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]
DECODER = "decoder.yml"
FILE_LISTS, NUMBERS = ("models", "vocabs"), ("normalize", "word-penalty")
_ID = re.compile(r"[0-9]{1,9}")
SETTINGS = "special:model.yml"  # the array that holds the model's settings
# settings, what they must be (that, or missing), and what they are called otherwise
REQUIRED: dict[str, tuple[tuple[Any, ...], str]] = {
    "type": (("transformer",), "no Transformer but a model of type {value!r}"),
    "transformer-decoder-autoreg": (("self-attention",), "its decoder has {value!r} (rnn: SSRU)"),
    "transformer-postprocess": (
        ("dan", "an"),  # d is dropout, which translation has not
        "norms in another order: transformer-postprocess={value}",
    ),
    "transformer-preprocess": (("", "d"), "a pre-norm model: transformer-preprocess={value}"),
    "transformer-postprocess-emb": (("d", ""), "a norm on the embeddings"),
    "transformer-postprocess-top": (("",), "a norm after each stack"),
    "transformer-train-position-embeddings": ((False,), "learned positions"),
    "transformer-train-positions": ((False,), "learned positions"),
    "transformer-disable-position-embeddings": ((False,), "no positions"),
    "transformer-attention-mask": (("default",), "attention with a bias: {value}"),
    "transformer-pool": ((False,), "a decoder that reads one pooled vector"),
    "transformer-ffn-activation": (
        ("relu", "swish", "gelu", "sigmoid"),
        "the activation {value!r}, which Marian does not have",
    ),
    "transformer-ffn-depth": ((2,), "feed-forward networks of {value} layers"),
    "transformer-decoder-ffn-depth": ((0, 2), "feed-forward networks of {value} layers"),
    "transformer-no-projection": ((False,), "attention without output projection"),
    "transformer-no-bias": ((False,), "linear layers without bias"),
    "transformer-no-affine": ((False,), "norms without weights"),
    "transformer-rnn-projection": ((False,), "a projection behind an RNN"),
    "transformer-tied-layers": (([],), "tied layers"),
    "right-left": ((False,), "a model from right to left"),
    "ulr": ((False,), "universal representations"),
    "lemma-dim-emb": ((0,), "factors with lemma-dim-emb={value}"),
    "lemma-dependency": (("",), "factors with lemma-dependency={value}"),
    "input-types": ((["sequence", "sequence"], []), "inputs {value}"),
}
# integers of the architecture, and their lowest values
SIZES = {
    **dict.fromkeys(("dim-emb", "enc-depth", "dec-depth", "transformer-heads"), 1),
    "transformer-dim-ffn": 1,
    "transformer-decoder-dim-ffn": 0,  # 0: as in the encoder
}
PARTS = {
    **{f"self_attn.{p}_proj": f"self_{{kind}}{p}" for p in "qkv"},
    "self_attn.out_proj": "self_{kind}o",
    "self_attn_layer_norm": "self_Wo_ln_{norm}",
    **{f"encoder_attn.{p}_proj": f"context_{{kind}}{p}" for p in "qkv"},
    "encoder_attn.out_proj": "context_{kind}o",
    "encoder_attn_layer_norm": "context_Wo_ln_{norm}",
    "fc1": "ffn_{kind}1",
    "fc2": "ffn_{kind}2",
    "final_layer_norm": "ffn_ffn_ln_{norm}",
}
OUTPUT_BIAS = "decoder_ff_logit_out_b"
UNUSED = {SETTINGS, "decoder_c_mt"}


def read_npz(path: Path) -> MarianMTModel:
    """The model of an `.npz` file, in float32; the padding token comes behind the vocabulary.

    Raises:
        ValueError: the file is damaged or has object arrays, or the model is no post-norm
            Transformer; the message names all reasons.
    """
    arrays = read_arrays(path)
    settings = _settings(arrays, path)
    decoder = decoder_settings(path.parent)
    model = MarianMTModel(_config(settings, arrays, path))
    weights, left = _renamed(model, settings, arrays)
    if left:
        raise ValueError(f"{path} does not fit this architecture; {'; '.join(left)}")
    model.load_state_dict(weights)
    if decoder.get("word-penalty"):
        message = "%s: word-penalty=%s has no counterpart here and is left out"
        logger.warning(message, DECODER, decoder["word-penalty"])
    decoding, banned = model.generation_config, [model.config.pad_token_id]
    decoding.num_beams = decoder.get("beam-size", 12)
    decoding.length_penalty = decoder.get("normalize", 0.0)  # Marian divides by length ** normalize
    decoding.max_length = 512
    unknown_id = read_vocabularies(path.parent)[-1].get("<unk>")
    if unknown_id is not None and not decoder.get("allow-unk"):
        banned.append(unknown_id)  # as Marian's search, ours does not write it
    decoding.bad_words_ids = [[token_id] for token_id in banned]
    decoding.forced_eos_token_id = model.config.forced_eos_token_id
    decoding._from_model_config = False
    return model.eval()


def read_npz_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder of Marian itself.

    Raises:
        ValueError: a file is missing or damaged.
    """
    vocabularies = read_vocabularies(folder)
    with tempfile.TemporaryDirectory() as name:
        for side in ("source", "target"):
            check_sentencepiece(folder / f"{side}.spm")
            shutil.copy(folder / f"{side}.spm", name)
        files = ("vocab.json", "target_vocab.json")
        for file, vocabulary in zip(files, vocabularies, strict=False):
            content = {**vocabulary, "<pad>": len(vocabulary)}
            (Path(name) / file).write_text(json.dumps(content), encoding="utf-8")
        is_double = len(vocabularies) > 1
        kind = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": is_double}
        (Path(name) / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")
        return AutoTokenizer.from_pretrained(name)


# --- settings -----------------------------------------------------------------------------------


def _settings(arrays: Arrays, path: Path) -> dict[str, Any]:
    """The model's settings, if it is the paper's Transformer."""
    if SETTINGS not in arrays:
        raise ValueError(f"{path} has no {SETTINGS}: it is no model of Marian")
    text = arrays[SETTINGS].tobytes().split(b"\0")[0].decode("utf-8", errors="replace")
    settings = read_yaml(text, f"{path}, {SETTINGS}")
    faults = [
        reason.format(value=settings[name])
        for name, (allowed, reason) in REQUIRED.items()
        if name in settings and settings[name] not in allowed
    ]
    missing = {"dim-emb", "enc-depth", "dec-depth", "transformer-heads"} - settings.keys()
    faults += [f"{name} is missing" for name in sorted(missing)]
    if faults:
        raise ValueError(f"{path} is not the paper's model: {', '.join(faults)}")
    _check_sizes(settings, path)
    return settings


def _check_sizes(settings: dict[str, Any], path: Path) -> None:
    """Check the numbers of the architecture; the dropout becomes a float."""
    origin = f"{path}, {SETTINGS}"
    for name, lowest in SIZES.items():
        value = settings.get(name, lowest)
        if type(value) is not int or value < lowest:
            raise ValueError(f"{origin}: {name}={value!r} must be an integer, at least {lowest}")
    width, heads = settings["dim-emb"], settings["transformer-heads"]
    if width % 2 or width % heads:
        raise ValueError(
            f"{origin}: dim-emb={width} must be even and a multiple of transformer-heads={heads}"
        )
    if "transformer-dropout" in settings:
        name = f"{origin}: transformer-dropout"
        dropout = finite_number(settings["transformer-dropout"], name)
        if not 0 <= dropout < 1:
            raise ValueError(f"{name}={dropout:g} must be in [0, 1)")
        settings["transformer-dropout"] = dropout


def _config(settings: Mapping[str, Any], arrays: Arrays, path: Path) -> MarianConfig:
    is_all = bool(settings.get("tied-embeddings-all"))
    is_shared = is_all or bool(settings.get("tied-embeddings-src"))
    tables = ["Wemb"] if is_shared else ["encoder_Wemb", "decoder_Wemb"]
    for name in tables:
        if name in arrays and arrays[name].ndim != 2:
            raise ValueError(f"{path}: {name} has shape {arrays[name].shape}, and needs two axes")
    sizes = {len(arrays[name]) for name in tables if name in arrays}
    if len(sizes) != 1:
        found = ", ".join(map(str, sorted(sizes))) or "none"
        raise ValueError(f"{path}: {' and '.join(tables)} need one size, found {found}")
    pad, width = sizes.pop(), settings.get("transformer-dim-ffn", 2048)
    activation = settings.get("transformer-ffn-activation", "swish")
    return MarianConfig(
        vocab_size=pad + 1,
        decoder_vocab_size=pad + 1,
        share_encoder_decoder_embeddings=is_shared,
        tie_word_embeddings=is_all or bool(settings.get("tied-embeddings")),
        d_model=settings["dim-emb"],
        encoder_layers=settings["enc-depth"],
        decoder_layers=settings["dec-depth"],
        encoder_attention_heads=settings["transformer-heads"],
        decoder_attention_heads=settings["transformer-heads"],
        encoder_ffn_dim=width,
        decoder_ffn_dim=settings.get("transformer-decoder-dim-ffn") or width,
        # Marian's gelu is x * sigmoid(1.702 x)
        activation_function="quick_gelu" if activation == "gelu" else activation,
        dropout=settings.get("transformer-dropout", 0.1),
        scale_embedding=True,
        pad_token_id=pad,
        eos_token_id=0,
        bos_token_id=0,
        forced_eos_token_id=0,
        decoder_start_token_id=pad,
    )


# --- weights ------------------------------------------------------------------------------------


def _renamed(
    model: MarianMTModel, settings: Mapping[str, Any], arrays: Arrays
) -> tuple[dict[str, Tensor], list[str]]:
    """The arrays as weights of MarianMTModel, and what is wrong with them."""
    weights, used, faults = {}, set(UNUSED), []
    for name, expected in model.state_dict().items():
        if "embed_positions" in name:
            weights[name] = expected
            continue
        theirs = _name_of(name, model.config)
        if theirs == "decoder_ff_logit_out_W" and f"{theirs}t" in arrays:
            theirs = f"{theirs}t"
        used.add(theirs)
        if theirs not in arrays:
            is_bias = theirs == OUTPUT_BIAS and settings.get("output-omit-bias")
            weights[name] = torch.zeros_like(expected)
            faults += [] if is_bias else [f"missing: {theirs}"]
            continue
        array = arrays[theirs]
        if array.dtype.kind != "f":
            faults.append(f"{theirs} has dtype {array.dtype}")
            continue
        weight = _weight(array, theirs, expected) if array.ndim == 2 or expected.dim() < 2 else None
        if weight is None or weight.shape != expected.shape:
            faults.append(f"{theirs} has shape {array.shape}")
            continue
        weights[name] = weight
    faults += [f"left over: {name}" for name in sorted(arrays.keys() - used)]
    return weights, faults


def _name_of(name: str, config: MarianConfig) -> str:
    """Marian's name of a weight of MarianMTModel."""
    if name == "final_logits_bias":
        return OUTPUT_BIAS
    _, *path, kind = name.split(".")
    if path[1:2] == ["layers"]:
        part = PARTS[".".join(path[3:])]
        norm = "scale" if kind == "weight" else "bias"
        part = part.format(kind="W" if kind == "weight" else "b", norm=norm)
        return f"{path[0]}_l{int(path[2]) + 1}_{part}"
    is_output = name == "lm_head.weight"
    if is_output and not config.tie_word_embeddings:
        return "decoder_ff_logit_out_W"
    if config.share_encoder_decoder_embeddings:
        return "Wemb"
    return "decoder_Wemb" if is_output or path[:1] == ["decoder"] else "encoder_Wemb"


def _weight(array: np.ndarray, name: str, expected: Tensor) -> Tensor:
    """An array in the layout of torch, with a row of zeros for the padding token."""
    weight = torch.from_numpy(array.astype(np.float32))
    if name == OUTPUT_BIAS:
        return torch.nn.functional.pad(weight.reshape(1, -1), (0, 1))
    if expected.dim() == 1:
        return weight.reshape(-1)
    if name.endswith(("Wemb", "_Wt")):
        return torch.nn.functional.pad(weight, (0, 0, 0, 1))
    if name == "decoder_ff_logit_out_W":
        return torch.nn.functional.pad(weight.T, (0, 0, 0, 1)).contiguous()
    return weight.T.contiguous()


# --- files --------------------------------------------------------------------------------------
# Each is checked, and each error names the file and the entry.


def npz_of(folder: Path) -> Path | None:
    """The weights of a folder of Marian itself; None where it is none.

    Raises:
        ValueError: there are several, of which `decoder.yml` does not name one, or only a `.bin`.
    """
    if not folder.is_dir() or (folder / "config.json").is_file():
        return None
    found = sorted(folder.glob("*.npz"))
    if not found and (folder / DECODER).is_file() and (binary := sorted(folder.glob("*.bin"))):
        raise ValueError(f"{binary[0]} is a binary model of Marian: give its .npz")
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
    content = checked(yaml_value(text, origin), dict, origin)
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
            raise ValueError(f"{path}: this vocabulary is {kind}; give one in YAML or JSON")
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
