"""Options of every command that reads track files, and what they stand for."""

from dataclasses import dataclass

import numpy as np

from hf_vanilla.options import Options, option

from .built_in_tracks import BUILT_IN, built_in_tracks
from .formats import FORMATS, Columns, TrackSource, read_homography, read_tracks
from .table import Scenes, resample

BUILT_IN_AGENTS = {"walkers": 1800, "forks": 1800, "junctions": 6000}


@dataclass(frozen=True, kw_only=True)
class TrackFileOptions(Options):
    """How track files are read."""

    _argument_group_name = "options of track files"

    format: str | None = option(
        None, f"one of {', '.join(FORMATS)}; default: by the file", of_data=True
    )
    frame_column: str = option("frame", "column of frame numbers", of_data=True)
    agent_column: str = option("agent", "column of agents' names", of_data=True)
    x_column: str = option("x", "column of x", of_data=True)
    y_column: str = option("y", "column of y", of_data=True)
    scene_column: str | None = option(None, "column of scenes' names", of_data=True)
    frame_seconds: float | None = option(
        None,
        "time between two frame numbers that follow each other, where the file does not state it",
        above=0,
        of_data=True,
    )
    step_seconds: float | None = option(
        None, "resample to steps of this time; default: as in the file", above=0, of_data=True
    )
    homography: str | None = option(
        None, "file of a 3x3 homography from pixels to the plane", of_data=True
    )
    unit: str = option("m", "unit of the positions", of_data=True)

    def read(self, path: str, *, seed: int = 0) -> Scenes:
        """The scenes of a file or folder, or built-in ones.

        Args:
            path: a file, a folder, or a name of `BUILT_IN`.
            seed: of built-in scenes.

        Raises:
            ValueError: the data do not match the options.
            OSError: a file cannot be read.
        """
        if path in BUILT_IN:
            scenes = built_in_tracks(path, agents=BUILT_IN_AGENTS[path], seed=seed)
            return scenes if self.step_seconds is None else resample(scenes, self.step_seconds)
        return read_tracks(path, self.source)

    @property
    def source(self) -> TrackSource:
        """The options in the reader's form."""
        plane: np.ndarray | None = None
        if self.homography is not None:
            plane = read_homography(self.homography)
        return TrackSource(
            format=self.format,
            columns=Columns(
                frame=self.frame_column,
                agent=self.agent_column,
                x=self.x_column,
                y=self.y_column,
                scene=self.scene_column,
            ),
            frame_seconds=self.frame_seconds,
            step_seconds=self.step_seconds,
            homography=plane,
            unit=self.unit,
        )
