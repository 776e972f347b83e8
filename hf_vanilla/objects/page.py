"""The web page for object detectors: boxes in a picture, and attention of queries and positions.

`page.js` draws it and calls `look`. Shapes:
m objects, S = h * w positions of the feature map.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_vanilla.app.page import (
    REQUEST_BYTES,
    Served,
    named_model,
    page_of_component,
    picture_url,
    received_picture,
)
from hf_vanilla.app.worker import Worker
from hf_vanilla.hub.card import public_name

from .detector import Detector, load_detector, object_attention

TITLE = "What is where? Objects and attention"
SHOWN_PIXELS = 960  # longest side of the picture that is sent back
MOST_POSITIONS = 2500  # of the feature map; the weights of the encoder are their square


def look(detector: Detector, picture: str) -> dict[str, Any]:
    """The objects of a picture, and the attention weights of the last layers.

    Args:
        detector: the model.
        picture: a `data:` URL with the bytes of an image file.

    Returns:
        `image`, a `data:` URL; `grid`, h and w; `objects`, the surest first, each with `label`,
        `score` and `box` (left, top, right, bottom in shares of the image); `cross` `(m, S)`, what
        each object's query gives to each position; `encoder` `(S, S)`, what each position gives to
        each, empty for a very large picture. Weights are bytes in base64, in 255ths of the largest
        weight of their row, which `largest` `(S)` has for those of `encoder`.

    Raises:
        ValueError: the picture cannot be read.
    """
    image = received_picture(picture)
    attention = object_attention(detector, image)
    found = attention.found
    boxes = found.boxes / ([image.width, image.height] * 2)  # (m, 4) in shares of the image
    shown = image.copy()
    shown.thumbnail((SHOWN_PIXELS, SHOWN_PIXELS))
    encoder = attention.encoder.flatten(2).flatten(0, 1)  # (S, S)
    return {
        "image": picture_url(shown),
        "grid": list(attention.cross.shape[1:]),
        "objects": found.entries(detector.label_names, boxes),
        "cross": _bytes(attention.cross.flatten(1)[found.queries.tolist()]),
        "encoder": _bytes(encoder) if len(encoder) <= MOST_POSITIONS else "",
        "largest": encoder.amax(dim=-1).tolist(),
    }


def _bytes(weights: Tensor) -> str:
    """Rows `(n, S)` in 255ths of the largest of their row, in base64."""
    largest = weights.amax(dim=-1, keepdim=True).clamp(min=1e-12)
    levels = (255 * weights / largest).round().byte()
    return base64.b64encode(levels.numpy().tobytes()).decode()


def open_service(models: Sequence[str], _settings: Any, worker: Worker) -> Served:
    """What detectors answer: the page of the first, and `POST /v1/detect`."""
    detectors = {public_name(name): load_detector(name, device="cpu") for name in models}
    name, first = next(iter(detectors.items()))

    def detect(body: Any) -> dict[str, Any]:
        detector = named_model(detectors, body, "image", "threshold")
        threshold = body.get("threshold", 0.5)
        if type(threshold) not in (int, float) or not 0 <= threshold <= 1:
            raise ValueError("threshold is not a number from 0 to 1.")
        (found,) = detector.detect([received_picture(str(body.get("image")))])
        return {"objects": found.above(threshold).entries(detector.label_names)}

    config = first.model.config
    about = (
        f"{name}: {first.model.num_parameters() / 1e6:.2f} million parameters, "
        f"{config.num_labels:,} classes, {config.num_queries} queries, "
        f"{config.encoder_layers} + {config.decoder_layers} layers"
    )
    files = page_of_component(TITLE, Path(__file__).parent, about=about)
    views = {"look": lambda request: look(first, str(request.get("picture")))}
    calls = {"/v1/detect": worker.alone(detect)}
    return Served(files, views, calls, most_bytes=REQUEST_BYTES)
