"""The service behind the page of translation: searches, attention weights, vectors of a layer.

Any number of threads may call it at once; it stores nothing about a visitor.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from .aligned_words import AlignedWords, aligned_words
from .alignments import Aligner, saved_head
from .attentions import Attentions, attentions
from .doubts import doubt, fragment_ids
from .layer_steps import LayerSteps, has_layer_steps, layer_steps
from .markup import Markup, take_out
from .n_best import Hypothesis
from .page_input import checked_text, one_line, split_text
from .page_models import ModelCache, NamedModel
from .page_search import MAX_NEW_TOKENS, Search
from .search_record import Candidate
from .sentence_splitting import Piece
from .terminology import Term
from .text_translator import with_markup

CACHED_MODELS = 2
MAX_SECONDS = 30.0  # of the searches of one text
MAX_VISITORS = 64  # who wait at once


@dataclass(frozen=True)
class Result:
    """The translations of one sentence.

    Attributes:
        model: folder or Hub id, or those of an ensemble as `names_in` reads them.
        text: what the visitor wrote.
        sentence: what the model read: the text, or its words without markup.
        hypotheses: n-best list, best first.
        steps: the candidates of each step of the search; none with sampling.
        settings: of decoding.
        attentions: weights of the sentence and the best hypothesis.
        has_layers: whether `inside` knows the model's layers.
        separator: the white space behind the sentence in a text of several.
    """

    model: str
    text: str
    sentence: str
    hypotheses: list[Hypothesis]
    steps: list[list[Candidate]]
    settings: GenerationConfig
    attentions: Attentions
    has_layers: bool
    separator: str = ""


class Service:
    """Translates with models by name, which are loaded at first use and cached.

    A name is a folder or Hub id, or several with " + " between them: an ensemble. Its first model
    is the one whose attention, probabilities and layers are shown.

    One lock for everything, loading included: while transformers loads a model it changes torch's
    defaults for all threads, and what another thread computes or loads meanwhile goes wrong.

    Args:
        cached_models: size of the model cache; the least recently used model is dropped.
        dtype: numbers of the models, as for `Translator`.
        max_tokens: maximum number of source tokens.
        max_seconds: the search of a text that takes longer is stopped.
    """

    def __init__(
        self,
        cached_models: int = CACHED_MODELS,
        *,
        dtype: str | None = None,
        max_tokens: int = 256,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self.max_tokens = max_tokens
        self.max_seconds = max_seconds
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_VISITORS)
        self._models = ModelCache(cached_models, dtype)

    def describe(self, name: str) -> str:
        """One line about a model: its size, layers and heads.

        Raises:
            ValueError: it cannot be loaded.
        """
        with self._turn():
            named = self._models.load(name)
        model = named.model
        config, size = model.config, f"{model.num_parameters() / 1e6:.1f} million parameters"
        if not hasattr(config, "encoder_layers"):  # T5 has other names for its layers
            return size
        ensemble = ""
        if named.ensemble is not None:
            ensemble = f"the views show the first of {len(named.ensemble.models) + 1} models, "
        return (
            f"{ensemble}{size}, {config.encoder_layers} + {config.decoder_layers} layers, "
            f"{config.encoder_attention_heads} + {config.decoder_attention_heads} heads"
        )

    def num_beams(self, name: str) -> int:
        """Number of beams in a model's generation config.

        Raises:
            ValueError: it cannot be loaded.
        """
        with self._turn():
            return self._models.load(name).model.generation_config.num_beams or 1

    def translate(self, name: str, text: str, search: Search) -> Result:
        """Translate one sentence, record the search, and compute the attention of the best result.

        Args:
            name: model folder or Hub id.
            text: any input of a visitor.
            search: how to translate it.

        Raises:
            ValueError: the text is blank, only markup or too long, the search takes too long or
                cannot have the phrases or lengths, the model cannot be used, or too many visitors
                wait.
        """
        sentence = checked_text(text, self.max_tokens)
        return self._translate(name, [Piece(sentence, "")], search)[0]

    def translate_sentences(
        self, name: str, text: str, search: Search, *, language: str
    ) -> list[Result]:
        """Split a text into sentences, and translate each as `translate` does.

        Args:
            name: model folder or Hub id.
            text: any input of a visitor.
            search: how to translate each sentence; all of them together have `max_seconds`.
            language: of the text, as `SentenceSplitter` takes it.

        Raises:
            ValueError: as for `translate`; or the text cannot be split, has too many sentences, or
                has several and there are phrases.
        """
        pieces = split_text(checked_text(text, self.max_tokens), language)
        if len(pieces) > 1 and search.phrases:
            raise ValueError(
                f"Phrases are of one sentence, and the text has {len(pieces)}: leave them out, or "
                "do not split the text."
            )
        return self._translate(name, pieces, search)

    def _translate(self, name: str, pieces: list[Piece], search: Search) -> list[Result]:
        with self._turn():
            named = self._models.load(name)
            if named.ensemble is not None and search.sampling is not None:
                raise ValueError("An ensemble takes no sampling: choose beam search.")
            for number, piece in enumerate(pieces, 1):
                what = "The text" if len(pieces) == 1 else f"Sentence {number}"
                self._check_length(named.tokenizer, piece.text, what)
            deadline = time.monotonic() + self.max_seconds
            return [self._result(name, named, piece, search, deadline) for piece in pieces]

    def _result(
        self, name: str, named: NamedModel, piece: Piece, search: Search, deadline: float
    ) -> Result:
        """Translate one sentence; the caller holds the lock."""
        model, tokenizer = named.model, named.tokenizer
        markup = take_out(piece.text) if search.keep_markup else None
        sentence = piece.text if markup is None else markup.plain
        if not sentence.strip():
            raise ValueError(f"There are no words in {piece.text[:40]!r}: type a sentence.")
        constraints = search.constraints(model, tokenizer, sentence)
        left = max(deadline - time.monotonic(), 0)
        with _any_error_of(name):
            found, steps = search.run(named, sentence, constraints=constraints, max_seconds=left)
        if time.monotonic() >= deadline:
            raise ValueError(
                f"The search was stopped after {self.max_seconds:g} seconds: give a shorter text, "
                "or fewer beams."
            )
        search.lengths.check(found)
        with _any_error_of(name):
            weights = attentions(model, tokenizer, sentence, translation=found[0].ids)
            if markup is not None:
                aligner = Aligner(model, tokenizer, saved_head(named.name))
                terms = [*search.found_terms(sentence), *map(Term, search.phrases)]
                found = _with_items(found, markup, aligner, terms)
        return Result(
            model=name,
            text=piece.text,
            sentence=sentence,
            hypotheses=found,
            steps=steps,
            settings=model.generation_config,
            attentions=weights,
            has_layers=has_layer_steps(model),
            separator=piece.separator,
        )

    def doubt(self, result: Result) -> str | None:
        """Why a translation is probably wrong, as the command `translate` reports it."""
        tokenizer = self.tokenizer(result.model)
        ids = tokenizer(result.sentence, verbose=False).input_ids
        return doubt(ids, result.hypotheses[0].text, fragment_ids(tokenizer))

    def attend(self, name: str, text: str, ids: list[int]) -> Attentions:
        """Attention weights of a sentence and one of its translations.

        Args:
            name: model folder or Hub id.
            text: the sentence.
            ids: of the translation, without the start token.

        Raises:
            ValueError: as for `translate`, or the ids are none of the model.
        """
        sentence = checked_text(text, self.max_tokens)
        with self._turn():
            named = self._models.load(name)
            model, tokenizer = named.model, named.tokenizer
            self._check_length(tokenizer, sentence)
            self._check_ids(model, tokenizer, ids)
            with _any_error_of(name):
                return attentions(model, tokenizer, sentence, translation=ids)

    def align(self, name: str, text: str, attentions: Attentions) -> AlignedWords | None:
        """The words of a sentence, aligned with those of its translation.

        Args:
            name: model folder or Hub id.
            text: the sentence.
            attentions: of the sentence and the translation, by this model.

        Returns:
            None where the tokenizer has a vocabulary per language.

        Raises:
            ValueError: the file of the model's alignment head is damaged, or names a head that the
                model does not have.
        """
        sentence = checked_text(text, self.max_tokens)
        with self._turn():
            named = self._models.load(name)
            return aligned_words(attentions, named.tokenizer, sentence, saved_head(named.name))

    def inside(
        self, name: str, text: str, ids: list[int], *, kind: str, place: tuple[int, int, int]
    ) -> LayerSteps:
        """The vectors of one token in one head of one layer.

        Args:
            name: model folder or Hub id.
            text: the sentence.
            ids: of its translation, without the start token.
            kind: of attention, one of `KINDS`.
            place: layer, head and query token, from 0.

        Raises:
            ValueError: as for `attend`, or the place does not exist.
        """
        sentence = checked_text(text, self.max_tokens)
        layer, head, token = place
        with self._turn():
            named = self._models.load(name)
            model, tokenizer = named.model, named.tokenizer
            self._check_length(tokenizer, sentence)
            self._check_ids(model, tokenizer, ids)
            return layer_steps(
                model,
                tokenizer,
                sentence,
                translation=ids,
                kind=kind,
                layer=layer,
                head=head,
                token=token,
            )

    def tokenizer(self, name: str) -> PreTrainedTokenizerBase:
        """The tokenizer of a model.

        Raises:
            ValueError: it cannot be loaded.
        """
        with self._turn():
            return self._models.load(name).tokenizer

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The lock, unless too many wait for it."""
        if not self._places.acquire(blocking=False):
            raise ValueError("Too many visitors wait at the moment: try again in a minute.")
        try:
            with self._lock:
                yield
        finally:
            self._places.release()

    def _check_length(self, tokenizer: Any, sentence: str, what: str = "The text") -> None:
        limit = min(self.max_tokens, tokenizer.model_max_length)
        length = len(tokenizer(sentence, verbose=False).input_ids)
        if length > limit:
            raise ValueError(
                f"{what} has {length:,} tokens; the limit is {limit:,} for a sentence: give "
                "shorter sentences, one at a time or split."
            )

    def _check_ids(self, model: Any, tokenizer: Any, ids: Any) -> None:
        """Refuse ids that are no translation; a visitor may send anything."""
        beyond = getattr(model.generation_config, "max_tokens_beyond_source", None) or 0
        longest = 2 * min(self.max_tokens, tokenizer.model_max_length) + beyond
        most = max(longest, MAX_NEW_TOKENS)
        size = model.get_output_embeddings().weight.shape[0]
        is_list = isinstance(ids, list) and 0 < len(ids) <= most
        if not is_list or not all(type(i) is int and 0 <= i < size for i in ids):
            raise ValueError("This translation is none of the model: translate again.")


def _with_items(
    found: list[Hypothesis], markup: Markup, aligner: Aligner, terms: list[Term]
) -> list[Hypothesis]:
    """The hypotheses with the tags and the like of their source in their texts."""
    count, texts = len(found), [one.text for one in found]
    texts = with_markup(aligner, [markup] * count, texts, [terms] * count)
    return [replace(one, text=text) for one, text in zip(found, texts, strict=True)]


@contextmanager
def _any_error_of(name: str) -> Iterator[None]:
    """Report any error of a model, which may be anyone's, as a ValueError of one line."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{name} failed at this text: {one_line(error)}") from error
