"""Image classification as a task of the training engine.

Shapes: B batch, H x W pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from huggingface_hub import ModelCard
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_vanilla.data.batching import RowOrder
from hf_vanilla.data.image_models import label_fields, normalised
from hf_vanilla.data.images import ImageError
from hf_vanilla.models.configuration_vanilla_vit import VanillaVitConfig
from hf_vanilla.models.modeling_vanilla_vit import VanillaForImageClassification
from hf_vanilla.training.processes import sum_over_processes, validation_bar
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import (
    Batch,
    Validation,
    Work,
    data_fingerprint,
    micro_batch_size,
)

from .batches import IGNORED_LABEL, ImageReader, augment
from .card import image_card
from .data import FINGERPRINT_FILE, Images, prepare_images, unreadable_images
from .options import ImageDataOptions
from .trainer import with_new_head


def prepare(recipe: Recipe) -> "ImageClassificationTask":
    """Find the images of a recipe and measure them.

    Raises:
        ValueError: the images do not match the recipe.
        OSError: nothing is found under a name.
    """
    return ImageClassificationTask(recipe, prepare_images(recipe))


@dataclass(frozen=True)
class ImageClassificationTask:
    """A prepared run of image classification; see `hf_vanilla.training.task.Task`.

    Attributes:
        recipe: data, model and training.
        images: training and validation images with their statistics.
    """

    recipe: Recipe
    images: Images
    items: ClassVar[str] = "images"
    counted: ClassVar[tuple[str, ...]] = ("images",)
    shown_count: ClassVar[str] = "images"
    has_few_shapes: ClassVar[bool] = True

    @property
    def options(self) -> ImageDataOptions:
        """The recipe's data options."""
        return self.recipe.data

    @property
    def has_validation(self) -> bool:
        """Whether there are validation images."""
        return self.images.validation is not None

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one step."""
        return self.options.images_per_step // self.options.images_per_batch

    def model(self) -> PreTrainedModel:
        """A model for the classes of the training images, new or from the initial model."""
        names = self.images.train.images.label_names
        config = self.recipe.config(**label_fields(names))
        start = self.recipe.train.initial_model
        if start is not None:
            return with_new_head(start, names, config)
        return VanillaForImageClassification(config)

    def facts(self) -> dict[str, str]:
        """Fingerprints of the images, and the classes."""
        facts = {"classes": ", ".join(self.images.train.images.label_names[:1000])}
        parts = {"training": self.images.train, "validation": self.images.validation}
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
        size = micro_batch_size("images_per_step", self.options.images_per_step, per_step)
        return RowOrder(len(self.images.train.images), size, self.recipe.train.seed, "images")

    def batch(self, rows: list[int], generator: torch.Generator) -> Batch:
        """Read, augment and normalise: `pixel_values` `(B, 3, H, W)`, `labels` `(B,)` int64."""
        pixels, labels = self.images.train.read(rows)
        changed = augment(pixels.float() / 255, self.options, generator)
        return {
            "pixel_values": normalised(changed, *self.images.statistics),
            "labels": labels,
        }

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

    def derived(self, values: dict[str, float]) -> dict[str, float]:
        """Nothing follows from the logged values."""
        return {}

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
        self,
        model: PreTrainedModel,
        accelerator: Accelerator,
        *,
        is_final: bool,
    ) -> Validation:
        """Accuracy of the first and of the first five labels, and NLL, over all images.

        Raises:
            ImageError: not one of them is readable.
        """
        reader = self.images.validation
        assert reader is not None
        rows = range(accelerator.process_index, len(reader.images), accelerator.num_processes)
        sums = torch.zeros(4, dtype=torch.float64)
        size = self.options.images_per_batch
        for first in validation_bar(accelerator, range(0, len(rows), size)):
            selected = rows[first : first + size]
            sums += self._scores(model, reader, list(selected), accelerator.device)
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

    def _scores(
        self, model: PreTrainedModel, reader: ImageReader, rows: list[int], device: torch.device
    ) -> Tensor:
        """`(4,)`: images right, right among five, nats, and images."""
        pixels, labels = reader.read(rows)
        images = normalised(pixels.float() / 255, *self.images.statistics)
        logits = model(images.to(device)).logits.float().cpu()
        is_known = labels.ne(IGNORED_LABEL)
        logits, labels = logits[is_known], labels[is_known]
        best = logits.topk(min(5, logits.shape[1])).indices.eq(labels.unsqueeze(1))
        nats = nn.functional.cross_entropy(logits, labels, reduction="sum")
        numbers = (best[:, 0].sum(), best.sum(), nats, len(labels))
        return torch.tensor([float(number) for number in numbers], dtype=torch.float64)

    def save(self, folder: Path) -> None:
        """Write the image processor, and the fingerprints that a resumed run compares."""
        self.images.processor.save_pretrained(folder)
        np.save(folder / FINGERPRINT_FILE, self.images.train.images.fingerprints)

    def card(self, facts: Mapping[str, Any], validation: Validation | None) -> ModelCard:
        """The model card with data, classes and accuracy."""
        train = self.images.train.images
        left_out = unreadable_images((self.images.train, self.images.validation))
        return image_card(
            **{**facts, "training": facts["training"] + left_out},
            dataset=Path(self.options.dataset).resolve().name,
            classes=train.label_names,
            scores=None if validation is None else validation.values,
        )


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
