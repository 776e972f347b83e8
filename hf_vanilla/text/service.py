"""The HTTP API for programs: that of LibreTranslate, and `/v1/translate`.

A text is split into sentences, which share batches with those of other clients: `app/worker.py`
forms the batches, and calls a `BatchSearch` on its thread; `Model` prepares the sentences on the
thread of the HTTP server. `open_service` adds the page.
"""

import asyncio
import copy
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from typing import Any

from hf_vanilla.app.page import Served, named_model, whole_number
from hf_vanilla.app.worker import Worker
from hf_vanilla.hub.card import languages_of, public_name

from .decoding import doubt, is_readable
from .engines import TorchEngine, check_memory_limit
from .markup import ATTRIBUTES, Markup, take_out
from .n_best import Hypothesis
from .page import MAX_TOKENS, TextPage
from .page_search import MAX_BEAMS
from .served_models import ServedModel
from .static_page import page_files
from .text_translator import Piece, SentenceSplitter, joined, with_markup

UNKNOWN = "und"  # the code of a language that no card states
# elements of HTML without text to translate, up to their ends
UNREAD = "|".join(rf"{name}\b.*?(?:</{name}\b[^<>]*>|\Z)" for name in ("script", "style"))
# these and tags of HTML between which sentences end, with the white space around them; it begins
# where a run of white space begins, so that a long run is read once
BLOCK = re.compile(
    rf"(?<!\s)(\s*(?:<(?:{UNREAD}|!doctype\b[^<>]*>|!--(?:(?!-->)[^\n])*\n.*?-->"
    r"|/?(?:address|article|aside|audio|blockquote|body|br|button|caption|center|dd|details|div|dl"
    r"|dt|fieldset|figcaption|figure|footer|form|h[1-6]|head|header|hr|html|iframe|label|legend|li"
    r"|main|nav|noscript|ol|optgroup|option|p|pre|section|select|summary|t(?:able|body|d|emplate"
    rf"|extarea|foot|h|head|itle|r)|ul|video)\b{ATTRIBUTES}/?>)\s*)+)",
    re.IGNORECASE | re.DOTALL,
)
VIEWS = ("start", "load", "translate", "attend", "inside")  # of `TextPage`
MOST_CHARACTERS = 20_000  # of the texts of a request
MOST_TEXTS, MOST_SENTENCES = 256, 512
NAMES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "tr": "Turkish",
    "uk": "Ukrainian", "zh": "Chinese", UNKNOWN: "unknown",
}  # fmt: skip
# elements of HTML that are never closed, or need not be
UNCLOSED = {
    "area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta",
    "option", "p", "source", "tbody", "td", "tfoot", "th", "thead", "tr", "track", "wbr",
}  # fmt: skip


# --- batches -------------------------------------------------------------------------------------


