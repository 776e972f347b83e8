"""What the page of translation asks for: n-best list, attention, search, vectors of a layer.

The page is that of `static_page.py`; here the service answers it instead of the engine in the
browser, by the same JSON. Nothing about a visitor is stored.
"""

from pathlib import Path
from typing import Any

from hf_vanilla.app.page import Page
from hf_vanilla.hub.card import public_name

from .loading import demo_model_facts
from .page_answer import answer_of_attention, answer_of_layer, answer_of_result
from .page_search import Lengths, Sampling, Search, filled_in
from .page_service import PageService
from .static_page import knowledge, page_files

MAX_BEAMS = 10
MAX_TOKENS = 512  # of a sentence


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
        decoding = self.service.load(self.model)[0].generation_config
        self.beams = min(decoding.num_beams or 1, MAX_BEAMS)

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
            # in the app, whose folder is "/", a relative one is meant from where it was started
            for path in ((folder / wanted).resolve(), Path(wanted).resolve()):
                if path.is_relative_to(folder) and path.is_dir():
                    return str(path)
        raise ValueError(f"{wanted}: there is no such model here: give {' or '.join(self.models)}.")

    def page(self) -> Page:
        """Its files and functions."""
        calls = (self.load, self.translate, self.attend, self.inside)
        views = {"start": lambda _: self.start(), **{call.__name__: call for call in calls}}
        return Page(page_files({"engine": "service"}), views)
