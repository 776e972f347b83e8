"""The page of translation: n-best list, attention, search, and the vectors of a layer.

The page is one HTML component; its scripts draw it and call the functions of `TextPage`.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_vanilla.app.component import import_gradio, page_of_component
from hf_vanilla.hub.card import public_name

from .loading import NOTE, demo_model
from .page_answer import answer_of_attention, answer_of_layer, answer_of_result
from .page_search import Search, lengths_of, sampling_of
from .page_service import Service

TITLE = "Attention Is All You Need: watch it translate"
MAX_BEAMS = 10
SCRIPTS = (
    "page_drawing.js",
    "page_attention.js",
    "page_words.js",
    "page_search.js",
    "page_layer.js",
    "page_settings.js",
)
# of the package's own model
EXAMPLES = (
    "forty-two",
    "one thousand nine",
    "seven hundred forty-two thousand three hundred nineteen",
)


class TextPage:
    """The layout of the page, and what its script calls. It stores nothing about a visitor.

    Args:
        model: model folder or Hub id; loaded at once.
        sentence: initial text of the text box, and the first example.
        max_tokens: maximum number of source tokens of a sentence.
        fixed_model: visitors cannot choose another model.
        models_folder: folder whose models visitors can choose, at any depth; None: none.
        dtype: numbers of the model, as for `Translator`.

    Raises:
        ImportError: Gradio is not installed.
        ValueError: the model cannot be used.
    """

    def __init__(
        self,
        model: str,
        *,
        sentence: str | None = None,
        max_tokens: int = 256,
        fixed_model: bool = False,
        models_folder: str | None = "/",
        dtype: str | None = None,
    ) -> None:
        import_gradio()
        self.model = model
        self.sentence = sentence
        self.fixed_model = fixed_model
        self.models_folder = models_folder
        self.shown = public_name(model)  # visitors never see its folder
        self.service = Service(dtype=dtype, max_tokens=max_tokens)
        self.beams = min(self.service.num_beams(model), MAX_BEAMS)

    def settings(self) -> dict[str, Any]:
        """What the script needs at the start."""
        given = [] if self.sentence is None else [self.sentence]
        examples = EXAMPLES if self.model == demo_model() else ()
        return {
            "model": self.shown,
            # of a link, which serves on other machines too
            "shortName": Path(self.model).name,
            "about": self._about(self.model),
            "isFixed": self.fixed_model,
            "beams": self.beams,
            "maxBeams": MAX_BEAMS,
            "sentence": self.sentence or "",
            "examples": list(dict.fromkeys([*given, *examples]))[:3],
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
            sampling=None if sampling is None else sampling_of(sampling),
            lengths=lengths_of(request.get("lengths", {})),
        )
        result = self.service.translate(name, str(request["text"]), search)
        words = self.service.align(name, result.sentence, result.attentions)
        answer = answer_of_result(result, self.service.tokenizer(name), words)
        shown = self.shown if name == self.model else name
        return {**answer, "model": shown, "doubt": self.service.doubt(result)}

    def attend(self, request: dict[str, Any]) -> dict[str, Any]:
        """Attention of the `text` and the translation `ids`; see `answer_of_attention`."""
        name, sentence = self._name(request), str(request["text"])
        found = self.service.attend(name, sentence, request["ids"])
        words = self.service.align(name, sentence, found)
        return answer_of_attention(found, self.service.tokenizer(name), words)

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
        if name == demo_model():
            return f"The model of the package: {self.service.describe(name)}; {NOTE}"
        return f"{public_name(name)}: {self.service.describe(name)}"

    def _name(self, request: dict[str, Any]) -> str:
        """The model of a request.

        Raises:
            ValueError: it is in a folder that visitors cannot read.
        """
        wanted = str(request.get("model") or "").strip()
        name = self.model if self.fixed_model or wanted == self.shown else wanted
        if name == self.model or not os.path.lexists(name):
            return name
        path = Path(name).resolve()
        if not self.models_folder or not path.is_relative_to(Path(self.models_folder).resolve()):
            raise ValueError(f"{name}: this page reads no such folder: give a Hub id.")
        return name

    def functions(self) -> dict[str, Callable[[Any], Any]]:
        """What the script calls; bad input is answered by `error`, a text."""
        calls = (self.load, self.translate, self.attend, self.inside)
        reported = {call.__name__: _reported(call) for call in calls}
        return {"settings": lambda _: self.settings(), **reported}

    def blocks(self) -> Any:
        """The page as Gradio's `Blocks`."""
        return page_of_component(TITLE, Path(__file__).parent, self.functions(), scripts=SCRIPTS)


def _reported(call: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    def reported(request: Any) -> dict[str, Any]:
        try:
            return call(request)
        except ValueError as error:
            return {"error": str(error)}

    return reported


def open_page(model: str, options: Any) -> TextPage:
    """The page of a model, with the options of `hf-vanilla app`."""
    return TextPage(
        model,
        sentence=options.sentence,
        max_tokens=options.max_tokens,
        fixed_model=options.is_model_fixed,
        models_folder=options.models_folder or (None if options.is_public else "/"),
        dtype=options.dtype,
    )
