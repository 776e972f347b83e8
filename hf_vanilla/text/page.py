"""The page of translation: n-best list, attention, search, vectors of a layer.

The page is that of `static_page.py`; here the service answers it instead of the engine in the
browser, by the same JSON. Nothing about a visitor is stored. `service.py` has what programs ask for
over HTTP.
"""

import copy
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.app.page import Page
from hf_vanilla.hub.card import public_name
from hf_vanilla.models.generation_vanilla import filling_ids

from .alignments import AlignedWords, Aligner, aligned_words, saved_head
from .attentions import Attentions, LayerSteps, attentions, has_layer_steps, layer_steps
from .decoding import doubt, fragment_ids
from .engines import TorchEngine
from .loading import demo_model_facts, load_translator
from .n_best import Candidate, Hypothesis, SearchRecord, best_translations
from .page_answer import Result, answer_of_attention, answer_of_layer, answer_of_result
from .static_page import knowledge, page_files

MAX_BEAMS = 10
MAX_TOKENS = 512  # of a sentence
MAX_SECONDS = 30.0  # of the searches of one text, which are then stopped
CHARACTERS_PER_TOKEN = 20  # a longer text is refused without tokenizing it
MAX_MESSAGE = 400  # characters of an error
MAX_NEW_TOKENS = 512  # of a translation whose length visitors limit
# name: what messages call it, type of number, smallest, largest; a smaller temperature could
# overflow float32
FIELDS = {
    "temperature": ("temperature", float, 0.01, 10),
    "top_k": ("top-k", int, 1, 10**6),
    "top_p": ("top-p", float, 0.01, 1),
    "seed": ("seed", int, 0, 2**32 - 1),
    "min_new_tokens": ("minimum length", int, 1, MAX_NEW_TOKENS),
    "max_new_tokens": ("maximum length", int, 1, MAX_NEW_TOKENS),
    "length_penalty": ("length penalty", float, 0, 5),
}


