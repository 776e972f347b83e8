"""A page that needs no server: the model itself in JavaScript, as a folder or as one HTML file.

The engine reads a model folder of this package, so the page carries one: weights in bfloat16, int8
or float32, the configs, and the tokenizer.
"""

import base64
import hashlib
import html
import json
import logging
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import torch
from huggingface_hub.constants import REPOCARD_NAME
from transformers import PreTrainedTokenizerBase

from hf_vanilla.files import check_output_file, whole_folder, write_text
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.quantization_vanilla import is_quantized, quantize
from hf_vanilla.options import Options, option

from .loading import demo_model, load_translator

logger = logging.getLogger(__name__)

SHELL, ENGINE = (Path(__file__).parents[1] / "app" / name for name in ("static", "engine"))
SHELL_FILES = ("index.html", "page.css", "page.js", "worker.js")
# in the order in which one needs the other
ENGINE_FILES = ("tokenizer.js", "model.js", "search.js", "index.js")
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
)
DTYPES = ("bfloat16", "int8", "float32")
EXAMPLE = "seven hundred forty-two thousand three hundred nineteen"  # of the package's model
# what the engine computes; the engine refuses the rest too
ACTIVATIONS = ("relu", "tanh", "silu", "swish", "gelu_new", "gelu_pytorch_tanh")
SETTINGS = {
    *("num_beams", "length_penalty", "length_penalty_form", "early_stopping", "max_new_tokens"),
    *("max_length", "max_tokens_beyond_source", "bos_token_id", "pad_token_id", "eos_token_id"),
    *("decoder_start_token_id", "num_return_sequences", "use_cache", "transformers_version"),
    "_from_model_config",
}
# nothing is loaded from elsewhere; a page of one file names its script and style by their hashes
POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; worker-src {worker}; "
    "connect-src {connect}; img-src data: blob:; base-uri 'none'; form-action 'none'"
)
_IMPORT, _EXPORT = re.compile(r"^import [^;]*;\n", re.M), re.compile(r"^export ", re.M)
_CARD_LINE = re.compile(r"^- (?:Translates|Trained on): .*$", re.M)


@dataclass(frozen=True, kw_only=True)
class PageOptions(Options):
    """Write a page that translates in the browser, without a server: a folder or one file."""

    output: str = option(text="new folder for a static host; with --single_file, the HTML file")
    model: str | None = option(
        None, "translator, folder or Hub id; default: the package's model of number words"
    )
    single_file: bool = option(default=False, text="one HTML file that opens from disk")
    overwrite: bool = option(default=False, text="replace the file of --single_file")
    dtype: str | None = option(
        None,
        "of the weights: bfloat16, int8 or float32; default: int8 if the model has it, otherwise "
        "bfloat16",
        choices=DTYPES,
    )
    title: str = option("See a Transformer translate", "heading of the page")
    sentence: str | None = option(None, "that the page translates when it opens")


def write_page(options: PageOptions) -> Path:
    """Write the page with its model; returns the folder or the file.

    Raises:
        ValueError: the model is not an encoder-decoder of this package, or has a setting that the
            engine does not compute.
        OSError: the model is not found, or the output exists.
    """
    name = options.model or demo_model()
    if options.single_file:
        output = check_output_file(options.output, overwrite=options.overwrite)
        with tempfile.TemporaryDirectory() as folder:
            _write_model(name, options.dtype, Path(folder))
            write_text(output, _single_file(options, name, Path(folder)))
    else:
        with whole_folder(options.output) as folder:
            (folder / "model").mkdir()
            _write_model(name, options.dtype, folder / "model")
            _write_shell(options, name, folder)
        output = Path(options.output)
    files = [output] if options.single_file else [one for one in output.rglob("*") if one.is_file()]
    logger.info("%s: %.2f MB", output, sum(one.stat().st_size for one in files) / 1e6)
    return output


def _write_model(name: str, dtype: str | None, folder: Path) -> None:
    """Write the files that the engine reads.

    Raises:
        ValueError: the engine does not compute the model, or it has int8 weights and `dtype` says
            otherwise.
    """
    model, tokenizer = load_translator(name, device=torch.device("cpu"))
    check_engine(name, model, tokenizer)
    if is_quantized(model):
        if dtype not in (None, "int8"):
            raise ValueError(f"dtype={dtype!r}: {name} has int8 weights: give the float model")
    elif dtype == "int8":
        model = quantize(model.float())
    else:
        model = model.to(getattr(torch, dtype or "bfloat16"))
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        tokenizer.save_pretrained(saved)
        for file in MODEL_FILES:
            (folder / file).write_bytes((Path(saved) / file).read_bytes())


