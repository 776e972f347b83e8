"""fairseq's post-norm translation models to folders of ours, without fairseq."""

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import GenerationConfig

from hf_vanilla.files import whole_folder
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.saving_vanilla import code_beside_weights

from .checkpoint_files import read_checkpoint
from .fairseq_settings import (
    EXPLAINED,
    SIDES,
    Sharing,
    config_values,
    cut_positions,
    max_positions,
    names_of,
    refusals,
    settings_of,
    sharing_of,
)
from .fairseq_tokenizer import (
    SENTENCEPIECE_SUFFIX,
    Dictionaries,
    TextSettings,
    build_tokenizer,
    read_dictionary,
)
from .weight_names import load_renamed, rename_to_ours

CODES_NAMES = ("bpecodes", "code", "codes", "bpe.codes")
# fairseq's limit on a translation, its end not counted
MAX_TARGET_TOKENS = 200


@dataclass(frozen=True, kw_only=True)
class FairseqOptions:
    """Convert a translation model of fairseq."""

    input: str = field(metadata={"help": "folder of the extracted archive, or one .pt file in it"})
    output: str = field(metadata={"help": "folder to write; must not exist or be empty"})
    member: int | None = field(
        default=None,
        metadata={"help": "which model of an ensemble, from 1; default: each into its own folder"},
    )
    source_lang: str | None = field(
        default=None, metadata={"help": "language of dict.LANG.txt; default: as the model says"}
    )
    target_lang: str | None = field(
        default=None, metadata={"help": "language of dict.LANG.txt; default: as the model says"}
    )
    pieces: str | None = field(
        default=None,
        metadata={"help": "BPE codes or SentencePiece .model; default: the one in the folder"},
    )
    use_moses: bool | None = field(
        default=None, metadata={"help": "tokenize as Moses does; default: with BPE codes"}
    )
    do_lower_case: bool = field(default=False, metadata={"help": "lowercase every text"})
    trust_pickle: bool = field(
        default=False,
        metadata={"help": "run what the file holds besides tensors; only for a trusted author"},
    )


def convert_fairseq(options: FairseqOptions) -> Path:
    """Write model, tokenizer and generation config of a fairseq checkpoint; returns the folder.

    All models of an ensemble go into folders `member1`, `member2` and so on, unless one is chosen.

    Raises:
        ValueError: a file is not what it should be, or the model cannot be expressed exactly; the
            message names all reasons and weights at once.
        ImportError: a library that the tokenizer needs is missing.
        OSError: a file is missing, or the output is taken.
    """
    members = _members(Path(options.input))
    if options.member is not None:
        if not 1 <= options.member <= len(members):
            raise ValueError(f"member={options.member}: there are {len(members)} models")
        members = [members[options.member - 1]]
    with whole_folder(options.output) as folder:
        for number, checkpoint in enumerate(members, start=1):
            place = folder if len(members) == 1 else folder / f"member{number}"
            _convert_one(checkpoint, options, place)
    return Path(options.output)


def fairseq_decoding(settings: Mapping[str, Any]) -> GenerationConfig:
    """How fairseq translates unless told otherwise.

    Beam 5, log probability divided by length, stop at five finished hypotheses, one to 200 tokens
    and the end of sentence, which is forced there; padding is never chosen.
    """
    longest = min(MAX_TARGET_TOKENS, max_positions(settings, "target") - 1)
    return GenerationConfig(
        num_beams=5,
        length_penalty=1.0,
        length_penalty_form="power",
        early_stopping=True,
        min_new_tokens=1,
        max_new_tokens=longest + 1,
        forced_eos_token_id=2,
        suppress_tokens=[1],
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    )


# --- inside ------------------------------------------------------------------------------------


def _members(path: Path) -> list[Path]:
    """Checkpoints of a folder in the order of their numbers, or the one that was named."""
    if path.is_file():
        if path.suffix != ".pt":
            raise ValueError(f"{path} is no .pt file: extract the archive and give its folder")
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such file or folder")
    found = sorted(path.glob("*.pt"), key=_natural_order)
    if not found:
        raise FileNotFoundError(f"{path} holds no .pt file: give the folder with model.pt")
    return found


def _natural_order(path: Path) -> list[tuple[int, str]]:
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", path.stem)]


