"""Object detection as a task of the training engine.

Shapes: B batch, H x W pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    check_processor,
    label_fields,
    load_image_processor,
)
from hf_vanilla.models.backbone_vanilla_detr import load_backbone
from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.loss_vanilla_detr import NO_LABEL
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import Batch, Validation, Work, micro_batch_size

from .card import detection_card
from .coco_scores import coco_classes, detected_in, score_detections
from .data import DetectionSets, EndlessOrder, prepare_detection
from .detection import DetectionCollator, augmented, detection_processor, detection_row
from .detector import Detector
from .digit_scenes import DigitScenes
from .options import DetectionData
from .trainer import processor_edges, with_class_head

LOGGED_FIGURES = ("AP", "AP50", "AP75", "AR_100")
LOGGED_PARTS = ("loss_ce", "loss_bbox", "loss_giou")


def prepare(recipe: Recipe) -> "ObjectDetectionTask":
    """Read the boxes of a recipe's images and check them.

    Raises:
        ValueError: the data do not match the recipe.
        OSError: nothing is found under a name.
        ImportError: there are validation images, and faster-coco-eval is not installed.
    """
    sets, options, start = prepare_detection(recipe), recipe.data, recipe.train.initial_model
    if sets.validation is not None:
        coco_classes()  # or the first validation ends the run
    edges = options.shortest_edge, options.longest_edge
    if start is None:
        return ObjectDetectionTask(recipe, sets, detection_processor(*edges))
    processor = load_image_processor(start)
    check_processor(processor, resample=BILINEAR)
    saved = processor_edges(processor)
    if edges not in (saved, (DetectionData.shortest_edge, DetectionData.longest_edge)):
        raise ValueError(
            f"shortest_edge={edges[0]} and longest_edge={edges[1]}: initial_model={start!r} reads "
            f"images of {saved[0]} and {saved[1]}: leave both out"
        )
    return ObjectDetectionTask(recipe, sets, processor)


@dataclass(frozen=True)
class ObjectDetectionTask:
    """A prepared run of object detection; see `hf_vanilla.training.task.Task`.

    Attributes:
        recipe: data, model and training.
        sets: training and validation images.
        processor: transformers' image processor.
    """

    recipe: Recipe
    sets: DetectionSets
    processor: Any
    items: ClassVar[str] = "images"
    counted: ClassVar[tuple[str, ...]] = ("objects", "images")
    shown_count: ClassVar[str] = "images"
    has_few_shapes: ClassVar[bool] = False

    @property
    def options(self) -> DetectionData:
        """The recipe's data options."""
        return self.recipe.data

    @property
    def has_validation(self) -> bool:
        """Whether there are validation images."""
        return self.sets.validation is not None

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one step."""
        return self.options.images_per_step // self.options.images_per_batch

    def model(self) -> PreTrainedModel:
        """A model for the classes of the training images, on the backbone or the initial model.

        Raises:
            ValueError: the backbone is of another kind or size than the config says.
            OSError: nothing is found under its name.
        """
        names = self.sets.train.label_names
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
        train, validation = self.sets.train, self.sets.validation
        classes = ", ".join(train.label_names[:1000])
        facts = {"training images": train.fingerprint, "classes": classes}
        if validation is not None:
            facts["validation images"] = validation.fingerprint
        return facts

    def order(self, per_step: int) -> "RowOrder | EndlessOrder":
        """Cut the images of a step into `per_step` equal micro-batches.

        Raises:
            ValueError: they cannot be cut so.
        """
        size = micro_batch_size("images_per_step", self.options.images_per_step, per_step)
        if isinstance(self.sets.train, DigitScenes):
            return EndlessOrder(size)
        return RowOrder(len(self.sets.train), size, self.recipe.train.seed, "images")

    def batch(self, rows: list[int], generator: torch.Generator) -> Batch:
        """Read, augment and pad; see `DetectionCollator`."""
        edges, processor, read = processor_edges(self.processor), self.processor, []
        for row in rows:
            image, objects = augmented(*self.sets.train.read(row), edges, self.options, generator)
            size = image.height, image.width
            statistics = processor.image_mean, processor.image_std
            read.append(detection_row(image, objects, size, *statistics))
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

    def derived(self, values: dict[str, float]) -> dict[str, float]:
        """Nothing follows from the logged values."""
        return {}

    def work(self, config: VanillaDetrConfig, batch: Batch) -> Work:
        """Images and pixels; operations are not counted, a backbone may be any network."""
        mask = batch["pixel_mask"]
        return Work(items=len(mask), real_positions=int(mask.sum()), padded_positions=mask.numel())

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """COCO's figures over all validation images, joined by image."""
        images = self.sets.validation
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
        return detection_card(
            **facts,
            dataset=Path(self.sets.train.origin).name,
            classes=self.sets.train.label_names,
            scores=None if validation is None else validation.details,
        )
