"""Phrases that translations must contain: from a list of terms, or given for each sentence."""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_vanilla.data.lines import read_lines
from hf_vanilla.models.search_vanilla_constraints import Phrase

_MISSING: Any = object()
REMEDY = "give a list of phrases for each sentence, an empty one where nothing is asked"


@dataclass(frozen=True)
class Term:
    """A phrase that a translation must contain.

    Attributes:
        target: the phrase.
        first: the first character in the sentence of what it translates.
        last: the character after it; 0 for a phrase that translates nothing in particular.
    """

    target: str
    first: int = 0
    last: int = 0

    def places(self, translation: str) -> list[tuple[int, int]]:
        """Where a translation has the phrase, as characters from and to: first where words begin.

        White space may be of any width.
        """
        phrase = r"\s+".join(map(re.escape, self.target.split()))
        found = [match.span() for match in re.finditer(phrase, translation)]
        return sorted(found, key=lambda place: translation[: place[0]][-1:].isalnum())


class Terminology:
    """Terms and their translations.

    A term is found where it stands between characters that are no letters or digits, as it is or
    with a capital at its beginning. Where terms overlap, the first and longest counts.

    Args:
        terms: pairs of a source phrase and a target phrase.

    Raises:
        ValueError: a side is blank, a source phrase has two translations, or there are no terms.

    Examples:
        >>> terms = Terminology([("house", "Gebäude"), ("white house", "Weißes Haus")])
        >>> terms.targets("House by house, but the white house")
        ['Gebäude', 'Weißes Haus']
    """

    def __init__(self, terms: Iterable[tuple[str, str]]) -> None:
        self._targets: dict[str, str] = {}
        for source, target in terms:
            if not source.strip() or not target.strip():
                raise ValueError(f"the term {source!r}, {target!r} has a blank side: fill it")
            if self._targets.setdefault(source, target) != target:
                raise ValueError(
                    f"the term {source!r} has two translations, {self._targets[source]!r} and "
                    f"{target!r}: keep one"
                )
        if not self._targets:
            raise ValueError("the terminology has no terms: give at least one")
        for source in list(self._targets):
            capital = source[0].upper() + source[1:]
            self._targets.setdefault(capital, self._targets[source])
        longest_first = sorted(self._targets, key=len, reverse=True)
        self._terms = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")

    @property
    def digest(self) -> str:
        """SHA-256 of the terms, in whatever order and file they are."""
        lines = sorted(f"{source}\t{target}\n" for source, target in self._targets.items())
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def find(self, sentence: str) -> list[Term]:
        """All terms in a sentence."""
        found = self._terms.finditer(sentence)
        return [Term(self._targets[match.group()], *match.span()) for match in found]

    def targets(self, sentence: str) -> list[str]:
        """The translations of all terms in a sentence, each once."""
        return list(dict.fromkeys(term.target for term in self.find(sentence)))


def read_terminology(path: str | Path) -> Terminology:
    """Terms from UTF-8 text, plain or `.gz`: source phrase, tab and target phrase on each line.

    Raises:
        ValueError: a line has not two columns, or as `Terminology`.
        OSError: the file cannot be read.
    """
    terms = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        columns = line.split("\t")
        if len(columns) != 2 or not all(column.strip() for column in columns):
            raise ValueError(
                f"{path}, line {number}: {line!r:.60} is no term: give a source phrase, a tab and "
                "a target phrase"
            )
        terms.append((columns[0].strip(), columns[1].strip()))
    return Terminology(terms)


def phrase_of(tokenizer: PreTrainedTokenizerBase, text: str) -> Phrase:
    """The tokens of a phrase after other words of a translation, and at its start.

    Args:
        tokenizer: of the model.
        text: the phrase.

    Raises:
        ValueError: it is blank, or has characters that are not in the vocabulary.
    """
    if not text.strip():
        raise ValueError("a constraint is blank: remove it")
    texts = ["a", text.strip(), f"a {text.strip()}"]
    tokens = tokenizer(text_target=texts, add_special_tokens=False, verbose=False)
    before, at_start, following = tokens.input_ids
    phrase = Phrase(following[len(before) :], at_start, text)
    if tokenizer.unk_token_id in phrase.ids:
        raise ValueError(f"the constraint {text!r} has characters that the vocabulary lacks")
    return phrase


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
    sizes = [len(given) for given in (constraints, sentences) if isinstance(given, Sized)]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"constraints for {sizes[0]} sentences, but there are {sizes[1]}: {REMEDY}"
        )
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
