"""Translate texts that are more than one plain sentence: paragraphs, markup, given terms."""

import html
import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, tee

from hf_vanilla.data.lines import check_sentences
from hf_vanilla.options import needs

from .alignments import Aligner
from .decoding import Progress, Sentence, is_readable
from .markup import Markup, parts, take_out
from .markup_placement import put_back
from .terminology import Term, Terminology
from .translator import Translator

logger = logging.getLogger(__name__)

OTHER_SPACE = re.compile(r"[^\S\x00-\x7f]")  # at some, sentencex fails
CLOSING = re.compile(r"(?:</[A-Za-z][^<>]*>)+")


@dataclass(frozen=True)
class Piece:
    """One sentence of a text.

    Attributes:
        text: without white space around it; blank only if the whole text is.
        separator: the white space after it.
    """

    text: str
    separator: str


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
        with needs("sentences are split by sentencex", "text"):
            import sentencex
        self._segment, self._language = sentencex.segment, language

    def split(self, text: str) -> list[Piece]:
        """The sentences of a text; their texts and separators, joined, are the text.

        White space in front of the first sentence is left out. A text with an unpaired surrogate,
        which no tokenizer reads, is one piece.
        """
        if not is_readable(text):
            return [Piece(text, "")]
        pieces: list[Piece] = []
        at = 0
        for read in self._segment(self._language, OTHER_SPACE.sub(" ", text)):
            part, at = text[at : at + len(read)], at + len(read)
            closing = CLOSING.match(part)
            if closing and pieces and not pieces[-1].separator:  # tags of the sentence before
                pieces[-1] = Piece(pieces[-1].text + closing[0], "")
                part = part[closing.end() :]
            start, end = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
            if start and pieces:  # also white space alone, such as the end of a paragraph
                pieces[-1] = Piece(pieces[-1].text, pieces[-1].separator + start)
            if part.strip() or not pieces:
                pieces.append(Piece(part.strip(), end))
        if len(pieces) > 1 and not pieces[0].text:
            del pieces[0]
        return pieces or [Piece("", "")]


