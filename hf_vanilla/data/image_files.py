"""Image files: decoded in three channels of 8 bits, and a clear error for one that cannot be."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"))
MOST_PIXELS = 50_000_000  # a file of a few kB can hold more; decoded, each takes 3 to 12 bytes


class ImageError(ValueError):
    """A file that cannot be read as an image; the message names it."""


def split_folder(folder: Path, split: str) -> Path:
    """The subfolder of a split; the folder itself where it has none of that name."""
    inner = folder / split
    return inner if inner.is_dir() else folder


def open_image(source: "str | Path | BinaryIO", *, name: str | None = None) -> "Image":
    """The first frame of an image file in three channels of 8 bits, turned as its EXIF data says.

    16 bits a pixel are scaled to 8; an alpha channel is dropped, as by transformers' pipelines.

    Args:
        source: a path, or a file opened for reading bytes.
        name: for messages; None: the path.

    Raises:
        ImageError: it is empty, cut off, no image, or has more than `MOST_PIXELS`.
        FileNotFoundError: there is no such file.
    """
    from PIL import Image, UnidentifiedImageError

    label = str(source) if name is None else name
    try:
        with Image.open(source) as image:  # reads the header alone
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            return as_rgb(image)
    except FileNotFoundError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(f"{label} has more than {MOST_PIXELS:,} pixels: make it smaller") from None
    except Exception as error:  # a damaged file fails in many ways
        is_empty = isinstance(source, (str, Path)) and not os.path.getsize(source)
        # Pillow's message then names only a file, or an object of Python
        detail = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        reason = "is empty" if is_empty else f"is damaged or no image{detail}"
        raise ImageError(f"{label} {reason}: replace or remove it") from None


def header_size(source: "str | Path | BinaryIO") -> tuple[int, int]:
    """Height and width of an image, turned as its EXIF data says, without decoding its pixels.

    Raises:
        ImageError: it is damaged or no image.
        FileNotFoundError: there is no such file.
    """
    from PIL import Image

    try:
        with Image.open(source) as image:
            turned = image.getexif().get(0x0112, 1) >= 5  # the image lies on its side
            width, height = image.size
    except FileNotFoundError:
        raise
    except Exception:  # a damaged file fails in many ways
        raise ImageError(f"{source} is damaged or no image: replace or remove it") from None
    return (width, height) if turned else (height, width)


def as_rgb(image: "Image") -> "Image":
    """Any image in three channels of 8 bits; several frames: the first."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # Pillow would clip 16 bits at 255
        wide = np.asarray(image).astype(np.float32)
        scale = 255 / 65535 if wide.max(initial=0) > 255 or ";16" in image.mode else 1
        return Image.fromarray(np.rint(wide * scale).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB")
