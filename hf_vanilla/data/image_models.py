"""What classifier and detector share: loading, files in batches, attention, their commands."""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import AutoImageProcessor, PreTrainedModel

from hf_vanilla.families import load_part, task_entry
from hf_vanilla.files import whole_file
from hf_vanilla.loading import device_named, load_model, load_saved, read_settings
from hf_vanilla.options import (
    Options,
    UsageError,
    option,
    options_and_paths,
    parse_options,
    progress_bar,
)

from .images import IMAGE_SUFFIXES, ImageError, images_below, is_image_name, open_image

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
BILINEAR = 2  # Pillow's number of the interpolation


def load_image_model(
    name: str, task: str, *, remedy: str, device: str | None = None
) -> tuple[Any, Any]:
    """A model in evaluation mode, and its image processor.

    Args:
        name: folder or Hub id.
        task: that the model is for.
        remedy: what to give instead of a model of another type.
        device: such as `"cpu"`; None: a GPU if there is one.

    Raises:
        ValueError: it is another type of model, damaged, or has no image processor.
        OSError: nothing is found under that name.
    """
    entry = task_entry(task)
    if (kind := read_settings(name).get("model_type")) not in entry.model_types:
        raise ValueError(f"{name} is a model of type {kind!r}: {remedy}")
    processor = load_image_processor(name)
    place = device_named(device)
    return load_model(load_part(entry.auto_class), name).to(place), processor


def load_image_processor(name: str) -> Any:
    """The image processor of a folder or Hub id.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    try:
        return load_saved(AutoImageProcessor, name)
    except OSError:
        raise ValueError(
            f"{name} has no image processor: put its preprocessor_config.json beside it"
        ) from None


def resized_pixels(image: "Image", size: tuple[int, int], resample: int = BILINEAR) -> Tensor:
    """An RGB image as `(3, H, W)` uint8, resized to height and width as image processors do."""
    from PIL import Image

    height, width = size
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling(resample))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)  # (H, W, 3) -> (3, H, W)


def normalised(images: Tensor, processor: Any) -> Tensor:
    """`(..., 3, H, W)` in [0, 1] with mean and deviation as the image processor makes them."""
    statistics = (processor.image_mean, processor.image_std)
    shift, scale = (torch.tensor(values).view(-1, 1, 1) for values in statistics)
    return (images - shift) / scale


@dataclass(frozen=True)
class FileResult(Generic[Result]):
    """Result of a model for one image file.

    Attributes:
        name: path of the image.
        result: None where the image is unreadable.
        error: why it is unreadable; None where it is not.
    """

    name: str
    result: Result | None = None
    error: str | None = None


def results_of_files(
    paths: Iterable[str],
    results_of: "Callable[[Iterator[Image]], Sequence[Result]]",
    *,
    batch_size: int,
) -> Iterator[FileResult[Result]]:
    """One result for each path, in their order; an unreadable file gets its error.

    Args:
        paths: of image files.
        results_of: one result for each image of a batch. Its images are opened one after another,
            so that only what it stores of them is in memory together.
        batch_size: files at a time.
    """
    remaining = iter(paths)
    while batch := list(islice(remaining, batch_size)):
        errors: dict[str, str] = {}
        results = iter(results_of(_opened(batch, errors)))
        for path in batch:
            error = errors.get(path)
            yield FileResult(path, next(results) if error is None else None, error)


def _opened(paths: Iterable[str], errors: dict[str, str]) -> "Iterator[Image]":
    """The readable images; of the others the errors, by path."""
    for path in paths:
        try:
            image = open_image(path)
        except FileNotFoundError:
            errors[path] = f"{path}: no such file"
        except IsADirectoryError:
            errors[path] = f"{path} is a folder: give files, or the folder as an argument"
        except ImageError as error:
            errors[path] = str(error)
        else:
            yield image


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Attention by the implementation that returns weights, until the end of the block."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def label_fields(label_names: Sequence[str]) -> dict[str, dict[Any, Any]]:
    """`id2label` and `label2id` of a config with these classes.

    Raises:
        ValueError: it is one text, of which each letter would be a class, or empty.
    """
    if isinstance(label_names, str) or not len(label_names):
        raise ValueError(f"label_names={label_names!r}: give a list of names")
    names = dict(enumerate(label_names))
    return {"id2label": names, "label2id": {name: index for index, name in names.items()}}


def check_channels(num_channels: int) -> None:
    """Refuse to train a model of another number of channels than images are read in.

    Raises:
        ValueError: it is not 3.
    """
    if num_channels != 3:
        raise ValueError(
            f"model.num_channels={num_channels}: images are read in three channels, grey ones in "
            "three equal channels; leave it out"
        )


def check_processor(processor: Any, resample: int | None = None) -> None:
    """Refuse an image processor whose pixels training would not reproduce.

    Args:
        processor: of a saved model.
        resample: the only interpolation, by Pillow's number; None: any.

    Raises:
        ValueError: it does not resize, scale to [0, 1] or normalise, or interpolates otherwise.
    """
    check_steps(processor, "training", **({} if resample is None else {"resample": resample}))
    if abs(255 * processor.rescale_factor - 1) > 1e-6:
        raise ValueError(
            f"the image processor has rescale_factor={processor.rescale_factor}: training has 1/255"
        )


def check_steps(processor: Any, reader: str, **others: Any) -> None:
    """Refuse an image processor that does not resize, rescale and normalise.

    Args:
        processor: of a saved model.
        reader: what needs it, for the message.
        **others: further fields that it needs, with their values.

    Raises:
        ValueError: a field has another value, or one of a step has none.
    """
    steps: dict[str, Any] = {"do_resize": True, "do_rescale": True, "do_normalize": True}
    for name, only in (steps | others).items():
        if (value := getattr(processor, name)) != only:
            raise ValueError(
                f"the image processor has {name}={value!r}: {reader} needs {only!r}; set it in "
                "preprocessor_config.json, if the model was trained so"
            )
    for name in ("resample", "rescale_factor", "image_mean", "image_std"):
        if getattr(processor, name) is None:
            raise ValueError(
                f"the image processor has {name}=None: set it in preprocessor_config.json"
            )


def log_sets(train: Any, validation: Any) -> None:
    """Log the numbers of images and classes of a run; None: there are no validation images."""
    logger.info(
        "%d training images of %d classes, %s for validation",
        *(len(train), len(train.label_names), "none" if validation is None else len(validation)),
    )


# --- commands: paths on the command line, and the output -----------------------------------------

STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class ImageFilesOptions(Options):
    """What the commands that read images of PATHS have in common."""

    model: str = option(text="model folder or Hub id")
    output: str | None = option(None, "file to write; default: stdout")
    device: str | None = option(None, "such as cpu; default: a GPU if there is one")
    stop_at_unreadable: bool = option(
        False, "end at the first unreadable image instead of reporting it"
    )


@dataclass(frozen=True)
class ImageRequest:
    """A parsed command line: the command's options, and paths of files and folders."""

    options: Any
    paths: tuple[str, ...]


