"""What the page of translation asks for: n-best list, attention, search, vectors of a layer.

The page is that of `static_page.py`; here the service answers it instead of the engine in the
browser, by the same JSON, one sentence at a time. `service.py` has what programs ask for. Nothing
about a visitor is stored.
"""

import copy
import time
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from hf_vanilla.hub.card import public_name
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration

from .alignments import aligned_words, saved_head
from .attentions import attentions, layer_steps
from .decoding import doubt
from .loading import demo_model_facts, output_size
from .page_answer import answer_of_attention, answer_of_search, rounded
from .page_search import MAX_BEAMS, MAX_NEW_TOKENS, MAX_SECONDS, read_search
from .served_models import ServedModel, errors_of, served_model
from .static_page import knowledge

MAX_TOKENS = 512  # of a sentence
CHARACTERS_PER_TOKEN = 20  # a longer text is refused without tokenizing it


class TextPage:
    """What the page is, and what its script calls. It stores nothing about a visitor.

    Args:
        models: folders or Hub ids; the first is loaded at once, and is that of the page.
        models_folder: folder whose models visitors can choose too, at any depth; None: none.
        dtype: numbers of the models, as for `Translator`.

    Raises:
        ValueError: the model cannot be used.
    """

    def __init__(
        self, *models: str, models_folder: str | None = None, dtype: str | None = None
    ) -> None:
        self.model = models[0]
        self.names = {public_name(name): name for name in models}  # visitors never see a folder
        self.models_folder = models_folder
        # the least recently used model is dropped
        self.served = lru_cache(len(models) + 1)(partial(served_model, dtype=dtype))
        decoding = self.served(self.model).model.generation_config
        self.beams = min(decoding.num_beams or 1, MAX_BEAMS)

    def start(self, _: Any = None) -> dict[str, Any]:
        """What the script needs at the start."""
        examples = demo_model_facts(self.model).get("examples", [])
        return {
            "model": public_name(self.model),
            "models": list(self.names),
            **self.load({}),
            "isFixed": len(self.names) == 1 and self.models_folder is None,
            "beams": self.beams,
            "maxBeams": MAX_BEAMS,
            "sentence": next(iter(examples), ""),
            "examples": examples,
        }

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """`about`: one line about the model that a visitor named."""
        name = self._name(request)
        return {"about": f"{knowledge(name)}. {self.served(name).description}"}

    def translate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Translate the `text` with so many `beams`; show the attention of the best translation.

        `sampling` has the texts of its fields by name; with it, so many translations are drawn.
        `lengths` has those of the limits. `doubt` of the answer says why it is probably wrong.
        """
        search = read_search(request)
        served, sentence = self._asked(request)
        model, tokenizer, started = served.model, served.tokenizer, time.monotonic()
        with errors_of(served.name):
            found, steps = search.run(model, tokenizer, sentence)
        if time.monotonic() - started >= MAX_SECONDS:
            raise ValueError(
                f"The search was stopped after {MAX_SECONDS:g} seconds: give a shorter "
                "text, or fewer beams."
            )
        search.check(found)
        settings = copy.copy(model.generation_config)
        settings.length_penalty = search.lengths.get("length_penalty", settings.length_penalty)
        source = tokenizer(sentence, verbose=False).input_ids
        return {
            "sentence": sentence,
            **answer_of_search(found, steps, settings, tokenizer),
            "hasLayers": isinstance(model, VanillaForConditionalGeneration),
            "attention": _attention(served, sentence, found[0].ids),
            "model": str(request.get("model") or "").strip() or public_name(self.model),
            "doubt": doubt(source, found[0].text, served.fragments),
        }

    def attend(self, request: dict[str, Any]) -> dict[str, Any]:
        """Attention of the `text` and the translation `ids`; see `answer_of_attention`."""
        served, sentence = self._asked(request)
        return _attention(served, sentence, self._checked_ids(served, request["ids"]))

    def inside(self, request: dict[str, Any]) -> dict[str, Any]:
        """The vectors at a `kind`, `layer`, `head` and `token`, rounded; see `LayerSteps`."""
        kind = str(request["kind"])
        place = {name: int(request[name]) for name in ("layer", "head", "token")}
        served, sentence = self._asked(request)
        ids = self._checked_ids(served, request["ids"])
        model, tokenizer = served.model, served.tokenizer
        steps = layer_steps(model, tokenizer, sentence, translation=ids, kind=kind, **place)
        return {name: rounded(value.tolist()) for name, value in vars(steps).items()}

    def _name(self, request: dict[str, Any]) -> str:
        """The model of a request.

        Raises:
            ValueError: the service does not have it.
        """
        wanted = str(request.get("model") or "").strip() or public_name(self.model)
        if wanted in self.names:
            return self.names[wanted]
        if self.models_folder is not None and "\0" not in wanted:
            folder = Path(self.models_folder).resolve()
            # in the app, whose folder is "/", a relative one is meant from where it was started
            for path in ((folder / wanted).resolve(), Path(wanted).resolve()):
                if path.is_relative_to(folder) and path.is_dir():
                    return str(path)
        raise ValueError(f"{wanted}: there is no such model here: give {' or '.join(self.names)}.")

    def _asked(self, request: dict[str, Any]) -> tuple[ServedModel, str]:
        """The model of a request, and its text, which may be anything, as one line of Unicode.

        Raises:
            ValueError: the text is blank or too long, or the model cannot be used.
        """
        name, text = self._name(request), str(request["text"])
        most = MAX_TOKENS * CHARACTERS_PER_TOKEN
        if len(text) > most:
            raise ValueError(
                f"The text has {len(text):,} characters; the limit is {most:,}: give a shorter one."
            )
        # tokenizers refuse a lone half of a surrogate pair
        valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        sentence = " ".join(valid.splitlines())
        if not sentence.strip():
            raise ValueError("There is no text: type a sentence.")
        served = self.served(name)
        limit = min(MAX_TOKENS, served.tokenizer.model_max_length)
        length = len(served.tokenizer(sentence, verbose=False).input_ids)
        if length > limit:
            raise ValueError(
                f"The text has {length:,} tokens; the limit is {limit:,} for a sentence: give "
                "shorter sentences, one at a time."
            )
        return served, sentence

    def _checked_ids(self, served: ServedModel, ids: Any) -> list[int]:
        """The ids of a translation, without the start token; a visitor may send anything.

        Raises:
            ValueError: they are no translation of this model.
        """
        decoding = served.model.generation_config
        beyond = getattr(decoding, "max_tokens_beyond_source", None) or 0
        longest = 2 * min(MAX_TOKENS, served.tokenizer.model_max_length) + beyond
        most, size = max(longest, MAX_NEW_TOKENS), output_size(served.model)
        is_list = isinstance(ids, list) and 0 < len(ids) <= most
        if not is_list or not all(type(i) is int and 0 <= i < size for i in ids):
            raise ValueError("This translation is none of the model: translate again.")
        return ids


def _attention(served: ServedModel, sentence: str, ids: list[int]) -> dict[str, Any]:
    """The attention of a sentence and the ids of a translation, with their aligned words.

    Raises:
        ValueError: the model fails, or the file of its alignment head is damaged or names a head
            that the model does not have.
    """
    with errors_of(served.name):
        seen = attentions(served.model, served.tokenizer, sentence, translation=ids)
        words = aligned_words(seen, served.tokenizer, sentence, saved_head(served.name))
    return answer_of_attention(seen, served.tokenizer, words)
