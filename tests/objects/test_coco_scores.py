"""COCO scores: equal to pycocotools, and by hand."""

import contextlib
import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from detection_files import boxed_images

from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection
from hf_vanilla.objects.coco_scores import (
    FIGURES,
    coco_results,
    score_detections,
    score_layers,
    without_overlaps,
)
from hf_vanilla.objects.detection import NUMBERS, coco_content
from hf_vanilla.objects.detector import Detections, Detector


def found(*entries):
    """Objects given as (label, score, left, top, right, bottom)."""
    return Detections(
        labels=np.asarray([entry[0] for entry in entries], dtype=np.int64),
        boxes=np.asarray([entry[2:] for entry in entries], dtype=np.float64).reshape(-1, 4),
        scores=np.asarray([entry[1] for entry in entries], dtype=np.float64),
        queries=np.arange(len(entries)),
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
        numbered = replace(images, image_ids=NUMBERS, category_ids=NUMBERS)
        truth.dataset = coco_content(numbered)
        areas = np.concatenate([entry.areas for entry in images.objects])
        for entry, area in zip(truth.dataset["annotations"], areas, strict=True):
            entry["area"] = float(area)
        truth.createIndex()
        results = coco_results(detected, range(3), range(len(images)))
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


@pytest.mark.parametrize("ids", [(7, 3), ("y", "x"), (7, "x")])
def test_scores_of_classes_have_their_names_whatever_the_ids(ids):
    images = boxed_images([[(0, 1, 1, 9, 9)], [(1, 5, 5, 30, 20)]], names=("dog", "cat"))
    images = replace(images, category_ids=ids)
    scores = score_detections([found((0, 0.9, 1, 1, 9, 9)), found()], images)
    assert scores.by_class == (("dog", pytest.approx(1), pytest.approx(1)), ("cat", 0, 0))


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


def test_suppression_keeps_what_no_kept_object_of_its_class_repeats():
    entry = found(
        (0, 0.9, 0, 0, 10, 100),
        (0, 0.8, 0, 0, 8, 100),  # IoU .8 with the first: dropped
        (0, 0.7, 0, 0, 6, 100),  # IoU .75 with the dropped one, .6 with the first: stays
        (1, 0.6, 0, 0, 10, 100),  # another class
        (0, 0.5, 50, 50, 60, 60),
    )
    assert without_overlaps(entry).queries.tolist() == [0, 2, 3, 4]
    assert len(without_overlaps(found())) == 0


def test_scores_after_each_layer_by_hand(monkeypatch):
    """The first layer finds one object twice before the other: precision 1, then 2/3."""
    images = boxed_images([[(0, 1, 1, 9, 9), (0, 20, 20, 40, 30)]])
    first, second = (0, 0.9, 1, 1, 9, 9), (0, 0.7, 20, 20, 40, 30)
    of_layers = {1: found(first, (0, 0.8, 1, 1, 9, 9), second), 2: found(first, second)}
    model = SimpleNamespace(model=SimpleNamespace(decoder=SimpleNamespace(layers=[0, 0])))

    def detect(self, pictures):
        return [of_layers[len(self.model.model.decoder.layers)] for _ in pictures]

    monkeypatch.setattr(Detector, "detect", detect)
    one, two = score_layers(Detector(model, None), images)
    assert (one.ap, one.ap50) == pytest.approx([(51 + 50 * 2 / 3) / 101] * 2)
    assert (one.suppressed_ap, one.suppressed_ap50, *vars(two).values()) == pytest.approx([1] * 6)
    assert model.model.decoder.layers == [0, 0]  # the caller's model is whole


def test_a_detector_without_its_last_layers_is_that_of_the_intermediate_states():
    backbone = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8], "depths": [1]}
    backbone |= {"layer_type": "basic", "out_features": ["stage1"]}
    config = VanillaDetrConfig(
        backbone_config=backbone, d_model=16, encoder_layers=1, decoder_layers=3, num_queries=4
    )
    model, pixels = VanillaForObjectDetection(config).eval(), torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        every = model.class_labels_classifier(model.model(pixels).intermediate_hidden_states)
        del model.model.decoder.layers[-1]
        torch.testing.assert_close(model(pixels).logits, every[1])


def test_the_protocol_is_part_of_the_text():
    told = str(score_detections([found((0, 0.9, 1, 1, 9, 9))], boxed_images([[(0, 1, 1, 9, 9)]])))
    assert "1 images, 1 objects" in told
    assert "AP_large   none" in told


def test_data_without_objects_cannot_be_scored():
    with pytest.raises(ValueError, match="holds no object to score"):
        score_detections([found()], boxed_images([[]]))