# a sentence in the n best ways, for an answer: `source` with its markup; `translation`, the best;
# `hypotheses`, best first, each with `text` and `score`; `doubt`, why the best is probably wrong;
# `alignment`, links of the words of the sentence and those of the best, where requested
Translated = dict[str, Any]


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
        load: the model of a name.
        name: of the model.
        n: length of the lists.
        has_links: words are aligned.
        most_memory: MiB that a batch may take beside the weights; None: no limit.
    """

    load: Callable[[str], ServedModel]
    name: str
    n: int
    has_links: bool
    most_memory: float | None

    def __call__(self, sentences: list[Prepared]) -> list[Translated]:
        """Translate a batch.

        Raises:
            ValueError: it may need more memory; the worker halves it, unless it is one sentence.
        """
        served = self.load(self.name)
        beams = served.model.generation_config.num_beams or 1
        changes = {"num_beams": self.n} if self.n > beams else {}
        engine = TorchEngine(served.model, served.tokenizer, **changes)
        if (limit := self.most_memory) is not None:
            longest = max(len(sentence.ids) for sentence in sentences)
            needed = len(sentences) * engine.sentence_bytes(longest) / 2**20
            if needed > limit:
                raise ValueError(
                    f"A sentence of {longest} tokens may need {math.ceil(needed):,} MiB of memory; "
                    f"the limit is {limit:,}: shorten it."
                )
        lists = engine.n_best_rows([sentence.ids for sentence in sentences], self.n)
        _put_markup(served, sentences, lists)
        answers: list[Translated] = [
            {
                "source": one.text,
                "translation": found[0].text,
                "hypotheses": [{"text": each.text, "score": each.score} for each in found],
                "doubt": doubt(one.ids, found[0].text, served.fragments),
            }
            for one, found in zip(sentences, lists, strict=True)
        ]
        if self.has_links:
            pairs = [(one["source"], one["translation"]) for one in answers]
            for one, links in zip(answers, served.aligner.align(pairs), strict=True):
                one["alignment"] = links
        return answers


def _put_markup(
    served: ServedModel, sentences: Sequence[Prepared], lists: Sequence[list[Hypothesis]]
) -> None:
    """Put the tags of sentences into their hypotheses."""
    marked = [
        (one.markup, found)
        for one, found in zip(sentences, lists, strict=True)
        if one.markup is not None
    ]
    if not marked:
        return
    markups = [markup for markup, found in marked for _ in found]
    texts = [hypothesis.text for _, found in marked for hypothesis in found]
    tagged = iter(with_markup(served.aligner, markups, texts, [[]] * len(texts)))
    for _, found in marked:
        found[:] = [replace(hypothesis, text=next(tagged)) for hypothesis in found]


class Model:
    """What the handlers need of a model, without the thread that computes.

    Args:
        served: the model.
    """

    def __init__(self, served: ServedModel) -> None:
        # of its own: a tokenizer of two threads fails
        self.tokenizer = copy.deepcopy(served.tokenizer)
        self.name, self.shown = served.name, public_name(served.name)
        self.source, self.target = languages_of(served.name) or (UNKNOWN, UNKNOWN)
        self.limit = min(MAX_TOKENS, served.tokenizer.model_max_length)
        config = served.model.config
        if getattr(config, "position_embedding_type", None) == "learned":
            self.limit = min(self.limit, config.max_position_embeddings)
        self._fragments = served.fragments
        # of a code such as pt-BR the language alone; of any other name, the rules of English
        code = re.match(r"[a-z]{2,3}(?![a-z])", self.source.lower())
        self._splitter = SentenceSplitter("en" if code is None else code[0])

    def blocks(self, text: str, *, is_html: bool) -> list[str | list[Piece]]:
        """The sentences of each block of a text, and between them what is not translated."""
        parts = BLOCK.split(text) if is_html else [text]
        blocks: list[str | list[Piece]] = []
        for number, part in enumerate(parts):
            if number % 2 or not part.strip():
                blocks.append(part)
                continue
            start, end = part[: -len(part.lstrip())], part[len(part.rstrip()) :]
            blocks += [start, self._splitter.split(part.strip()), end]
        return blocks

    def prepared(self, sentence: str, *, is_html: bool) -> Prepared:
        """A sentence as the worker takes it.

        Raises:
            ValueError: it is too long, or in an alphabet that the model does not know.
        """
        markup = take_out(sentence, is_html=True) if is_html else None
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

    def language(self, text: str) -> dict[str, Any]:
        """The source language, and the share of the text's tokens that the model knows."""
        share = self.familiarity(self.tokenizer(text, verbose=False).input_ids)
        # a model without fragments splits every text into letters
        known = share if self._fragments else 0
        return {"confidence": round(100 * known), "language": self.source}


# --- answers -------------------------------------------------------------------------------------


