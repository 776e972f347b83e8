"""The web page: layout and event handlers, drawn by Gradio.

Texts of visitors are escaped and never interpreted.
"""

import html
from pathlib import Path
from types import ModuleType
from typing import Any

from hf_vanilla.options import install_hint

from .attention_view import CROSS, KINDS, MEAN, attention_figure, weights_of
from .service import Result, Service

TITLE = "Attention Is All You Need: translation and attention"
EM_SPACE = "\N{EM SPACE}"  # browsers do not collapse it
MAX_BEAMS = 10
FONTS = ("Segoe UI", "Roboto", "Helvetica Neue", "Noto Sans", "Arial", "sans-serif")
HERE = Path(__file__).parent


def import_gradio() -> ModuleType:
    """Import the library.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import gradio
    except ImportError:
        raise ImportError(f"the app needs gradio: {install_hint('app')}") from None
    return gradio


def theme() -> Any:
    """Gradio's default theme with local fonts and higher contrast.

    Contrast to the background is at least 4.5 to 1 for text, and 3 to 1 for borders.
    """
    themes = import_gradio().themes
    return themes.Default(
        primary_hue="blue", neutral_hue="slate", font=FONTS, font_mono=("Consolas", "monospace")
    ).set(
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color="*neutral_600",
        block_title_text_color="*neutral_600",
        checkbox_border_color="*neutral_500",
        checkbox_border_color_dark="*neutral_400",
        input_border_color="*neutral_500",
        input_border_color_dark="*neutral_500",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
    )


def message(text: str, *, is_error: bool = False) -> str:
    """A line of text as HTML, escaped."""
    kind = 'class="message error" role="alert"' if is_error else 'class="message"'
    return f'<p {kind} dir="auto">{html.escape(text)}</p>'


def translation_html(result: Result) -> str:
    """The selected hypothesis as HTML, escaped."""
    text = html.escape(result.hypotheses[result.selected].text)
    return f'<h2>Translation</h2><p class="translation" role="status" dir="auto">{text}</p>'


class Page:
    """The layout of the page, and its event handlers.

    It stores nothing about a visitor: their `Result` is in Gradio's session state.

    Args:
        model: model folder or Hub id, loaded at once.
        sentence: initial text of the text box.
        max_tokens: maximum number of source tokens of a sentence.
        fixed_model: visitors cannot choose another model.
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
        dtype: str | None = None,
    ) -> None:
        self.gradio = import_gradio()
        self.model = model
        self.sentence = sentence
        self.max_tokens = max_tokens
        self.fixed_model = fixed_model
        self.service = Service(dtype=dtype)
        self.description = self.service.describe(model)
        self.beams = min(self.service.num_beams(model), MAX_BEAMS)

    # --- event handlers --------------------------------------------------------------------

    def load(self, name: str) -> str:
        """Description of the model that a visitor named, or the error."""
        try:
            return message(self.service.describe(name.strip()))
        except ValueError as error:
            return message(str(error), is_error=True)

    def translate(
        self, name: str, text: str, beams: int, kind: str, layer: int, head: int | str
    ) -> list[Any]:
        """Message, results visible or not, translation, n-best list, `Result`, and figure."""
        update = self.gradio.update
        name = self.model if self.fixed_model else name.strip()
        try:
            result = self.service.translate(
                name, text, num_beams=int(beams), max_tokens=self.max_tokens
            )
        except ValueError as error:
            nothing = ["", update(choices=[], value=None), None, *[update()] * 2, ""]
            return [message(str(error), is_error=True), update(visible=False), *nothing]
        choices = [
            # U+2068 and U+2069 isolate the text, so that right-to-left text does not move the score
            (f"{hypothesis.score:.3f}{EM_SPACE}\u2068{hypothesis.text}\u2069", index)
            for index, hypothesis in enumerate(result.hypotheses)
        ]
        return [
            message(""),
            update(visible=True),
            translation_html(result),
            update(choices=choices, value=0),
            result,
            *self.choose_kind(result, kind, layer, head),
        ]

    def choose_hypothesis(
        self, result: Result | None, index: int | None, kind: str, layer: int, head: int | str
    ) -> list[Any]:
        """`Result`, text and figure of another hypothesis."""
        if result is None or index is None:
            return [result, "", ""]
        try:
            result = self.service.select(result, index)
        except ValueError as error:
            return [result, "", message(str(error), is_error=True)]
        return [result, translation_html(result), self.figure(result, kind, layer, head)]

    def choose_kind(
        self, result: Result | None, kind: str, layer: int, head: int | str
    ) -> list[Any]:
        """Choices of layers and heads of one kind, the current ones kept if valid, and figure."""
        if result is None:
            return [self.gradio.update(), self.gradio.update(), ""]
        layers, heads = weights_of(result.attentions, kind).shape[:2]
        layer = layer if layer in range(layers) else layers - 1
        head = head if head in range(heads) else MEAN
        return [
            self.gradio.update(choices=list(range(layers)), value=layer),
            self.gradio.update(choices=[(MEAN, MEAN), *range(heads)], value=head),
            self.figure(result, kind, layer, head),
        ]

    def figure(self, result: Result | None, kind: str, layer: int, head: int | str) -> str:
        """The attention figure of one head, as HTML."""
        return "" if result is None else attention_figure(result.attentions, kind, layer, head)

    # --- layout ----------------------------------------------------------------------------

    def blocks(self) -> Any:
        """The page as Gradio's `Blocks`."""
        gradio = self.gradio
        with gradio.Blocks(title=TITLE, analytics_enabled=False) as blocks:
            gradio.HTML(f"<h1>{html.escape(TITLE)}</h1>")
            name, description, load = self._model_row()
            inputs = self._inputs()
            status = gradio.HTML(message(""), elem_id="status")
            results = self._results()
            state = gradio.State()
            self._connect_inputs(name, inputs, status, results, state)
            self._connect_results(results, state)
            if load is not None:
                self._on([load.click, name.submit], self.load, [name], [description])
        return blocks

    def _model_row(self) -> tuple[Any, Any, Any]:
        gradio = self.gradio
        if self.fixed_model:
            return gradio.State(self.model), gradio.HTML(message(self.description)), None
        with gradio.Row(elem_id="model-row"):
            name = gradio.Textbox(
                self.model, label="Model folder or Hub id", scale=4, elem_id="model"
            )
            load = gradio.Button("Load", scale=1, min_width=80, elem_id="load")
        return name, gradio.HTML(message(self.description), elem_id="description"), load

    def _inputs(self) -> dict[str, Any]:
        gradio = self.gradio
        return {
            "text": gradio.Textbox(
                self.sentence or "",
                label="Sentence",
                placeholder="one sentence",
                lines=1,
                max_lines=8,
                elem_id="sentence",
            ),
            "beams": gradio.Slider(
                1,
                MAX_BEAMS,
                value=self.beams,
                step=1,
                label="Beams, and length of the n-best list",
                elem_id="beams",
            ),
            "button": gradio.Button("Translate", variant="primary", elem_id="translate"),
        }

    def _results(self) -> dict[str, Any]:
        gradio = self.gradio
        with gradio.Column(visible=False, elem_id="results") as column:
            return {
                "column": column,
                "translation": gradio.HTML(elem_id="translation"),
                "hypotheses": gradio.Radio(
                    [],
                    label="N-best list, with scores",
                    info="Score: log-probability divided by length penalty; higher is better. "
                    "Select a translation to see its attention.",
                    elem_id="hypotheses",
                ),
                "kind": gradio.Radio(
                    [(kind.capitalize(), kind) for kind in KINDS],
                    value=CROSS,
                    label="Attention",
                    elem_id="kind",
                ),
                "layer": gradio.Radio([], label="Layer", elem_id="layer"),
                "head": gradio.Radio([MEAN], value=MEAN, label="Head", elem_id="head"),
                "figure": gradio.HTML(
                    "",
                    elem_id="attention",
                    js_on_load=(HERE / "app.js").read_text(encoding="utf-8"),
                ),
            }

    def _connect_inputs(
        self, name: Any, inputs: dict[str, Any], status: Any, results: dict[str, Any], state: Any
    ) -> None:
        selection = [results[name] for name in ("kind", "layer", "head")]
        self._on(
            [inputs["button"].click, inputs["text"].submit],
            self.translate,
            [name, inputs["text"], inputs["beams"], *selection],
            [
                *(status, results["column"], results["translation"], results["hypotheses"], state),
                *(results["layer"], results["head"], results["figure"]),
            ],
        )

    def _connect_results(self, results: dict[str, Any], state: Any) -> None:
        selection = [results[name] for name in ("kind", "layer", "head")]
        # `input` fires only when a visitor acts; `change` also when a handler updates the choices
        self._on(
            [results["hypotheses"].input],
            self.choose_hypothesis,
            [state, results["hypotheses"], *selection],
            [state, results["translation"], results["figure"]],
        )
        self._on(
            [results["kind"].input],
            self.choose_kind,
            [state, *selection],
            [results["layer"], results["head"], results["figure"]],
        )
        self._on(
            [results["layer"].input, results["head"].input],
            self.figure,
            [state, *selection],
            [results["figure"]],
        )

    def _on(self, events: list[Any], action: Any, inputs: list[Any], outputs: list[Any]) -> None:
        """Call `action` on these events; it is not offered as an API."""
        self.gradio.on(
            events,
            action,
            inputs,
            outputs,
            api_visibility="private",
            show_progress="minimal",
            concurrency_limit=None,  # the service has a lock
        )
