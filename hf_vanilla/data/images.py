"""Image files, and labelled images: of class folders, a dataset of the Hub, the built-in digits.

Labelled images are decoded when a batch is read. Shapes: N images, H x W pixels.
"""

import io
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from hf_vanilla.loading import load_rows
from hf_vanilla.options import needs

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

IMAGE_SUFFIXES = frozenset(
    (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
)
MOST_PIXELS = 50_000_000  # a file of a few kB can hold more; decoded, each takes 3 to 12 bytes
BUILT_IN_DIGITS = "digits"
DIGIT_SIZE, DIGIT_LEVELS = 8, 16  # optdigits: 8 x 8 pixels of 0 to 16
VALIDATION_NAMES = ("validation", "valid", "val", "test")
SPLIT_NAMES = {*VALIDATION_NAMES, "train", "training", "dev", "testing", "evaluation"}


class ImageError(ValueError):
    """A file that cannot be read as an image; the message names it."""


def split_folder(folder: Path, split: str) -> Path:
    """The subfolder of a split; the folder itself where it has none of that name."""
    inner = folder / split
    return inner if inner.is_dir() else folder


def is_image_name(name: str) -> bool:
    """Whether a file of that name is taken for an image; hidden ones are not."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def images_below(folder: str) -> Iterator[str]:
    """Paths of the images of a folder at any depth, found by their suffix, sorted by name.

    Names that begin with a dot are left out, such as copies of Jupyter and of macOS.
    """
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir() and not entry.name.startswith("."):
            yield from images_below(entry.path)
        elif is_image_name(entry.name):
            yield entry.path


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
    with _image_file(source, name) as image:
        return as_rgb(image)


def header_size(source: "str | Path | BinaryIO", *, name: str | None = None) -> tuple[int, int]:
    """Height and width of an image, turned as its EXIF data says, without decoding its pixels.

    Args:
        source: as for `open_image`.
        name: likewise.

    Raises:
        ImageError: it is damaged, no image, or has more than `MOST_PIXELS`.
        FileNotFoundError: there is no such file.
    """
    with _image_file(source, name) as image:
        # the image lies on its side; the size of a TIFF is that of the turned one already
        turned = image.format != "TIFF" and image.getexif().get(0x0112) in range(5, 9)
        width, height = image.size
    return (width, height) if turned else (height, width)


@contextmanager
def _image_file(source: "str | Path | BinaryIO", name: str | None) -> "Iterator[ImageFile]":
    """An image file of which the header is read; what fails inside the block is an `ImageError`."""
    from PIL import Image, UnidentifiedImageError

    label = str(source) if name is None else name
    try:
        with Image.open(source) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            yield image
    except (FileNotFoundError, IsADirectoryError):
        raise
    except Image.DecompressionBombError:
        raise ImageError(f"{label} has more than {MOST_PIXELS:,} pixels: make it smaller") from None
    except Exception as error:  # a damaged file fails in many ways
        is_empty = isinstance(source, (str, Path)) and not os.path.getsize(source)
        # Pillow's message then names only a file, or an object of Python
        detail = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        reason = "is empty" if is_empty else f"is damaged or no image{detail}"
        raise ImageError(f"{label} {reason}: replace or remove it") from None


def as_rgb(image: "Image") -> "Image":
    """Any image in three channels of 8 bits; several frames: the first."""
    from PIL import Image, ImageOps

    if not isinstance(image, Image.Image):
        raise ValueError(f"a {type(image).__name__} is no image: give one of Pillow")
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


# --- labelled images -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LabelledImages:
    """Images with one label each, and where they are read from.

    Attributes:
        labels: `(N,)` int64, indices into `label_names`.
        label_names: the classes.
        names: of the images, for messages and results: paths relative to `origin` for files.
        open: from a row to the image; raises `ImageError`.
        origin: where the data come from, for messages.
        fingerprints: `(N,)` uint64, changes with the content of an image or its label.
    """

    labels: np.ndarray
    label_names: tuple[str, ...]
    names: Sequence[str]
    open: Callable[[int], "Image"]
    origin: str
    fingerprints: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, rows: "Sequence[int] | np.ndarray") -> "LabelledImages":
        """The images of `rows`, in that order."""
        indices = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            labels=self.labels[indices],
            names=[self.names[row] for row in indices],
            open=partial(_open_row, self.open, indices),
            fingerprints=self.fingerprints[indices],
        )

    def relabelled(self, label_names: Sequence[str]) -> "LabelledImages":
        """The same images with labels that index other names, which hold all of these.

        Raises:
            ValueError: a class is not among the names, or images have no label.
        """
        check_labels(self)
        check_known(self.label_names, label_names, self.origin)
        indices = np.asarray([label_names.index(name) for name in self.label_names])
        return replace(self, labels=indices[self.labels], label_names=tuple(label_names))


def load_images(
    source: str,
    split: str = "train",
    *,
    image_column: str = "image",
    label_column: str = "label",
) -> LabelledImages:
    """Images from a folder of class folders, an optdigits file, a Hub dataset, or the digits.

    Args:
        source: `"digits"` (scikit-learn's 1,797); a folder, whose subfolder `split` is taken where
            it exists; a file of comma-separated pixels and label, as optdigits has it; or a Hub id.
        split: of a folder or dataset; of the digits `"train"` (all), `"first_half"` or
            `"second_half"`, as in scikit-learn's example.
        image_column: of a Hub dataset.
        label_column: likewise.

    Raises:
        ValueError: there are no images, or their labels cannot be read; the message says what to
            change.
        OSError: nothing is found under that name.
    """
    if source == BUILT_IN_DIGITS:
        return _built_in_digits(split)
    path = Path(source)
    if path.is_file():
        return read_digit_file(path)
    if path.is_dir():
        folder = split_folder(path, split)
        if folder == path:
            _check_no_splits(path, split)
        return read_image_folder(folder)
    return _from_hub(source, split, image_column, label_column)


def read_image_folder(folder: Path) -> LabelledImages:
    """Images of a folder with one subfolder per class, found by their suffix at any depth.

    Raises:
        ValueError: no class folders, an empty class, or names that differ by case alone.
    """
    classes = sorted(entry.name for entry in _subfolders(folder))
    if not classes:
        raise ValueError(f"{folder} has no subfolders: put the images of each class into one")
    by_case = Counter(name.casefold() for name in classes)
    if twice := [name for name in classes if by_case[name.casefold()] > 1]:
        raise ValueError(
            f"{folder} has classes that differ by case alone, {', '.join(twice)}: rename one"
        )
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        inner = sorted(images_below(os.path.join(folder, name)))
        if not inner:
            endings = ", ".join(sorted(IMAGE_SUFFIXES))
            raise ValueError(f"{folder / name} holds no image ({endings}): fill it or remove it")
        files += inner
        labels += [label] * len(inner)
    sizes = [os.path.getsize(file) for file in files]
    prefix = os.path.join(folder, "")
    names = [file.removeprefix(prefix) for file in files]
    return LabelledImages(
        labels=np.asarray(labels, dtype=np.int64),
        label_names=tuple(classes),
        names=names,
        open=FileImages(folder, names),
        origin=str(folder),
        fingerprints=_fingerprints([os.fsencode(name) for name in names], sizes),
    )


def read_digit_file(path: Path) -> LabelledImages:
    """Digits from a file of optdigits: 64 pixels of 0 to 16 and the class in every line.

    Raises:
        ValueError: a line is something else.
    """
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} is no file of optdigits: {error}") from None
    if table.shape[1] != DIGIT_SIZE**2 + 1 or table.min() < 0 or table.max() > DIGIT_LEVELS:
        raise ValueError(
            f"{path} is no file of optdigits: each line must hold 64 pixels of 0 to 16 and a class"
        )
    pixels, labels = table[:, :-1].reshape(-1, DIGIT_SIZE, DIGIT_SIZE), table[:, -1]
    return digit_images(pixels, labels, origin=str(path))


def digit_images(pixels: np.ndarray, labels: np.ndarray, *, origin: str) -> LabelledImages:
    """Images from `(N, 8, 8)` pixels of 0 to 16 and `(N,)` digits."""
    from PIL import Image

    grey = np.rint(pixels * (255 / DIGIT_LEVELS)).astype(np.uint8)
    return LabelledImages(
        labels=np.asarray(labels, dtype=np.int64),
        label_names=tuple("0123456789"),
        names=[f"{origin}[{row}]" for row in range(len(grey))],
        open=[Image.fromarray(one).convert("RGB") for one in grey].__getitem__,
        origin=origin,
        fingerprints=_fingerprints([image.tobytes() for image in grey], labels),
    )


def check_labels(images: LabelledImages) -> None:
    """Refuse labels without a name, such as -1 of a test split of the Hub.

    Raises:
        ValueError: a label is out of range, or there is no image.
    """
    known = len(images.label_names)
    if not len(images):
        raise ValueError(f"{images.origin} holds no images: check the name and the split")
    low, high = int(images.labels.min()), int(images.labels.max())
    if low < 0 or high >= known:
        raise ValueError(
            f"{images.origin} has labels from {low} to {high}, but {known} label names: "
            f"give labels from 0 to {known - 1}"
        )


def check_classes(images: LabelledImages) -> None:
    """Refuse data that no classifier can be trained on.

    Raises:
        ValueError: a label is out of range, a class is empty, or there is one class only.
    """
    check_labels(images)
    if len(images.label_names) < 2:
        raise ValueError(
            f"{images.origin} has one class only, {images.label_names[0]!r}: give two or more"
        )
    counts = np.bincount(images.labels, minlength=len(images.label_names))
    if empty := [images.label_names[label] for label in np.flatnonzero(counts == 0)]:
        raise ValueError(
            f"{images.origin} has no image of {', '.join(map(repr, empty))}: add some, or leave "
            "the class out"
        )


def check_known(used: Iterable[str], label_names: Sequence[str], origin: str) -> None:
    """Refuse images of a class that a model does not know.

    Raises:
        ValueError: a used class is not among the names.
    """
    if unknown := [name for name in used if name not in label_names]:
        raise ValueError(
            f"{origin} has the class {unknown[0]!r}, which is not among the {len(label_names)} "
            f"labels of the model ({', '.join(label_names[:10])}): rename it or leave it out"
        )


# --- image sources: worker processes need to pickle them, so they are no closures ---------------


@dataclass(frozen=True)
class FileImages:
    """Opens an image of a folder by its row, and compares its size with the one that is known.

    Attributes:
        folder: of the images.
        names: paths relative to the folder.
        sizes: height and width in pixels; None: unknown.
    """

    folder: Path
    names: Sequence[str]
    sizes: Sequence[tuple[int, int]] | None = None

    def __call__(self, row: int) -> "Image":
        """The image of a row in three channels.

        Raises:
            ImageError: it is unreadable, or has another size.
        """
        path = self.folder / self.names[row]
        image = open_image(path)
        if self.sizes is not None:
            check_size((image.height, image.width), self.sizes[row], str(path))
        return image


class ImageCells:
    """A column of images of a Hub dataset, each decoded when it is read.

    Args:
        rows: of the dataset.
        column: its name.
        origin: for messages.
    """

    def __init__(self, rows: Any, column: str, origin: str) -> None:
        from datasets import Image

        # a cell then holds the bytes of a file or its path
        self.rows = rows.cast_column(column, Image(decode=False)).select_columns([column])
        self.column, self.origin = column, origin

    def __call__(self, row: int) -> "Image":
        """The image of a row in three channels."""
        return open_image(self.content(row), name=f"{self.origin}[{row}]")

    def content(self, row: int) -> str | io.BytesIO:
        """The path of the image, or its bytes.

        Raises:
            ImageError: the cell is empty.
        """
        cell = self.rows[row][self.column]
        if cell is None:
            raise ImageError(f"{self.origin}[{row}] has no image: leave the row out")
        return cell["path"] if cell["bytes"] is None else io.BytesIO(cell["bytes"])


def check_size(size: tuple[int, int], annotated: tuple[int, int], name: str) -> None:
    """Compare height and width of an image with those of its annotations.

    Raises:
        ImageError: they differ.
    """
    if size != annotated:
        raise ImageError(
            f"{name} has {size[1]} x {size[0]} pixels, but the annotations are of "
            f"{annotated[1]} x {annotated[0]}: scale the boxes, or annotate what its EXIF data "
            "shows"
        )


def _open_row(whole: Callable[[int], "Image"], rows: np.ndarray, row: int) -> "Image":
    return whole(int(rows[row]))


# --- inside ------------------------------------------------------------------------------------


def _subfolders(folder: Path) -> list[Path]:
    """Those that may be classes: no hidden ones."""
    return [one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")]


def _check_no_splits(folder: Path, split: str) -> None:
    """Refuse to take splits for classes; a class may have the name of a split, but no folders."""
    inner = _subfolders(folder)
    splits = sorted(entry.name for entry in inner if entry.name.casefold() in SPLIT_NAMES)
    holds_classes = any(path.is_dir() for name in splits for path in (folder / name).iterdir())
    if splits and (holds_classes or len(splits) == len(inner)):
        raise ValueError(
            f"{folder} has no folder {split!r}, but {', '.join(splits)}: give one of them, such as "
            f"{folder / splits[0]}, or choose it by --split, or in training by --train_split and "
            "--validation_split"
        )


def _fingerprints(contents: Sequence[bytes], numbers: Sequence[int] | np.ndarray) -> np.ndarray:
    """`(N,)` uint64 from what tells images apart: bytes and a small number each."""
    pairs = zip(contents, numbers, strict=True)
    prints = [zlib.crc32(content) << 32 | int(number) for content, number in pairs]
    return np.asarray(prints, dtype=np.uint64)


def _built_in_digits(split: str) -> LabelledImages:
    with needs("the built-in digits come with scikit-learn", "demo"):
        from sklearn.datasets import load_digits
    digits = load_digits()
    images = digit_images(digits.images, digits.target, origin=BUILT_IN_DIGITS)
    count, half = len(images), len(images) // 2
    parts = {"train": range(count), "first_half": range(half), "second_half": range(half, count)}
    if split not in parts:
        raise ValueError(f"split={split!r}: the digits have {', '.join(parts)}")
    return images.subset(parts[split])


def _from_hub(name: str, split: str, image_column: str, label_column: str) -> LabelledImages:
    from datasets import ClassLabel

    rows = load_rows(name, split=split)
    for column in (image_column, label_column):
        if column not in rows.column_names:
            raise ValueError(
                f"{name} has no column {column!r}: choose among {', '.join(rows.column_names)}"
            )
    labels, feature = rows[label_column][:], rows.features[label_column]
    if missing := labels.count(None):
        raise ValueError(
            f"{name} has {missing} images without a label in the column {label_column!r}: label "
            "them, or leave them out"
        )
    if isinstance(feature, ClassLabel):
        names, numbers = feature.names, labels
    else:
        names, numbers = np.unique([str(label) for label in labels], return_inverse=True)
    return LabelledImages(
        labels=np.asarray(numbers, dtype=np.int64),
        label_names=tuple(map(str, names)),
        names=[f"{name}[{row}]" for row in range(len(rows))],
        open=ImageCells(rows, image_column, name),
        origin=name,
        fingerprints=_fingerprints([rows._fingerprint.encode()] * len(rows), range(len(rows))),
    )
