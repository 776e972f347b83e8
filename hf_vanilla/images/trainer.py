"""Labelled images for transformers' Trainer, its scores, and a saved model for other classes."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hf_vanilla.data.image_models import check_processor, label_fields, normalised
from hf_vanilla.data.images import LabelledImages
from hf_vanilla.loading import load_model, load_saved
from hf_vanilla.models.configuration_vanilla_vit import VanillaVitConfig
from hf_vanilla.models.modeling_vanilla_vit import VanillaForImageClassification

from .batches import Augmentation, ImageReader, augment


class ImageRows(Dataset):
    """Labelled images as rows for transformers' Trainer.

    Args:
        images: to read.
        processor: image processor of the model, read for size, interpolation, mean and standard
            deviation.
        changes: how images are changed at random; None: not at all.

    Raises:
        ValueError: the processor has no fixed size, crops, or does not rescale and normalise.

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
        if getattr(processor, "do_center_crop", None):
            raise ValueError(
                "the image processor has do_center_crop=True, but rows are of whole images: set it "
                "to False, and size to crop_size"
            )
        self.size = processed_size(processor)
        self.reader = ImageReader(images, self.size, resample=int(processor.resample))
        self.processor = processor
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
        return {"pixel_values": normalised(values, self.processor)[0], "labels": int(labels)}


def with_new_head(
    name: str, label_names: Sequence[str], config: VanillaVitConfig | None = None
) -> VanillaForImageClassification:
    """A saved model with a head of zeros for other classes, in place of head and pooler.

    Equal names keep head and pooler.

    Args:
        name: folder or Hub id.
        label_names: the classes.
        config: of the saved model with another dropout or size of images; None: as it was saved.

    Raises:
        ValueError: there is one class only, or the model is damaged.
        OSError: nothing is found under the name.
    """
    if len(label_names) < 2:
        raise ValueError(f"label_names={list(label_names)}: give two classes or more")
    saved = load_saved(VanillaVitConfig, name)
    config = copy.deepcopy(config or saved)
    config.update(label_fields(label_names))
    size, config.image_size = config.image_height_width, saved.image_size
    is_new = saved.id2label != config.id2label
    config.has_pooler = saved.has_pooler and not is_new
    model = load_model(
        VanillaForImageClassification,
        name,
        may_differ=("classifier.", "model.pooler.") if is_new else (),
        config=config,
        dtype="float32",
    )
    if is_new:  # a head of as many classes was loaded
        torch.nn.init.zeros_(model.classifier.weight)
        torch.nn.init.zeros_(model.classifier.bias)
    if size != saved.image_height_width:
        model.resize_positions(*size)
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
    if isinstance(predictions.predictions, list):
        raise ValueError("eval_do_concat_batches=False: accuracy needs True, the default")
    is_known = predictions.label_ids >= 0
    is_right = predictions.predictions.argmax(-1) == predictions.label_ids
    return {"accuracy": float(is_right[is_known].mean())}
