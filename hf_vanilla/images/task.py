"""Image classification as a task of the training engine.

Shapes: B batch, H x W pixels.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from huggingface_hub import ModelCard
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_vanilla.data.batching import RowOrder
from hf_vanilla.data.image_models import (
    check_channels,
    check_processor,
    label_fields,
    load_image_processor,
    log_sets,
    normalised,
)
from hf_vanilla.data.images import (
    BUILT_IN_DIGITS,
    VALIDATION_NAMES,
    ImageError,
    LabelledImages,
    check_classes,
    load_images,
)
from hf_vanilla.hub.card import model_card
from hf_vanilla.models.configuration_vanilla_vit import VanillaVitConfig
from hf_vanilla.models.modeling_vanilla_vit import SINGLE, VanillaForImageClassification
from hf_vanilla.training.processes import sum_over_processes, validation_bar
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import Batch, RowTask, Validation, Work, data_fingerprint

from .batches import IGNORED_LABEL, ImageReader, augment, image_processor, pixel_statistics
from .card import CARD
from .options import ImageDataOptions
from .trainer import with_new_head

logger = logging.getLogger(__name__)

FINGERPRINT_FILE = "image_fingerprints.npy"
HELD_OUT_SEED = 5


def prepare(recipe: Recipe) -> "ImageClassificationTask":
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
    how: dict[str, Any] = {"stop_at_errors": options.stop_at_unreadable}
    if start is not None:
        processor = load_image_processor(start)
        check_processor(processor)
        processor.size = {"height": size[0], "width": size[1]}
        processor.do_center_crop = False  # training resizes the whole image, so use does too
        how["resample"] = int(processor.resample)
    reader = ImageReader(train, size, **how)
    if start is None:
        processor = image_processor(size, *pixel_statistics(reader))
    log_sets(train, validation)
    unseen = None if validation is None else ImageReader(validation, size, **how)
    return ImageClassificationTask(recipe, reader, unseen, processor)


def training_and_validation(
    options: ImageDataOptions,
) -> tuple[LabelledImages, LabelledImages | None]:
    """The two parts of the data.

    Raises:
        ValueError: validation images have no label or a class that training images lack, or the
            data have no such split or no other images in it.
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
            count = round(len(train) * options.validation_share)
            if not count:
                return train, None
            rows = np.random.default_rng(HELD_OUT_SEED).permutation(len(train))
            return train.subset(np.sort(rows[count:])), train.subset(np.sort(rows[:count]))
    split = validation_split or ("train" if source == BUILT_IN_DIGITS else "validation")
    validation = load_images(source, split, **columns).relabelled(train.label_names)
    is_other = options.validation is not None or split == train_split
    if not is_other and np.array_equal(validation.fingerprints, train.fingerprints):
        raise ValueError(
            f"validation_split={split!r}: {options.dataset} has no such split, or it holds the "
            "training images: give validation or validation_share"
        )
    return train, validation


def check_unchanged(train: LabelledImages, output_dir: Path) -> None:
    """Refuse to resume a run whose training images changed.

    Raises:
        ValueError: some differ; the message counts them.
    """
    path = output_dir / FINGERPRINT_FILE
    if not path.is_file():
        return
    before, now = (
        Counter(prints.tolist())
        for prints in (np.load(path, allow_pickle=False), train.fingerprints)
    )
    if changed := max((before - now).total(), (now - before).total()):
        raise ValueError(
            f"{changed:,} of {len(train):,} images of {train.origin} changed since the run in "
            f"{output_dir} began: restore them, or choose another output_dir"
        )


