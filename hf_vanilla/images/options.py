"""What a recipe can set for image classification: images, augmentation, the size of a step."""

from dataclasses import dataclass
from typing import ClassVar

from hf_vanilla.data.images import BUILT_IN_DIGITS
from hf_vanilla.families import Measure
from hf_vanilla.options import option
from hf_vanilla.training.options import RowOptions

from .batches import Augmentation

NATS = "nats per image"
MEASURES = {
    "accuracy": Measure("validation accuracy", "% of images", better="higher", precision=2),
    "nll": Measure("validation NLL", NATS, better="lower", log_name="validation_nll"),
    "loss": Measure("training loss", NATS),
    "train_accuracy": Measure("training accuracy", "% of images", precision=2),
}


@dataclass(frozen=True, kw_only=True)
class ImageDataOptions(Augmentation, RowOptions):  # its options have no section
    """Images to train on, how they are changed at random, and how they become batches."""

    _argument_group_name = "options of task image_classification"
    rows: ClassVar[str] = "images"

    dataset: str = option(
        BUILT_IN_DIGITS,
        "folder of class folders, file of optdigits, Hub id, or 'digits' (built in)",
        of_data=True,
        chooses_data=True,
    )
    train_split: str | None = option(
        None, "split to train on; default: train, of the built-in digits first_half", of_data=True
    )
    validation: str | None = option(
        None, "images to validate on; default: another split of the dataset", of_data=True
    )
    validation_split: str | None = option(
        None,
        "split to validate on; default: validation, valid, val or test of a folder, second_half of "
        "the built-in digits",
        of_data=True,
    )
    validation_share: float = option(
        0.0,
        "share of the training images kept for validation where there is no split for it",
        at_least=0,
        below=1,
    )
    image_column: str = option("image", "column of images in a Hub dataset", of_data=True)
    label_column: str = option("label", "column of labels in a Hub dataset", of_data=True)
    stop_at_unreadable: bool = option(
        default=False,
        text="end at the first unreadable image instead of counting and leaving it out",
        may_change=True,
    )
    images_per_step: int = option(64, "images of an optimizer step", at_least=1)
    images_per_batch: int = option(64, "images of a process and micro-batch", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.validation is not None and self.validation_share:
            raise ValueError(
                f"validation={self.validation!r} and validation_share={self.validation_share}: "
                "give one of them"
            )
