"""Read models of Marian itself: weights in `.npz`, `decoder.yml`, SentencePiece and vocabulary.

The result is a MarianMTModel in memory and a tokenizer, which `marian.py` converts. Of an `.npz`,
numpy reads plain arrays only, so no code can run.
"""

import json
import logging
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoTokenizer, MarianConfig, MarianMTModel, PreTrainedTokenizerBase

from hf_vanilla.file_values import checked, is_finite_number, read_yaml, yaml_value
from hf_vanilla.options import needs

from .checkpoint_files import pieces_by_id, read_arrays
from .weight_names import Weights, load_renamed, rename_to_theirs

logger = logging.getLogger(__name__)

DECODER = "decoder.yml"
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
    "transformer-rnn-projection": ((False,), "a projection after an RNN"),
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
OUTPUT, OUTPUT_BIAS = "decoder_ff_logit_out_W", "decoder_ff_logit_out_b"
_VECTOR = re.compile(r"_(b\w|ln_scale|ln_bias)$")
UNUSED = {SETTINGS, "decoder_c_mt"}


def read_npz(path: Path) -> tuple[MarianMTModel, PreTrainedTokenizerBase]:
    """The model of an `.npz` file in float32, and the tokenizer of its folder.

    The padding token comes after the vocabulary.

    Raises:
        ValueError: a file is missing or damaged or has object arrays, or the model is no post-norm
            Transformer; the message names all reasons.
    """
    folder, arrays = path.parent, read_arrays(path)
    settings = _settings(arrays, path)
    decoder = decoder_settings(folder)
    vocabularies = _vocabularies(folder, decoder)
    model = MarianMTModel(_config(settings, arrays, path))
    padding = model.config.pad_token_id
    weights = {n: _weight(n, array) for n, array in arrays.items() if n not in UNUSED}
    if settings.get("output-omit-bias"):
        weights.setdefault(OUTPUT_BIAS, torch.zeros(1, padding + 1))
    names = {
        name: _name_of(name, model.config, arrays)
        for name in model.state_dict()
        if "embed_positions" not in name
    }
    load_renamed(model, rename_to_theirs(weights, names), origin=str(path))
    if decoder["word-penalty"]:
        message = "%s: word-penalty=%s has no counterpart here and is left out"
        logger.warning(message, DECODER, decoder["word-penalty"])
    decoding, banned = model.generation_config, [padding]
    decoding.num_beams = decoder.get("beam-size", 12)
    decoding.length_penalty = decoder["normalize"]  # Marian divides by length ** normalize
    decoding.max_length = 512
    unknown_id = vocabularies[-1].get("<unk>")
    if unknown_id is not None and not decoder.get("allow-unk"):
        banned.append(unknown_id)  # as Marian's search, ours does not write it
    decoding.bad_words_ids = [[token_id] for token_id in banned]
    decoding.forced_eos_token_id = model.config.forced_eos_token_id
    decoding._from_model_config = False
    return model.eval(), _tokenizer(folder, vocabularies)


def _tokenizer(folder: Path, vocabularies: list[dict[str, int]]) -> PreTrainedTokenizerBase:
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


def _settings(arrays: Weights, path: Path) -> dict[str, Any]:
    """The model's settings, if it is the paper's Transformer."""
    if SETTINGS not in arrays:
        raise ValueError(f"{path} has no {SETTINGS}: it is no model of Marian")
    text = arrays[SETTINGS].numpy().tobytes().split(b"\0")[0].decode("utf-8", errors="replace")
    origin = f"{path}, {SETTINGS}"
    settings = _given(checked(yaml_value(text, origin), dict, origin))
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
    """Check the numbers of the architecture."""
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
    dropout = _number(settings, "transformer-dropout", 0.1, origin)
    if not 0 <= dropout < 1:
        raise ValueError(f"{origin}: transformer-dropout={dropout:g} must be in [0, 1)")


def _config(settings: Mapping[str, Any], arrays: Weights, path: Path) -> MarianConfig:
    is_all = bool(settings.get("tied-embeddings-all"))
    is_shared = is_all or bool(settings.get("tied-embeddings-src"))
    tables = ["Wemb"] if is_shared else ["encoder_Wemb", "decoder_Wemb"]
    for name in tables:
        if name in arrays and arrays[name].ndim != 2:
            shape = tuple(arrays[name].shape)
            raise ValueError(f"{path}: {name} has shape {shape}, and needs two axes")
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
        dropout=float(settings.get("transformer-dropout", 0.1)),
        scale_embedding=True,
        pad_token_id=pad,
        eos_token_id=0,
        bos_token_id=0,
        forced_eos_token_id=0,
        decoder_start_token_id=pad,
    )


