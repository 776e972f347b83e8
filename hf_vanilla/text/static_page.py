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
from hf_vanilla.hub.card import public_name
from hf_vanilla.loading import model_folder, read_settings
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.quantization_vanilla import is_quantized, quantize
from hf_vanilla.options import Options, option

from .alignments import saved_head
from .loading import DTYPES, demo_model, demo_model_facts, load_translator

logger = logging.getLogger(__name__)

VIEWS, ENGINE = Path(__file__).parent / "views", Path(__file__).parents[1] / "app" / "engine"
# each in the order in which one needs the other
PAGE_FILES = (
    *("drawing.js", "attention.js", "compare.js", "tree.js", "layer.js", "overview.js"),
    *("download.js", "address.js", "connection.js", "page.js"),
)
WORKER_FILES = ("answer.js", "worker.js")
ENGINE_FILES = ("tokenizer.js", "model.js", "search.js", "index.js")
MODEL_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    "model.safetensors",
)
TITLE = "Attention Is All You Need: watch it translate"
# what the engine computes; the engine refuses the rest too
ACTIVATIONS = ("relu", "tanh", "silu", "swish", "gelu_new", "gelu_pytorch_tanh")
SETTINGS = {
    *("num_beams", "length_penalty", "length_penalty_form", "early_stopping", "max_new_tokens"),
    *("max_length", "max_tokens_beyond_source", "bos_token_id", "pad_token_id", "eos_token_id"),
    *("decoder_start_token_id", "num_return_sequences", "use_cache", "transformers_version"),
    "_from_model_config",
}
UNREAD_FIELDS = ("lstrip", "single_word")  # of an added token
# nothing is loaded from elsewhere; a page of one file names its script and style by their hashes
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="'
    "default-src 'none'; script-src {script}; style-src {style}; worker-src {worker}; "
    "connect-src {connect}; img-src data: blob:; base-uri 'none'; form-action 'none'\">\n"
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
    compared: list[str] = option(
        (),
        "further models, to compare with it; --model A --model B is the same",
        repeats_model=True,
    )
    single_file: bool = option(default=False, text="one HTML file that opens from disk")
    overwrite: bool = option(default=False, text="replace the file of --single_file")
    dtype: str | None = option(
        None,
        "of the weights: bfloat16, int8 or float32; default: int8 if the model has it, otherwise "
        "bfloat16",
        choices=DTYPES,
    )
    title: str = option(TITLE, "heading of the page")
    sentence: str | None = option(None, "that the page translates when it opens")


def write_page(options: PageOptions) -> Path:
    """Write the page with its model; returns the folder or the file.

    Raises:
        ValueError: the model is not an encoder-decoder of this package, or has a setting that the
            engine does not compute; or a folder would be named as a file.
        OSError: the model is not found, or the output exists.
    """
    if options.output.endswith(".html") and not options.single_file:
        raise ValueError(f"output={options.output!r}: one HTML file needs --single_file True")
    if options.single_file:
        output = check_output_file(options.output, overwrite=options.overwrite)
        with tempfile.TemporaryDirectory() as saved:
            write_text(output, _single_file(options, Path(saved)))
    else:
        output, own = Path(options.output), "'self'"
        policy = POLICY.format(script=own, style=own, worker=own, connect=own)
        with whole_folder(output) as folder:
            facts = _write_models(options, folder)
            for name, text in page_files(facts, title=options.title, policy=policy).items():
                (folder / name).write_text(text, encoding="utf-8")
            (folder / "engine").mkdir()
            for name in WORKER_FILES:
                (folder / name).write_bytes((VIEWS / name).read_bytes())
            for name in ENGINE_FILES:
                (folder / "engine" / name).write_bytes((ENGINE / name).read_bytes())
    files = [one for one in (output, *output.rglob("*")) if one.is_file()]
    logger.info("%s: %.2f MB", output.name, sum(one.stat().st_size for one in files) / 1e6)
    return output


def write_folder(model: str, output: Path) -> None:
    """Write the page of a model into a new folder.

    Raises:
        ValueError: as `write_page`.
    """
    write_page(PageOptions(model=model, output=str(output)))