class TextTranslator:
    """A `Translator` around which texts are split, their markup kept, and terms obeyed.

    Args:
        translator: of sentences.
        split_sentences: language of the texts, such as `"en"`: each is split into sentences, which
            are translated and joined with the white space that was between them. None: a text is
            one sentence.
        keep_markup: tags, URLs, e-mail addresses, {variables} and numbers are carried over, as
            `hf_vanilla.text.markup` says.
        terminology: terms whose translations must appear.

    Raises:
        ImportError: sentencex is not installed.
        ValueError: the language is no code, or the engine has no attention or no beams.

    Examples:
        >>> from hf_vanilla import Translator, demo_model
        >>> texts = TextTranslator(Translator(demo_model()), keep_markup=True)
        >>> list(texts.translate(["<b>forty-two</b>"]))
        ['<b>zweiundvierzig</b>']
    """

    def __init__(
        self,
        translator: Translator,
        *,
        split_sentences: str | None = None,
        keep_markup: bool = False,
        terminology: Terminology | None = None,
    ) -> None:
        self.translator, self._terminology = translator, terminology
        self._splitter = None if split_sentences is None else SentenceSplitter(split_sentences)
        self._aligner = translator.aligner() if keep_markup else None
        self._without_terms: list[int] = []  # lines
        if terminology is not None:
            translator.check_constraints()

    @property
    def failed(self) -> list[int]:
        """As `Translator.failed`: the lines with a sentence that could not be translated."""
        return sorted({*self.translator.failed, *self._without_terms})

    def translate(
        self, sentences: Iterable[str], *, progress: Progress = False, first_line: int = 1
    ) -> Iterator[str]:
        """Yield one translation per text, in the same order; see `Translator.translate`.

        Args:
            sentences: the texts.
            progress: show a progress bar of sentences, on the main process; or a function of the
                number of texts that are done.
            first_line: line number of the first text, for messages.

        Raises:
            ValueError: as `Translator.translate`.
        """
        check_sentences(sentences)
        self.translator.failed, self._without_terms = [], []
        read, kept = tee(map(self._pieces, sentences))
        lines = zip(read, count(first_line), strict=False)
        pieces = (Sentence(piece.text, line) for of_text, line in lines for piece in of_text)
        # a function counts texts, which may have several sentences each
        advance = progress if callable(progress) and self._splitter is not None else None
        found = self._translated(pieces, progress if advance is None else False)
        for of_text in kept:
            translations = list(islice(found, len(of_text)))
            if advance is not None:
                advance(1)
            yield joined(of_text, translations)

    def _pieces(self, text: str) -> list[Piece]:
        """The sentences of a text; what is no text fails in the translator."""
        if self._splitter is None or not isinstance(text, str):
            return [Piece(text, "")]
        return self._splitter.split(text)

    def _translated(self, sentences: Iterator[Sentence], progress: Progress) -> Iterator[str]:
        """The translation of each sentence, with its markup and the terms."""
        read, kept = tee(map(self._prepared, sentences))
        found = self.translator.translate_all((one for one, _ in read), progress=progress)
        pairs = zip(kept, found, strict=False)
        while window := list(islice(pairs, self.translator.window)):
            if self._aligner is None:
                yield from (text for _, text in window)
            else:
                yield from self._restored(self._aligner, window)

    def _prepared(self, sentence: Sentence) -> tuple[Sentence, Markup]:
        """A sentence without items and with terms, and the items."""
        text, phrases = sentence.text, sentence.phrases
        # what cannot be read fails in the translator, also where only an item cannot
        is_text = isinstance(text, str)
        is_whole = self._aligner is not None and is_text and is_readable(text)
        markup = take_out(text if is_whole else "")
        text = markup.plain if is_whole else text
        if self._terminology is not None and is_text:
            phrases = self._terminology.targets(text)
        return Sentence(text, sentence.line, phrases), markup

    def _restored(
        self, aligner: Aligner, window: Sequence[tuple[tuple[Sentence, Markup], str]]
    ) -> list[str]:
        """The translations of a window with the items of their sources; "" if failed."""
        markups = [markup for (_, markup), _ in window]
        known = self._terminology
        terms = [[] if known is None else known.find(markup.plain) for markup in markups]
        texts = with_markup(aligner, markups, [text for _, text in window], terms)
        failed = set(self.translator.failed)
        for number, ((sentence, markup), translation) in enumerate(window):
            line = sentence.line
            text = html.unescape(texts[number]) if markup.is_html else texts[number]
            lost = [term.target for term in terms[number] if not term.places(text)]
            if line in failed and markup.plain and not translation:
                texts[number] = ""
            elif lost:
                texts[number] = ""
                self._without_terms.append(line)
                if self.translator.is_main:
                    message = "line %d becomes empty: its translation lacks the terms %s"
                    logger.warning(message, line, ", ".join(map(repr, dict.fromkeys(lost))))
        return texts


def with_markup(
    aligner: Aligner,
    sources: Sequence[Markup],
    translations: Sequence[str],
    terms: Sequence[Sequence[Term]],
) -> list[str]:
    """Translations with the items of their sources.

    Args:
        aligner: aligns those that need it.
        sources: of `take_out`.
        translations: of their `plain`.
        terms: of each `plain`, as for `put_back`.
    """
    pairs = [
        (markup.plain, text) if markup.needs_alignment else ("", "")
        for markup, text in zip(sources, translations, strict=True)
    ]
    links = aligner.align(pairs, parts_of=parts)
    return [
        put_back(markup, text, found, of_one)
        if markup.needs_alignment or not markup.plain
        else markup.written(text)
        for markup, text, found, of_one in zip(sources, translations, links, terms, strict=True)
    ]


def joined(pieces: Sequence[Piece], translations: Sequence[str]) -> str:
    """The translations of the sentences of a text, with the separators of the text.

    Chinese and Japanese write none between sentences: a space then, unless the translation ends in
    such a script too.
    """
    text = ""
    for piece, translation in zip(pieces[:-1], translations[:-1], strict=True):
        is_wide = not translation or unicodedata.east_asian_width(translation[-1]) in "WF"
        text += translation + (piece.separator or ("" if is_wide else " "))
    return text + translations[-1]