def _convert_one(path: Path, options: FairseqOptions, output: Path) -> None:
    checkpoint = read_checkpoint(path, allowed=[Namespace], trust_pickle=options.trust_pickle)
    weights = checkpoint.get("model") if isinstance(checkpoint, Mapping) else None
    if not isinstance(weights, Mapping) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise ValueError(
            f"{path} is no checkpoint of fairseq: it holds no 'model' made of tensors; "
            "fairseq's also hold 'args' or 'cfg'"
        )
    settings = settings_of(checkpoint)
    languages = [_language(settings, options, side) for side in ("source", "target")]
    dictionaries = [read_dictionary(path.parent / f"dict.{name}.txt") for name in languages]
    model = _model(weights, settings, dictionaries, path)
    pieces = Path(options.pieces) if options.pieces else _pieces_in(path.parent)
    is_bpe = pieces.suffix != SENTENCEPIECE_SUFFIX
    source, target = dictionaries
    tokenizer = build_tokenizer(
        pieces,
        Dictionaries(source=source, target=None if target == source else target),
        TextSettings(
            source_lang=languages[0],
            target_lang=languages[1],
            use_moses=is_bpe if options.use_moses is None else options.use_moses,
            do_lower_case=options.do_lower_case,
            model_max_length=model.config.max_position_embeddings,
        ),
    )
    with code_beside_weights(model, tokenizer):
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)


def _language(settings: Mapping[str, Any], options: FairseqOptions, side: str) -> str:
    language = getattr(options, f"{side}_lang") or settings.get(f"{side}_lang")
    if not language:
        raise ValueError(f"the checkpoint does not say its {side} language: add --{side}_lang")
    return str(language)


def _pieces_in(folder: Path) -> Path:
    found = [folder / name for name in CODES_NAMES if (folder / name).is_file()]
    found += sorted(folder.glob(f"*{SENTENCEPIECE_SUFFIX}"))
    if len(found) == 1:
        return found[0]
    told = ", ".join(path.name for path in found) or "none"
    raise ValueError(
        f"{folder} should hold BPE codes ({', '.join(CODES_NAMES)}) or one SentencePiece .model, "
        f"but has {told}: name the file with --pieces"
    )


def _model(
    weights: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    dictionaries: list[list[str]],
    origin: Path,
) -> VanillaForConditionalGeneration:
    sharing = sharing_of(settings)
    rows = {side: weights.get(f"{side}.embed_tokens.weight") for side in SIDES}
    sizes = [
        len(words) if table is None else len(table)
        for words, table in zip(dictionaries, rows.values(), strict=True)
    ]
    faults = refusals(settings) + _misfits(sizes, dictionaries, sharing)
    renamed = rename_to_ours(cut_positions(weights), names_of(sharing))
    try:
        values = config_values(settings, sharing)
    except KeyError:  # what is not stated is among the faults already, and there is no model
        left_over = ", ".join(sorted(renamed.left_over)) or "none"
        faults.append(f"weights of unknown names: {left_over}")
        raise ValueError(f"{origin} cannot be converted exactly: {'; '.join(faults)}") from None
    try:
        config = VanillaConfig(**values, vocab_size=sizes[0], decoder_vocab_size=sizes[1])
        model = VanillaForConditionalGeneration(config)
        load_renamed(model, renamed, origin="the model", reasons=EXPLAINED)
    except (ValueError, StrictDataclassError) as error:
        faults.append(" ".join(str(error).split()))
    if faults:
        raise ValueError(f"{origin} cannot be converted exactly: {'; '.join(faults)}")
    model.generation_config = fairseq_decoding(settings)
    return model


def _misfits(sizes: list[int], dictionaries: list[list[str]], sharing: Sharing) -> list[str]:
    """Dictionaries that do not fit the tables, or each other."""
    told = [
        f"the {name} dictionary has {len(words)} words, the four special ones included, "
        f"but its embedding has {size} rows"
        for name, words, size in zip(("source", "target"), dictionaries, sizes, strict=True)
        if len(words) != size
    ]
    if sharing.of_sides and dictionaries[0] != dictionaries[1]:
        told.append("both sides share one embedding, but their dictionaries differ")
    return told
