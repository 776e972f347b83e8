"""The phrases that each sentence's translation must contain, paired with the sentences."""

from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from itertools import zip_longest
from typing import Any

_MISSING: Any = object()
REMEDY = "give a list of phrases for each sentence, an empty one where nothing is asked"


def sentences_with_phrases(
    sentences: Iterable[str], constraints: Iterable[Sequence[str]]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Each sentence with its phrases; of lists, everything is checked at once.

    Args:
        sentences: raw text; may be a stream.
        constraints: phrases for each sentence; may be a stream.

    Raises:
        ValueError: there are more or fewer lists of phrases than sentences, or a phrase is blank or
            no text. Of streams, this is found while they are read.
    """
    if isinstance(constraints, Collection):
        for phrases in constraints:
            check_phrases(phrases)
    if isinstance(sentences, Sized) and isinstance(constraints, Sized):
        _check_counts(len(constraints), len(sentences))
    return _pairs(sentences, constraints)


def check_phrases(phrases: Sequence[str]) -> None:
    """Refuse what is not a list of phrases.

    Raises:
        ValueError: it is one text or no list, or a phrase is blank or no text.
    """
    if isinstance(phrases, str) or not isinstance(phrases, Collection):
        raise ValueError(f"constraints={phrases!r:.60}: give a list of phrases per sentence")
    for phrase in phrases:
        if not isinstance(phrase, str):
            raise ValueError(f"the constraint {phrase!r:.60} is no text: give a phrase")
        if not phrase.strip():
            raise ValueError(f"the constraint {phrase!r:.60} is blank: remove it")


def _pairs(
    sentences: Iterable[str], constraints: Iterable[Sequence[str]]
) -> Iterator[tuple[str, Sequence[str]]]:
    both = zip_longest(sentences, constraints, fillvalue=_MISSING)
    for count, (text, phrases) in enumerate(both):
        if text is _MISSING:
            raise ValueError(f"constraints for more than the {count} sentences there are: {REMEDY}")
        if phrases is _MISSING:
            raise ValueError(f"constraints for {count} sentences, but there are more: {REMEDY}")
        check_phrases(phrases)
        yield text, phrases


def _check_counts(lists: int, sentences: int) -> None:
    if lists != sentences:
        raise ValueError(f"constraints for {lists} sentences, but there are {sentences}: {REMEDY}")