# --- weights ------------------------------------------------------------------------------------


def _name_of(name: str, config: MarianConfig, arrays: Weights) -> str:
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
        return f"{OUTPUT}t" if f"{OUTPUT}t" in arrays else OUTPUT
    if config.share_encoder_decoder_embeddings:
        return "Wemb"
    return "decoder_Wemb" if is_output or path[:1] == ["decoder"] else "encoder_Wemb"


def _weight(name: str, array: Tensor) -> Tensor:
    """An array in the layout of torch, with zeros for the padding token."""
    weight = array.float() if array.is_floating_point() else array
    if name == OUTPUT_BIAS:
        return pad(weight.reshape(1, -1), (0, 1))
    if _VECTOR.search(name):
        return weight.reshape(-1)
    if weight.dim() != 2:
        return weight
    if name.endswith(("Wemb", "_Wt")):
        return pad(weight, (0, 0, 0, 1))
    return (pad(weight, (0, 1)) if name == OUTPUT else weight).T


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


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without the settings that are not set, which Marian writes as null."""
    return {name: value for name, value in settings.items() if value is not None}


def _number(settings: Mapping[str, Any], name: str, default: float, origin: str) -> float:
    value = settings.get(name, default)
    if not is_finite_number(value):
        raise ValueError(f"{origin}: {name}={value!r} must be a finite number")
    return float(value)


def decoder_settings(folder: Path) -> dict[str, Any]:
    """The settings in `decoder.yml`; empty without the file.

    Raises:
        ValueError: the file is damaged, or a value is impossible.
    """
    path = folder / DECODER
    settings = _given(read_yaml(path) if path.is_file() else {})
    for name in ("models", "vocabs"):
        value = settings.get(name, [])
        if not isinstance(value, list) or not all(isinstance(file, str) for file in value):
            raise ValueError(f"{path}: {name}={value!r} must be a list of file names")
    beams = settings.get("beam-size", 1)
    if type(beams) is not int or beams < 1:
        raise ValueError(f"{path}: beam-size={beams!r} must be an integer, at least 1")
    for name in ("normalize", "word-penalty"):
        settings[name] = _number(settings, name, 0.0, str(path))
    return settings


def _vocabularies(folder: Path, decoder: Mapping[str, Any]) -> list[dict[str, int]]:
    """The ids of all pieces: one vocabulary, or those of source and target.

    Raises:
        ValueError: a file is missing or damaged, or its ids are not 0 to n - 1, each once.
    """
    names = [Path(name).name for name in decoder.get("vocabs", [])]
    paths = [folder / name for name in dict.fromkeys(names)]
    paths = paths or sorted(folder.glob("*vocab.yml"))
    if not paths or not all(path.is_file() for path in paths) or len(paths) > 2:
        raise ValueError(f"{folder} has no vocabulary: put the .yml that {DECODER} names there")
    found = []
    for path in paths:
        if path.suffix not in (".yml", ".yaml", ".json"):
            kind = {".fsv": "factored", ".spm": "a SentencePiece model"}.get(path.suffix, "text")
            raise ValueError(f"{path}: this vocabulary is {kind}; give one in YAML or JSON")
        entries = _entries(path)
        if not entries:
            raise ValueError(f"{path} must hold the id of each piece")
        ids = {piece: int(n) if _ID.fullmatch(str(n)) else n for piece, n in entries}
        if twice := [piece for piece, n in Counter(piece for piece, _ in entries).items() if n > 1]:
            raise ValueError(f"{path}: piece {twice[0]!r} is there twice: remove one")
        pieces_by_id(path, ids, len(ids))
        found.append(ids)
    return found


def check_sentencepiece(path: Path) -> None:
    """Check that a SentencePiece model is there and can be read.

    Raises:
        ValueError: it is missing or damaged.
        ImportError: sentencepiece is missing.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}: put both SentencePiece models there")
    with needs(f"{path} is a SentencePiece model", "convert"):
        from sentencepiece import SentencePieceProcessor
    try:
        SentencePieceProcessor(model_file=str(path))
    except Exception as error:  # damaged files raise many different exceptions
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read ({reason:.80}): download it again") from None


def _entries(path: Path) -> list[tuple[str, Any]]:
    """Pieces and ids as they are written.

    yaml-cpp, which Marian uses, leaves `no`, `01` and `<<` without quotes and reads every key as
    text. So the nodes are read here, without the types of YAML 1.1.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):  # JSON has escapes that YAML has not
            return list(json.loads(text, object_pairs_hook=tuple, parse_int=str))
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
