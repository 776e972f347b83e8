"""The app: translate in a browser, see the n best translations and where the model looks.

Gradio draws it. Nothing is loaded from outside and nothing is reported to anyone: what the page
needs comes from this machine. Texts of visitors are shown and never interpreted.
"""

import html
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from hf_vanilla.hub.space import SpaceOptions, write_space
from hf_vanilla.recipes.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train

from .attention_view import CROSS, KINDS, MEAN, attention_page, weights_of
from .service import Answer, Shelf

TITLE = "Attention Is All You Need: translate and see"
EXAMPLE = "seven hundred forty-two thousand three hundred nineteen"
EM_SPACE = "\N{EM SPACE}"  # a browser keeps it
MOST_BEAMS = 10
MOST_WAITING = 64  # visitors in the queue; more are told to come back
FONTS = ("Segoe UI", "Roboto", "Helvetica Neue", "Noto Sans", "Arial", "sans-serif")
HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class AppOptions:
    """Translate in a browser, and see where the model looks."""

    model: str | None = field(
        default=None,
        metadata={"help": "model folder or Hub id; default: the demo's, trained if it is missing"},
    )
    fixed_model: bool = field(
        default=False, metadata={"help": "visitors use this model and cannot name another"}
    )
    sentence: str | None = field(
        default=None, metadata={"help": "what stands in the box at the start"}
    )
    max_tokens: int = field(default=256, metadata={"help": "source tokens a sentence may have"})
    host: str = field(
        default="127.0.0.1",
        metadata={"help": "address to listen to; 0.0.0.0: whoever reaches this machine"},
    )
    port: int | None = field(
        default=None, metadata={"help": "port to listen to; default: the first free from 7860 on"}
    )
    share: bool = field(
        default=False, metadata={"help": "open a public address through Gradio's server"}
    )
    write_space: str | None = field(
        default=None, metadata={"help": "new folder for the files of a Space, instead of starting"}
    )

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}: give a positive number")
        if self.port is not None and not 0 < self.port < 65536:
            raise ValueError(f"port={self.port}: give a number from 1 to 65535")


def open_app(options: AppOptions, demo: Recipe | None = None) -> Path | None:
    """Serve the app until Ctrl-C, or write it as a Space.

    Args:
        options: what to serve, and where.
        demo: makes the model that is taken where none is named; None: that of `make demo`.

    Returns:
        The folder of the Space; None after serving.

    Raises:
        ImportError: Gradio is not installed.
        ValueError: the model cannot be used.
        OSError: the port is taken, or the folder of the Space is not empty.
    """
    import_gradio()  # what is missing is told before a model is trained
    if options.model is None:
        demo = read_recipe(["--recipe", "numbers"]) if demo is None else demo
        folder = Path(demo.train.output_dir)
        if not (folder / "config.json").is_file():
            train(demo)
        sentence = EXAMPLE if options.sentence is None else options.sentence
        options = replace(options, model=str(folder), sentence=sentence)
    if options.write_space is not None:
        return write_space(
            SpaceOptions(
                folder=options.write_space,
                model=str(options.model),
                sentence=options.sentence,
                max_tokens=options.max_tokens,
            )
        )
    serve(options)
    return None


def serve(options: AppOptions, *, is_blocking: bool = True) -> Any:
    """Serve the app with the model that `options` names; returns Gradio's `Blocks`.

    Args:
        options: what to serve, and where.
        is_blocking: come back only when it is stopped.

    Raises:
        ImportError: Gradio is not installed.
        ValueError: no model is named, or it cannot be used.
        OSError: nobody can listen to this address, or the port is taken.
    """
    _check_address(options.host, options.port)
    blocks = Page(options).blocks()
    blocks.queue(max_size=MOST_WAITING, api_open=False)
    blocks.launch(
        server_name=options.host,
        server_port=options.port,
        share=options.share,
        prevent_thread_lock=not is_blocking,
        theme=theme(),
        css=(HERE / "app.css").read_text(encoding="utf-8"),
        footer_links=[],
        run_history=False,  # it would keep what visitors typed
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
    )
    return blocks


