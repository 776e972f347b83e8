"""Pictures that a browser sends and receives, as `data:` URLs."""

import base64
import io
import threading
from typing import TYPE_CHECKING

from hf_vanilla.data.image_files import open_image

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
