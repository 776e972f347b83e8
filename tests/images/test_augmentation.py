"""Random changes of images: their geometry by hand, their limits, their reproducibility."""

import pytest
import torch
from torch.testing import assert_close

from hf_vanilla.images.batches import Augmentation, affine_transforms, augment


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


def test_without_changes_images_stay_the_same_tensor():
    images = torch.rand(3, 3, 5, 7)
    assert augment(images, Augmentation(), generator()) is images


def test_a_certain_flip_mirrors_left_and_right():
    images = torch.rand(3, 3, 5, 7)
    assert_close(augment(images, Augmentation(flip=1.0), generator()), images.flip(-1))


def test_half_of_the_images_are_flipped_at_a_half():
    images = torch.rand(400, 1, 2, 3)
    flipped = augment(images, Augmentation(flip=0.5), generator()).isclose(images.flip(-1))
    assert 150 < flipped.flatten(1).all(1).sum() < 250


def test_the_generator_alone_decides():
    images, changes = torch.rand(4, 3, 6, 6), Augmentation(rotation=20, scale=0.2, shift=0.1)
    first = augment(images, changes, generator())
    torch.rand(5)
    assert_close(augment(images, changes, generator()), first, rtol=0, atol=0)
    assert not torch.equal(augment(images, changes, generator(4)), first)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [(Augmentation(shift=0.25), 0.5), (Augmentation(crop=0.75), 0.5)],
)
def test_shifts_stay_within_their_limits(changes, limit):
    """A shift of a quarter is 0.5 in coordinates from -1 to 1; a crop keeps half of each side."""
    found = affine_transforms(1000, (8, 8), changes, generator())
    assert found[:, :, 2].abs().max() <= limit
    assert found[:, :, 2].abs().max() > 0.9 * limit


def test_a_crop_stays_inside_the_image():
    found = affine_transforms(1000, (8, 8), Augmentation(crop=0.9), generator())
    reach = found[:, 0, 0].abs() + found[:, 0, 2].abs()
    assert reach.max() <= 1 + 1e-6


def test_a_rotation_keeps_distances_in_oblong_images():
    """In pixels, the transform is a rotation: its columns are orthogonal and of length 1."""
    height, width = 6, 10
    found = affine_transforms(50, (height, width), Augmentation(rotation=90), generator())
    to_pixels = torch.diag(torch.tensor([width / 2, height / 2]))
    in_pixels = to_pixels @ found[:, :, :2] @ to_pixels.inverse()
    identity = torch.eye(2).expand(50, 2, 2)
    assert_close(in_pixels @ in_pixels.transpose(1, 2), identity, rtol=0, atol=1e-5)
    assert found[:, 0, 1].abs().max() > 0.5


def test_scales_stay_within_their_limits():
    found = affine_transforms(1000, (8, 8), Augmentation(scale=0.25), generator())[:, 0, 0]
    assert 1 / 1.25 - 1e-6 <= found.min() < 0.82
    assert 1.28 < found.max() <= 1 / 0.75 + 1e-6


def test_brightness_multiplies_and_stays_in_range():
    images = torch.full((200, 1, 2, 2), 0.9)
    found = augment(images, Augmentation(brightness=0.5), generator())
    assert found.max() == 1.0
    assert 0.45 <= found.min() < 0.55
    assert_close(found[:, :, :1, :1].expand_as(found), found)  # one factor for each image


@pytest.mark.parametrize(
    ("name", "value"),
    [("rotation", 181), ("scale", 1.0), ("shift", -0.1), ("flip", 1.1), ("crop", 1.0)],
)
def test_impossible_values_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}: give"):
        Augmentation(**{name: value})
