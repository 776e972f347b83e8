"""Labelled images: from a folder of class folders, a dataset of the Hub, or the built-in digits.

Images are decoded when a batch is read, always as three channels of 8 bits. Shapes: N images,
B batch, H x W pixels.
"""

import io
import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import ViTImageProcessorPil

BUILT_IN_DIGITS = "digits"
DIGIT_SIZE, DIGIT_LEVELS = 8, 16  # optdigits: 8 x 8 pixels of 0 to 16
IMAGE_SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"))
VALIDATION_NAMES = ("validation", "valid", "val", "test")
IGNORED_LABEL = -100
CACHE_BYTES = 256 * 2**20
STATISTICS_IMAGES = 1000


class ImageError(ValueError):
    """A file that cannot be read as an image; the message names it."""


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
        chosen = np.asarray(rows, dtype=np.int64)
        return LabelledImages(
            labels=self.labels[chosen],
            label_names=self.label_names,
            names=[self.names[row] for row in chosen],
            open=_Subset(self.open, chosen),
            origin=self.origin,
            fingerprints=self.fingerprints[chosen],
        )

    def relabelled(self, label_names: Sequence[str]) -> "LabelledImages":
        """The same images with labels that index other names, which hold all of these."""
        places = np.asarray([list(label_names).index(name) for name in self.label_names])
        return replace(self, labels=places[self.labels], label_names=tuple(label_names))


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
        ValueError: there are no images, or their labels cannot be told; the message says what to
            change.
        OSError: nothing is found under that name.
    """
    if source == BUILT_IN_DIGITS:
        return _built_in_digits(split)
    path = Path(source)
    if path.is_file():
        return read_digit_file(path)
    if path.is_dir():
        inner = path / split
        return read_image_folder(inner if inner.is_dir() else path)
    return _from_hub(source, split, image_column, label_column)


def read_image_folder(folder: Path, label_names: Sequence[str] | None = None) -> LabelledImages:
    """Images of a folder with one subfolder per class, found by their suffix at any depth.

    Args:
        folder: of class folders.
        label_names: the classes that a model knows; None: the names of the subfolders, sorted.

    Raises:
        ValueError: no class folders, fewer than two classes, an empty or unknown class, or names
            that differ by case alone.
    """
    found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not found:
        raise ValueError(f"{folder} has no subfolders: put the images of each class into one")
    _check_folders(folder, found, label_names)
    classes = tuple(found if label_names is None else label_names)
    files, labels, sizes = [], [], []
    for name in found:
        entries = sorted(_image_files(folder / name))
        if not entries:
            endings = ", ".join(sorted(IMAGE_SUFFIXES))
            raise ValueError(f"{folder / name} holds no image ({endings}): fill it or remove it")
        files += [os.path.relpath(path, folder) for path, _ in entries]
        sizes += [size for _, size in entries]
        labels += [classes.index(name)] * len(entries)
    prints = [
        zlib.crc32(name.encode()) << 32 | size for name, size in zip(files, sizes, strict=True)
    ]
    return LabelledImages(
        labels=np.asarray(labels, dtype=np.int64),
        label_names=classes,
        names=files,
        open=_Files(folder, files),
        origin=str(folder),
        fingerprints=np.asarray(prints, dtype=np.uint64),
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


def digit_images(
    pixels: np.ndarray,
    labels: np.ndarray,
    *,
    origin: str,
    label_names: Sequence[str] = tuple("0123456789"),
) -> LabelledImages:
    """Images from `(N, 8, 8)` pixels of 0 to 16 and `(N,)` classes, the digits by default."""
    grey = np.rint(pixels * (255 / DIGIT_LEVELS)).astype(np.uint8)
    prints = [
        zlib.crc32(image.tobytes()) << 32 | int(n) for image, n in zip(grey, labels, strict=True)
    ]
    return LabelledImages(
        labels=np.asarray(labels, dtype=np.int64),
        label_names=tuple(label_names),
        names=[f"{origin}[{row}]" for row in range(len(grey))],
        open=_Arrays(grey),
        origin=origin,
        fingerprints=np.asarray(prints, dtype=np.uint64),
    )


def open_image(source: "str | Path | BinaryIO", *, name: str | None = None) -> "Image":
    """The first frame of an image file in three channels of 8 bits, turned as its EXIF data says.

    16 bits a pixel are scaled to 8; an alpha channel is dropped, as by transformers' pipelines.

    Args:
        source: a path, or a file opened for reading bytes.
        name: for messages; None: the path.

    Raises:
        ImageError: it is empty, cut off, no image, or larger than Pillow opens.
        FileNotFoundError: there is no such file.
    """
    from PIL import Image

    told = str(source) if name is None else name
    try:
        with Image.open(source) as image:
            return as_rgb(image)
    except FileNotFoundError:
        raise
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise ImageError(f"{told} has more than {limit:,} pixels: make it smaller") from None
    except Exception as error:  # a damaged file fails in many ways
        is_empty = isinstance(source, (str, Path)) and not os.path.getsize(source)
        reason = "is empty" if is_empty else f"is damaged or no image ({error})"
        raise ImageError(f"{told} {reason}: replace or remove it") from None


def as_rgb(image: "Image") -> "Image":
    """Any image in three channels of 8 bits; several frames: the first."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # Pillow would clip 16 bits at 255
        wide = np.asarray(image).astype(np.float64)
        scale = 255 / 65535 if wide.max(initial=0) > 255 or ";16" in image.mode else 1
        return Image.fromarray(np.rint(wide * scale).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB")


class ImageReader:
    """Reads batches of equal size; keeps a small dataset in memory.

    Args:
        images: to read.
        size: height and width in pixels of what is returned.
        stop_at_errors: raise at the first unreadable image instead of leaving it out.

    Attributes:
        unreadable: messages of the unreadable images so far, by row.
    """

    def __init__(
        self, images: LabelledImages, size: tuple[int, int], *, stop_at_errors: bool = False
    ) -> None:
        self.images = images
        self.size = size
        self.stop_at_errors = stop_at_errors
        self.unreadable: dict[int, str] = {}
        is_small = len(images) * 3 * size[0] * size[1] <= CACHE_BYTES
        self._cache: dict[int, Tensor] | None = {} if is_small else None

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch.

        Returns:
            `(B, 3, H, W)` uint8, and labels `(B,)` int64; an unreadable image is black and its
            label -100, which the loss ignores.

        Raises:
            ImageError: an image is unreadable and `stop_at_errors` is on.
        """
        pixels = [self._pixels(row) for row in rows]
        labels = torch.from_numpy(self.images.labels[np.asarray(rows, dtype=np.int64)])
        missing = [place for place, row in enumerate(rows) if row in self.unreadable]
        labels[missing] = IGNORED_LABEL
        return torch.stack(pixels), labels

    def _pixels(self, row: int) -> Tensor:
        if self._cache is not None and row in self._cache:
            return self._cache[row]
        try:
            pixels = resized_pixels(self.images.open(row), self.size)
        except (ImageError, FileNotFoundError) as error:
            if self.stop_at_errors:
                raise ImageError(str(error)) from None
            self.unreadable[row] = str(error)
            pixels = torch.zeros(3, *self.size, dtype=torch.uint8)
        if self._cache is not None:
            self._cache[row] = pixels
        return pixels


def resized_pixels(image: "Image", size: tuple[int, int]) -> Tensor:
    """An RGB image as `(3, H, W)` uint8, resized as `ViTImageProcessorPil` does."""
    from PIL import Image

    height, width = size
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)  # (H, W, 3) -> (3, H, W)


def pixel_statistics(
    images: LabelledImages, size: tuple[int, int]
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, of values in [0, 1].

    They are measured on at most 1,000 images, evenly spaced over the set. A channel of one value
    gets 1 as its deviation.

    Raises:
        ImageError: not one of these images is readable.
    """
    count = min(len(images), STATISTICS_IMAGES)
    rows = np.linspace(0, len(images) - 1, count).round().astype(int)
    reader = ImageReader(images, size)
    total, squares, pixels = torch.zeros(3).double(), torch.zeros(3).double(), 0
    for first in range(0, count, 64):
        batch, labels = reader.read(rows[first : first + 64].tolist())
        values = batch[labels != IGNORED_LABEL].float() / 255
        total += values.sum((0, 2, 3)).double()
        squares += values.square().sum((0, 2, 3)).double()
        pixels += values.numel() // 3
    if not pixels:
        raise ImageError(
            f"no image of {images.origin} is readable: {next(iter(reader.unreadable.values()))}"
        )
    mean = total / pixels
    deviation = (squares / pixels - mean.square()).clamp(min=0).sqrt()
    deviation[deviation < 1e-6] = 1.0
    return mean.tolist(), deviation.tolist()


def image_processor(
    size: tuple[int, int], mean: Sequence[float], deviation: Sequence[float]
) -> "ViTImageProcessorPil":
    """Transformers' image processor: RGB, resize to `size`, scale to [0, 1], normalise."""
    from transformers import ViTImageProcessorPil

    return ViTImageProcessorPil(
        size={"height": size[0], "width": size[1]},
        do_convert_rgb=True,
        image_mean=list(mean),
        image_std=list(deviation),
    )


def normalised(images: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """`(B, 3, H, W)` in [0, 1] with mean 0 and deviation 1 over the training images."""
    shift, scale = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, deviation))
    return (images - shift) / scale


