"""Scores of a classifier, by hand."""

import pytest
import torch
from image_files import colour_folder
from image_models import vit
from torch.testing import assert_close

from hf_vanilla.data.images import read_image_folder
from hf_vanilla.images.batches import image_processor
from hf_vanilla.images.classifier import Classifier
from hf_vanilla.images.evaluation import calibration_error, score_classifier, score_probabilities


def test_accuracy_confusion_and_nats_by_hand():
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.3, 0.3, 0.4]])
    scores = score_probabilities(probabilities, torch.tensor([0, 0, 2]), ["a", "b", "c"])
    assert scores.accuracy == pytest.approx(2 / 3)
    assert scores.top5 == 1.0
    assert_close(scores.confusion, torch.tensor([[1, 1, 0], [0, 0, 0], [0, 0, 1]]))
    expected = -torch.tensor([0.7, 0.4, 0.4]).log().mean().item()
    assert scores.nats == pytest.approx(expected)
    assert scores.by_class == [("a", 1, 2), ("b", 0, 0), ("c", 1, 1)]
    assert "accuracy 66.67 % of 3 images" in str(scores)
    assert "b" not in str(scores).split("bins)")[1]  # no image of it


def test_the_first_five_count_where_there_are_more_labels():
    probabilities = torch.arange(1.0, 8.0).expand(2, 7) / 28
    scores = score_probabilities(probabilities, torch.tensor([2, 1]), list("abcdefg"))
    assert scores.top5 == 0.5


def test_calibration_error_by_hand():
    """Two bins: two images at 0.9, one right; two at 0.5, both right: (0.8 + 1.0) / 4."""
    confidence = torch.tensor([0.9, 0.9, 0.5, 0.5])
    is_right = torch.tensor([True, False, True, True])
    assert calibration_error(confidence, is_right) == pytest.approx((0.8 + 1.0) / 4)
    assert calibration_error(torch.ones(3), torch.ones(3, dtype=torch.bool)) == 0.0


def test_a_folder_is_scored_without_its_unreadable_images(tmp_path):
    colour_folder(tmp_path, count=3)
    (tmp_path / "red" / "1.png").write_bytes(b"")
    classifier = Classifier(vit(num_labels=2), image_processor((15, 20), [0.5] * 3, [0.5] * 3))
    images = read_image_folder(tmp_path)
    scores = score_classifier(classifier, images, batch_size=2)
    assert scores.images == 5
    assert scores.unreadable == 1
    assert "unreadable images, which are not counted: 1" in str(scores)
    with pytest.raises(ValueError, match=r"1\.png is empty"):
        score_classifier(classifier, images, stop_at_unreadable=True)
    with pytest.raises(ValueError, match="no images to score"):
        score_probabilities(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), ["a", "b"])
