"""Convert post-norm translation models of fairseq to our model folders, without fairseq."""

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from hf_vanilla.files import whole_folder
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.options import Options, option

from .checkpoint_files import check_toolkit, is_state_dict, read_checkpoint
from .fairseq_settings import (
    SIDES,
    config_values,
    cut_positions,
    fairseq_decoding,
    names_of,
    refusals,
    settings_of,
    sharing_of,
    wrong_types,
)
from .fairseq_tokenizer import SENTENCEPIECE_SUFFIX, build_tokenizer, read_dictionary
from .weight_names import Weights, load_renamed, rename_to_ours

CODES_NAMES = ("bpecodes", "code", "codes", "bpe.codes")
ARCHIVES = {".tar", ".tgz", ".gz", ".bz2", ".xz", ".zip"}
# fairseq-train writes checkpoint1.pt, checkpoint_1_500.pt, checkpoint_best.pt, checkpoint_last.pt
_OF_A_RUN = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|_last|[._].*)\.pt")
# why our model has no weight of these names
EXPLAINED = {
    "{side}.layer_norm.{kind}": "final norm of a pre-norm model",
    "{side}.layernorm_embedding.{kind}": "norm on the embeddings",
    "{side}.emb_layer_norm.{kind}": "norm on the embeddings",
    "decoder.adaptive_softmax.{a}.{b}": "adaptive softmax",
    "decoder.adaptive_softmax.{a}.{b}.{c}": "adaptive softmax",
    "decoder.adaptive_softmax.{a}.{b}.{c}.{d}": "adaptive softmax",
    "{side}.embed_tokens.embeddings.{a}.{b}.{c}": "adaptive input",
    "decoder.project_in_dim.weight": "input of a different width",
    "decoder.project_out_dim.weight": "output of a different width",
}


@dataclass(frozen=True, kw_only=True)
class FairseqOptions(Options):
    """Convert a translation model of fairseq."""

    input: str = option(text="folder of the extracted archive, or one checkpoint file")
    output: str = option(text="folder to write; must be empty or not exist")
    dictionaries: str | None = option(
        None, "folder of dict.LANG.txt and BPE codes; default: the checkpoint's"
    )
    member: int | None = option(None, "model of an ensemble, from 1; default: all, a folder each")
    source_lang: str | None = option(None, "language of dict.LANG.txt; default: the checkpoint's")
    target_lang: str | None = option(None, "language of dict.LANG.txt; default: the checkpoint's")
    pieces: str | None = option(None, "BPE codes or SentencePiece .model; default: the folder's")
    use_moses: bool | None = option(None, "tokenize with Moses rules; default: only with BPE codes")
    do_lower_case: bool = option(False, "lowercase every text")
    trust_pickle: bool = option(False, "load any class, which can run code; for trusted authors")


def convert_fairseq(options: FairseqOptions) -> Path:
    """Write model, tokenizer and generation config of a fairseq checkpoint; returns the folder.

    The models of an ensemble go into folders `member1`, `member2` and so on, unless one is chosen.

    Raises:
        ValueError: a file has the wrong format, or our model cannot express it exactly; the message
            names all reasons.
        ImportError: a library that the tokenizer needs is missing.
        OSError: a file is missing, or the output exists.
    """
    members = _members(Path(options.input))
    if options.member is not None:
        if not 1 <= options.member <= len(members):
            raise ValueError(f"member={options.member}: there are {len(members)} models")
        members = [members[options.member - 1]]
    with whole_folder(options.output) as folder:
        for number, checkpoint in enumerate(members, start=1):
            output = folder if len(members) == 1 else folder / f"member{number}"
            _convert_one(checkpoint, options, output)
    return Path(options.output)


# --- inside ------------------------------------------------------------------------------------


def _members(path: Path) -> list[Path]:
    """The checkpoints of a folder in the order of their numbers, or the given file."""
    check_toolkit(path)
    if path.is_file():
        if not ARCHIVES.isdisjoint(path.suffixes):
            raise ValueError(f"{path} is an archive: extract it and give its folder")
        return [path]  # under any name
    found = sorted(path.glob("*.pt"), key=_natural_order)
    if not found:
        raise FileNotFoundError(f"{path} has no .pt file: give the folder of model.pt, or a file")
    of_one_run = [file for file in found if _OF_A_RUN.fullmatch(file.name)]
    if len(found) > 1 and of_one_run:
        best = next((file for file in of_one_run if "best" in file.name), of_one_run[-1])
        raise ValueError(
            f"{path} has {len(of_one_run)} checkpoints of one run, which are no ensemble: "
            f"give one file, such as {best}"
        )
    return found