def class_counts(images: LabelledImages) -> dict[str, int]:
    """How many images each class has."""
    counts = Counter(images.labels.tolist())
    return {name: counts[label] for label, name in enumerate(images.label_names)}


def check_classes(images: LabelledImages) -> None:
    """Refuse data that no classifier can be trained on.

    Raises:
        ValueError: a label is out of range, a class is empty, or there is one class only.
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
    if known < 2:
        raise ValueError(
            f"{images.origin} has one class only, {images.label_names[0]!r}: give two or more"
        )
    if empty := [name for name, count in class_counts(images).items() if not count]:
        raise ValueError(
            f"{images.origin} has no image of {', '.join(map(repr, empty))}: add some, or leave "
            "the class out"
        )


def changed_images(before: Sequence[int], now: np.ndarray) -> int:
    """How many images differ between two lists of `fingerprints`: added, removed or changed."""
    old, new = Counter(int(value) for value in before), Counter(now.tolist())
    return max((old - new).total(), (new - old).total())


# --- inside ------------------------------------------------------------------------------------


def _check_folders(folder: Path, found: Sequence[str], label_names: Sequence[str] | None) -> None:
    by_case = Counter(name.casefold() for name in found)
    twice = [name for name in found if by_case[name.casefold()] > 1]
    if twice:
        raise ValueError(
            f"{folder} has classes that differ by case alone, {', '.join(twice)}: rename one"
        )
    if label_names is None:
        if len(found) < 2:
            raise ValueError(f"{folder} has one class only, {found[0]!r}: give two or more")
        return
    if unknown := [name for name in found if name not in label_names]:
        raise ValueError(
            f"{folder} has the class folder {unknown[0]!r}, which is not among the "
            f"{len(label_names)} labels ({', '.join(label_names[:10])}): rename or remove it"
        )


def _image_files(folder: Path) -> list[tuple[str, int]]:
    """Paths and sizes in bytes of the images below a folder."""
    files = []
    for entry in os.scandir(folder):
        if entry.is_dir():
            files += _image_files(Path(entry.path))
        elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES:
            files.append((entry.path, entry.stat().st_size))
    return files


def _built_in_digits(split: str) -> LabelledImages:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError(
            "the built-in digits come with scikit-learn: pip install 'hf-vanilla[demo]'"
        ) from None
    digits = load_digits()
    images = digit_images(digits.images, digits.target, origin=BUILT_IN_DIGITS)
    half = len(images) // 2
    parts = {"train": range(len(images)), "first_half": range(half)}
    parts["second_half"] = range(half, len(images))
    if split not in parts:
        raise ValueError(f"split={split!r}: the digits have {', '.join(parts)}")
    return images.subset(parts[split])


def _from_hub(name: str, split: str, image_column: str, label_column: str) -> LabelledImages:
    from datasets import ClassLabel, Image, load_dataset

    try:
        rows = load_dataset(name, split=split)
    except (FileNotFoundError, ConnectionError) as error:
        reason = str(error).splitlines()[0]
        raise OSError(f"{name}: no such folder, and not found on the Hub: {reason}") from None
    for column in (image_column, label_column):
        if column not in rows.column_names:
            raise ValueError(
                f"{name} has no column {column!r}: choose among {', '.join(rows.column_names)}"
            )
    labels, feature = rows[label_column], rows.features[label_column]
    if isinstance(feature, ClassLabel):
        names, numbers = feature.names, labels
    else:
        names = sorted({str(label) for label in labels})
        numbers = [names.index(str(label)) for label in labels]
    pictures = rows.cast_column(image_column, Image(decode=False)).select_columns([image_column])
    return LabelledImages(
        labels=np.asarray(numbers, dtype=np.int64),
        label_names=tuple(names),
        names=[f"{name}[{row}]" for row in range(len(rows))],
        open=_Cells(pictures, image_column, name),
        origin=name,
        fingerprints=np.asarray(
            [zlib.crc32(rows._fingerprint.encode()) << 32 | row for row in range(len(rows))],
            dtype=np.uint64,
        ),
    )


# An image source is called with a row; it is a class, since worker processes need to pickle it.


@dataclass(frozen=True)
class _Files:
    folder: Path
    names: Sequence[str]

    def __call__(self, row: int) -> "Image":
        return open_image(self.folder / self.names[row])


@dataclass(frozen=True)
class _Arrays:
    grey: np.ndarray  # (N, H, W) uint8

    def __call__(self, row: int) -> "Image":
        from PIL import Image

        return Image.fromarray(self.grey[row]).convert("RGB")


@dataclass(frozen=True)
class _Cells:
    """A column of a Hub dataset, whose cells hold the bytes of a file or its path."""

    rows: Any
    column: str
    origin: str

    def __call__(self, row: int) -> "Image":
        cell = self.rows[row][self.column]
        content = cell["path"] if cell["bytes"] is None else io.BytesIO(cell["bytes"])
        return open_image(content, name=f"{self.origin}[{row}]")


@dataclass(frozen=True)
class _Subset:
    whole: Callable[[int], "Image"]
    rows: np.ndarray

    def __call__(self, row: int) -> "Image":
        return self.whole(int(self.rows[row]))
