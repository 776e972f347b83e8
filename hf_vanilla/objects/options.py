"""What a recipe can set for object detection: images, augmentation, the size of a step."""

from dataclasses import dataclass
from typing import ClassVar

from hf_vanilla.data.images import BUILT_IN_DIGITS
from hf_vanilla.families import Measure
from hf_vanilla.options import option
from hf_vanilla.training.options import RowOptions, TrainRecipe

from .detection import BoxAugmentation
from .digit_scenes import DIGIT_SCENES

AVERAGE_PRECISION = "COCO AP, 0 to 1"
NATS = "nats per object"
MEASURES = {
    "ap": Measure("validation AP", AVERAGE_PRECISION, better="higher", precision=3),
    "ap50": Measure("validation AP50", AVERAGE_PRECISION, better="higher", precision=3),
    "loss": Measure("training loss (all layers)", "loss"),
    "loss_ce": Measure("class loss (last layer)", "nats per weighted query"),
    "loss_bbox": Measure("L1 distance (last layer)", "share of the image, per object"),
    "loss_giou": Measure("1 - GIoU (last layer)", "per object"),
}


@dataclass(frozen=True, kw_only=True)
class DetectionData(BoxAugmentation, RowOptions):  # flat on the command line
    """Images with boxes, how they are changed at random, and how they become batches."""

    _argument_group_name = "options of task object_detection"
    rows: ClassVar[str] = "images"

    dataset: str = option(
        DIGIT_SCENES,
        "COCO JSON file, folder with metadata.jsonl, YOLO folder, Hub id, or 'digit_scenes' "
        "(generated, new scenes in every step)",
        of_data=True,
        chooses_data=True,
    )
    images: str | None = option(
        None, "folder of a COCO file's images; default: its own", of_data=True
    )
    train_split: str = option("train", "split to train on", of_data=True)
    validation: str | None = option(
        None, "images to validate on; default: another split of the dataset", of_data=True
    )
    validation_images: str | None = option(
        None, "folder of the images of a COCO file for validation; default: its own", of_data=True
    )
    validation_split: str | None = option(
        None, "split to validate on; default: none, unless `validation` is given", of_data=True
    )
    digits: str = option(
        BUILT_IN_DIGITS,
        "for digit_scenes: file of optdigits to train on, the built-in digits then serve the "
        "validation; 'digits': the first half of the built-in ones trains, the second validates",
        of_data=True,
    )
    digit_classes: str = option("0123456789", "for digit_scenes: digits that occur", of_data=True)
    validation_scenes: int = option(300, "for digit_scenes: images to validate on", at_least=1)
    backbone: str | None = option(
        None,
        "folder or Hub id of the pretrained backbone, such as microsoft/resnet-50; none: train it "
        "from random weights, with model.backbone_is_pretrained=false",
    )
    shortest_edge: int = option(
        800, "pixels of the shorter side of an image; with initial_model as there", at_least=1
    )
    longest_edge: int = option(1333, "most pixels of the longer side", at_least=1)
    images_per_step: int = option(32, "images of an optimizer step", at_least=1)
    images_per_batch: int = option(32, "images of a process and micro-batch", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("images", "validation", "validation_images", "validation_split"):
            value = getattr(self, name)
            if self.dataset == DIGIT_SCENES and value is not None:
                raise ValueError(
                    f"{name}={value!r}: {DIGIT_SCENES} are generated, also those for validation; "
                    "leave it out, or give a dataset"
                )
        if self.longest_edge < self.shortest_edge:
            raise ValueError(
                f"longest_edge={self.longest_edge} is smaller than shortest_edge="
                f"{self.shortest_edge}: change either"
            )

    def check_with(self, train: TrainRecipe) -> None:
        """Compare with the shared options.

        Raises:
            ValueError: an initial model and a backbone are given.
        """
        if train.initial_model is not None and self.backbone is not None:
            raise ValueError(
                f"initial_model={train.initial_model!r} and backbone={self.backbone!r}: the model "
                "has its own backbone; leave backbone out"
            )