class TextService:
    """Answers the requests of programs; the page has `TextPage`.

    Args:
        load: the model of a name.
        names: folders or Hub ids; each pair of languages is that of the first model with it.
        worker: computes.
        most_memory: MiB that a batch may take beside the weights; None: no limit.

    Raises:
        ValueError: the limit of memory is too small, or a model is not of hf_vanilla.
    """

    def __init__(
        self,
        load: Callable[[str], ServedModel],
        names: Sequence[str],
        worker: Worker,
        most_memory: float | None = None,
    ) -> None:
        self._load, self._worker, self._most_memory = load, worker, most_memory
        self.models = [Model(load(name)) for name in names]
        if most_memory is not None:
            for served in map(load, names):
                engine = TorchEngine(served.model, served.tokenizer)
                check_memory_limit(most_memory, engine, "leave it out")

    # --- LibreTranslate ---------------------------------------------------------------------------

    async def translate(self, body: Any) -> dict[str, Any]:
        """`POST /translate`."""
        texts = _texts(body, "q")
        model = self._of_languages(_text(body, "source", "auto"), _text(body, "target", ""))
        given = body.get("alternatives") not in (None, "", 0, "0")
        alternatives = whole_number(body, "alternatives", 1, MAX_BEAMS - 1) if given else 0
        plan, futures = self._submitted(body, texts, model, 1 + alternatives)
        found = await asyncio.gather(*futures)
        ways = [[_text_of(blocks, found, n) for n in range(1 + alternatives)] for blocks in plan]
        answer: dict[str, list[Any]] = {"translatedText": [way[0] for way in ways]}
        if _text(body, "source", "auto") == "auto":
            answer["detectedLanguage"] = [model.language(text) for text in texts]
        if alternatives:
            answer["alternatives"] = [list(dict.fromkeys(way))[1:] for way in ways]
        is_one = isinstance(body["q"], str)
        return {name: values[0] if is_one else values for name, values in answer.items()}

    async def detect(self, body: Any) -> list[dict[str, Any]]:
        """`POST /detect`: the language first whose model knows most tokens of the text."""
        text = " ".join(_texts(body, "q"))
        found = {model.source: model.language(text) for model in reversed(self.models)}
        return sorted(reversed(found.values()), key=lambda one: -one["confidence"])

    def languages(self) -> list[dict[str, Any]]:
        """`GET /languages`."""
        codes = dict.fromkeys(code for one in self.models for code in (one.source, one.target))
        return [
            {
                "code": code,
                "name": NAMES.get(code, code),
                "targets": list(dict.fromkeys(m.target for m in self.models if m.source == code)),
            }
            for code in codes
        ]

    def settings(self) -> dict[str, Any]:
        """`GET /frontend/settings`."""
        first = self.models[0]
        pair = {"source": first.source, "target": first.target}
        return {
            "charLimit": MOST_CHARACTERS,
            "batchLimit": MOST_TEXTS,
            "filesTranslation": False,
            "suggestions": False,
            "supportedFilesFormat": [],
            "language": {
                side: {"code": code, "name": NAMES.get(code, code)} for side, code in pair.items()
            },
        }

    def _of_languages(self, source: str, target: str) -> Model:
        for model in self.models:
            # of a model whose languages are unknown, every code
            own = NAMES if model.source == UNKNOWN else ()
            if source in {"auto", model.source, *own} and target in {"", model.target, *own}:
                return model
        names = (f"{model.source} to {model.target}" for model in self.models)
        pairs = ", ".join(dict.fromkeys(names))
        raise ValueError(f"There is no model from {source!r} to {target!r}: there is {pairs}.")

    # --- our own ----------------------------------------------------------------------------------

    async def translate_v1(self, body: Any) -> Any:
        """`POST /v1/translate`: sentences with their n-best lists; `stream` for JSON lines."""
        texts = _texts(body, "text")
        fields = ("text", "n_best", "alignment", "format", "stream")
        model: Model = named_model({one.shown: one for one in self.models}, body, *fields)
        n_best = whole_number(body, "n_best", 1, MAX_BEAMS)
        has_links, is_streamed = _flag(body, "alignment"), _flag(body, "stream")
        plan, futures = self._submitted(body, texts, model, n_best, has_links=has_links)
        if is_streamed:
            return _streamed(plan, futures)
        found = await asyncio.gather(*futures)
        answers = [
            {
                "translation": _text_of(blocks, found, 0),
                "sentences": [found[at] for at in _numbers(blocks)],
            }
            for blocks in plan
        ]
        return {"model": model.shown, "translations": answers}

    def _submitted(
        self, body: Any, texts: list[str], model: Model, n: int, *, has_links: bool = False
    ) -> "tuple[list[Plan], list[asyncio.Future[Translated]]]":
        """The sentences of each text, and what will be their translations.

        Raises:
            ValueError: a text cannot be translated.
            BusyError: too many wait.
        """
        form = _text(body, "format", "text")
        if form not in ("text", "html"):
            raise ValueError(f"The format {form[:20]!r} is neither text nor html.")
        is_html = form == "html"
        prepared: list[Prepared] = []
        plan: list[Plan] = []
        for text in texts:
            if is_html:
                check_html(text)
            plan.append([])
            for block in model.blocks(text, is_html=is_html):
                if isinstance(block, str):
                    plan[-1].append(block)
                    continue
                plan[-1].append([(piece, len(prepared) + at) for at, piece in enumerate(block)])
                prepared += [model.prepared(piece.text, is_html=is_html) for piece in block]
        if (count := len(prepared)) > MOST_SENTENCES:
            raise ValueError(f"There are {count:,} sentences; the limit is {MOST_SENTENCES}.")
        sizes = [len(one.ids) for one in prepared]
        search = BatchSearch(self._load, model.name, n, has_links, self._most_memory)
        futures = self._worker.submit(search, prepared, sizes)
        return plan, [asyncio.wrap_future(future) for future in futures]


