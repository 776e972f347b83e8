"""The models behind the page of translation: one sentence at a time, with all that the page shows.

Searches, attention weights, vectors of a layer; nothing about a visitor is stored. `service.py` has
what programs ask for over HTTP.
"""

import copy
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.cpus import return_freed_memory
from hf_vanilla.hub.card import public_name
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.packing_vanilla import pack

from .alignments import AlignedWords, Aligner, aligned_words, saved_head
from .attentions import Attentions, LayerSteps, attentions, layer_steps
from .decoding import doubt, fragment_ids
from .loading import load_translator, output_size
from .page_answer import Result
from .page_search import MAX_NEW_TOKENS, MAX_SECONDS, Search

CHARACTERS_PER_TOKEN = 20  # a longer text is refused without tokenizing it
MAX_MESSAGE = 400  # characters of an error


@dataclass(eq=False)
class PageService:
    """Models by name, loaded at first use and cached, and what the page computes with them.

    One thread at a time may use it: while transformers loads a model it changes torch's defaults
    for all threads, and what another thread computes or loads meanwhile goes wrong.

    Attributes:
        cached_models: size of the model cache; the least recently used model is dropped.
        dtype: numbers of the models, as for `Translator`.
        max_tokens: maximum number of source tokens.
        max_batch_memory: MiB that a batch for programs may take beside the weights; None: no limit.
    """

    cached_models: int = 2
    dtype: str | None = None
    max_tokens: int = 256
    max_batch_memory: float | None = None
    _models: OrderedDict[str, tuple[PreTrainedModel, PreTrainedTokenizerBase]] = field(
        default_factory=OrderedDict
    )
    _fragments: dict[str, frozenset[int]] = field(default_factory=dict)
    _described: dict[str, str] = field(default_factory=dict)

    def describe(self, name: str) -> str:
        """One line about a model: its size, layers and heads.

        Raises:
            ValueError: it cannot be loaded.
        """
        self.load(name)
        return self._described[name]

    def translate(self, name: str, text: str, search: Search) -> Result:
        """Translate one sentence, record the search, and compute the attention of the best result.

        Args:
            name: model folder or Hub id.
            text: any input of a visitor.
            search: how to translate it.

        Raises:
            ValueError: the text is blank or too long, the search takes too long or cannot have the
                lengths, or the model cannot be used.
        """
        sentence, model, tokenizer = self._checked(name, text)
        started = time.monotonic()
        with _any_error_of(name):
            found, steps = search.run(model, tokenizer, sentence)
        if time.monotonic() - started >= MAX_SECONDS:
            raise ValueError(
                f"The search was stopped after {MAX_SECONDS:g} seconds: give a shorter "
                "text, or fewer beams."
            )
        search.lengths.check(found)
        with _any_error_of(name):
            weights = attentions(model, tokenizer, sentence, translation=found[0].ids)
        settings = copy.copy(model.generation_config)
        if search.lengths.length_penalty is not None:
            settings.length_penalty = search.lengths.length_penalty
        return Result(
            model=name,
            sentence=sentence,
            hypotheses=found,
            steps=steps,
            settings=settings,
            attentions=weights,
            has_layers=isinstance(model, VanillaForConditionalGeneration),
        )

    def doubt(self, result: Result) -> str | None:
        """Why a translation is probably wrong, as the command `translate` reports it."""
        ids = self.load(result.model)[1](result.sentence, verbose=False).input_ids
        return doubt(ids, result.hypotheses[0].text, self.fragments(result.model))

    def attend(self, name: str, text: str, ids: list[int]) -> Attentions:
        """Attention weights of a sentence and one of its translations.

        Args:
            name: model folder or Hub id.
            text: the sentence.
            ids: of the translation, without the start token.

        Raises:
            ValueError: as for `translate`, or the ids are none of the model.
        """
        sentence, model, tokenizer = self._checked(name, text)
        self._check_ids(model, tokenizer, ids)
        with _any_error_of(name):
            return attentions(model, tokenizer, sentence, translation=ids)

    def align(self, name: str, sentence: str, attentions: Attentions) -> AlignedWords | None:
        """The words of a sentence, aligned with those of its translation.

        Args:
            name: model folder or Hub id.
            sentence: as of `Result`, or any text of a visitor.
            attentions: of the sentence and the translation, by this model.

        Returns:
            None where the tokenizer has a vocabulary per language.

        Raises:
            ValueError: the file of the model's alignment head is damaged, or names a head that the
                model does not have.
        """
        sentence = checked_text(sentence, self.max_tokens)
        _, tokenizer = self.load(name)
        with _any_error_of(name):
            return aligned_words(attentions, tokenizer, sentence, saved_head(name))

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
        sentence, model, tokenizer = self._checked(name, text)
        self._check_ids(model, tokenizer, ids)
        where = dict(zip(("layer", "head", "token"), place, strict=True))
        return layer_steps(model, tokenizer, sentence, translation=ids, kind=kind, **where)

    def aligner(self, name: str) -> Aligner:
        """What aligns sentences with translations of a model.

        Raises:
            ValueError: the model cannot align.
        """
        model, tokenizer = self.load(name)
        with _any_error_of(name):
            return Aligner(model, tokenizer, saved_head(name))

    def fragments(self, name: str) -> frozenset[int]:
        """As `fragment_ids` of the model's tokenizer."""
        if name not in self._fragments:
            self._fragments[name] = fragment_ids(self.load(name)[1])
        return self._fragments[name]

    def load(self, name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The model of a folder or Hub id.

        Raises:
            ValueError: none is named, or it cannot be used.
        """
        if not name.strip():
            raise ValueError("No model is named: give a model folder or a Hub id.")
        if name not in self._models:
            with _any_error_of(name, "This model cannot be used."):
                model, tokenizer = load_translator(name, dtype=self.dtype)
                config = model.config
                described = f"{model.num_parameters() / 1e6:.1f} million parameters"
                if hasattr(config, "encoder_layers"):  # T5 has other names for its layers
                    described += (
                        f", {config.encoder_layers} + {config.decoder_layers} layers, "
                        f"{config.encoder_attention_heads} + {config.decoder_attention_heads} heads"
                    )
                self._described[name] = described
                pack(model)
                return_freed_memory()
                self._models[name] = model, tokenizer
        self._models.move_to_end(name)
        while len(self._models) > self.cached_models:
            self._models.popitem(last=False)
        return self._models[name]

    def _checked(self, name: str, text: str) -> tuple[str, Any, Any]:
        """The sentence in a text of a visitor, the model and its tokenizer.

        Raises:
            ValueError: the text is blank or too long, or the model cannot be used.
        """
        sentence = checked_text(text, self.max_tokens)
        model, tokenizer = self.load(name)
        limit = min(self.max_tokens, tokenizer.model_max_length)
        length = len(tokenizer(sentence, verbose=False).input_ids)
        if length > limit:
            raise ValueError(
                f"The text has {length:,} tokens; the limit is {limit:,} for a sentence: give "
                "shorter sentences, one at a time."
            )
        return sentence, model, tokenizer

    def _check_ids(self, model: Any, tokenizer: Any, ids: Any) -> None:
        """Refuse ids that are no translation; a visitor may send anything."""
        beyond = getattr(model.generation_config, "max_tokens_beyond_source", None) or 0
        longest = 2 * min(self.max_tokens, tokenizer.model_max_length) + beyond
        most = max(longest, MAX_NEW_TOKENS)
        size = output_size(model)
        is_list = isinstance(ids, list) and 0 < len(ids) <= most
        if not is_list or not all(type(i) is int and 0 <= i < size for i in ids):
            raise ValueError("This translation is none of the model: translate again.")


def checked_text(text: str, max_tokens: int) -> str:
    """The text on one line, in valid Unicode: tokenizers refuse a lone half of a surrogate pair.

    Raises:
        ValueError: it is blank, or much too long.
    """
    limit = max_tokens * CHARACTERS_PER_TOKEN
    if len(text) > limit:
        raise ValueError(
            f"The text has {len(text):,} characters; the limit is {limit:,}: give a shorter one."
        )
    valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    sentence = " ".join(valid.splitlines())
    if not sentence.strip():
        raise ValueError("There is no text: type a sentence.")
    return sentence


def one_line(error: Exception) -> str:
    """The message of an error on one line, shortened to `MAX_MESSAGE` characters."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"


@contextmanager
def _any_error_of(name: str, what: str = "") -> Iterator[None]:
    """Report any error of a model, which may be anyone's, as a ValueError of one line."""
    try:
        yield
    except Exception as error:
        reason = one_line(error).replace(name, public_name(name))
        what = what or f"{public_name(name)} failed at this text:"
        raise ValueError(f"{what} {reason}") from error
