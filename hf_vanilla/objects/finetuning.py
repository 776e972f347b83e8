"""Fine-tune a detector on COCO files or folders, by transformers' Trainer."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from hf_vanilla.data.image_models import check_processor, load_image_processor
from hf_vanilla.loading import load_model, load_saved
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection
from hf_vanilla.options import Options, option

from .augmentation import BoxAugmentation, augmented
from .card import detection_card
from .coco_scores import ObjectScores, score_detections, score_detector
from .data import check_trainable
from .detection import (
    DetectionCollator,
    DetectionImages,
    detection_row,
    resized_size,
)
from .detector import Detector, found_objects
from .sources import load_detection_images

logger = logging.getLogger(__name__)

BILINEAR = 2  # Pillow's number
BACKBONE_SHARE = 0.1  # of the learning rate, as 1e-5 is of 1e-4 in the paper


@dataclass(frozen=True, kw_only=True)
class FinetuneObjectsOptions(Options):
    """Which detector to fine-tune on which images; `TrainingArguments` say how."""

    _argument_group_name = "images and model"

    model: str = option(text="model folder or Hub id to start from")
    train_coco: str = option(
        text="COCO JSON file, folder with metadata.jsonl, YOLO folder, or Hub id"
    )
    train_images: str | None = option(None, "folder of the COCO file's images; default: its own")
    validation_coco: str | None = option(None, "images to validate on, likewise; default: none")
    validation_images: str | None = option(None, "folder of their images; default: the file's own")
    flip: float = option(0.0, "probability of a mirror image", at_least=0, at_most=1)
    crop: float = option(
        0.0, "probability of a crop that keeps the centers of objects", at_least=0, at_most=1
    )
    smallest_scale: float = option(
        1.0, "smallest random factor of the shorter side", above=0, at_most=1
    )
    backbone_learning_rate: float | None = option(
        None, "default: a tenth of learning_rate", at_least=0
    )
    model_license: str | None = option(None, "licence of the weights, for the model card")

    @property
    def augmentation(self) -> BoxAugmentation:
        """How training images are changed at random."""
        return BoxAugmentation(flip=self.flip, crop=self.crop, smallest_scale=self.smallest_scale)


class DetectionRows(Dataset):
    """Images with boxes as rows for transformers' Trainer and `DetectionCollator`.

    Args:
        images: to read.
        processor: image processor of the model, read for sizes, mean and standard deviation.
        changes: how images are changed at random; None: not at all.

    Raises:
        ValueError: the processor makes other pixels than training would.
    """

    def __init__(
        self, images: DetectionImages, processor: Any, changes: BoxAugmentation | None = None
    ) -> None:
        check_processor(processor, resample=BILINEAR)
        self.images = images
        self.edges = processor_edges(processor)
        self.statistics = tuple(processor.image_mean), tuple(processor.image_std)
        self.changes = changes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        """`pixel_values` `(3, H, W)`, `labels` `(m,)` and `boxes` `(m, 4)` of one image."""
        image, objects = self.images.open(row), self.images.objects[row]
        size = resized_size((image.height, image.width), *self.edges)
        if self.changes is not None:
            seed = int(torch.randint(2**62, ()))
            generator = torch.Generator().manual_seed(seed)
            image, objects = augmented(image, objects, self.edges, self.changes, generator)
            size = image.height, image.width
        return detection_row(image, objects, size, *self.statistics)


def finetune_objects(options: FinetuneObjectsOptions, arguments: TrainingArguments) -> Path:
    """Train with a class head for the file's classes; queries and boxes are kept.

    Raises:
        ValueError: the annotations cannot be used or trained on.
        OSError: nothing is found under a name, or the folder cannot be written.
    """
    train = load_detection_images(options.train_coco, images=options.train_images)
    model = with_class_head(options.model, train.label_names)
    check_trainable(train, model.config.num_queries)
    validation = None
    if options.validation_coco is not None:
        validation = load_detection_images(
            options.validation_coco, images=options.validation_images, split="validation"
        ).relabelled(train.label_names)
        validation.require_files()
    processor = load_image_processor(options.model)
    trainer = Trainer(
        model,
        arguments,
        data_collator=DetectionCollator(),
        train_dataset=DetectionRows(train, processor, options.augmentation),
        eval_dataset=None if validation is None else DetectionRows(validation, processor),
        compute_metrics=None if validation is None else ap_metrics(validation),
        processing_class=processor,
        optimizers=(two_rates(model, arguments, options.backbone_learning_rate), None),
    )
    trainer.train()
    folder = Path(arguments.output_dir)
    if trainer.is_world_process_zero():
        scores = None
        if validation is not None:
            scores = score_detector(Detector(model.eval(), processor), validation)
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        _card(options, trainer, train, scores).save(folder / "README.md")
        logger.info("wrote the model to %s, in float32", folder)
    return folder


def with_class_head(name: str, label_names: Sequence[str]) -> VanillaForObjectDetection:
    """A saved detector with a class head for other names; equal names keep their head."""
    names = list(label_names)
    model = load_model(
        VanillaForObjectDetection,
        name,
        may_differ=("class_labels_classifier.",),
        id2label=dict(enumerate(names)),
        label2id={label: index for index, label in enumerate(names)},
        dtype="float32",
    )
    saved = load_saved(type(model.config), name)
    if [saved.id2label[index] for index in range(saved.num_labels)] != names:
        head = model.class_labels_classifier  # as many classes, but others
        torch.nn.init.xavier_uniform_(head.weight)
        torch.nn.init.zeros_(head.bias)
    return model


def two_rates(
    model: VanillaForObjectDetection, arguments: TrainingArguments, backbone_rate: float | None
) -> torch.optim.Optimizer:
    """AdamW with a rate of its own for the backbone."""
    rate = arguments.learning_rate
    backbone = [p for n, p in model.named_parameters() if "backbone" in n and p.requires_grad]
    others = [p for n, p in model.named_parameters() if "backbone" not in n and p.requires_grad]
    slow = BACKBONE_SHARE * rate if backbone_rate is None else backbone_rate
    groups: list[dict[str, Any]] = [{"params": others}, {"params": backbone, "lr": slow}]
    return torch.optim.AdamW(
        groups,
        lr=rate,
        betas=(arguments.adam_beta1, arguments.adam_beta2),
        eps=arguments.adam_epsilon,
        weight_decay=arguments.weight_decay,
    )


def ap_metrics(images: DetectionImages) -> Callable[[Any], dict[str, float]]:
    """COCO's figures for Trainer's `compute_metrics`, over the images in their order."""

    def compute(predictions: Any) -> dict[str, float]:
        logits, boxes = (torch.as_tensor(part) for part in predictions.predictions[:2])
        scores = score_detections(found_objects(logits, boxes, images.sizes), images)
        return {"ap": scores.figures["AP"], "ap50": scores.figures["AP50"]}

    return compute


def processor_edges(processor: Any) -> tuple[int, int]:
    """Shortest and longest edge that an image processor resizes to.

    Raises:
        ValueError: it resizes otherwise.
    """
    size = dict(processor.size)
    if "shortest_edge" not in size or "longest_edge" not in size:
        raise ValueError(
            f"the image processor resizes to {size}: set shortest_edge and longest_edge"
        )
    return size["shortest_edge"], size["longest_edge"]


def _card(
    options: FinetuneObjectsOptions,
    trainer: Trainer,
    train: DetectionImages,
    scores: ObjectScores | None,
) -> Any:
    start, folder = Path(options.model).name, Path(trainer.args.output_dir)
    return detection_card(
        title=folder.resolve().name,
        license=options.model_license,
        dataset=Path(train.origin).name,
        classes=train.label_names,
        parameters=trainer.model.num_parameters(),
        training=f"{trainer.state.global_step:,} steps of Trainer from {start}.",
        scores=scores,
        recipe=f"model: {start}\ntrain_coco: {Path(options.train_coco).name}",
    )
