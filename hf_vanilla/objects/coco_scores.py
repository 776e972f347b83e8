"""COCO's scores of a detector: average precision and recall, per class, per layer, duplicates.

The figures come from faster-coco-eval, whose results equal those of pycocotools.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from hf_vanilla.options import needs, progress_bar

from .detection import NUMBERS, DetectionImages, coco_content, repeats
from .detector import Detections, Detector, coco_results

# in the order of COCO's own summary
FIGURES = (
    *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
    *("AR_1", "AR_10", "AR_100", "AR_small", "AR_medium", "AR_large"),
)
SURE = 0.5  # score above which an object counts as detected, for duplicates and counts
DUPLICATE_IOU = 0.7
IOU50 = 0  # index of IoU 0.5 among COCO's ten thresholds
ALL_AREAS, HUNDRED = 0, -1


@dataclass(frozen=True)
class LayerScores:
    """Average precision after one decoder layer, without and with suppression of overlaps.

    Attributes:
        ap: of all objects.
        ap50: the same at IoU 0.5.
        suppressed_ap: of the objects that `without_overlaps` keeps.
        suppressed_ap50: the same at IoU 0.5.
    """

    ap: float
    ap50: float
    suppressed_ap: float
    suppressed_ap50: float


@dataclass(frozen=True)
class ObjectScores:
    """Scores over a set of images.

    Attributes:
        figures: the twelve of `FIGURES`, 0 to 1; -1 where the data have no such object.
        by_class: name, AP and AP50 of each class with objects.
        precision: `(101,)` precision at IoU 0.5 for recalls 0 to 1, mean over classes.
        duplicates: share of the sure objects that repeat a surer one of the same class, by IoU
            above 0.7.
        count_error: mean distance of the numbers of sure and of true objects of an image.
        protocol: what was measured, in one line.
        by_layer: after each decoder layer; empty where it was not measured.
    """

    figures: dict[str, float]
    by_class: tuple[tuple[str, float, float], ...]
    precision: np.ndarray = field(repr=False)
    duplicates: float
    count_error: float
    protocol: str
    by_layer: tuple[LayerScores, ...] = ()

    def __str__(self) -> str:
        width = max((len(name) for name, _, _ in self.by_class), default=0)
        figures = [
            f"  {name:10} {'none' if value < 0 else f'{value:.3f}'}"
            for name, value in self.figures.items()
        ]
        return "\n".join(
            [
                self.protocol,
                *figures,
                f"duplicates {100 * self.duplicates:.2f} % of objects with score > {SURE}; "
                f"count error {self.count_error:.2f} objects an image",
                *(
                    f"  {name:{width}}  AP {ap:.3f}  AP50 {ap50:.3f}"
                    for name, ap, ap50 in self.by_class
                ),
                *(
                    f"  after layer {number}  AP {layer.ap:.3f}  AP50 {layer.ap50:.3f}  without "
                    f"overlaps: AP {layer.suppressed_ap:.3f}  AP50 {layer.suppressed_ap50:.3f}"
                    for number, layer in enumerate(self.by_layer, start=1)
                ),
            ]
        )


def score_detections(found: Sequence[Detections], images: DetectionImages) -> ObjectScores:
    """Scores of the objects detected in images.

    Args:
        found: of each image, boxes in its pixels; at most the 100 surest of an image and class
            count.
        images: the truth, crowds included; labels of both index the same names.

    Raises:
        ValueError: the numbers of images differ, or there is no object to find.
        ImportError: faster-coco-eval is not installed.
    """
    if len(found) != len(images):
        raise ValueError(f"results of {len(found)} images, but the data have {len(images)}")
    if not sum(len(entry.trained_on) for entry in images.objects):
        raise ValueError(f"{images.origin} holds no object to score: check the annotations")
    COCO, COCOeval_faster = coco_classes()  # noqa: N806
    quiet = {"print_function": lambda *_: None}
    # the evaluation sorts the ids, and a file's may be names, or in another order than the labels
    numbered = replace(images, image_ids=NUMBERS, category_ids=NUMBERS)
    truth = COCO(coco_content(numbered), **quiet)
    results = coco_results(found, range(len(images.label_names)), range(len(images)))
    evaluation = COCOeval_faster(truth, truth.loadRes(results), "bbox", **quiet)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    stats = [float(value) for value in evaluation.stats[: len(FIGURES)]]
    precision = evaluation.eval["precision"][:, :, :, ALL_AREAS, HUNDRED]  # (T, 101, K)
    at_iou50 = precision[IOU50]  # (101, K)
    sure = [entry.above(SURE) for entry in found]
    gaps = [
        abs(len(entry) - len(of_image.trained_on))
        for entry, of_image in zip(sure, images.objects, strict=True)
    ]
    repeated = sum(int(repeats(entry, DUPLICATE_IOU).any(axis=1).sum()) for entry in sure)
    return ObjectScores(
        figures=dict(zip(FIGURES, stats, strict=True)),
        by_class=tuple(
            (name, float(values.mean()), float(values[IOU50].mean()))
            for name, values in zip(images.label_names, precision.transpose(2, 0, 1), strict=True)
            if (values > -1).all()
        ),
        # of the classes that have objects
        precision=at_iou50[:, (at_iou50 > -1).all(axis=0)].mean(axis=1),
        duplicates=repeated / max(sum(map(len, sure)), 1),
        count_error=float(np.mean(gaps)),
        protocol="COCO AP (IoU 0.50:0.95, 101 recalls, 100 objects of an image and class, no "
        f"suppression) of {images.origin}: {len(images):,} images, "
        f"{sum(map(len, images.objects)):,} objects, "
        f"{len(images.label_names)} classes, faster-coco-eval {version('faster-coco-eval')}",
    )


def coco_classes() -> tuple[Any, Any]:
    """`COCO` and `COCOeval_faster` of faster-coco-eval.

    Raises:
        ImportError: it is not installed.
    """
    with needs("AP needs faster-coco-eval", "vision"):
        from faster_coco_eval import COCO, COCOeval_faster
    return COCO, COCOeval_faster


def score_detector(
    detector: Detector, images: DetectionImages, *, batch_size: int = 8
) -> ObjectScores:
    """Scores of a detector on images whose labels index the model's names.

    Raises:
        ValueError: there is nothing to score.
        ImageError: an image is unreadable.
    """
    found = detected_in(images, range(len(images)), detector, batch_size)
    return score_detections(found, images)


def score_layers(
    detector: Detector, images: DetectionImages, *, batch_size: int = 8
) -> tuple[LayerScores, ...]:
    """Scores after each decoder layer: those of the detector without the layers that follow.

    Raises:
        ValueError: there is nothing to score.
        ImageError: an image is unreadable.
    """
    model, scores = copy.deepcopy(detector.model), list[LayerScores]()
    layers = model.model.decoder.layers
    while len(layers):
        shorter = Detector(model, detector.processor)
        found = detected_in(images, range(len(images)), shorter, batch_size)
        kept = [without_overlaps(entry) for entry in found]
        figures = [score_detections(entries, images).figures for entries in (found, kept)]
        scores.append(LayerScores(*(part[name] for part in figures for name in ("AP", "AP50"))))
        del layers[-1]
    return tuple(reversed(scores))


def detected_in(
    images: DetectionImages,
    rows: range,
    detector: Detector,
    batch_size: int,
    *,
    is_hidden: bool = False,
) -> list[Detections]:
    """What a detector finds in these rows, so many images at a time, with a progress bar."""
    found: list[Detections] = []
    firsts = range(0, len(rows), batch_size)
    for first in progress_bar(firsts, text="Detecting", unit="batches", is_hidden=is_hidden):
        found += detector.detect(map(images.open, rows[first : first + batch_size]))
    return found


def without_overlaps(found: Detections) -> Detections:
    """Non-maximum suppression: an object that repeats a surer remaining one is left out."""
    repeated, kept = repeats(found, DUPLICATE_IOU), np.zeros(len(found), dtype=bool)
    for index in range(len(found)):  # the surest first
        kept[index] = not (repeated[index] & kept).any()
    return found.where(kept)