def check_engine(name: str, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a model that the engine in JavaScript does not compute.

    Raises:
        ValueError: its class, a setting of its decoding, its activation or its tokenizer.
    """
    if not isinstance(model, VanillaForConditionalGeneration):
        raise ValueError(
            f"{name} is a {type(model).__name__}, and the page computes translators of this "
            "package: convert it by hf-vanilla convert"
        )
    config, decoding = model.config, model.generation_config.to_diff_dict()
    reasons = [
        f"{key}={value!r}"
        for key, value in decoding.items()
        if key not in SETTINGS and value is not None and value is not False
    ]
    if config.activation_function not in ACTIVATIONS:
        reasons.append(f"activation_function={config.activation_function!r}")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        reasons.append(f"the tokenizer {type(tokenizer).__name__}, which has no tokenizer.json")
    else:
        reasons += _other_parts(json.loads(backend.to_str()))
    if reasons:
        raise ValueError(f"the page does not compute {', '.join(reasons)}, which {name} needs")


def _other_parts(file: dict[str, Any]) -> list[str]:
    """Parts of a `tokenizer.json` that are not those of byte-level BPE."""
    wanted = {"pre_tokenizer": "ByteLevel", "decoder": "ByteLevel", "model": "BPE"}
    types = {part: (file[part] or {}).get("type") for part in wanted}
    found = [f"{part}={types[part]!r}" for part in wanted if types[part] != wanted[part]]
    normalizer = file["normalizer"] or {"type": "Sequence", "normalizers": []}
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    names = {step["type"] for step in steps} - {"Strip", "Replace"}
    return [*found, *(f"normalizer={one!r}" for one in sorted(names))]


# --- the files -----------------------------------------------------------------------------------


def _index(options: PageOptions, name: str, policy: str) -> str:
    """The HTML of a folder's page."""
    sentence = options.sentence or (EXAMPLE if options.model is None else "")
    facts = json.dumps({"sentence": sentence}).replace("<", "\\u003c")
    return Template((SHELL / "index.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(options.title),
        about=html.escape(_about(name)),
        facts=facts,
        policy=policy,
    )


def _about(name: str) -> str:
    """What the model's card says that it translates; without a card, the model's name."""
    card = Path(name) / REPOCARD_NAME
    lines = _CARD_LINE.findall(card.read_text(encoding="utf-8")) if card.is_file() else []
    text = ". ".join(line.removeprefix("- ") for line in lines) or f"The model {Path(name).name}"
    return f"{text}. It runs in this browser and sends nothing."


def _write_shell(options: PageOptions, name: str, folder: Path) -> None:
    own = "'self'"
    policy = POLICY.format(script=own, style=own, worker=own, connect=own)
    (folder / "index.html").write_text(_index(options, name, policy), encoding="utf-8")
    for file in SHELL_FILES[1:]:
        (folder / file).write_bytes((SHELL / file).read_bytes())
    (folder / "engine").mkdir()
    for file in ENGINE_FILES:
        (folder / "engine" / file).write_bytes((ENGINE / file).read_bytes())


def _single_file(options: PageOptions, name: str, model: Path) -> str:
    """The page with style, script, worker and model inside."""
    style, script = ((SHELL / file).read_text(encoding="utf-8") for file in SHELL_FILES[1:3])
    policy = POLICY.format(
        script=_hash(script), style=_hash(style), worker="blob:", connect="'none'"
    )
    sources = [*(ENGINE / file for file in ENGINE_FILES), SHELL / "worker.js"]
    worker = "".join(joined_module(one.read_text(encoding="utf-8")) for one in sources)
    parts = [f'<script type="text/plain" id="worker">{worker}</script>']
    for file in MODEL_FILES:
        text = base64.b64encode((model / file).read_bytes()).decode()
        parts.append(f'<script type="text/plain" data-file="{file}">{text}</script>')
    page = _index(options, name, policy)
    link, tag = '<link rel="stylesheet" href="page.css">', '<script type="module" src="page.js">'
    page = page.replace(link, f"<style>{style}</style>")
    inlined = "\n".join([*parts, f'<script type="module">{script}'])
    return page.replace(tag, inlined)


def joined_module(source: str) -> str:
    """An ES module without its imports and exports, to stand after the modules that it imports."""
    return _EXPORT.sub("", _IMPORT.sub("", source))


def _hash(text: str) -> str:
    """The name of an inline script or style in a Content-Security-Policy."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
