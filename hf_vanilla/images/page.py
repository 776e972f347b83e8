"""The web page for image classifiers: drop, choose or draw a picture.

`page.js` draws it and calls `look`. Shapes:
L layers, H heads, R x K patches.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hf_vanilla.app.page import (
    REQUEST_BYTES,
    Served,
    named_model,
    page_of_component,
    picture_url,
    received_picture,
    whole_number,
)
from hf_vanilla.app.worker import Worker
from hf_vanilla.hub.card import public_name

from .classifier import Classifier, load_classifier, patch_attention

if TYPE_CHECKING:
    from PIL.Image import Image

TITLE = "What is in the picture? Labels and attention"
DRAWN_SIDE = 512  # longest side of a drawing in pixels
SCALE = 10**6  # weights are sent as integers, which keeps the answer small


def look(classifier: Classifier, picture: str, *, is_drawn: bool) -> dict[str, Any]:
    """The best labels of a picture, and which patches the class token attends to.

    Args:
        classifier: the model.
        picture: a `data:` URL with the bytes of an image file.
        is_drawn: it was drawn on the page; its content is then moved to the middle and scaled, as
            digits of data sets are.

    Returns:
        `labels`, names and probabilities, most probable first; `image`, a `data:` URL of what the
        model sees; `grid`, rows and columns of patches; `weights` `(L, H, R * K)` and `rollout`
        `(R * K)`, in millionths.

    Raises:
        ValueError: the picture cannot be read, or nothing is drawn.
    """
    image = received_picture(picture)
    if is_drawn:
        image = centred(image)
    attention = patch_attention(classifier, image)
    return {
        "labels": [vars(guess) for guess in attention.guesses],
        "image": picture_url(classifier.seen(image)),
        "grid": list(attention.grid),
        "weights": _millionths(attention.of_class_token.flatten(2)),
        "rollout": _millionths(attention.rollout.flatten()),
    }


def centred(drawing: "Image") -> "Image":
    """A light drawing on black: its bounding box on a black square as high or wide as the box.

    A box with a side above `DRAWN_SIDE` is scaled down to it.

    Raises:
        ValueError: nothing is drawn.
    """
    from PIL import Image

    box = drawing.getbbox()
    if box is None:
        raise ValueError("Nothing is drawn: draw with the pressed mouse button, or with a finger.")
    content = drawing.crop(box)
    content.thumbnail((DRAWN_SIDE, DRAWN_SIDE))
    side = max(content.size)
    square = Image.new("RGB", (side, side))
    square.paste(content, ((side - content.width) // 2, (side - content.height) // 2))
    return square


def _millionths(weights: Tensor) -> list[Any]:
    return (weights * SCALE).round().int().tolist()


def open_service(models: Sequence[str], _settings: Any, worker: Worker) -> Served:
    """What classifiers answer: the page of the first, and `POST /v1/classify`."""
    classifiers = {public_name(name): load_classifier(name, device="cpu") for name in models}
    name, first = next(iter(classifiers.items()))

    def shown(request: Any) -> dict[str, Any]:
        return look(first, str(request.get("picture")), is_drawn=bool(request.get("isDrawn")))

    def classify(body: Any) -> dict[str, Any]:
        classifier = named_model(classifiers, body, "image", "top_k")
        top_k = min(whole_number(body, "top_k", 5, 1000), classifier.model.config.num_labels)
        (guesses,) = classifier.guesses([received_picture(str(body.get("image")))], top_k=top_k)
        return {"labels": [vars(guess) for guess in guesses]}

    config = first.model.config
    height, width = config.image_height_width
    about = (
        f"{name}: {first.model.num_parameters() / 1e6:.2f} million parameters, "
        f"{config.num_labels:,} labels, {config.encoder_layers} layers, "
        f"{config.encoder_attention_heads} heads, {height} x {width} pixels"
    )
    files = page_of_component(TITLE, Path(__file__).parent, about=about)
    calls = {"/v1/classify": worker.alone(classify)}
    return Served(files, {"look": shown}, calls, most_bytes=REQUEST_BYTES)