# --- what a visitor chooses ----------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, as `generate()` names it.

    Attributes:
        temperature: divides the logits.
        top_k: draw from so many tokens only; 0: from all.
        top_p: draw from the most probable tokens that have this probability together.
        seed: what is drawn for a sentence is a function of seed and sentence.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Lengths:
    """Of a translation in tokens, as `generate()` names it; None: as the model decodes.

    Attributes:
        min_new_tokens: at least, without the end token.
        max_new_tokens: at most, with the end token.
        length_penalty: exponent of the penalty, which favours long translations (6.1).

    Raises:
        ValueError: the minimum is above the maximum.
    """

    min_new_tokens: int | None = None
    max_new_tokens: int | None = None
    length_penalty: float | None = None

    def __post_init__(self) -> None:
        least, most = self.min_new_tokens, self.max_new_tokens
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"The minimum length of {least} tokens is above the maximum of {most}: lower it."
            )

    def given(self) -> dict[str, float]:
        """Those that are given, for `generate()`."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def check(self, found: Sequence[Hypothesis]) -> None:
        """Check that the translations have the minimum length.

        Raises:
            ValueError: the model's own limit ended one before.
        """
        shortest = min(len(hypothesis.ids) for hypothesis in found)
        if self.min_new_tokens is not None and shortest < self.min_new_tokens:
            raise ValueError(
                f"The model's limit for this sentence is {shortest} tokens, and the minimum length "
                f"is {self.min_new_tokens}: lower it, or give a maximum length."
            )


@dataclass(frozen=True)
class Search:
    """What a visitor chose.

    Attributes:
        num_beams: beams, or drawn translations; the length of the n-best list.
        sampling: None: a search.
        lengths: limits of each translation.
    """

    num_beams: int
    sampling: Sampling | None = None
    lengths: Lengths = Lengths()

    def run(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentence: str
    ) -> tuple[list[Hypothesis], list[list[Candidate]]]:
        """The n-best list of a sentence, and the candidates of each step; none with sampling.

        Args:
            model: in evaluation mode.
            tokenizer: its tokenizer.
            sentence: the text.
        """
        settings: dict[str, Any] = {**self.lengths.given(), "max_time": MAX_SECONDS}
        if self.sampling is not None:
            settings |= {**asdict(self.sampling), "do_sample": True}
            engine = TorchEngine(model, tokenizer, num_beams=1, **settings)
            rows = tokenizer([sentence], verbose=False).input_ids
            return engine.n_best_rows(rows, self.num_beams)[0], []
        record = SearchRecord(self.num_beams)
        found = best_translations(
            model, tokenizer, sentence, num_beams=self.num_beams, record=record, **settings
        )
        ends = set(filling_ids(model.generation_config)[0])
        return found, record.steps([one.ids for one in found], ends)


def filled_in(kind: type, texts: Mapping[str, Any]) -> Any:
    """What a visitor wrote into the fields of `Sampling` or `Lengths`; a blank one is not given.

    Raises:
        ValueError: a text is no number or one out of range, or the minimum is above the maximum.
    """
    filled = {one.name: str(texts.get(one.name, "")).strip() for one in fields(kind)}
    return kind(**{name: _number(text, *FIELDS[name]) for name, text in filled.items() if text})


def _number(text: str, called: str, number: type, least: float, most: float) -> Any:
    try:
        value = number(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:  # NaN is not within
        wanted = "a whole number" if number is int else "a number"
        raise ValueError(f"The {called} is {text[:40]!r}: give {wanted} from {least} to {most}.")
    return value


# --- the models ----------------------------------------------------------------------------------


class PageService:
    """Models by name, loaded at first use and cached, and what the page computes with them.

    One thread at a time may use it: while transformers loads a model it changes torch's defaults
    for all threads, and what another thread computes or loads meanwhile goes wrong.

    Args:
        cached_models: size of the model cache; the least recently used model is dropped.
        dtype: numbers of the models, as for `Translator`.
        max_tokens: maximum number of source tokens.
    """

    def __init__(
        self,
        cached_models: int = 2,
        *,
        dtype: str | None = None,
        max_tokens: int = 256,
    ) -> None:
        self.max_tokens = max_tokens
        self._cached, self._dtype = cached_models, dtype
        self._models: OrderedDict[str, tuple[PreTrainedModel, PreTrainedTokenizerBase]]
        self._models = OrderedDict()
        self._fragments: dict[str, frozenset[int]] = {}

    def describe(self, name: str) -> str:
        """One line about a model: its size, layers and heads.

        Raises:
            ValueError: it cannot be loaded.
        """
        model, _ = self.load(name)
        config, size = model.config, f"{model.num_parameters() / 1e6:.1f} million parameters"
        if not hasattr(config, "encoder_layers"):  # T5 has other names for its layers
            return size
        return (
            f"{size}, {config.encoder_layers} + {config.decoder_layers} layers, "
            f"{config.encoder_attention_heads} + {config.decoder_attention_heads} heads"
        )

    def num_beams(self, name: str) -> int:
        """Number of beams in a model's generation config.

        Raises:
            ValueError: it cannot be loaded.
        """
        return self.load(name)[0].generation_config.num_beams or 1

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
            has_layers=has_layer_steps(model),
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
        layer, head, token = place
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
                self._models[name] = load_translator(name, dtype=self._dtype)
        self._models.move_to_end(name)
        while len(self._models) > self._cached:
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
        size = model.get_output_embeddings().weight.shape[0]
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


# --- the page ------------------------------------------------------------------------------------


class TextPage:
    """What the page is, and what its script calls. It stores nothing about a visitor.

    Args:
        models: folders or Hub ids; the first is loaded at once, and is that of the page.
        max_tokens: maximum number of source tokens of a sentence.
        models_folder: folder whose models visitors can choose too, at any depth; None: none.
        dtype: numbers of the models, as for `Translator`.

    Raises:
        ValueError: the model cannot be used.
    """

    def __init__(
        self,
        *models: str,
        max_tokens: int = MAX_TOKENS,
        models_folder: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.model = models[0]
        self.models = {public_name(name): name for name in models}  # visitors never see a folder
        self.models_folder = models_folder
        self.service = PageService(len(models) + 1, dtype=dtype, max_tokens=max_tokens)
        self.beams = min(self.service.num_beams(self.model), MAX_BEAMS)

    def start(self) -> dict[str, Any]:
        """What the script needs at the start."""
        examples = demo_model_facts(self.model).get("examples", [])
        return {
            "model": public_name(self.model),
            "models": list(self.models),
            "about": self._about(self.model),
            "isFixed": len(self.models) == 1 and self.models_folder is None,
            "beams": self.beams,
            "maxBeams": MAX_BEAMS,
            "sentence": next(iter(examples), ""),
            "examples": examples,
        }

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """`about`: one line about the model that a visitor named."""
        return {"about": self._about(self._name(request))}

    def translate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Translate the `text` with so many `beams`; see `answer_of_result`.

        `sampling` has the texts of its fields by name; with it, so many translations are drawn.
        `lengths` has those of the limits. `doubt` of the answer says why it is probably wrong.
        """
        name, beams = self._name(request), int(request["beams"])
        if not 1 <= beams <= MAX_BEAMS:
            raise ValueError(f"beams={beams}: give 1 to {MAX_BEAMS}")
        sampling = request.get("sampling")
        search = Search(
            beams,
            sampling=None if sampling is None else filled_in(Sampling, sampling),
            lengths=filled_in(Lengths, request.get("lengths", {})),
        )
        result = self.service.translate(name, str(request["text"]), search)
        words = self.service.align(name, result.sentence, result.attentions)
        answer = answer_of_result(result, self.service.load(name)[1], words)
        shown = str(request.get("model") or "").strip() or public_name(self.model)
        return {**answer, "model": shown, "doubt": self.service.doubt(result)}

    def attend(self, request: dict[str, Any]) -> dict[str, Any]:
        """Attention of the `text` and the translation `ids`; see `answer_of_attention`."""
        name, sentence = self._name(request), str(request["text"])
        found = self.service.attend(name, sentence, request["ids"])
        words = self.service.align(name, sentence, found)
        return answer_of_attention(found, self.service.load(name)[1], words)

    def inside(self, request: dict[str, Any]) -> dict[str, Any]:
        """The vectors at a `kind`, `layer`, `head` and `token`; see `answer_of_layer`."""
        steps = self.service.inside(
            self._name(request),
            str(request["text"]),
            request["ids"],
            kind=str(request["kind"]),
            place=(int(request["layer"]), int(request["head"]), int(request["token"])),
        )
        return answer_of_layer(steps)

    def _about(self, name: str) -> str:
        return f"{knowledge(name)}. {self.service.describe(name)}"

    def _name(self, request: dict[str, Any]) -> str:
        """The model of a request.

        Raises:
            ValueError: the service does not have it.
        """
        wanted = str(request.get("model") or "").strip() or public_name(self.model)
        if wanted in self.models:
            return self.models[wanted]
        if self.models_folder is not None and "\0" not in wanted:
            folder = Path(self.models_folder).resolve()
            path = (folder / wanted).resolve()
            if path.is_relative_to(folder) and path.is_dir():
                return str(path)
        raise ValueError(f"{wanted}: there is no such model here: give {' or '.join(self.models)}.")

    def page(self) -> Page:
        """Its files and functions."""
        calls = (self.load, self.translate, self.attend, self.inside)
        views = {"start": lambda _: self.start(), **{call.__name__: call for call in calls}}
        return Page(page_files({"engine": "service"}), views)
