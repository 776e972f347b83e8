"""The walking people of ETH and UCY: which files are trained on where one scene is left out.

The files are research data and come with no package; `docs/tracks.md` says where they are.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .formats import read_tracks
from .table import TrackTable, join_tables
from .windows import cut_windows

OBSERVED, PREDICTED = 8, 12
# rows of earlier frames train, the others validate
FIRST_VALIDATION_FRAME = {
    "biwi_eth": 10240,
    "biwi_hotel": 14400,
    "crowds_zara01": 7110,
    "crowds_zara02": 8420,
    "crowds_zara03": 6030,
    "students001": 3550,
    "students003": 4320,
    "uni_examples": 5940,
}
TEST_FILES = {
    "eth": ("biwi_eth",),
    "hotel": ("biwi_hotel",),
    "univ": ("students001", "students003"),
    "zara1": ("crowds_zara01",),
    "zara2": ("crowds_zara02",),
}
TEST_WINDOWS = {"eth": 364, "hotel": 1197, "univ": 24334, "zara1": 2356, "zara2": 5910}


@dataclass(frozen=True)
class Split:
    """Training and validation tables of the other scenes, and the test table of one."""

    train: TrackTable
    validation: TrackTable
    test: TrackTable


def leave_one_out(folder: str | Path, scene: str) -> Split:
    """Read the files of a folder; the test scene is in neither of the other parts.

    Args:
        folder: with the eight files.
        scene: a name of `TEST_FILES`.

    Raises:
        ValueError: there is no such scene, or the files differ from the published ones.
        OSError: a file is missing.
    """
    if scene not in TEST_FILES:
        raise ValueError(f"test_scene={scene!r}: choose one of {', '.join(TEST_FILES)}")
    missing = [n for n in FIRST_VALIDATION_FRAME if not (Path(folder) / f"{n}.txt").is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} has no {missing[0]}.txt, and test_scene={scene!r} needs the eight files of "
            "ETH and UCY: give their folder, or no test_scene (--test_scene none in training)"
        )
    train, validation, test = [], [], []
    for name, first in FIRST_VALIDATION_FRAME.items():
        table = read_tracks(Path(folder) / f"{name}.txt")
        if name in TEST_FILES[scene]:
            test.append(table)
            continue
        train.append(table.rows(np.asarray(table.frame < first)))
        validation.append(table.rows(np.asarray(table.frame >= first)))
    split = Split(join_tables(train), join_tables(validation), join_tables(test))
    found = len(cut_windows(split.test, observed=OBSERVED, predicted=PREDICTED))
    if found != TEST_WINDOWS[scene]:
        raise ValueError(
            f"{folder}: scene {scene} has {found:,} windows instead of {TEST_WINDOWS[scene]:,}: "
            "take the files that the documentation names"
        )
    return split
