"""Object detection as a task of the training engine.

Shapes: B batch, H x W pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from huggingface_hub import ModelCard
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_vanilla.data.batching import RowOrder
from hf_vanilla.data.image_models import (
    BILINEAR,
    check_channels,
    check_processor,
    label_fields,
    load_image_processor,
    log_sets,
)
from hf_vanilla.data.images import BUILT_IN_DIGITS
from hf_vanilla.hub.card import model_card
from hf_vanilla.models.backbone_vanilla_detr import load_backbone
from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.loss_vanilla_detr import NO_LABEL
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import Batch, RowTask, Validation, Work

from .card import CARD
from .coco_scores import coco_classes, detected_in, score_detections
from .detection import (
    DetectionCollator,
    DetectionImages,
    augmented,
    detection_processor,
    detection_row,
)
from .detector import Detector
from .digit_scenes import DIGIT_SCENES, VALIDATION_SEED, DigitScenes, digit_scenes
from .options import DetectionData
from .report import box_form_hint, check_files
from .sources import load_detection_images
from .trainer import processor_edges, with_class_head

LOGGED_FIGURES = ("AP", "AP50", "AP75", "AR_100")
LOGGED_PARTS = ("loss_ce", "loss_bbox", "loss_giou")


def training_and_validation(
    recipe: Recipe,
) -> tuple[DetectionImages | DigitScenes, DetectionImages | None]:
    """Read the boxes of a recipe, and refuse what no detector can be trained on.

    Raises:
        ValueError: the data do not match the recipe.
        OSError: nothing is found under a name.
    """
    options: DetectionData = recipe.data
    config = recipe.config()
    check_channels(config.num_channels)
    is_new = recipe.train.initial_model is None
    if is_new and config.backbone_is_pretrained != (options.backbone is not None):
        raise ValueError(
            f"model.backbone_is_pretrained={config.backbone_is_pretrained}, but backbone="
            f"{options.backbone}: name a pretrained backbone, such as microsoft/resnet-50, or set "
            "model.backbone_is_pretrained=false and train it from random weights"
        )
    if options.dataset == DIGIT_SCENES:
        names, is_built_in = options.digit_classes, options.digits == BUILT_IN_DIGITS
        first, second = ("first_half", "second_half") if is_built_in else ("train", "train")
        scenes = digit_scenes(options.digits, first, classes=names, seed=recipe.train.seed)
        unseen = digit_scenes(BUILT_IN_DIGITS, second, classes=names, seed=VALIDATION_SEED)
        return scenes, unseen.images(options.validation_scenes)
    train = load_detection_images(options.dataset, images=options.images, split=options.train_split)
    check_trainable(train, config.num_queries)
    validation = None
    if options.validation is not None or options.validation_split is not None:
        validation = load_detection_images(
            options.validation or options.dataset,
            images=options.validation_images,
            split=options.validation_split or "validation",
        ).relabelled(train.label_names)
        check_files(validation)
        if (
            options.validation is None
            and options.validation_split != options.train_split
            and validation.fingerprint == train.fingerprint
        ):
            raise ValueError(
                f"validation_split={options.validation_split!r}: {train.origin} has no such split, "
                "or it holds the training images: give validation"
            )
    log_sets(train, validation)
    return train, validation


def check_trainable(images: DetectionImages, num_queries: int) -> None:
    """Refuse data that no detector can be trained on.

    Raises:
        ValueError: there is no object, an image has more objects than queries, or boxes are given
            as shares or corners where left, top, width, height in pixels are expected, or images
            are unreadable or of another size than their annotations.
        FileNotFoundError: images do not exist.
    """
    check_files(images)
    counts = [len(entry.trained_on) for entry in images.objects]
    if not sum(counts):
        raise ValueError(
            f"{images.origin} has no object to train on (crowds and boxes without area do not "
            "count): check the annotations with hf-vanilla inspect-data"
        )
    if max(counts) > num_queries:
        row = counts.index(max(counts))
        raise ValueError(
            f"{images.names[row]} has {counts[row]} objects, but the model has {num_queries} "
            "queries: give a new model a larger model.num_queries, or leave such images out"
        )
    if hint := box_form_hint(images):
        raise ValueError(f"{images.origin}: {hint}")


def prepare(recipe: Recipe) -> "ObjectDetectionTask":
    """Read the boxes of a recipe's images and check them.

    Raises:
        ValueError: the data do not match the recipe.
        OSError: nothing is found under a name.
        ImportError: there are validation images, and faster-coco-eval is not installed.
    """
    options, start = recipe.data, recipe.train.initial_model
    train, validation = training_and_validation(recipe)
    if validation is not None:
        coco_classes()  # or the first validation ends the run
    edges = options.shortest_edge, options.longest_edge
    if start is None:
        return ObjectDetectionTask(recipe, train, validation, detection_processor(*edges))
    processor = load_image_processor(start)
    check_processor(processor, resample=BILINEAR)
    saved = processor_edges(processor)
    if edges not in (saved, (DetectionData.shortest_edge, DetectionData.longest_edge)):
        raise ValueError(
            f"shortest_edge={edges[0]} and longest_edge={edges[1]}: initial_model={start!r} reads "
            f"images of {saved[0]} and {saved[1]}: leave both out"
        )
    return ObjectDetectionTask(recipe, train, validation, processor)


@dataclass(frozen=True)
class ObjectDetectionTask(RowTask):
    """A prepared run of object detection; see `hf_vanilla.training.task.Task`.

    Attributes:
        train: training images of files, or generated scenes.
        validation: validation images; None where there are none.
        processor: transformers' image processor.
    """

    train: DetectionImages | DigitScenes
    validation: DetectionImages | None
    processor: Any
    items: ClassVar[str] = "images"
    counted: ClassVar[tuple[str, ...]] = ("objects", "images")
    shown_count: ClassVar[str] = "images"

    def model(self) -> PreTrainedModel:
        """A model for the classes of the training images, on the backbone or the initial model.

        Raises:
            ValueError: the backbone is of another kind or size than the config says.
            OSError: nothing is found under its name.
        """
        names = self.train.label_names
        config = self.recipe.config(**label_fields(names))
        start = self.recipe.train.initial_model
        if start is not None:
            return with_class_head(start, names, config)
        model = VanillaForObjectDetection(config)
        if self.options.backbone is not None:
            load_backbone(model.model.backbone, self.options.backbone)
        return model

    def facts(self) -> dict[str, str]:
        """Fingerprints of images and boxes, and the classes."""
        classes = ", ".join(self.train.label_names[:1000])
        facts = {"training images": self.train.fingerprint, "classes": classes}
        if self.validation is not None:
            facts["validation images"] = self.validation.fingerprint
        return facts

    def order(self, per_step: int) -> RowOrder:
        """Cut the images of a step into `per_step` equal micro-batches.

        Raises:
            ValueError: they cannot be cut so.
        """
        rows = None if isinstance(self.train, DigitScenes) else len(self.train)
        return RowOrder(rows, self.micro_batch_size(per_step), self.recipe.train.seed)

    def batch(self, rows: list[int], generator: torch.Generator) -> Batch:
        """Read, augment and pad; see `DetectionCollator`."""
        edges, read = processor_edges(self.processor), []
        for row in rows:
            image, objects = augmented(*self.train.read(row), edges, self.options, generator)
            read.append(detection_row(image, objects, self.processor))
        return DetectionCollator()(read)

    def counts(self, batch: Batch) -> Sequence[int]:
        """Objects and images."""
        return [int(batch["labels"].ne(NO_LABEL).sum()), len(batch["labels"])]

    def losses(
        self, model: nn.Module, batch: Batch, totals: Tensor, *, is_logged: bool
    ) -> dict[str, Tensor]:
        """The set loss; where it is logged, its parts for the last layer."""
        outputs = model(**batch, num_items_in_batch=totals[0], num_images=totals[1])
        if not is_logged:
            return {"loss": outputs.loss}
        return {"loss": outputs.loss, **{name: outputs.loss_dict[name] for name in LOGGED_PARTS}}

    def work(self, config: VanillaDetrConfig, batch: Batch) -> Work:
        """Images and pixels; operations are not counted, a backbone may be any network."""
        mask = batch["pixel_mask"]
        return Work(items=len(mask), real_positions=int(mask.sum()), padded_positions=mask.numel())

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """COCO's figures over all validation images, joined by image."""
        images = self.validation
        assert images is not None
        rows = range(accelerator.process_index, len(images), accelerator.num_processes)
        detector = Detector(model, self.processor)
        size, is_hidden = self.options.images_per_batch, not accelerator.is_main_process
        found = detected_in(images, rows, detector, size, is_hidden=is_hidden)
        joined = dict(gather_object(list(zip(rows, found, strict=True))))
        scores = score_detections([joined[row] for row in range(len(images))], images)
        values = {name.lower(): scores.figures[name] for name in LOGGED_FIGURES}
        return Validation(
            {**values, "duplicates": scores.duplicates, "count_error": scores.count_error}, scores
        )

    def save(self, folder: Path) -> None:
        """Write the image processor."""
        self.processor.save_pretrained(folder)

    def card(self, facts: Mapping[str, Any], validation: Validation | None) -> ModelCard:
        """The model card with data, classes and AP."""
        train = self.train
        facts = {**facts, "dataset": Path(train.origin).name, "classes": train.label_names}
        if validation is not None:
            facts["scores"] = f"```\n{validation.details}\n```"
            precision = round(validation.details.figures["AP"], 4)
            facts["metrics"] = {"mean_average_precision": (precision, None)}
        return model_card(replace(CARD, **facts))