# a text: what is not translated, and the sentences of a block with numbers of translations
Plan = list[str | list[tuple[Piece, int]]]


async def _streamed(
    plan: list[Plan], futures: "list[asyncio.Future[Translated]]"
) -> AsyncIterator[dict[str, Any]]:
    """Each sentence as soon as it is translated, with the numbers of its text and of itself."""
    positions = {
        futures[at]: {"text": text, "sentence": sentence}
        for text, blocks in enumerate(plan)
        for sentence, at in enumerate(_numbers(blocks))
    }
    waiting = set(futures)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in (one for one in futures if one in done):
                yield {**positions[future], **future.result()}
    finally:
        for future in waiting:
            future.cancel()


def _numbers(blocks: Plan) -> list[int]:
    return [at for block in blocks if not isinstance(block, str) for _, at in block]


def _text_of(blocks: Plan, found: Sequence[Translated], rank: int) -> str:
    """The translations of a text, joined; where a sentence has fewer, its best."""
    text = ""
    for block in blocks:
        if isinstance(block, str):
            text += block
            continue
        lists = [found[at]["hypotheses"] for _, at in block]
        chosen = [(one[rank] if rank < len(one) else one[0])["text"] for one in lists]
        text += joined([piece for piece, _ in block], chosen)
    return text


# --- requests -------------------------------------------------------------------------------------


def _texts(body: Any, name: str) -> list[str]:
    """The texts of a request.

    Raises:
        ValueError: there are none, too many, or one cannot be read.
    """
    value = body.get(name) if isinstance(body, dict) else None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"There is no {name}: give a text or a list of texts.")
    if len(texts) > MOST_TEXTS:
        raise ValueError(f"There are {len(texts):,} texts; the limit is {MOST_TEXTS}.")
    if (size := sum(map(len, texts))) > MOST_CHARACTERS:
        raise ValueError(f"There are {size:,} characters; the limit is {MOST_CHARACTERS:,}.")
    if not any(text.strip() for text in texts):
        raise ValueError(f"There is no text in {name}.")
    for text in texts:
        if "\0" in text or not is_readable(text):
            raise ValueError("A text has NUL or half of a surrogate pair, which are no characters.")
    return texts


def _text(body: Any, name: str, default: str) -> str:
    value = body.get(name)
    if value is None or value == "":
        return default
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text.")
    return value


def _flag(body: Any, name: str) -> bool:
    given = str(body.get(name)).lower()
    if given not in ("true", "1", "false", "0", "none"):
        raise ValueError(f"{name} is neither true nor false.")
    return given in ("true", "1")


class _Elements(HTMLParser):
    """The elements of a text that are open at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, _: Any) -> None:
        if tag not in UNCLOSED:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            self.open.remove(tag)


def check_html(text: str) -> None:
    """Refuse HTML with a tag, a comment or an element that never ends.

    Raises:
        ValueError: it has one.
    """
    elements = _Elements()
    try:
        elements.feed(text)
    except AssertionError:
        raise ValueError("The HTML has a <![ section that cannot be read.") from None
    if elements.rawdata.startswith("<") and elements.rawdata[1:2].strip("0123456789= "):
        raise ValueError("The HTML has a tag or a comment that never ends.")
    if elements.open:
        raise ValueError(f"The HTML has <{elements.open[-1][:20]}> without an end tag.")


def open_service(models: Sequence[str], settings: Any, worker: Worker) -> Served:
    """What translators answer, with the settings of `hf_vanilla.serve`."""
    page = TextPage(*models, models_folder=settings.models_folder, dtype=settings.dtype)
    texts = TextService(page.served, models, worker, settings.max_batch_memory)
    return Served(
        page_files({"engine": "service"}),
        {name: getattr(page, name) for name in VIEWS},
        {
            "/translate": texts.translate,
            "/detect": texts.detect,
            "/v1/translate": texts.translate_v1,
        },
        {"/languages": texts.languages, "/frontend/settings": texts.settings},
    )
