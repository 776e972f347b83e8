"""Scores of an image classifier: accuracy, classes mixed up, calibration; and their command.

Shapes: N images, C labels.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_vanilla.data.images import BUILT_IN_DIGITS, ImageError, LabelledImages, load_images
from hf_vanilla.options import Options, option, progress_bar
from hf_vanilla.plots.figures import check_output

from .classifier import Classifier, load_classifier
from .plot import MOST_CLASSES, save_confusion

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)

CALIBRATION_BINS = 15
SHOWN_CLASSES = 50


@dataclass(frozen=True)
class ImageScores:
    """Scores over a set of images.

    Attributes:
        label_names: classes, in the order of `confusion`.
        confusion: `(C, C)` int64 counts; row: true class, column: most probable class.
        top5: share of images whose class is among the five most probable, 0 to 1.
        calibration_error: expected calibration error over 15 bins of equal width, 0 to 1.
        nats: mean negative log-likelihood of the true class.
        unreadable: images that were left out.
    """

    label_names: tuple[str, ...]
    confusion: Tensor
    top5: float
    calibration_error: float
    nats: float
    unreadable: int = 0

    @property
    def images(self) -> int:
        """How many images were scored."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Share of images whose most probable class is right, 0 to 1."""
        return float(self.confusion.diagonal().sum()) / self.images

    @property
    def by_class(self) -> list[tuple[str, int, int]]:
        """Name, right images and all images of each class."""
        right, count = self.confusion.diagonal().tolist(), self.confusion.sum(1).tolist()
        return list(zip(self.label_names, right, count, strict=True))

    def __str__(self) -> str:
        lines = [
            f"accuracy {100 * self.accuracy:.2f} % of {self.images:,} images",
            f"among the first five {100 * self.top5:.2f} %",
            f"{self.nats:.4f} nats per image",
            f"expected calibration error {100 * self.calibration_error:.2f} % "
            f"({CALIBRATION_BINS} bins)",
        ]
        if self.unreadable:
            lines.append(f"unreadable images, which are not counted: {self.unreadable:,}")
        shown = [entry for entry in self.by_class if entry[2]][:SHOWN_CLASSES]
        width = max(len(name) for name, _, _ in shown)
        lines += [
            f"  {name:{width}}  {100 * right / count:6.2f} % of {count:,}"
            for name, right, count in shown
        ]
        return "\n".join(lines)


def score_probabilities(
    probabilities: Tensor, labels: Tensor, label_names: Sequence[str], *, unreadable: int = 0
) -> ImageScores:
    """Scores of predicted probabilities.

    Args:
        probabilities: `(N, C)`; rows sum to 1.
        labels: `(N,)` int64 true classes.
        label_names: C names.
        unreadable: images that were left out.

    Raises:
        ValueError: there is nothing to score.
    """
    if not len(labels):
        raise ValueError("there are no images to score")
    classes = len(label_names)
    confidence, guess = probabilities.max(-1)
    confusion = torch.bincount(labels * classes + guess, minlength=classes**2).view(classes, -1)
    five = probabilities.topk(min(5, classes)).indices.eq(labels.unsqueeze(1)).any(-1)
    own = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)
    return ImageScores(
        label_names=tuple(label_names),
        confusion=confusion,
        top5=float(five.double().mean()),
        calibration_error=calibration_error(confidence, guess == labels),
        nats=float(-own.double().clamp(min=1e-12).log().mean()),
        unreadable=unreadable,
    )


def calibration_error(confidence: Tensor, is_right: Tensor) -> float:
    """Mean distance between confidence and accuracy over 15 bins of confidence, by their sizes.

    Args:
        confidence: `(N,)` in [0, 1], probability of the chosen class.
        is_right: `(N,)` bool.
    """
    bins = (confidence.double() * CALIBRATION_BINS).ceil().long().clamp(1, CALIBRATION_BINS) - 1
    gaps = torch.zeros(CALIBRATION_BINS, dtype=torch.float64)
    gaps.index_add_(0, bins, confidence.double() - is_right.double())
    return float(gaps.abs().sum() / len(confidence))


def score_classifier(
    classifier: Classifier,
    images: LabelledImages,
    *,
    batch_size: int = 32,
    stop_at_unreadable: bool = False,
) -> ImageScores:
    """Scores of a classifier on labelled images, whose labels index the model's own.

    Raises:
        ValueError: there is nothing to score, or an image is unreadable and the options say to
            stop.
    """
    labels: list[int] = []

    def opened(rows: Iterable[int]) -> "Iterator[Image]":
        """The readable images, each resized before the next one is opened."""
        for row in rows:
            try:
                image = images.open(row)
            except (ImageError, FileNotFoundError) as error:
                if stop_at_unreadable:
                    raise ImageError(str(error)) from None
                continue
            labels.append(int(images.labels[row]))
            yield image

    rows = range(len(images))
    probabilities = [
        classifier.probabilities(opened(rows[first : first + batch_size]))
        for first in progress_bar(rows[::batch_size], text="Classifying", unit="batches")
    ]
    if not labels:
        raise ValueError(f"{images.origin}: there are no readable images to score")
    return score_probabilities(
        torch.cat(probabilities),
        torch.tensor(labels),
        images.label_names,
        unreadable=len(images) - len(labels),
    )


# --- the command ---------------------------------------------------------------------------------


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
        ValueError: the classes of the images are unknown to the model, or too many for the figure,
            the model is a multi-label one, or there is no image.
        OSError: nothing is found under a name, or the figure exists and `overwrite` is off.
    """
    path = None
    if options.confusion is not None:
        path = check_output(options.confusion, overwrite=options.overwrite)
    classifier = load_classifier(options.model, device=options.device)
    config = classifier.model.config
    if classifier.is_multi_label:
        raise ValueError(
            f"{options.model} gives each label a probability of its own: these scores are of "
            "models that choose one label for an image"
        )
    if path is not None and config.num_labels > MOST_CLASSES:
        raise ValueError(
            f"{config.num_labels} classes do not fit into a figure: at most {MOST_CLASSES}"
        )
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


def labelled_as(options: EvaluateImagesOptions, label_names: Sequence[str]) -> LabelledImages:
    """The images with labels that index a model's names.

    Raises:
        ValueError: a class is unknown to the model, or images have no label.
    """
    is_digits = options.dataset == BUILT_IN_DIGITS
    split = "train" if is_digits and options.split == "test" else options.split
    columns = {"image_column": options.image_column, "label_column": options.label_column}
    return load_images(options.dataset, split, **columns).relabelled(label_names)
