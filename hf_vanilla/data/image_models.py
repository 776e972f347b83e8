"""What the classifier and the detector share: loading, files in batches, attention weights."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from transformers import AutoImageProcessor, PreTrainedModel

from hf_vanilla.loading import load_model, load_saved, read_settings

from .image_files import ImageError, open_image

if TYPE_CHECKING:
    from PIL.Image import Image

Result = TypeVar("Result")


def load_image_model(
    name: str, auto_class: Any, *, model_type: str, remedy: str, device: str | None = None
) -> tuple[Any, Any]:
    """A model in evaluation mode, and its image processor.

    Args:
        name: folder or Hub id.
        auto_class: transformers' class for the task.
        model_type: of its config.
        remedy: what to give instead of a model of another type.
        device: such as `"cpu"`; None: a GPU if there is one.

    Raises:
        ValueError: it is another kind of model, damaged, or has no image processor.
        OSError: nothing is found under that name.
    """
    if (kind := read_settings(name).get("model_type")) != model_type:
        raise ValueError(f"{name} is a model of type {kind!r}: {remedy}")
    processor = load_image_processor(name)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return load_model(auto_class, name).to(device), processor


def load_image_processor(name: str) -> Any:
    """The image processor of a folder or Hub id.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    try:
        return load_saved(AutoImageProcessor, name)
    except OSError:
        raise ValueError(
            f"{name} has no image processor: put the preprocessor_config.json of its training "
            "beside it"
        ) from None


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
        errors: dict[str, ImageError] = {}
        results = iter(results_of(_opened(batch, errors)))
        for path in batch:
            if path in errors:
                yield FileResult(path, error=str(errors[path]))
            else:
                yield FileResult(path, next(results))


def _opened(paths: Iterable[str], errors: dict[str, ImageError]) -> "Iterator[Image]":
    """The readable images; of the others the errors, by path."""
    for path in paths:
        try:
            image = open_image(path)
        except FileNotFoundError:
            errors[path] = ImageError(f"{path}: no such file")
        except ImageError as error:
            errors[path] = error
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
    """`id2label` and `label2id` of a config with these classes."""
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
    needed: dict[str, Any] = {"do_resize": True, "do_rescale": True, "do_normalize": True}
    needed |= {} if resample is None else {"resample": resample}
    for name, only in needed.items():
        if (value := getattr(processor, name)) != only:
            raise ValueError(
                f"the image processor has {name}={value!r}: training needs {only!r}; set it in "
                "preprocessor_config.json, if the model was trained so"
            )
    if abs(255 * processor.rescale_factor - 1) > 1e-6:
        raise ValueError(
            f"the image processor has rescale_factor={processor.rescale_factor}: training scales "
            "by 1/255"
        )
