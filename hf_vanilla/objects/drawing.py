"""Boxes and labels drawn on images by Pillow."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .detector import Found

if TYPE_CHECKING:
    from PIL.Image import Image

# told apart by readers with any kind of colour vision (the palette of Okabe and Ito)
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
SMALLEST_SIDE = 256  # smaller images are enlarged, so that labels can be read


def drawn_objects(image: "Image", found: Found, label_names: Sequence[str]) -> "Image":
    """A copy of an RGB image with boxes, labels and scores; small images are enlarged."""
    from PIL import Image, ImageDraw

    factor = max(1, -(-SMALLEST_SIDE // min(image.size)))
    size = (image.width * factor, image.height * factor)
    picture = image.resize(size, Image.Resampling.NEAREST) if factor > 1 else image.copy()
    pen = ImageDraw.Draw(picture)
    for label, score, box in zip(found.labels, found.scores, found.boxes, strict=True):
        colour = COLOURS[int(label) % len(COLOURS)]
        left, top, right, bottom = (box * factor).tolist()
        if right < left or bottom < top:
            continue
        pen.rectangle((left, top, right, bottom), outline=colour, width=2)
        told = f"{label_names[label]} {score:.2f}"
        place = (left + 3, max(top - 12, 0))
        pen.rectangle(pen.textbbox(place, told), fill=colour)
        pen.text(place, told, fill="black")
    return picture


def gallery(images: "Sequence[Image]", columns: int = 4) -> "Image":
    """Images of equal size side by side in rows.

    Raises:
        ValueError: there are none.
    """
    from PIL import Image

    if not images:
        raise ValueError("a gallery needs at least one image")
    width, height = images[0].size
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (width * min(columns, len(images)), height * rows))
    for number, image in enumerate(images):
        sheet.paste(image, (width * (number % columns), height * (number // columns)))
    return sheet
