"""What the pages share: the shell around the part of a family, its style and its script."""

import base64
import html
import io
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from hf_vanilla.data.images import open_image

if TYPE_CHECKING:
    from PIL.Image import Image

HERE = Path(__file__).parent
INDEX = "index.html"
MOST_BYTES = 30 * 2**20  # of a picture that a visitor sends
REQUEST_BYTES = 42 * 2**20  # of a request with one in base64


@dataclass(frozen=True)
class Served:
    """What the models of a family answer; the page is that of the first of them.

    What a function refuses is a ValueError of one sentence.

    Attributes:
        files: of the page, their texts by name; `index.html` is served at `/`.
        views: what the script of the page calls: the functions behind `POST /v1/view/NAME`, by
            name. Each takes the JSON value of a request and returns that of the answer; they run
            one at a time.
        calls: coroutine functions behind `POST PATH`, by path. Each takes the JSON value or the
            form of a request, and returns the JSON value of the answer, or an iterator of several.
        facts: functions behind `GET PATH`, by path, which compute nothing.
        most_bytes: of a request.
    """

    files: Mapping[str, str]
    views: Mapping[str, Callable[[Any], Any]]
    calls: Mapping[str, Callable[[Any], Awaitable[Any]]]
    facts: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    most_bytes: int = 2**20


def page_of_component(title: str, folder: Path, *, about: str | None = None) -> dict[str, str]:
    """The files of a page of one component, `page.html` of the family's folder.

    Its script is `component.js`, then `page.js`, as one function body.

    Args:
        title: of the page.
        folder: of the family.
        about: a line below the title; None: the component has its own title.
    """
    title, heading = html.escape(title), ""
    if about is not None:
        heading = f'<h1>{title}</h1><p class="message" dir="auto">{html.escape(about)}</p>'
    shell = Template(_text(HERE / "shell.html")).substitute(
        title=title, heading=heading, component=_text(folder / "page.html")
    )
    scripts = _text(HERE / "component.js"), _text(folder / "page.js")
    script = "\n".join(["(() => {", '"use strict";', *scripts, "})();"])
    return {INDEX: shell, "page.js": script, "page.css": _text(HERE / "app.css")}


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def received_picture(url: str) -> "Image":
    """The RGB image of a `data:` URL.

    Raises:
        ValueError: it is none, too large, or unreadable.
    """
    header, _, content = url.partition(",")
    if not header.startswith("data:") or not header.endswith(";base64"):
        raise ValueError(
            "This is no picture: choose an image file; "
            "in a request, image is data:image/png;base64,..."
        )
    if len(content) * 3 / 4 > MOST_BYTES:
        raise ValueError(f"The picture has more than {MOST_BYTES >> 20} MiB: make it smaller.")
    try:
        file = io.BytesIO(base64.b64decode(content, validate=True))
    except ValueError:
        raise ValueError("The picture did not arrive whole: send it again.") from None
    return open_image(file, name="The picture")


def picture_url(image: "Image") -> str:
    """The `data:` URL of an image as a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def named_model(models: Mapping[str, Any], body: Any, *fields: str) -> Any:
    """The model that a request names; the first where it names none.

    Args:
        models: by name.
        body: the request.
        *fields: what it may have beside `model` and the `api_key`.

    Raises:
        ValueError: the request is no object or has another field, or there is no such model.
    """
    if not isinstance(body, dict):
        raise ValueError("The body of the request is no JSON object.")
    for name in body.keys() - {"model", "api_key", *fields}:
        raise ValueError(f"There is no field {name!r}: there is model, {', '.join(fields)}.")
    name = body.get("model") or next(iter(models))
    if not isinstance(name, str) or name not in models:
        raise ValueError(f"There is no model {name!r}: there is {', '.join(models)}.")
    return models[name]


def whole_number(body: Mapping[str, Any], name: str, default: int, most: int) -> int:
    """A number of a request, from 1.

    Raises:
        ValueError: it is none, or too large.
    """
    text = str(body.get(name, default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
        raise ValueError(f"{name} is not a number from 1 to {most}.")
    return int(text)
