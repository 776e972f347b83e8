"""BLEU and chrF of translations, each with its sacreBLEU signature; COMET where it is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hf_vanilla.data.corpus import read_pairs
from hf_vanilla.options import UsageError

from .comet import check_comet, comet_score
from .decoding_options import DecodingOptions
from .translator import check_sentences


@dataclass(frozen=True)
class Scores:
    """Scores of a set of translations, by sacreBLEU.

    Attributes:
        bleu: corpus BLEU, 0 to 100.
        bleu_signature: settings of the metric; only scores with equal signatures are comparable.
        chrf: corpus chrF2, 0 to 100.
        chrf_signature: settings of the metric.
        exact_match: share of translations equal to their reference, 0 to 100.
        sentences: number of sentences.
        comet: 100 times COMET; None where no COMET model was given.
        comet_model: that model.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    sentences: int
    comet: float | None = None
    comet_model: str | None = None

    def __str__(self) -> str:
        comet = "" if self.comet is None else f"COMET {self.comet:.2f}  {self.comet_model}\n"
        return (
            f"BLEU {self.bleu:.2f}  {self.bleu_signature}\n"
            f"chrF {self.chrf:.2f}  {self.chrf_signature}\n"
            f"{comet}exact match {self.exact_match:.1f} % of {self.sentences} sentences"
        )


def score_translations(
    translations: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Scores:
    """Score translations against one reference each.

    Args:
        translations: detokenized output, one per sentence.
        references: as many references.
        tokenize: sacreBLEU's tokenizer: "13a" for raw text, "none" for tokenized text.
        lowercase: ignore case.

    Raises:
        ValueError: the counts differ, there is nothing to score, or one side is a single text.
    """
    check_bleu_tokenizer(tokenize)
    for texts in (translations, references):
        check_sentences(texts)
    from sacrebleu.metrics import BLEU, CHRF

    if len(translations) != len(references):
        raise ValueError(
            f"{len(translations)} translations, but {len(references)} references: "
            "both need one line per sentence"
        )
    if not references:
        raise ValueError("no sentences to score")
    # force: no warning about tokenized text; the signature names the tokenizer
    bleu = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    chrf = CHRF(lowercase=lowercase)
    is_exact = [t == r for t, r in zip(translations, references, strict=True)]
    return Scores(
        bleu=bleu.corpus_score(translations, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(translations, [references]).score,
        chrf_signature=str(chrf.get_signature()),
        exact_match=100 * sum(is_exact) / len(is_exact),
        sentences=len(is_exact),
    )


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


def check_bleu_tokenizer(name: str) -> None:
    """Check that scores can be computed with this tokenizer.

    Raises:
        ValueError: sacreBLEU has no tokenizer of this name.
    """
    from sacrebleu.metrics import BLEU

    if name not in BLEU.TOKENIZERS:
        names = ", ".join(sorted(BLEU.TOKENIZERS))
        raise ValueError(f"tokenize={name!r}: choose one of {names}")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(DecodingOptions):
    """Score a model, or translations of any system: BLEU and chrF, with their signatures."""

    model: str = field(
        default="", metadata={"help": "model folder or Hub id, which translates --source"}
    )
    source: str = field(default="", metadata={"help": "file of source sentences, plain or .gz"})
    translations: str = field(
        default="", metadata={"help": "file of translations, of any system, in place of a model"}
    )
    reference: str = field(metadata={"help": "file of reference translations, line by line"})
    tokenize: str = field(
        default="13a",
        metadata={"help": "sacreBLEU's tokenizer; none: the text is already tokenized"},
    )
    lowercase: bool = field(default=False, metadata={"help": "ignore case"})
    comet: str | None = field(
        default=None,
        metadata={
            "help": "COMET model for the command comet-score, such as Unbabel/wmt22-comet-da; "
            "default: no COMET"
        },
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
