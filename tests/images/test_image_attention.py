"""What is drawn of an image model: weights, rollout, similarity of positions, patch filters."""

import numpy as np
import pytest
import torch
from image_models import vit
from PIL import Image
from torch.testing import assert_close

from hf_vanilla.images.batches import image_processor
from hf_vanilla.images.classifier import Classifier, patch_attention, rollout
from hf_vanilla.images.plot import patch_filters, position_similarity


def classifier():
    return Classifier(vit(), image_processor((15, 20), [0.5] * 3, [0.5] * 3))


def noise():
    return Image.fromarray(np.random.default_rng(3).integers(0, 255, (30, 40, 3), dtype=np.uint8))


def test_weights_of_an_image_are_those_of_the_model():
    chosen = classifier()
    before = chosen.model.config._attn_implementation
    found = patch_attention(chosen, noise())
    assert chosen.model.config._attn_implementation == before
    assert found.weights.shape == (2, 3, 13, 13)
    assert_close(found.weights.sum(-1), torch.ones(2, 3, 13))
    assert found.of_class_token.shape == (2, 3, 3, 4)
    assert_close(found.of_class_token[1, 2, 1, 3], found.weights[1, 2, 0, 1 + 4 + 3])
    assert found.rollout.shape == (3, 4)
    assert len(found.guesses) == 5


def test_rollout_by_hand():
    """One layer of even attention over two tokens: half of it and half of the identity."""
    even = torch.full((1, 1, 2, 2), 0.5)
    half = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    assert_close(rollout(even), half)
    assert_close(rollout(even.expand(2, 3, 2, 2)), half @ half)


def test_rollout_multiplies_later_layers_from_the_left():
    first = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    last = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    eye = torch.eye(2)
    expected = (last + eye) / 2 @ ((first + eye) / 2)
    assert_close(rollout(torch.stack((first, last)).unsqueeze(1)), expected)


def test_position_similarity_by_hand():
    positions = torch.tensor([[[9.0, 9], [1, 0], [0, 2], [-3, 0]]])
    found = position_similarity(positions, (1, 3))
    assert_close(found[0, 0], torch.tensor([[1.0, 0.0, -1.0]]))


def test_patch_filters_are_the_main_directions():
    projection = torch.zeros(4, 1, 1, 2)
    projection[:, 0, 0, 0] = torch.tensor([3.0, -3.0, 3.0, -3.0])
    projection[:, 0, 0, 1] = torch.tensor([1.0, 1.0, -1.0, -1.0])
    found = patch_filters(projection, 2)
    assert found.shape == (2, 1, 1, 2)
    assert found[0, 0, 0].sort().values.tolist() == pytest.approx([0.0, 1.0])
