"""The published files of ETH and UCY, where they are: set ETH_UCY to their folder."""

import os
from pathlib import Path

import pytest

from hf_vanilla.tracks.eth_ucy import TEST_WINDOWS, leave_one_out
from hf_vanilla.tracks.windows import cut_windows

FOLDER = Path(os.environ.get("ETH_UCY", "eth_ucy"))
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="ETH_UCY names no folder")
TRAIN = {"eth": (30307, 5422), "hotel": (29676, 5203), "univ": (9874, 2800)}
TRAIN |= {"zara1": (28577, 5184), "zara2": (26076, 4262)}
COMPANY = {"eth": 181, "hotel": 1053, "univ": 24334, "zara1": 2253, "zara2": 5833}


@pytest.mark.parametrize("scene", TEST_WINDOWS)
def test_windows_are_those_of_the_published_splits(scene):
    split = leave_one_out(FOLDER, scene)
    train, validation, test = (
        cut_windows(part, observed=8, predicted=12)
        for part in (split.train, split.validation, split.test)
    )
    assert (len(train), len(validation), len(test)) == (*TRAIN[scene], TEST_WINDOWS[scene])
    assert len(test.with_company()) == COMPANY[scene]


def test_an_unknown_scene_is_named():
    with pytest.raises(ValueError, match="test_scene='zara9'"):
        leave_one_out(FOLDER, "zara9")
