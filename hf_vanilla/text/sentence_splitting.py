"""Texts of several sentences: split by sentencex, translated one by one, joined again."""

import re
import unicodedata
from dataclasses import dataclass

from hf_vanilla.options import install_hint


@dataclass(frozen=True)
class Piece:
    """One sentence of a text.

    Attributes:
        text: without white space around it; blank only if the whole text is.
        separator: the white space behind it.
    """

    text: str
    separator: str

    def separator_behind(self, translation: str) -> str:
        """What separates the translation from the next one: the separator of the text.

        Chinese and Japanese write none between sentences: a space then, unless the translation ends
        in such a script too.
        """
        is_wide = not translation or unicodedata.east_asian_width(translation[-1]) in "WF"
        return self.separator or ("" if is_wide else " ")


class SentenceSplitter:
    """Splits texts into sentences by the rules and abbreviations of a language.

    Args:
        language: of the texts, a code such as `"en"`; sentencex falls back to a related language,
            in the end to English.

    Raises:
        ImportError: sentencex is not installed.
        ValueError: the language is no code of two or three letters.

    Examples:
        >>> splitter = SentenceSplitter("en")
        >>> [piece.text for piece in splitter.split("Dr. Smith left. She came back.")]
        ['Dr. Smith left.', 'She came back.']
    """

    def __init__(self, language: str) -> None:
        if not re.fullmatch(r"[a-z]{2,3}", language):
            raise ValueError(f"split_sentences={language!r}: give a language such as en")
        try:
            import sentencex
        except ImportError:
            raise ImportError(f"sentences are split by sentencex: {install_hint('text')}") from None
        self._segment, self._language = sentencex.segment, language

    def split(self, text: str) -> list[Piece]:
        """The sentences of a text; their texts and separators, joined, are the text.

        White space in front of the first sentence is left out. A text with an unpaired surrogate,
        which no tokenizer reads, is one piece.
        """
        if any("\ud800" <= character <= "\udfff" for character in text):
            return [Piece(text, "")]
        pieces: list[Piece] = []
        for part in self._segment(self._language, text):
            sentence, separator = part.strip(), part[len(part.rstrip()) :]
            if sentence or not pieces:
                pieces.append(Piece(sentence, separator))
            else:  # white space alone, such as the end of a paragraph
                pieces[-1] = Piece(pieces[-1].text, pieces[-1].separator + part)
        if len(pieces) > 1 and not pieces[0].text:
            del pieces[0]
        return pieces or [Piece("", "")]
