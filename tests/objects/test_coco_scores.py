"""COCO scores: equal to pycocotools, and by hand."""

import contextlib
import io

import numpy as np
import pytest
from detection_files import boxed_images

from hf_vanilla.objects.coco_scores import (
    FIGURES,
    coco_results,
    score_detections,
    truth_content,
)
from hf_vanilla.objects.detector import Detections


def found(*entries):
    """Objects given as (label, score, left, top, right, bottom)."""
    return Detections(
        np.asarray([entry[0] for entry in entries], dtype=np.int64),
        np.asarray([entry[1] for entry in entries], dtype=np.float64),
        np.asarray([entry[2:] for entry in entries], dtype=np.float64).reshape(-1, 4),
        np.arange(len(entries)),
    )


def random_data(images=13, classes=3):
    """Truth of all sizes with crowds, and detections near it."""
    generator = np.random.default_rng(4)
    truth, detected = [], []
    for _ in range(images):
        rows = []
        for _ in range(generator.integers(0, 5)):
            left, top = generator.uniform(0, 150, 2)
            sides = generator.uniform(5, 140, 2)
            rows.append(
                (int(generator.integers(classes)), left, top, left + sides[0], top + sides[1])
            )
        near = [
            (label if generator.random() < 0.8 else 0, generator.random(),
             *(np.asarray(box) + generator.normal(0, 4, 4)))
            for label, *box in rows + rows
        ]  # fmt: skip
        truth.append(rows)
        detected.append(found(*[(label, s, a, b, max(c, a + 1), max(d, b + 1))
                                for label, s, a, b, c, d in near]))  # fmt: skip
    data = boxed_images(truth, names=tuple("abc"), size=(300, 300))
    for entry in data.objects:
        entry.is_crowd[:] = generator.random(len(entry)) < 0.15
        entry.areas[:] = 0.4 * (entry.boxes[:, 2:] - entry.boxes[:, :2]).prod(axis=1)
    return data, detected


def test_twelve_figures_equal_pycocotools():
    theirs = pytest.importorskip("pycocotools.cocoeval", reason="pycocotools is not installed")
    from pycocotools.coco import COCO

    images, detected = random_data()
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = truth_content(images)
        areas = np.concatenate([entry.areas for entry in images.objects])
        for entry, area in zip(truth.dataset["annotations"], areas, strict=True):
            entry["area"] = float(area)
        truth.createIndex()
        results = coco_results(detected, images.category_ids, range(len(images)))
        evaluation = theirs.COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    ours = score_detections(detected, images)
    assert 0.05 < ours.figures["AP"] < 0.95  # the data decide something
    np.testing.assert_allclose(
        [ours.figures[name] for name in FIGURES], evaluation.stats, rtol=0, atol=1e-9
    )


def test_exact_detections_score_one_and_none_score_zero():
    images = boxed_images([[(0, 1, 1, 9, 9)], [(1, 5, 5, 30, 20)]])
    exact = [found((0, 0.9, 1, 1, 9, 9)), found((1, 0.8, 5, 5, 30, 20))]
    assert score_detections(exact, images).figures["AP"] == pytest.approx(1)
    nothing = score_detections([found(), found()], images)
    assert (nothing.figures["AP"], nothing.count_error) == (0, 1)


def test_one_false_alarm_above_gives_half_by_hand():
    """Class a: its right box comes second, so precision is 1/2 at every recall."""
    images = boxed_images([[(0, 1, 1, 9, 9)]])
    scores = score_detections([found((0, 0.9, 20, 20, 30, 30), (0, 0.8, 1, 1, 9, 9))], images)
    assert scores.figures["AP50"] == pytest.approx(0.5)
    assert [name for name, *_ in scores.by_class] == ["a"]
    assert scores.precision[50] == pytest.approx(0.5)


def test_duplicates_are_counted_by_class_and_score():
    images = boxed_images([[(0, 1, 1, 9, 9)]])
    entry = found(
        (0, 0.9, 1, 1, 9, 9), (0, 0.8, 1, 1, 9, 9), (1, 0.7, 1, 1, 9, 9), (0, 0.4, 1, 1, 9, 9)
    )
    scores = score_detections([entry], images)
    assert scores.duplicates == pytest.approx(1 / 3)
    assert scores.count_error == 2


def test_the_protocol_is_part_of_the_text():
    told = str(score_detections([found((0, 0.9, 1, 1, 9, 9))], boxed_images([[(0, 1, 1, 9, 9)]])))
    assert "1 images, 1 objects" in told
    assert "AP_large   none" in told


def test_data_without_objects_cannot_be_scored():
    with pytest.raises(ValueError, match="holds no object to score"):
        score_detections([found()], boxed_images([[]]))
