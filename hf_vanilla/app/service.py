"""The service behind the web page: n-best translations and attention weights of one sentence.

Any number of threads may call it at once; it stores nothing about a visitor.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from hf_vanilla.translation.attentions import Attentions, attentions
from hf_vanilla.translation.n_best import Hypothesis, best_translations
from hf_vanilla.translation.translator import load_translator

CACHED_MODELS = 2
CHARACTERS_PER_TOKEN = 20  # a longer text is refused without tokenizing it
MAX_MESSAGE = 400  # characters


@dataclass(frozen=True)
class Result:
    """The translations of one sentence.

    Attributes:
        model: folder or Hub id.
        sentence: the text that was translated.
        hypotheses: n-best list, best first.
        selected: index of the hypothesis that `attentions` belongs to.
        attentions: weights of the sentence and that hypothesis.
    """

    model: str
    sentence: str
    hypotheses: list[Hypothesis]
    selected: int
    attentions: Attentions


class Service:
    """Translates with models by name, which are loaded at first use and cached.

    One lock for everything, loading included: while transformers loads a model it changes torch's
    defaults for all threads, and what another thread computes or loads meanwhile goes wrong.

    Args:
        cached_models: size of the model cache; the least recently used model is dropped.
        dtype: numbers of the models, as for `Translator`.
    """

    def __init__(self, cached_models: int = CACHED_MODELS, *, dtype: str | None = None) -> None:
        self._cached_models = cached_models
        self._dtype = dtype
        self._lock = threading.Lock()
        self._model_cache: OrderedDict[str, Any] = OrderedDict()

    def describe(self, name: str) -> str:
        """One line about a model: its size, layers and heads.

        Raises:
            ValueError: it cannot be loaded.
        """
        with self._lock:
            model = self._load(name)[0]
        config, size = model.config, f"{model.num_parameters() / 1e6:.1f} million parameters"
        if not hasattr(config, "encoder_layers"):  # T5 has other names for its layers
            return f"{name}: {size}"
        return (
            f"{name}: {size}, {config.encoder_layers} + {config.decoder_layers} layers, "
            f"{config.encoder_attention_heads} + {config.decoder_attention_heads} heads"
        )

    def num_beams(self, name: str) -> int:
        """Number of beams in a model's generation config.

        Raises:
            ValueError: it cannot be loaded.
        """
        with self._lock:
            return self._load(name)[0].generation_config.num_beams or 1

    def translate(self, name: str, text: str, *, num_beams: int, max_tokens: int) -> Result:
        """Translate one sentence and compute the attention weights of its best translation.

        Args:
            name: model folder or Hub id.
            text: any input of a visitor.
            num_beams: beams, and length of the n-best list.
            max_tokens: maximum number of source tokens.

        Raises:
            ValueError: the text is blank or too long, or the model cannot be used.
        """
        sentence = _one_sentence(text, max_tokens)
        with self._lock:
            model, tokenizer = self._load(name)
            limit = min(max_tokens, tokenizer.model_max_length)
            length = len(tokenizer(sentence, verbose=False).input_ids)
            if length > limit:
                raise ValueError(
                    f"The text has {length:,} tokens; the limit is {limit:,}: "
                    "give one sentence at a time."
                )
            try:
                found = best_translations(model, tokenizer, sentence, num_beams=num_beams)
                weights = attentions(model, tokenizer, sentence, translation=found[0].ids)
            except Exception as error:  # of any kind: the model may be anyone's
                raise ValueError(f"{name} failed at this text: {one_line(error)}") from error
        return Result(name, sentence, found, 0, weights)

    def select(self, result: Result, index: int) -> Result:
        """The same result with the attention weights of another hypothesis.

        Raises:
            ValueError: the model can no longer be loaded.
        """
        with self._lock:
            model, tokenizer = self._load(result.model)
            ids = result.hypotheses[index].ids
            weights = attentions(model, tokenizer, result.sentence, translation=ids)
        return replace(result, selected=index, attentions=weights)

    def _load(self, name: str) -> Any:
        """Model and tokenizer; the caller holds the lock."""
        if not name.strip():
            raise ValueError("No model is named: give a model folder or a Hub id.")
        if name not in self._model_cache:
            try:
                self._model_cache[name] = load_translator(name, dtype=self._dtype)
            except Exception as error:  # of any kind: the files may be anyone's
                raise ValueError(f"This model cannot be used. {one_line(error)}") from error
        self._model_cache.move_to_end(name)
        while len(self._model_cache) > self._cached_models:
            self._model_cache.popitem(last=False)
        return self._model_cache[name]


def _one_sentence(text: str, max_tokens: int) -> str:
    """The text on one line, in valid Unicode.

    Raises:
        ValueError: it is blank, or much too long.
    """
    if len(text) > max_tokens * CHARACTERS_PER_TOKEN:
        raise ValueError(
            f"The text has {len(text):,} characters; the limit is {max_tokens:,} tokens: "
            "give one sentence at a time."
        )
    # tokenizers refuse a lone half of a surrogate pair
    valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    sentence = " ".join(valid.splitlines())
    if not sentence.strip():
        raise ValueError("There is no text: type a sentence.")
    return sentence


def one_line(error: Exception) -> str:
    """The message of an error on one line, shortened to `MAX_MESSAGE` characters."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"
