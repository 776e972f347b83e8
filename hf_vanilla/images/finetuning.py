"""Fine-tune an image model on a folder of class folders, by transformers' Trainer."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from hf_vanilla.data.image_models import check_processor, load_image_processor
from hf_vanilla.data.images import LabelledImages, check_classes
from hf_vanilla.loading import load_model, load_saved
from hf_vanilla.models.modeling_vanilla_vit import VanillaForImageClassification
from hf_vanilla.options import Options, option

from .augmentation import Augmentation, augment
from .batches import ImageReader, normalised
from .card import image_card
from .data import training_and_validation, unreadable_images
from .options import ImageDataOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FinetuneImagesOptions(Options):
    """Which image model to fine-tune on which folder; `TrainingArguments` say how."""

    _argument_group_name = "images and model"

    model: str = option(text="model folder or Hub id to start from")
    dataset: str = option(text="folder of class folders, or Hub id")
    validation: str | None = option(None, "images to validate on; default: a split of the dataset")
    image_height: int | None = option(None, "pixels; default: as the model; positions are resized")
    image_width: int | None = option(None, "likewise")
    rotation: float = option(0.0, "largest random angle in degrees", at_least=0, at_most=180)
    scale: float = option(0.0, "largest random change of size", at_least=0, below=1)
    shift: float = option(0.0, "largest random shift, share of a side", at_least=0, below=1)
    flip: float = option(0.0, "probability of a mirror image", at_least=0, at_most=1)
    model_license: str | None = option(None, "licence of the weights, for the model card")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.image_height is None) != (self.image_width is None):
            raise ValueError("give both image_height and image_width, or neither")

    @property
    def augmentation(self) -> Augmentation:
        """How training images are changed at random."""
        return Augmentation(
            rotation=self.rotation, scale=self.scale, shift=self.shift, flip=self.flip
        )


class ImageRows(Dataset):
    """Labelled images as rows for transformers' Trainer.

    Args:
        images: to read.
        processor: image processor of the model, read for size, interpolation, mean and standard
            deviation.
        changes: how images are changed at random; None: not at all.

    Raises:
        ValueError: the processor has no fixed size, or does not rescale and normalise.

    Examples:
        >>> from hf_vanilla.images.batches import image_processor
        >>> from hf_vanilla.data.images import load_images
        >>> processor = image_processor((8, 8), [0.3] * 3, [0.4] * 3)
        >>> rows = ImageRows(load_images("digits"), processor)
        >>> len(rows), rows[0]["pixel_values"].shape, rows[0]["labels"]
        (1797, torch.Size([3, 8, 8]), 0)
    """

    def __init__(
        self, images: LabelledImages, processor: Any, changes: Augmentation | None = None
    ) -> None:
        check_processor(processor)
        self.size = processed_size(processor)
        self.reader = ImageReader(images, self.size, resample=int(processor.resample))
        self.statistics = list(processor.image_mean), list(processor.image_std)
        self.changes = changes

    def __len__(self) -> int:
        return len(self.reader.images)

    def __getitem__(self, row: int) -> dict[str, Tensor | int]:
        """`pixel_values` `(3, H, W)` and `labels`, -100 where the image is unreadable."""
        pixels, labels = self.reader.read([row])
        values = pixels.float() / 255
        if self.changes is not None:
            seed = int(torch.randint(2**62, ()))
            values = augment(values, self.changes, torch.Generator().manual_seed(seed))
        mean, deviation = self.statistics
        return {"pixel_values": normalised(values, mean, deviation)[0], "labels": int(labels)}


def finetune_images(options: FinetuneImagesOptions, arguments: TrainingArguments) -> Path:
    """Train with a new head for the folder's classes; returns the model folder.

    Raises:
        ValueError: the images do not fit the options, or their classes cannot be trained on.
        OSError: nothing is found under a name, or the folder cannot be written.
    """
    data = ImageDataOptions(dataset=options.dataset, validation=options.validation)
    train, validation = training_and_validation(data)
    check_classes(train)
    processor = load_image_processor(options.model)
    model = with_new_head(options.model, train.label_names)
    if options.image_height is not None and options.image_width is not None:
        model.resize_positions(options.image_height, options.image_width)
    height, width = model.config.image_height_width
    processor.size = {"height": height, "width": width}
    processor.do_center_crop = False  # training resizes the whole image, so use does too
    trainer = Trainer(
        model,
        arguments,
        train_dataset=ImageRows(train, processor, options.augmentation),
        eval_dataset=None if validation is None else ImageRows(validation, processor),
        compute_metrics=accuracy,
        processing_class=processor,
    )
    trainer.train()
    scores = trainer.evaluate() if validation is not None else {}
    folder = Path(arguments.output_dir)
    if trainer.is_world_process_zero():
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        _write_card(options, model, trainer, scores, folder)
        logger.info("wrote the model to %s, in float32", folder)
    return folder


def with_new_head(name: str, label_names: tuple[str, ...]) -> VanillaForImageClassification:
    """A saved model with a head of zeros for other classes, in place of head and pooler.

    Equal names keep head and pooler.
    """
    saved = load_saved(VanillaForImageClassification.config_class, name)
    if [saved.id2label[index] for index in range(saved.num_labels)] == list(label_names):
        return load_model(VanillaForImageClassification, name, dtype="float32")
    model = load_model(
        VanillaForImageClassification,
        name,
        may_differ=("classifier.", "model.pooler."),
        id2label=dict(enumerate(label_names)),
        label2id={label: index for index, label in enumerate(label_names)},
        has_pooler=False,
        dtype="float32",
    )
    torch.nn.init.zeros_(model.classifier.weight)  # a head of as many classes was loaded
    torch.nn.init.zeros_(model.classifier.bias)
    return model


def processed_size(processor: Any) -> tuple[int, int]:
    """Height and width of the images that an image processor returns.

    Raises:
        ValueError: the processor has no fixed size.
    """
    size = processor.crop_size if getattr(processor, "do_center_crop", None) else processor.size
    if "height" not in size:
        raise ValueError(f"the image processor resizes to {dict(size)}: set height and width")
    return size["height"], size["width"]


def accuracy(predictions: Any) -> dict[str, float]:
    """Share of right labels, for Trainer's `compute_metrics`."""
    is_known = predictions.label_ids >= 0
    is_right = predictions.predictions.argmax(-1) == predictions.label_ids
    return {"accuracy": float(is_right[is_known].mean())}


def _write_card(
    options: FinetuneImagesOptions,
    model: VanillaForImageClassification,
    trainer: Trainer,
    scores: dict[str, float],
    folder: Path,
) -> None:
    measured = None
    if scores:
        measured = {
            "accuracy": 100 * scores["eval_accuracy"],
            "nll": scores["eval_loss"],
        }
    rows = (trainer.train_dataset, trainer.eval_dataset)
    readers = [part.reader for part in rows if isinstance(part, ImageRows)]
    card = image_card(
        title=folder.resolve().name,
        license=options.model_license,
        dataset=Path(options.dataset).name,
        classes=[model.config.id2label[index] for index in range(model.config.num_labels)],
        parameters=model.num_parameters(),
        recipe=f"model: {Path(options.model).name}\ndataset: {Path(options.dataset).name}",
        command="`hf-vanilla finetune`",
        training=(
            f"{trainer.state.global_step:,} steps of Trainer from {Path(options.model).name}."
            f"{unreadable_images(readers)}"
        ),
        scores=measured,
    )
    card.save(folder / "README.md")
