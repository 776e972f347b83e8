"""BLEU and chrF of translations, each with its sacreBLEU signature, of files and of models."""

from dataclasses import dataclass

from hf_vanilla.data.bleu import Scores, check_bleu_tokenizer, score_translations
from hf_vanilla.data.lines import read_pairs
from hf_vanilla.options import UsageError, option

from .decoding_options import DecodingOptions
from .markup_scores import MarkupScores, score_markup


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(DecodingOptions):
    """Score a model, or translations of any system: BLEU and chrF, with their signatures."""

    model: str = option("", "model folder or Hub id, which translates --source")
    source: str = option("", "file of source sentences, plain or .gz")
    translations: str = option("", "file of translations, of any system, in place of a model")
    reference: str = option(text="file of reference translations, line by line")
    tokenize: str = option("13a", "sacreBLEU's tokenizer; none: the text is already tokenized")
    lowercase: bool = option(False, "ignore case")

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.model) == bool(self.translations):
            raise UsageError("give --model MODEL --source FILE, or --translations FILE")
        if self.model and not self.source:
            raise UsageError("missing: --source, for the model")


@dataclass(frozen=True)
class MarkedScores(Scores):
    """BLEU and chrF, and scores of the tags."""

    markup: MarkupScores

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.markup}"


def evaluate_files(options: EvaluateOptions) -> Scores:
    """Score a file of translations, or those of a model, against their references.

    Where references have pairs of tags, these are scored too.

    Raises:
        ValueError: the files have different numbers of lines, the folder has no model, or lines
            could not be translated and `accept_failures` is off.
        OSError: a file cannot be read.
    """
    check_bleu_tokenizer(options.tokenize)  # before the long translation
    pairs = list(read_pairs(options.translations or options.source, options.reference))
    texts, references = ([pair[side] for pair in pairs] for side in ("source", "target"))
    if options.model:
        translator = options.open_texts()
        texts = list(translator.translate(texts, progress=True))
        options.check_failures(translator.failed)
    scores = score_translations(
        texts, references, tokenize=options.tokenize, lowercase=options.lowercase
    )
    markup = score_markup(texts, references)
    return scores if markup is None else MarkedScores(**vars(scores), markup=markup)