@dataclass(frozen=True)
class ImageClassificationTask(RowTask):
    """A prepared run of image classification; see `hf_vanilla.training.task.Task`.

    Attributes:
        train: reads training images.
        validation: reads validation images; None where there are none.
        processor: transformers' image processor, with the statistics of the training images or
            of the initial model.
    """

    train: ImageReader
    validation: ImageReader | None
    processor: Any
    items: ClassVar[str] = "images"
    counted: ClassVar[tuple[str, ...]] = ("images",)
    shown_count: ClassVar[str] = "images"
    has_few_shapes = True

    def model(self) -> PreTrainedModel:
        """A model for the classes of the training images, new or from the initial model."""
        names = self.train.images.label_names
        config = self.recipe.config(**label_fields(names))
        start = self.recipe.train.initial_model
        if start is not None:
            if config.problem_type != SINGLE:
                config.problem_type = None  # each image has one label, whatever the model had
            return with_new_head(start, names, config)
        return VanillaForImageClassification(config)

    def facts(self) -> dict[str, str]:
        """Fingerprints of the images, and the classes."""
        facts = {"classes": ", ".join(self.train.images.label_names[:1000])}
        parts = {"training": self.train, "validation": self.validation}
        for part, reader in parts.items():
            if reader is not None:
                read = reader.images
                digest = data_fingerprint(len(read), read.fingerprints, read.labels)
                facts[f"{part} images"] = digest
        return facts

    def order(self, per_step: int) -> RowOrder:
        """Cut the images of a step into `per_step` equal micro-batches.

        Raises:
            ValueError: they cannot be cut so.
        """
        size = self.micro_batch_size(per_step)
        return RowOrder(len(self.train.images), size, self.recipe.train.seed)

    def batch(self, rows: list[int], generator: torch.Generator) -> Batch:
        """Read, augment and normalise: `pixel_values` `(B, 3, H, W)`, `labels` `(B,)` int64."""
        pixels, labels = self.train.read(rows)
        changed = augment(pixels.float() / 255, self.options, generator)
        return {"pixel_values": normalised(changed, self.processor), "labels": labels}

    def counts(self, batch: Batch) -> Sequence[int]:
        """Readable images."""
        return [int(batch["labels"].ne(IGNORED_LABEL).sum())]

    def losses(
        self, model: nn.Module, batch: Batch, totals: Tensor, *, is_logged: bool
    ) -> dict[str, Tensor]:
        """Nats per image of the step; where it is logged, its accuracy and unreadable images."""
        images = totals[0].clamp(min=1)  # all images of a step may be unreadable
        outputs = model(**batch, num_items_in_batch=images)
        if not is_logged:
            return {"loss": outputs.loss}
        is_right = outputs.logits.argmax(-1) == batch["labels"]
        return {
            "loss": outputs.loss,
            "train_accuracy": 100 * is_right.sum() / images,
            "unreadable_images": batch["labels"].eq(IGNORED_LABEL).sum().float(),
        }

    def work(self, config: VanillaVitConfig, batch: Batch) -> Work:
        """Images, patches with their class tokens, operations."""
        images = len(batch["labels"])
        rows, columns = config.grid
        positions = images * (1 + rows * columns)
        return Work(
            items=images,
            real_positions=positions,
            padded_positions=positions,
            flops=images * training_flops(config),
        )

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Accuracy of the first and of the first five labels, and NLL, over all images.

        Raises:
            ImageError: not one of them is readable.
        """
        reader = self.validation
        assert reader is not None
        rows = range(accelerator.process_index, len(reader.images), accelerator.num_processes)
        sums = torch.zeros(4, dtype=torch.float64)  # right, right among five, nats, and images
        size = self.options.images_per_batch
        for first in validation_bar(accelerator, range(0, len(rows), size)):
            pixels, labels = reader.read(rows[first : first + size])
            images = normalised(pixels.float() / 255, self.processor)
            logits = model(images.to(accelerator.device)).logits.float().cpu()
            is_known = labels.ne(IGNORED_LABEL)
            logits, labels = logits[is_known], labels[is_known]
            best = logits.topk(min(5, logits.shape[1])).indices.eq(labels.unsqueeze(1))
            nats = nn.functional.cross_entropy(logits, labels, reduction="sum")
            numbers = (best[:, 0].sum(), best.sum(), nats, len(labels))
            sums += torch.tensor([float(number) for number in numbers], dtype=torch.float64)
        right, in_five, nats, count = sum_over_processes(accelerator, sums)
        if not count:
            raise ImageError(f"no image of {reader.images.origin} is readable: replace them")
        return Validation(
            {
                "accuracy": float(100 * right / count),
                "nll": float(nats / count),
                "top5_accuracy": float(100 * in_five / count),
            }
        )

    def save(self, folder: Path) -> None:
        """Write the image processor, and the fingerprints that a resumed run compares."""
        self.processor.save_pretrained(folder)
        np.save(folder / FINGERPRINT_FILE, self.train.images.fingerprints)

    def card(self, facts: Mapping[str, Any], validation: Validation | None) -> ModelCard:
        """The model card with data, classes and accuracy; warns of images that were left out."""
        training = facts["training"]
        for reader in (self.train, self.validation):
            if reader is not None and (left_out := reader.left_out()):
                logger.warning("%s", left_out)
                training += f" {left_out}."
        facts = {
            **facts,
            "training": training,
            "dataset": Path(self.options.dataset).resolve().name,
            "classes": self.train.images.label_names,
        }
        if validation is not None:
            values = validation.values
            facts["scores"] = (
                f"accuracy {values['accuracy']:.2f} %, among the first five "
                f"{values['top5_accuracy']:.2f} %, {values['nll']:.4f} nats per image"
            )
            facts["metrics"] = {"accuracy": (round(values["accuracy"] / 100, 4), None)}
        return model_card(replace(CARD, **facts))


def training_flops(config: VanillaVitConfig) -> int:
    """Floating-point operations of the matrix products of one image, forward and backward.

    As for text: 6 operations for each weight and position, and for each product of two states. The
    last layer computes queries, output and feed-forward network of the class token alone.
    """
    rows, columns = config.grid
    length, width, fed = 1 + rows * columns, config.d_model, config.encoder_ffn_dim
    height_of_patch, width_of_patch = config.patch_height_width
    patches = rows * columns * width * config.num_channels * height_of_patch * width_of_patch

    def layer(queries: int) -> int:
        keys = 2 * width * width * length
        return keys + queries * (2 * width * width + 2 * width * fed + 2 * width * length)

    head = width * config.num_labels
    return 6 * (patches + (config.encoder_layers - 1) * layer(length) + layer(1) + head)