def read_image_request(options: type, arguments: Sequence[str]) -> ImageRequest:
    """Options and paths of a command line, in any order; a single `-` reads paths from stdin.

    Args:
        options: dataclass of the command.
        arguments: of the command line.

    Raises:
        UsageError: an option is unknown or missing, there is no path, or the output is an image.
        FileNotFoundError: a path does not exist.
    """
    given, paths = options_and_paths(options, arguments)
    parsed = parse_options(options, given)
    if not paths:
        raise UsageError("missing: paths of images or folders, or - to read them from stdin")
    for path in paths:
        if path != STDIN and not os.path.exists(path):
            raise FileNotFoundError(f"{path}: no such file or folder")
    if parsed.output is not None and is_image_name(os.path.basename(parsed.output)):
        raise UsageError(f"output={parsed.output}: give the name of a text file, not of an image")
    return ImageRequest(parsed, tuple(paths))


def image_paths(paths: Iterable[str]) -> Iterator[str]:
    """Paths of images: files as given, folders at any depth sorted by name, `-` from stdin."""
    for path in paths:
        if path == STDIN:
            yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
        elif os.path.isdir(path):
            yield from images_below(path)
        else:
            yield path


@contextmanager
def output_and_results(
    request: ImageRequest, results_of: "Callable[[Iterator[Image]], Sequence[Any]]"
) -> Iterator[tuple[TextIO, Iterator[FileResult]]]:
    """Stdout, or a file that is written completely or not at all; and the results to write.

    Warns of unreadable images while results pass, and logs their number at the end.

    Args:
        request: of the command.
        results_of: as for `results_of_files`.

    Raises:
        ImageError: an image is unreadable: after the output, or at once if `request` says so; or
            the folders have no images.
    """
    unreadable: list[str] = []
    paths: Iterable[str] = image_paths(request.paths)
    if STDIN not in request.paths:
        paths = list(paths)  # without images that are written into the folders from now on
    results = results_of_files(paths, results_of, batch_size=request.options.batch_size)
    with ExitStack() as stack:
        file = sys.stdout
        if request.options.output is not None:
            unfinished = stack.enter_context(whole_file(Path(request.options.output)))
            file = stack.enter_context(open(unfinished, "w", encoding="utf-8", newline=""))
        yield file, _reported(results, unreadable, request)
    if unreadable:
        raise ImageError(f"unreadable images: {len(unreadable)}, the first is {unreadable[0]}")


def _reported(
    results: Iterable[FileResult], unreadable: list[str], request: ImageRequest
) -> Iterator[FileResult]:
    count = 0
    is_listed = request.options.output is None and sys.stdout.isatty()  # lines are shown instead
    for result in progress_bar(results, text="Reading", unit="images", is_hidden=is_listed):
        count += 1
        if result.error is not None:
            if request.options.stop_at_unreadable:
                raise ImageError(result.error)
            unreadable.append(result.name)
            logger.warning("%s", result.error)
        yield result
    if not count and STDIN not in request.paths:
        endings = ", ".join(sorted(IMAGE_SUFFIXES))
        raise ImageError(f"{', '.join(request.paths)}: no files ending in {endings}")
    logger.info("images: %s, unreadable: %s", f"{count:,}", f"{len(unreadable):,}")
