"""Which parts of the built-in corpus's number words translate each other."""

from dataclasses import dataclass

from hf_vanilla.data.corpus import number_words


@dataclass(frozen=True)
class AlignedPair:
    """A pair of texts whose alignment is known.

    Attributes:
        source: text.
        target: text.
        source_spans: first and last-plus-one character of each part of the source.
        target_spans: likewise of the target.
        sure: pairs of part numbers, source and target, that translate each other.
        possible: pairs that are neither right nor wrong, `sure` included.
    """

    source: str
    target: str
    source_spans: tuple[tuple[int, int], ...]
    target_spans: tuple[tuple[int, int], ...]
    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]


def aligned_number(number: int) -> AlignedPair:
    """A number below a million in both languages, with the alignment of its parts.

    "twenty-three" has the parts "twenty" and "three", "dreiundzwanzig" has "drei", "und" and
    "zwanzig". "und" has no translation; a link of it to either neighbor is possible.
    """
    texts = number_words(number)
    english, german, sure = _parts(number)
    possible = set(sure)
    for place, part in enumerate(german):
        if part == "und":
            possible |= {(i, place) for i, j in sure if abs(j - place) == 1}
    return AlignedPair(
        texts["source"],
        texts["target"],
        _spans(english, texts["source"]),
        _spans(german, texts["target"]),
        frozenset(sure),
        frozenset(possible),
    )


def _parts(number: int) -> tuple[list[str], list[str], set[tuple[int, int]]]:
    """Parts of both languages in their orders, and the pairs that translate each other."""
    tens, ones = divmod(number, 10)
    if number < 20 or (number < 100 and not ones):
        words = number_words(number)
        return [words["source"]], [words["target"]], {(0, 0)}
    if number < 100:
        first, second = (number_words(n) for n in (10 * tens, ones))
        german = [_inside(second["target"]), "und", first["target"]]
        return [first["source"], second["source"]], german, {(0, 2), (1, 0)}
    unit, english_unit, german_unit = (
        (1000, "thousand", "tausend") if number >= 1000 else (100, "hundred", "hundert")
    )
    count, rest = divmod(number, unit)
    english, german, sure = _parts(count)
    german[-1] = _inside(german[-1])
    sure = {*sure, (len(english), len(german))}
    english, german = [*english, english_unit], [*german, german_unit]
    if rest:
        more_english, more_german, more = _parts(rest)
        sure |= {(i + len(english), j + len(german)) for i, j in more}
        english, german = [*english, *more_english], [*german, *more_german]
    return english, german, sure


def _inside(german: str) -> str:
    """A number word before another part of a word."""
    return "ein" if german == "eins" else german


def _spans(parts: list[str], text: str) -> tuple[tuple[int, int], ...]:
    """Where each part is in a text that has them in this order."""
    spans, first = [], 0
    for part in parts:
        first = text.index(part, first)
        spans.append((first, first + len(part)))
        first += len(part)
    return tuple(spans)
