"""How a batch of sentences is translated, whatever requests they are from.

`app/worker.py` forms the batches, and calls a `BatchSearch` on its thread. `Model` prepares the
sentences on the thread of the HTTP server.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_vanilla.hub.card import languages_of, public_name

from .alignment_links import Links
from .decoding import doubt
from .engines import TorchEngine
from .markup import Markup, take_out
from .n_best import Hypothesis
from .page import MAX_TOKENS
from .page_service import PageService
from .text_translator import Piece, SentenceSplitter, with_markup

UNKNOWN = "und"  # the code of a language that no card states
# tags of HTML between which sentences end, with the white space around them; it begins where a run
# of white space begins, so that a long run is read once
BLOCK = re.compile(
    r"(?<!\s)(\s*(?:</?(?:address|article|aside|blockquote|br|dd|div|dl|dt|figure|footer|form|h[1-6]"
    r"|header|hr|li|main|nav|ol|p|pre|section|t(?:able|body|d|foot|h|head|r)|ul)\b[^<>]*>\s*)+)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Translated:
    """One sentence in the n best ways.

    Attributes:
        source: the sentence, with its markup.
        hypotheses: best first, with the markup of the sentence.
        links: of the words of the sentence and those of the best; None: not requested.
        doubt: why the best is probably wrong.
    """

    source: str
    hypotheses: list[Hypothesis]
    links: Links | None = None
    doubt: str | None = None

    def json(self) -> dict[str, Any]:
        """For an answer."""
        found = {
            "source": self.source,
            "translation": self.hypotheses[0].text,
            "hypotheses": [{"text": one.text, "score": one.score} for one in self.hypotheses],
            "doubt": self.doubt,
        }
        return found if self.links is None else {**found, "alignment": self.links}


@dataclass(frozen=True)
class Prepared:
    """A sentence that waits.

    Attributes:
        text: with its markup.
        ids: input ids of the text without it.
        markup: None: of a plain text.
    """

    text: str
    ids: list[int]
    markup: Markup | None


@dataclass(frozen=True)
class BatchSearch:
    """Translates a batch by a model; the sentences of equal searches share batches.

    Attributes:
        service: has the model.
        name: of the model.
        n: length of the lists.
        has_links: words are aligned.
    """

    service: PageService
    name: str
    n: int = 1
    has_links: bool = False

    def __call__(self, sentences: list[Prepared]) -> list[Translated]:
        """Translate a batch."""
        model, tokenizer = self.service.load(self.name)
        beams = model.generation_config.num_beams or 1
        changes = {"num_beams": self.n} if self.n > beams else {}
        engine = TorchEngine(model, tokenizer, **changes)
        lists = engine.n_best_rows([sentence.ids for sentence in sentences], self.n)
        lists = self._with_markup(sentences, lists)
        links: Sequence[Links | None] = [None] * len(sentences)
        if self.has_links:
            pairs = [(one.text, found[0].text) for one, found in zip(sentences, lists, strict=True)]
            links = self.service.aligner(self.name).align(pairs)
        fragments = self.service.fragments(self.name)
        return [
            Translated(one.text, found, of_one, doubt(one.ids, found[0].text, fragments))
            for one, found, of_one in zip(sentences, lists, links, strict=True)
        ]

    def _with_markup(
        self, sentences: list[Prepared], lists: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """The hypotheses with the tags of their sentences."""
        pairs = [
            (sentence.markup, hypothesis)
            for sentence, hypotheses in zip(sentences, lists, strict=True)
            if sentence.markup is not None
            for hypothesis in hypotheses
        ]
        if not pairs:
            return lists
        texts = iter(
            with_markup(
                self.service.aligner(self.name),
                [markup for markup, _ in pairs],
                [hypothesis.text for _, hypothesis in pairs],
                [[]] * len(pairs),
            )
        )
        return [
            hypotheses
            if sentence.markup is None
            else [Hypothesis(next(texts), one.ids, one.score) for one in hypotheses]
            for sentence, hypotheses in zip(sentences, lists, strict=True)
        ]


class Model:
    """What the handlers need of a model, without the thread that computes.

    Args:
        service: has the model.
        name: folder or Hub id.
    """

    def __init__(self, service: PageService, name: str) -> None:
        model, tokenizer = service.load(name)
        # of its own: a tokenizer of two threads fails
        self.tokenizer = copy.deepcopy(tokenizer)
        self.service, self.name, self.shown = service, name, public_name(name)
        self.source, self.target = languages_of(name) or (UNKNOWN, UNKNOWN)
        self.limit = min(MAX_TOKENS, tokenizer.model_max_length)
        if getattr(model.config, "position_embedding_type", None) == "learned":
            self.limit = min(self.limit, model.config.max_position_embeddings)
        self._fragments = service.fragments(name)
        self._splitter = SentenceSplitter("en" if self.source == UNKNOWN else self.source)

    def search(self, n: int, *, has_links: bool) -> BatchSearch:
        """How it translates."""
        return BatchSearch(self.service, self.name, n, has_links)

    def blocks(self, text: str, *, is_html: bool) -> list[str | list[Piece]]:
        """The sentences of each block of a text, and between them what is not translated."""
        parts = BLOCK.split(text) if is_html else [text]
        return [
            part if number % 2 or not part.strip() else self._splitter.split(part)
            for number, part in enumerate(parts)
        ]

    def prepared(self, sentence: str, *, is_html: bool) -> Prepared:
        """A sentence as the worker takes it.

        Raises:
            ValueError: it is too long, or in an alphabet that the model does not know.
        """
        markup = take_out(sentence) if is_html else None
        plain = sentence if markup is None else markup.plain
        ids = self.tokenizer(" ".join(plain.split()), verbose=False).input_ids
        if len(ids) > self.limit:
            raise ValueError(
                f"A sentence has {len(ids):,} tokens; the limit is {self.limit:,}: shorten it."
            )
        letters = [letter for letter in plain if letter.isalpha()]
        foreign = sum(ord(letter) > 0x24F for letter in letters)  # after the Latin letters
        if 2 * foreign > len(letters) and self.familiarity(ids) < 0.5:
            raise ValueError("The text is in an alphabet that the model does not know.")
        return Prepared(sentence, ids, markup)

    def familiarity(self, ids: Sequence[int]) -> float:
        """Share of the tokens that are more than a letter or a byte."""
        return 1 - sum(one in self._fragments for one in ids) / max(len(ids), 1)
