"""Images of a training run: reading, validation part, statistics, and what a resume compares."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_vanilla.data.image_models import (
    check_channels,
    check_processor,
    load_image_processor,
    log_sets,
)
from hf_vanilla.data.images import (
    BUILT_IN_DIGITS,
    VALIDATION_NAMES,
    LabelledImages,
    changed_images,
    check_classes,
    load_images,
)
from hf_vanilla.training.recipe import Recipe

from .batches import ImageReader, image_processor, pixel_statistics
from .options import ImageDataOptions

logger = logging.getLogger(__name__)

FINGERPRINT_FILE = "image_fingerprints.npy"
HELD_OUT_SEED = 5


@dataclass(frozen=True)
class Images:
    """Everything a run of image classification reads.

    Attributes:
        train: reads training images.
        validation: reads validation images; None where there are none.
        processor: transformers' image processor, with the statistics of the training images or
            of the initial model.
    """

    train: ImageReader
    validation: ImageReader | None
    processor: Any

    @property
    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel, of values in [0, 1]."""
        return self.processor.image_mean, self.processor.image_std


def prepare_images(recipe: Recipe) -> Images:
    """Find training and validation images, check their classes, measure the training images.

    Raises:
        ValueError: the images do not match the recipe, or an earlier run in its folder.
        OSError: nothing is found under a name.
    """
    options: ImageDataOptions = recipe.data
    config = recipe.config()
    check_channels(config.num_channels)
    train, validation = training_and_validation(options)
    check_classes(train)
    check_unchanged(train, Path(recipe.train.output_dir))
    size, start = config.image_height_width, recipe.train.initial_model
    processor = None if start is None else _initial_processor(start, size)
    how: dict[str, Any] = {"stop_at_errors": options.stop_at_unreadable}
    if processor is not None:
        how["resample"] = int(processor.resample)
    reader = ImageReader(train, size, **how)
    if processor is None:
        processor = image_processor(size, *pixel_statistics(reader))
    log_sets(train, validation)
    return Images(
        reader,
        None if validation is None else ImageReader(validation, size, **how),
        processor,
    )


def _initial_processor(start: str, size: tuple[int, int]) -> Any:
    """The image processor of the initial model, for images of a size."""
    processor = load_image_processor(start)
    check_processor(processor)
    processor.size = {"height": size[0], "width": size[1]}
    processor.do_center_crop = False  # training resizes the whole image, so use does too
    return processor


def training_and_validation(
    options: ImageDataOptions,
) -> tuple[LabelledImages, LabelledImages | None]:
    """The two parts of the data.

    Raises:
        ValueError: validation images have no label or a class that training images lack, or the
            data have no such split.
        OSError: nothing is found under a name.
    """
    columns = {"image_column": options.image_column, "label_column": options.label_column}
    is_digits = options.dataset == BUILT_IN_DIGITS
    train_split = options.train_split or ("first_half" if is_digits else "train")
    train = load_images(options.dataset, train_split, **columns)
    source, validation_split = options.validation or options.dataset, options.validation_split
    if validation_split is None and options.validation is None:
        folders = (name for name in VALIDATION_NAMES if (Path(options.dataset) / name).is_dir())
        validation_split = "second_half" if is_digits else next(folders, None)
        if validation_split is None:
            return _with_held_out(train, options.validation_share)
    split = validation_split or ("train" if source == BUILT_IN_DIGITS else "validation")
    validation = load_images(source, split, **columns, label_names=train.label_names).relabelled(
        train.label_names
    )
    is_other = options.validation is not None or split == train_split
    if not is_other and np.array_equal(validation.fingerprints, train.fingerprints):
        raise ValueError(
            f"validation_split={split!r}: {train.origin} has no such split, and would be validated "
            "on its training images: give validation or validation_share"
        )
    return train, validation


def unreadable_images(readers: Iterable[ImageReader | None]) -> str:
    """Warn of the images that were left out; returns the sentences for the model card."""
    messages = [message for reader in readers if reader and (message := reader.left_out())]
    for message in messages:
        logger.warning("%s", message)
    return "".join(f" {message}." for message in messages)


def check_unchanged(train: LabelledImages, output_dir: Path) -> None:
    """Refuse to resume a run whose training images changed.

    Raises:
        ValueError: some differ; the message counts them.
    """
    path = output_dir / FINGERPRINT_FILE
    if not path.is_file():
        return
    changed = changed_images(np.load(path, allow_pickle=False).tolist(), train.fingerprints)
    if changed:
        raise ValueError(
            f"{changed:,} of {len(train):,} images of {train.origin} changed since the run in "
            f"{output_dir} began: restore them, or choose another output_dir"
        )


def _with_held_out(
    train: LabelledImages, share: float
) -> tuple[LabelledImages, LabelledImages | None]:
    """Training images with a random share of them kept for validation."""
    count = round(len(train) * share)
    if not count:
        return train, None
    rows = np.random.default_rng(HELD_OUT_SEED).permutation(len(train))
    return train.subset(np.sort(rows[count:])), train.subset(np.sort(rows[:count]))