def _natural_order(path: Path) -> list[tuple[int, str]]:
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", path.stem)]


def _convert_one(path: Path, options: FairseqOptions, output: Path) -> None:
    checkpoint = read_checkpoint(path, allowed=[Namespace], trust_pickle=options.trust_pickle)
    weights = checkpoint.get("model") if isinstance(checkpoint, Mapping) else None
    if not is_state_dict(weights):
        raise ValueError(
            f"{path} is no checkpoint of fairseq: it contains no 'model' with tensors; "
            "fairseq's contain 'model' and 'args' or 'cfg'"
        )
    settings = settings_of(checkpoint)
    if faults := wrong_types(settings):
        raise ValueError(f"{path} has settings of a wrong type: {'; '.join(faults)}")
    languages, pieces = _text_files(settings, options, path)
    folder = Path(options.dictionaries or path.parent)
    dictionaries = [read_dictionary(folder / f"dict.{name}.txt") for name in languages]
    model = _model(weights, settings, dictionaries, path)
    is_bpe = pieces.suffix != SENTENCEPIECE_SUFFIX
    tokenizer = build_tokenizer(
        pieces,
        dictionaries,
        source_lang=languages[0],
        target_lang=languages[1],
        use_moses=is_bpe if options.use_moses is None else options.use_moses,
        do_lower_case=options.do_lower_case,
        model_max_length=model.config.max_position_embeddings,
    )
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def _text_files(
    settings: Mapping[str, Any], options: FairseqOptions, checkpoint: Path
) -> tuple[list[str], Path]:
    """Both languages, and the file of BPE codes or SentencePiece.

    Raises:
        ValueError: something is missing; the message names all of it.
    """
    folder, missing, languages = Path(options.dictionaries or checkpoint.parent), [], []
    for side in ("source", "target"):
        language = getattr(options, f"{side}_lang") or settings.get(f"{side}_lang")
        if not language:
            missing.append(f"the checkpoint does not name its {side} language: add --{side}_lang")
        elif not (folder / f"dict.{language}.txt").is_file():
            missing.append(f"{folder} has no dict.{language}.txt: add --dictionaries FOLDER")
        languages.append(str(language))
    pieces = [Path(options.pieces)] if options.pieces else []
    for home in () if options.pieces else dict.fromkeys((folder, checkpoint.parent)):
        pieces += [home / name for name in CODES_NAMES if (home / name).is_file()]
        pieces += sorted(home.glob(f"*{SENTENCEPIECE_SUFFIX}"))
    if len(pieces) != 1:
        names = ", ".join(path.name for path in pieces) or "none"
        missing.append(
            f"{folder} must contain BPE codes ({', '.join(CODES_NAMES)}) or one SentencePiece "
            f".model, but has {names}: name the file with --pieces"
        )
    if missing:
        raise ValueError(f"{checkpoint}: {'; '.join(missing)}")
    return languages, pieces[0]


def _model(
    weights: Weights, settings: Mapping[str, Any], dictionaries: list[list[str]], origin: Path
) -> VanillaForConditionalGeneration:
    is_shared = sharing_of(settings)["share_encoder_decoder_embeddings"]
    rows = {side: weights.get(f"{side}.embed_tokens.weight") for side in SIDES}
    sizes = [
        len(tokens) if table is None else len(table)
        for tokens, table in zip(dictionaries, rows.values(), strict=True)
    ]
    faults = refusals(settings) + [
        f"the {name} dictionary has {len(tokens)} tokens, the four special ones included, "
        f"but its embedding has {size} rows"
        for name, tokens, size in zip(("source", "target"), dictionaries, sizes, strict=True)
        if len(tokens) != size
    ]
    if is_shared and dictionaries[0] != dictionaries[1]:
        faults.append("both sides share one embedding, but their dictionaries differ")
    renamed = rename_to_ours(cut_positions(weights), names_of(is_shared=is_shared))
    try:
        values = config_values(settings)
        config = VanillaConfig(**values, vocab_size=sizes[0], decoder_vocab_size=sizes[1])
        model = VanillaForConditionalGeneration(config)
        load_renamed(model, renamed, origin="the model", reasons=EXPLAINED)
    except KeyError:  # missing sizes are among the faults already
        left_over = ", ".join(sorted(renamed.left_over)) or "none"
        faults.append(f"weights of unknown names: {left_over}")
    except (ValueError, StrictDataclassError) as error:
        faults.append(" ".join(str(error).split()))
    if faults:
        raise ValueError(f"{origin} cannot be converted exactly: {'; '.join(faults)}")
    model.generation_config = fairseq_decoding(settings)
    return model
