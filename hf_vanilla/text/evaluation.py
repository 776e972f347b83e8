"""Scores of translations of files and of models: BLEU and chrF with signatures, and of tags."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from hf_vanilla.data.bleu import Scores, check_bleu_tokenizer, score_translations
from hf_vanilla.data.lines import read_pairs
from hf_vanilla.options import UsageError, option

from .decoding import first_numbers
from .decoding_options import DecodingOptions
from .markup import TAG_NAME

logger = logging.getLogger(__name__)

# --- how well tags are placed, against references that translators tagged ------------------------


@dataclass(frozen=True)
class Span:
    """A pair of tags.

    Attributes:
        name: of the tag.
        first: number of the word in which it begins.
        text: inside, with single spaces and without the tags in it.
    """

    name: str
    first: int
    text: str


@dataclass(frozen=True)
class MarkupScores:
    """Scores of the lines whose references have pairs of tags.

    Attributes:
        lines: their number.
        well_formed: of these, translations whose tags are nested pairs.
        complete: of these, translations with exactly the tags of the reference, in any order.
        span_f1: F1 of spans, 0 to 1; a span is a tag and the text inside, at any place of the line.
        distance: mean number of words between the beginning of a span and the same span of the
            reference, where the words of both lines are matched; None without such spans.
    """

    lines: int
    well_formed: int
    complete: int
    span_f1: float
    distance: float | None

    @property
    def shown_distance(self) -> str:
        """The distance; `-` without."""
        return "-" if self.distance is None else f"{self.distance:.2f}"

    def __str__(self) -> str:
        return (
            f"tags of {self.lines} lines: well-formed {self.well_formed}, "
            f"complete {self.complete}, span F1 {self.span_f1:.3f}, {self.shown_distance} words off"
        )


def score_markup(translations: Sequence[str], references: Sequence[str]) -> MarkupScores | None:
    """Score the tags of translations; None where no reference has a pair of tags.

    Args:
        translations: one per reference.
        references: with tags as the translators placed them.
    """
    lines = well_formed = complete = same = found = wanted = 0
    distances: list[float] = []
    for translation, reference in zip(translations, references, strict=True):
        reference_words, reference_spans, _ = tagged_spans(reference)
        if not reference_spans:
            continue
        lines += 1
        words, spans, is_nested = tagged_spans(translation)
        well_formed += is_nested
        tags = [
            sorted(tag[0] for tag in TAG_NAME.finditer(one)) for one in (translation, reference)
        ]
        complete += tags[0] == tags[1]
        ours, theirs = (
            Counter((span.name, span.text) for span in each) for each in (spans, reference_spans)
        )
        same += (ours & theirs).total()
        found, wanted = found + len(spans), wanted + len(reference_spans)
        distances += _distances(words, reference_words, spans, reference_spans)
    if not lines:
        return None
    distance = sum(distances) / len(distances) if distances else None
    return MarkupScores(lines, well_formed, complete, 2 * same / (found + wanted), distance)


def tagged_spans(text: str) -> tuple[list[str], list[Span], bool]:
    """The words of a text without tags, its pairs of tags, and whether all tags are such pairs."""
    plain, last = "", 0
    opened: list[tuple[str, int, int]] = []  # name, number in `spans`, where it begins
    spans: list[Span | None] = []
    is_nested = True
    for tag in TAG_NAME.finditer(text):
        plain += text[last : tag.start()]
        last = tag.end()
        if tag[3]:  # <br/>
            continue
        if not tag[1]:
            opened.append((tag[2], len(spans), len(plain)))
            spans.append(None)
        elif opened and opened[-1][0] == tag[2]:
            name, number, start = opened.pop()
            inside = plain[start:]
            first = len((plain[:start] + "x").split()) - 1
            spans[number] = Span(name, first, " ".join(inside.split()))
        else:
            is_nested = False
    words = (plain + text[last:]).split()
    return words, [span for span in spans if span is not None], is_nested and not opened


def _distances(
    words: list[str], reference_words: list[str], spans: list[Span], reference_spans: list[Span]
) -> list[float]:
    """Words between the beginnings of equal tags, in their order, on words that both lines have."""
    matcher = SequenceMatcher(None, reference_words, words, autojunk=False)
    # where each word of the reference would stand in the translation
    place: list[float] = []
    for _, a, a_end, b, b_end in matcher.get_opcodes():
        step = (b_end - b) / max(a_end - a, 1)
        place += [b + step * i for i in range(a_end - a)]
    place.append(len(words))
    found = []
    for name in {span.name for span in reference_spans}:
        ours = [span.first for span in spans if span.name == name]
        theirs = [place[span.first] for span in reference_spans if span.name == name]
        found += [abs(a - b) for a, b in zip(ours, theirs, strict=False)]
    return found


# --- the command ---------------------------------------------------------------------------------


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
        plain = DecodingOptions(model="")
        given = [name for name in vars(plain) if getattr(self, name) != getattr(plain, name)]
        if self.translations and (names := given + ["source"] * bool(self.source)):
            raise UsageError(
                f"{', '.join(names)}: of a model, which --translations does not use: remove it"
            )
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
    if options.translations and texts and texts[0].startswith('{"line": '):
        raise ValueError(
            f"{options.translations} has n-best lists (--format jsonl): give one translation a line"
        )
    blank = [n for n, text in enumerate(references, 1) if not text.strip()]
    if blank:
        logger.warning(
            "%s has blank lines: remove these pairs (lines: %s)",
            *(options.reference, first_numbers(blank)),
        )
    if options.model:
        translator = options.open_texts()
        texts = list(translator.translate(texts, progress=True))
        options.check_failures(translator.failed)
    scores = score_translations(
        texts, references, tokenize=options.tokenize, lowercase=options.lowercase
    )
    markup = score_markup(texts, references)
    return scores if markup is None else MarkedScores(**vars(scores), markup=markup)