def _check_address(host: str, port: int | None) -> None:
    """Try it before a model is loaded; Gradio would take a minute to say less."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port or 0), family=family).close()
    except OSError as error:
        where = host if port is None else f"{host}, port {port}"
        raise OSError(
            f"cannot listen to {where}: {error.strerror}; give another --host or --port"
        ) from None


def import_gradio() -> ModuleType:
    """The library, or where to get it.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import gradio
    except ImportError:
        raise ImportError("the app needs gradio: pip install 'hf-vanilla[app]'") from None
    return gradio


def theme() -> Any:
    """Gradio's own, with fonts of the visitor's machine and colors that can be told apart.

    Text has a contrast of 4.5 to 1 at least against what it stands on, and borders 3 to 1.
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
    """A line of text, from anyone, as HTML."""
    kind = 'class="message error" role="alert"' if is_error else 'class="message"'
    return f'<p {kind} dir="auto">{html.escape(text)}</p>'


def translated(answer: Answer) -> str:
    """The hypothesis that is looked into, as HTML."""
    text = html.escape(answer.hypotheses[answer.chosen].text)
    return f'<h2>Translation</h2><p class="translation" role="status" dir="auto">{text}</p>'


class Page:
    """What a visitor sees, and what happens when they touch it.

    It keeps nothing about a visitor: their `Answer` lies in a state of Gradio's, one per visitor.

    Args:
        options: the model, which is loaded at once, and what visitors may do.

    Raises:
        ImportError: Gradio is not installed.
        ValueError: no model is named, or it cannot be used.
    """

    def __init__(self, options: AppOptions) -> None:
        if options.model is None:
            raise ValueError("no model is named: give a model folder or a Hub id")
        self.gradio = import_gradio()
        self.options = options
        self.model = options.model
        self.shelf = Shelf()
        self.about = self.shelf.describe(self.model)
        self.beams = min(self.shelf.beams_of(self.model), MOST_BEAMS)

    # --- what happens ----------------------------------------------------------------------

    def load(self, name: str) -> str:
        """What is told about the model that a visitor named."""
        try:
            return message(self.shelf.describe(name.strip()))
        except ValueError as error:
            return message(str(error), is_error=True)

    def translate(
        self, name: str, text: str, beams: int, kind: str, layer: int, head: int | str
    ) -> list[Any]:
        """Message, results or none, translation, hypotheses, their answer, and the view."""
        update = self.gradio.update
        name = self.model if self.options.fixed_model else name.strip()
        try:
            answer = self.shelf.answer(
                name, text, num_beams=int(beams), max_tokens=self.options.max_tokens
            )
        except ValueError as error:
            told = message(str(error), is_error=True)
            nothing = ["", update(choices=[], value=None), None, *[update()] * 2, ""]
            return [told, update(visible=False), *nothing]
        choices = [
            # isolated, so that a text from right to left leaves its score where it is
            (f"{hypothesis.score:.3f}{EM_SPACE}\u2068{hypothesis.text}\u2069", place)
            for place, hypothesis in enumerate(answer.hypotheses)
        ]
        return [
            message(""),
            update(visible=True),
            translated(answer),
            update(choices=choices, value=0),
            answer,
            *self.choose_kind(answer, kind, layer, head),
        ]

    def choose_hypothesis(
        self, answer: Answer | None, place: int | None, kind: str, layer: int, head: int | str
    ) -> list[Any]:
        """Another hypothesis's answer, text and view."""
        if answer is None or place is None:
            return [answer, "", ""]
        try:
            answer = self.shelf.look(answer, place)
        except ValueError as error:
            return [answer, "", message(str(error), is_error=True)]
        return [answer, translated(answer), self.view(answer, kind, layer, head)]

    def choose_kind(
        self, answer: Answer | None, kind: str, layer: int, head: int | str
    ) -> list[Any]:
        """The layers and heads of one kind, kept where they exist, and the view."""
        if answer is None:
            return [self.gradio.update(), self.gradio.update(), ""]
        layers, heads = weights_of(answer.seen, kind).shape[:2]
        layer = layer if layer in range(layers) else layers - 1
        head = head if head in range(heads) else MEAN
        return [
            self.gradio.update(choices=list(range(layers)), value=layer),
            self.gradio.update(choices=[(MEAN, MEAN), *range(heads)], value=head),
            self.view(answer, kind, layer, head),
        ]

    def view(self, answer: Answer | None, kind: str, layer: int, head: int | str) -> str:
        """The attention of one head as HTML."""
        return "" if answer is None else attention_page(answer.seen, kind, layer, head)

    # --- what is seen ----------------------------------------------------------------------

    def blocks(self) -> Any:
        """The page as Gradio's `Blocks`."""
        gradio = self.gradio
        with gradio.Blocks(title=TITLE, analytics_enabled=False) as blocks:
            gradio.HTML(f"<h1>{html.escape(TITLE)}</h1>")
            name, about, load = self._model_row()
            asked = self._question()
            told = gradio.HTML(message(""), elem_id="told")
            shown = self._results()
            state = gradio.State()
            self._connect_question(name, asked, told, shown, state)
            self._connect_view(shown, state)
            if load is not None:
                self._on([load.click, name.submit], self.load, [name], [about])
        return blocks

    def _model_row(self) -> tuple[Any, Any, Any]:
        gradio = self.gradio
        if self.options.fixed_model:
            return gradio.State(self.model), gradio.HTML(message(self.about)), None
        with gradio.Row(elem_id="model-row"):
            name = gradio.Textbox(
                self.model, label="Model folder or Hub id", scale=4, elem_id="model"
            )
            load = gradio.Button("Load", scale=1, min_width=80, elem_id="load")
        return name, gradio.HTML(message(self.about), elem_id="about"), load

    def _question(self) -> dict[str, Any]:
        gradio = self.gradio
        return {
            "text": gradio.Textbox(
                self.options.sentence or "",
                label="Sentence",
                placeholder="one sentence",
                lines=1,
                max_lines=8,
                elem_id="sentence",
            ),
            "beams": gradio.Slider(
                1,
                MOST_BEAMS,
                value=self.beams,
                step=1,
                label="Beams, and translations shown",
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
                    label="Best translations, each after its score",
                    info="Log-probability over length penalty: nearer to 0 is better. "
                    "Choose the one to look into.",
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
                "view": gradio.HTML(
                    "",
                    elem_id="attention",
                    js_on_load=(HERE / "app.js").read_text(encoding="utf-8"),
                ),
            }

    def _connect_question(
        self, name: Any, asked: dict[str, Any], told: Any, shown: dict[str, Any], state: Any
    ) -> None:
        which = [shown[part] for part in ("kind", "layer", "head")]
        self._on(
            [asked["button"].click, asked["text"].submit],
            self.translate,
            [name, asked["text"], asked["beams"], *which],
            [
                *(told, shown["column"], shown["translation"], shown["hypotheses"], state),
                *(shown["layer"], shown["head"], shown["view"]),
            ],
        )

    def _connect_view(self, shown: dict[str, Any], state: Any) -> None:
        which = [shown[part] for part in ("kind", "layer", "head")]
        # `input` is what a visitor does, unlike `change`, which also follows an update of ours
        self._on(
            [shown["hypotheses"].input],
            self.choose_hypothesis,
            [state, shown["hypotheses"], *which],
            [state, shown["translation"], shown["view"]],
        )
        self._on(
            [shown["kind"].input],
            self.choose_kind,
            [state, *which],
            [shown["layer"], shown["head"], shown["view"]],
        )
        self._on(
            [shown["layer"].input, shown["head"].input],
            self.view,
            [state, *which],
            [shown["view"]],
        )

    def _on(self, events: list[Any], action: Any, inputs: list[Any], outputs: list[Any]) -> None:
        """Call `action`, by whatever route a browser takes; programs get no door of their own."""
        self.gradio.on(
            events,
            action,
            inputs,
            outputs,
            api_visibility="private",
            show_progress="minimal",
            concurrency_limit=None,  # the shelf's lock is what keeps threads apart
        )
