"""Images of a detection run: reading, checks before training, and what a resume compares."""

from dataclasses import dataclass

from hf_vanilla.data.image_models import check_channels, log_sets
from hf_vanilla.data.images import BUILT_IN_DIGITS
from hf_vanilla.training.recipe import Recipe

from .detection import DetectionImages
from .digit_scenes import DIGIT_SCENES, DigitScenes, digit_scenes
from .options import DetectionData
from .report import box_form_hint
from .sources import load_detection_images

VALIDATION_SEED = 1_000_003  # scenes of a training seed are never those of the validation


@dataclass(frozen=True)
class EndlessOrder:
    """Micro-batches of equal size of scenes that are never repeated.

    Attributes:
        size: images of a micro-batch.
    """

    size: int

    def __getitem__(self, number: int) -> list[int]:
        """Numbers of the scenes of micro-batch `number` of the run."""
        return list(range(number * self.size, (number + 1) * self.size))

    def describe(self) -> str:
        """The size in words."""
        return f"{self.size:,} new images"


@dataclass(frozen=True)
class DetectionSets:
    """Everything a run of object detection reads.

    Attributes:
        train: training images of files, or generated scenes.
        validation: validation images; None where there are none.
    """

    train: DetectionImages | DigitScenes
    validation: DetectionImages | None


def prepare_detection(recipe: Recipe) -> DetectionSets:
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
        return _digit_scenes(options, recipe.train.seed)
    train = load_detection_images(options.dataset, images=options.images, split=options.train_split)
    check_trainable(train, config.num_queries)
    validation = None
    if options.validation is not None or options.validation_split is not None:
        validation = load_detection_images(
            options.validation or options.dataset,
            images=options.validation_images,
            split=options.validation_split or "validation",
        ).relabelled(train.label_names)
        validation.require_files()
        if (
            options.validation is None
            and options.validation_split != options.train_split
            and validation.fingerprint == train.fingerprint
        ):
            raise ValueError(
                f"validation_split={options.validation_split!r}: {train.origin} has no such split, "
                "and would be validated on its training images: give validation"
            )
    log_sets(train, validation)
    return DetectionSets(train, validation)


def check_trainable(images: DetectionImages, num_queries: int) -> None:
    """Refuse data that no detector can be trained on.

    Raises:
        ValueError: there is no object, an image has more objects than queries, or boxes are given
            as shares or corners where left, top, width, height in pixels are expected.
        FileNotFoundError: images do not exist.
    """
    images.require_files()
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
            "queries: set model.num_queries well above, or leave such images out"
        )
    if hint := box_form_hint(images):
        raise ValueError(f"{images.origin}: {hint}")


def _digit_scenes(options: DetectionData, seed: int) -> DetectionSets:
    names, is_built_in = options.digit_classes, options.digits == BUILT_IN_DIGITS
    first, second = ("first_half", "second_half") if is_built_in else ("train", "train")
    scenes = digit_scenes(options.digits, first, classes=names, seed=seed)
    unseen = digit_scenes(BUILT_IN_DIGITS, second, classes=names, seed=VALIDATION_SEED)
    return DetectionSets(scenes, unseen.images(options.validation_scenes))
