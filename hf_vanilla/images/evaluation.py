"""Score an image model on a folder or dataset, from the command line."""

import logging
from dataclasses import dataclass
from pathlib import Path

from hf_vanilla.data.images import LabelledImages, load_images, read_image_folder
from hf_vanilla.options import Options, option
from hf_vanilla.plots.figures import check_output

from .classifier import load_classifier
from .plot import save_confusion
from .scores import ImageScores, score_classifier

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluateImagesOptions(Options):
    """Score an image model: accuracy in all and per class, calibration, confusion figure."""

    model: str = option(text="model folder or Hub id")
    dataset: str = option(text="folder of class folders, file of optdigits, Hub id, or digits")
    split: str = option("test", "split of a folder or dataset")
    image_column: str = option("image", "column of a Hub dataset")
    label_column: str = option("label", "column of a Hub dataset")
    confusion: str | None = option(None, "figure file of classes mixed up, .png or .svg")
    batch_size: int = option(32, "images at a time", at_least=1)
    device: str | None = option(None, "such as cpu; default: a GPU if there is one")
    stop_at_unreadable: bool = option(
        False, "end at the first unreadable image instead of counting it"
    )
    overwrite: bool = option(False, "replace an existing figure")


def evaluate_images(options: EvaluateImagesOptions) -> ImageScores:
    """Classify all images and compare with their labels.

    Raises:
        ValueError: the classes of the images are unknown to the model, or there is no image.
        OSError: nothing is found under a name, or the figure exists and `overwrite` is off.
    """
    path = None
    if options.confusion is not None:
        path = check_output(options.confusion, overwrite=options.overwrite)
    classifier = load_classifier(options.model, device=options.device)
    config = classifier.model.config
    names = [config.id2label[index] for index in range(config.num_labels)]
    images = labelled_as(options, names)
    scores = score_classifier(
        classifier,
        images,
        batch_size=options.batch_size,
        stop_at_unreadable=options.stop_at_unreadable,
    )
    if path is not None:
        save_confusion(scores.confusion, scores.label_names, path)
        logger.info("wrote %s", path)
    return scores


def labelled_as(options: EvaluateImagesOptions, label_names: list[str]) -> LabelledImages:
    """The images with labels that index a model's names.

    Raises:
        ValueError: a class is unknown to the model.
    """
    folder = Path(options.dataset)
    if folder.is_dir():
        inner = folder / options.split
        return read_image_folder(inner if inner.is_dir() else folder, label_names)
    split = "train" if options.dataset == "digits" and options.split == "test" else options.split
    images = load_images(
        options.dataset,
        split,
        image_column=options.image_column,
        label_column=options.label_column,
    )
    if unknown := [name for name in images.label_names if name not in label_names]:
        raise ValueError(
            f"{images.origin} has the class {unknown[0]!r}, which is not among the "
            f"{len(label_names)} labels of the model ({', '.join(label_names[:10])})"
        )
    return images.relabelled(label_names)
