"""What the app computes for a visitor: the n best translations, and where the model looked.

Any number of threads may ask at once; nothing here remembers who asked.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from hf_vanilla.translation.attentions import Attentions, attentions
from hf_vanilla.translation.n_best import Hypothesis, best_translations
from hf_vanilla.translation.translator import load_translator

MODELS_KEPT = 2
CHARACTERS_PER_TOKEN = 20  # beyond it, a text is too long without being tokenized
LONGEST_MESSAGE = 400  # characters


@dataclass(frozen=True)
class Answer:
    """One sentence, answered.

    Attributes:
        model: folder or Hub id.
        sentence: as the model read it.
        hypotheses: best first.
        chosen: place of the hypothesis that `seen` is about.
        seen: where the model looked while it wrote that one.
    """

    model: str
    sentence: str
    hypotheses: list[Hypothesis]
    chosen: int
    seen: Attentions


class Shelf:
    """Models by name: loaded at first use, the latest few kept, one thread at work at a time.

    One lock for all of it, loading included: while transformers loads a model it changes torch's
    defaults for every thread, and what another computes or loads meanwhile goes wrong.

    Args:
        kept: models in memory.
    """

    def __init__(self, kept: int = MODELS_KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._pairs: OrderedDict[str, Any] = OrderedDict()

    def describe(self, name: str) -> str:
        """One line about a model, which is loaded for it.

        Raises:
            ValueError: it cannot be loaded.
        """
        with self._lock:
            model = self._load(name)[0]
        config, size = model.config, f"{model.num_parameters() / 1e6:.1f} million parameters"
        if not hasattr(config, "encoder_layers"):  # T5 and its like name their layers otherwise
            return f"{name}: {size}"
        return (
            f"{name}: {size}, {config.encoder_layers} + {config.decoder_layers} layers, "
            f"{config.encoder_attention_heads} + {config.decoder_attention_heads} heads"
        )

    def beams_of(self, name: str) -> int:
        """Beams that a model searches with by itself.

        Raises:
            ValueError: it cannot be loaded.
        """
        with self._lock:
            return self._load(name)[0].generation_config.num_beams or 1

    def answer(self, name: str, text: str, *, num_beams: int, max_tokens: int) -> Answer:
        """Translate one sentence and look at its best translation.

        Args:
            name: model folder or Hub id.
            text: whatever a visitor typed.
            num_beams: beams, and hypotheses.
            max_tokens: source tokens a sentence may have.

        Raises:
            ValueError: the text is blank or too long, or the model cannot be used.
        """
        sentence = _readable(text, max_tokens)
        with self._lock:
            model, tokenizer = self._load(name)
            limit = min(max_tokens, tokenizer.model_max_length)
            length = len(tokenizer(sentence, verbose=False).input_ids)
            if length > limit:
                raise ValueError(
                    f"The text has {length:,} tokens, and at most {limit:,} are translated: "
                    "give one sentence at a time."
                )
            try:
                found = best_translations(model, tokenizer, sentence, num_beams=num_beams)
                seen = attentions(model, tokenizer, sentence, translation=found[0].ids)
            except Exception as error:  # whatever a model of somebody else raises
                raise ValueError(f"{name} failed at this text: {one_line(error)}") from error
        return Answer(name, sentence, found, 0, seen)

    def look(self, answer: Answer, chosen: int) -> Answer:
        """The same answer, looking at another of its hypotheses.

        Raises:
            ValueError: the model cannot be loaded any more.
        """
        with self._lock:
            model, tokenizer = self._load(answer.model)
            ids = answer.hypotheses[chosen].ids
            seen = attentions(model, tokenizer, answer.sentence, translation=ids)
        return Answer(answer.model, answer.sentence, answer.hypotheses, chosen, seen)

    def _load(self, name: str) -> Any:
        """Model and tokenizer; the caller holds the lock."""
        if not name.strip():
            raise ValueError("No model is named: give a model folder or a Hub id.")
        if name not in self._pairs:
            try:
                self._pairs[name] = load_translator(name)
            except Exception as error:  # every broken file fails in a way of its own
                raise ValueError(f"This model cannot be used. {one_line(error)}") from error
        self._pairs.move_to_end(name)
        while len(self._pairs) > self._kept:
            self._pairs.popitem(last=False)
        return self._pairs[name]


def _readable(text: str, max_tokens: int) -> str:
    """One line of valid Unicode.

    Raises:
        ValueError: nothing is left, or far too much.
    """
    if len(text) > max_tokens * CHARACTERS_PER_TOKEN:
        raise ValueError(
            f"The text has {len(text):,} characters, and at most {max_tokens:,} tokens are "
            "translated: give one sentence at a time."
        )
    # halves of a surrogate pair are no text: a tokenizer refuses them
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    sentence = " ".join(whole.splitlines())
    if not sentence.strip():
        raise ValueError("There is no text: type a sentence.")
    return sentence


def one_line(error: Exception) -> str:
    """What an error says, on one line and not too long."""
    told = " ".join(str(error).split()) or type(error).__name__
    return told if len(told) <= LONGEST_MESSAGE else f"{told[:LONGEST_MESSAGE]}…"
