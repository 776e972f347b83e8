"""What the pages share: one HTML component of our own, served by Gradio, and its style."""

import base64
import html
import io
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hf_vanilla.data.image_files import open_image
from hf_vanilla.options import install_hint

FONTS = ("Segoe UI", "Roboto", "Helvetica Neue", "Noto Sans", "Arial", "sans-serif")
logger = logging.getLogger(__name__)
HERE = Path(__file__).parent
SHARED_SCRIPT = "component.js"
NO_ANSWER = "The request is not one of this page: load the page again."


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
    """Gradio's default theme with local fonts."""
    themes = import_gradio().themes
    return themes.Default(
        primary_hue="blue", neutral_hue="slate", font=FONTS, font_mono=("Consolas", "monospace")
    )


def message(text: str) -> str:
    """A line of text as HTML, escaped."""
    return f'<p class="message" dir="auto">{html.escape(text)}</p>'


def style() -> str:
    """The style sheet of all pages."""
    return "\n".join(
        file.read_text(encoding="utf-8") for file in (HERE / "app.css", HERE / "views.css")
    )


def page_of_component(
    title: str,
    folder: Path,
    functions: dict[str, Callable[[Any], Any]],
    *,
    scripts: tuple[str, ...] = (),
    about: str | None = None,
) -> Any:
    """A page of one HTML component, as Gradio's `Blocks`.

    The component is `page.html` of the family's folder. Its script is `component.js`, then
    `scripts`, then `page.js`, as one function body: a script can use what an earlier one defines.

    Args:
        title: of the page.
        folder: of the family.
        functions: what the script can call, by name; each takes one value.
        scripts: names of more files of the script.
        about: a line below the title; None: the component has its own title.
    """
    gradio = import_gradio()
    files = [HERE / SHARED_SCRIPT, *(folder / name for name in (*scripts, "page.js"))]
    with gradio.Blocks(title=title, analytics_enabled=False) as blocks:
        if about is not None:
            gradio.HTML(f"<h1>{html.escape(title)}</h1>{message(about)}")
        gradio.HTML(
            (folder / "page.html").read_text(encoding="utf-8"),
            elem_id=folder.name,
            js_on_load="\n".join(file.read_text(encoding="utf-8") for file in files),
            server_functions=[_called(name, call) for name, call in functions.items()],
        )
    return blocks


def _called(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function under the name by which the script calls it.

    Gradio marks the function, which a bound method refuses. What a visitor sends may be anything:
    where the function does not know it, the page shows one line.
    """

    def called(value: Any) -> Any:
        try:
            return function(value)
        except (AttributeError, IndexError, KeyError, TypeError):
            logger.warning("a request to %s was not understood", name, exc_info=True)
            return {"error": NO_ANSWER}

    called.__name__ = name
    return called


if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 30 * 2**20  # of a picture that a visitor sends
_DECODING = threading.Lock()  # one at a time: many large pictures together would fill the memory


def received_picture(url: str) -> "Image":
    """The RGB image of a `data:` URL.

    Raises:
        ValueError: it is none, too large, or unreadable.
    """
    header, _, content = url.partition(",")
    if not header.startswith("data:") or not header.endswith(";base64"):
        raise ValueError("This is no picture: choose an image file.")
    if len(content) * 3 / 4 > MOST_BYTES:
        raise ValueError(f"The picture has more than {MOST_BYTES >> 20} MiB: make it smaller.")
    try:
        file = io.BytesIO(base64.b64decode(content, validate=True))
    except ValueError:
        raise ValueError("The picture did not arrive whole: send it again.") from None
    with _DECODING:
        return open_image(file, name="The picture")


def picture_url(image: "Image") -> str:
    """The `data:` URL of an image as a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
