"""BLEU and chrF of translations, each with its sacreBLEU signature; COMET where it is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hf_vanilla.data.bleu import Scores, check_bleu_tokenizer, score_translations
from hf_vanilla.data.corpus import read_pairs
from hf_vanilla.options import UsageError, option

from .comet import check_comet, comet_score
from .decoding_options import DecodingOptions


def with_comet(
    scores: Scores,
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str],
    *,
    model: str,
) -> Scores:
    """The scores of these translations and their COMET; arguments and errors: see `comet_score`."""
    comet = comet_score(sources, translations, references, model=model)
    return replace(scores, comet=comet, comet_model=model)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(DecodingOptions):
    """Score a model, or translations of any system: BLEU and chrF, with their signatures."""

    model: str = option("", "model folder or Hub id, which translates --source")
    source: str = option("", "file of source sentences, plain or .gz")
    translations: str = option("", "file of translations, of any system, in place of a model")
    reference: str = option(text="file of reference translations, line by line")
    tokenize: str = option("13a", "sacreBLEU's tokenizer; none: the text is already tokenized")
    lowercase: bool = option(False, "ignore case")
    comet: str | None = option(
        None,
        (
            "COMET model for the command comet-score, such as Unbabel/wmt22-comet-da; "
            "default: no COMET"
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.model) == bool(self.translations):
            raise UsageError("give --model MODEL --source FILE, or --translations FILE")
        if not self.source and (self.model or self.comet):
            raise UsageError(f"missing: --source, for {'the model' if self.model else 'COMET'}")


def evaluate_files(options: EvaluateOptions) -> Scores:
    """Score a file of translations, or those of a model, against their references.

    Raises:
        ValueError: the files have different numbers of lines, the folder has no model, or lines
            could not be translated and `accept_failures` is off.
        OSError: a file cannot be read, or COMET failed.
        ImportError: COMET was asked for and is not installed.
    """
    check_bleu_tokenizer(options.tokenize)  # before the long translation
    if options.comet is not None:
        check_comet()
    pairs = list(read_pairs(options.translations or options.source, options.reference))
    texts, references = ([pair[side] for pair in pairs] for side in ("source", "target"))
    sources, translations = texts, texts
    if options.model:
        translator = options.open_texts()
        translations = list(translator.translate(sources, progress=True))
        options.check_failures(translator.failed)
    elif options.comet is not None:
        sources = [pair["source"] for pair in read_pairs(options.source, options.reference)]
    scores = score_translations(
        translations, references, tokenize=options.tokenize, lowercase=options.lowercase
    )
    if options.comet is None:
        return scores
    return with_comet(scores, sources, translations, references, model=options.comet)