def _write_model(name: str, dtype: str | None, folder: Path) -> dict[str, Any]:
    """Write the files that the engine reads into a new subfolder; returns what the page knows.

    Raises:
        ValueError: the engine does not compute the model, or it has int8 weights and `dtype` says
            otherwise.
    """
    model, tokenizer = load_translator(name, device=torch.device("cpu"))
    check_engine(name, model, tokenizer)
    if is_quantized(model):
        if dtype not in (None, "int8"):
            raise ValueError(f"dtype={dtype!r}: {name} has int8 weights: give the float model")
    elif dtype == "int8" or (dtype is None and "quantization_config" in read_settings(name)):
        model = quantize(model.float())
    else:
        model = model.to(getattr(torch, dtype or "bfloat16"))
    number = len(list(folder.glob("model*"))) + 1
    own = folder / ("model" if number == 1 else f"model{number}")
    own.mkdir()
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        tokenizer.save_pretrained(saved)
        for file in MODEL_FILES:
            (own / file).write_bytes((Path(saved) / file).read_bytes())
    head = saved_head(name)
    return {
        # two models may have folders of one name
        "name": f"{Path(name).name} ({number})" if number > 1 else Path(name).name,
        "folder": own.name,
        "about": knowledge(name),
        "alignment": None if head is None else vars(head),
    }


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
        raise ValueError(
            f"the page does not compute {', '.join(reasons)}, which {name} needs: use the app"
        )


def _other_parts(file: dict[str, Any]) -> list[str]:
    """Parts of a `tokenizer.json` that are not those of byte-level BPE."""
    wanted = {"pre_tokenizer": "ByteLevel", "decoder": "ByteLevel", "model": "BPE"}
    types = {part: (file[part] or {}).get("type") for part in wanted}
    found = [f"{part}={types[part]!r}" for part in wanted if types[part] != wanted[part]]
    normalizer = file["normalizer"] or {"type": "Sequence", "normalizers": []}
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    names = {step["type"] for step in steps} - {"Strip", "Replace"}
    found += (f"normalizer={one!r}" for one in sorted(names))
    for token in file["added_tokens"]:
        found += (f"{key} of {token['content']!r}" for key in UNREAD_FIELDS if token[key])
    return found


# --- the files -----------------------------------------------------------------------------------


def knowledge(name: str) -> str:
    """What the model's card says that it translates; without a card, the model's name."""
    card = Path(model_folder(name)) / REPOCARD_NAME
    lines = _CARD_LINE.findall(card.read_text(encoding="utf-8")) if card.is_file() else []
    return ". ".join(line.removeprefix("- ") for line in lines) or f"The model {public_name(name)}"


def page_files(facts: dict[str, Any], *, title: str = TITLE, policy: str = "") -> dict[str, str]:
    """The files of the page by their names, without those of the engine.

    Args:
        facts: about models and engine; see `connection.js`.
        title: its heading.
        policy: its Content-Security-Policy; without it, the server sends one.
    """
    files = {name: (VIEWS / name).read_text(encoding="utf-8") for name in ("page.css", *PAGE_FILES)}
    index = Template((VIEWS / "index.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title), facts=json.dumps(facts).replace("<", "\\u003c"), policy=policy
    )
    return {"index.html": index, **files}


def _write_models(options: PageOptions, folder: Path) -> dict[str, Any]:
    """Write the models into subfolders; returns what the page knows of them."""
    own = options.model or demo_model()
    models = [_write_model(name, options.dtype, folder) for name in (own, *options.compared)]
    examples = demo_model_facts(own).get("examples", [])
    sentence = options.sentence or next(iter(examples), "")
    return {"engine": "browser", "models": models, "sentence": sentence, "examples": examples}


def _single_file(options: PageOptions, folder: Path) -> str:
    """The page with style, script, worker and models inside; the models are in the folder too."""
    facts = _write_models(options, folder)
    style = (VIEWS / "page.css").read_text(encoding="utf-8")
    script = _joined([VIEWS / name for name in PAGE_FILES])
    policy = POLICY.format(
        script=_hash(script), style=_hash(style), worker="blob:", connect="'none'"
    )
    engine = [*(ENGINE / file for file in ENGINE_FILES), *(VIEWS / file for file in WORKER_FILES)]
    parts = [f'<script type="text/plain" id="worker">{_joined(engine)}</script>']
    for model in facts["models"]:
        for file in MODEL_FILES:
            text = base64.b64encode((folder / model["folder"] / file).read_bytes()).decode()
            marks = f'data-model="{html.escape(model["name"])}" data-file="{file}"'
            parts.append(f'<script type="text/plain" {marks}>{text}</script>')
    page = page_files(facts, title=options.title, policy=policy)["index.html"]
    link, tag = '<link rel="stylesheet" href="page.css">', '<script type="module" src="page.js">'
    page = page.replace(link, f"<style>{style}</style>")
    return page.replace(tag, "\n".join([*parts, f'<script type="module">{script}']))


def _joined(modules: list[Path]) -> str:
    """ES modules as one script, each after those that it imports."""
    texts = [one.read_text(encoding="utf-8") for one in modules]
    return "".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


def _hash(text: str) -> str:
    """The name of an inline script or style in a Content-Security-Policy."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
