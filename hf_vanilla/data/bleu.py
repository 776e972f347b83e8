"""BLEU and chrF of translations, each with its sacreBLEU signature."""

from collections.abc import Sequence
from dataclasses import dataclass

from .lines import check_sentences


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
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    sentences: int

    def __str__(self) -> str:
        return (
            f"BLEU {self.bleu:.2f}  {self.bleu_signature}\n"
            f"chrF {self.chrf:.2f}  {self.chrf_signature}\n"
            f"exact match {self.exact_match:.1f} % of {self.sentences} sentences"
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
        ImportError: the tokenizer needs a package that is not installed.
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


def check_bleu_tokenizer(name: str) -> None:
    """Check that scores can be computed with this tokenizer.

    Raises:
        ValueError: sacreBLEU has no tokenizer of this name.
        ImportError: it needs a package that is not installed.
        OSError: it needs a file that cannot be downloaded.
    """
    from sacrebleu.metrics import BLEU

    if name not in BLEU.TOKENIZERS:
        names = ", ".join(sorted(BLEU.TOKENIZERS))
        raise ValueError(f"tokenize={name!r}: choose one of {names}")
    try:
        BLEU(tokenize=name)
    except RuntimeError as error:  # its message says what to install
        raise ImportError(f"tokenize={name!r}: {' '.join(str(error).split())}") from None
