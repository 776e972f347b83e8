"""Options of the commands that read tracks, and what a recipe can set for the three tasks."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hf_vanilla.families import Measure, task_entry
from hf_vanilla.options import Options, option
from hf_vanilla.training.options import RowOptions

from .built_in_tracks import BUILT_IN, built_in_tracks
from .eth_ucy import TEST_FILES
from .formats import FORMATS, TrackSource, read_columns, read_homography, read_tracks
from .table import TrackTable, resample

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from hf_vanilla.training.options import TrainRecipe

UNIT = "units of the tracks"
VALIDATION_SEED = 5


def _error(score: str, of: str) -> Measure:
    return Measure(f"validation {score} of {of}", UNIT, better="lower", precision=3)


MEASURES = {
    "min_ade": _error("minADE", "all modes"),
    "min_fde": _error("minFDE", "all modes"),
    "ade": _error("ADE", "the top-scored track"),
    "fde": _error("FDE", "the top-scored track"),
    "loss": Measure("training loss", "per future step"),
}
JOINT_MEASURES = {
    "min_ade": _error("minADE", "all samples"),
    "min_fde": _error("minFDE", "all samples"),
    "joint_ade": _error("minJADE", "all samples"),
    "joint_fde": _error("minJFDE", "all samples"),
    "loss": Measure("training loss", "per agent"),
}
SCENE_MEASURES = MEASURES | {
    "min_ade": _error("minADE", "all futures"),
    "min_fde": _error("minFDE", "all futures"),
    "loss": Measure("training loss", "nats per future step"),
}
BUILT_IN_AGENTS = {"walkers": 1800, "forks": 1800, "junctions": 6000}


@dataclass(frozen=True, kw_only=True)
class TrackFileOptions(Options):
    """How track files are read."""

    _argument_group_name = "options of track files"

    format: str | None = option(
        None, f"one of {', '.join(FORMATS)}; default: by the file", of_data=True
    )
    columns: str = option(
        "",
        "columns of a table that have other names, such as frame=timestep,x=east; of frame, agent, "
        "x and y; scene=NAME where a file holds several scenes, kind=NAME of agents' kinds",
        of_data=True,
    )
    frame_seconds: float | None = option(
        None,
        "time between two frame numbers that follow each other, where the file does not state it",
        above=0,
        of_data=True,
    )
    step_seconds: float | None = option(
        None, "resample to steps of this time; default: as in the file", above=0
    )
    homography: str | None = option(
        None, "file of a 3x3 homography from pixels to the plane", of_data=True
    )
    unit: str = option("m", "unit of the positions", of_data=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        read_columns(self.columns)

    @property
    def given_for_files(self) -> list[str]:
        """Names of the options given that say how a file is to be read."""
        plain = vars(TrackFileOptions())
        given = [name for name, default in plain.items() if getattr(self, name) != default]
        return [name for name in given if name != "step_seconds"]

    def warn_of_file_options(self, data: str) -> None:
        """Warn of options for other files than `data`, whose format is known."""
        if names := self.given_for_files:
            logger.warning("%s: for other files; the format of %s is known", ", ".join(names), data)

    def read(self, path: str, *, seed: int = 0) -> TrackTable:
        """The scenes of a file or folder, or built-in ones.

        Args:
            path: a file, a folder, or a name of `BUILT_IN`.
            seed: of built-in scenes.

        Raises:
            ValueError: the data do not match the options.
            OSError: a file cannot be read.
        """
        if path in BUILT_IN:
            if seed != 1:  # of validation, beside data that may be a file
                self.warn_of_file_options(path)
            table = built_in_tracks(path, agents=BUILT_IN_AGENTS[path], seed=seed)
            return resample(table, self.step_seconds)
        if not Path(path).exists():
            raise FileNotFoundError(f"{path}: no such file; built-in: {', '.join(BUILT_IN)}")
        source = TrackSource(
            format=self.format,
            columns=read_columns(self.columns),
            frame_seconds=self.frame_seconds,
            step_seconds=self.step_seconds,
            homography=None if self.homography is None else read_homography(self.homography),
            unit=self.unit,
        )
        table = read_tracks(path, source)
        if not len(table):
            raise ValueError(
                f"{path}: no agent is there at a step of {self.step_seconds:g} s or around it: "
                "give longer tracks, or a shorter step_seconds"
            )
        return table


@dataclass(frozen=True, kw_only=True)
class WindowOptions(TrackFileOptions, RowOptions):  # the files' options, flat on the command line
    """Tracks to train on, and how windows are cut and changed."""

    dataset: str = option(
        "walkers",
        "file or folder of tracks, or built-in ones: walkers, forks, junctions",
        of_data=True,
        chooses_data=True,
    )
    test_scene: str = option(
        "none",
        f"train on a folder of ETH and UCY without this scene: one of {', '.join(TEST_FILES)}; "
        "none: on all tracks. --dataset does not change it",
        choices=("none", *TEST_FILES),
    )
    validation: str | None = option(
        None,
        "file or folder to validate on; default: a share, of built-in tracks new ones, of ETH and "
        "UCY the published cut",
        of_data=True,
    )
    validation_share: float = option(
        0.1,
        "share kept for validation: of the agents; in tasks of scenes, of the scenes or, where "
        "these are too few, of each one's frames, the last",
        at_least=0,
        below=1,
    )
    stride: int = option(1, "steps from one training window to the next", at_least=1)
    allow_missing: bool = option(
        default=False, text="mask missing steps instead of leaving out windows that have some"
    )
    mirror: float = option(0.5, "probability of a mirror image", at_least=0, at_most=1)
    speed_change: float = option(
        0.0, "largest random relative change of speed", at_least=0, below=1
    )
    position_noise: float = option(
        0.0,
        "largest standard deviation of noise on the observed positions, in units of the tracks; "
        "each window draws its own",
        at_least=0,
    )
    noise_share: float = option(
        0.25, "probability that a window has this noise", at_least=0, at_most=1
    )
    rotate: bool = option(default=False, text="turn each window by a random angle")

    @property
    def left_out(self) -> str:
        """Text for the log and the card that names the scene left out; empty where none is."""
        return "" if self.test_scene == "none" else f", without scene {self.test_scene}"

    @property
    def named_files(self) -> list[str]:
        """Files and folders to read, none of them built in."""
        return [path for path in (self.dataset, self.validation) if path not in (None, *BUILT_IN)]

    def held_out(self, table: TrackTable) -> np.ndarray:
        """Rows kept for validation, `(N,)` bool: those of some agents."""
        return self._share_of(table.agent)

    def _share_of(self, numbers: np.ndarray) -> np.ndarray:
        """Rows, `(N,)` bool, of a random `validation_share` of the numbers that rows have."""
        some = np.random.default_rng(VALIDATION_SEED).permutation(np.unique(numbers))
        return np.isin(numbers, some[: int(self.validation_share * len(some))])


@dataclass(frozen=True, kw_only=True)
class SceneOptions(WindowOptions):  # flat on the command line
    """Windows of whole scenes: size of scenes, batches and steps."""

    rows: ClassVar[str] = "scenes"

    scenes_per_step: int = option(16, "scenes of an optimizer step", at_least=1)
    scenes_per_batch: int = option(16, "scenes of a process and micro-batch", at_least=1)
    max_agents: int = option(
        32, "agents of a training scene; of larger ones so many at random", at_least=1
    )

    def held_out(self, table: TrackTable) -> np.ndarray:
        """Rows of some scenes or, of too few, the last frames of each: no scene lacks agents."""
        rows = self._share_of(table.scene)
        if not rows.any():
            for scene in np.unique(table.scene):
                of_scene = table.scene == scene
                last, length = table.frame[of_scene].max(), np.ptp(table.frame[of_scene])
                rows |= of_scene & (table.frame > last - self.validation_share * length)
        return rows


# fields of a config that only these forms read
FORMS_OF = {
    **dict.fromkeys(("forcing_loss_weight", "rollout_loss_weight"), ("one",)),
    "constant_velocity_share": ("one", "tf_paper"),
    "num_codes": ("quantized", "tf_quantized_paper"),
    **dict.fromkeys(("fusion", "encoder", "num_latents"), ("fusion",)),
    "num_regions": ("proposals", "proposals_paper"),
    **dict.fromkeys(("neighbor_distance", "num_neighbors"), ("neighbors",)),
    **dict.fromkeys(("field_of_view", "raster_cells"), ("neighbors",)),
    "gate_reduction": ("gate",),
    "learned_positions": ("fusion", "proposals", "neighbors", "gate", "vectors"),
}


def warn_unread(form: str, names: Iterable[str]) -> None:
    """Warn of fields that a recipe sets and only other forms read."""
    for name in names:
        forms = FORMS_OF.get(name, (form,))
        if form not in forms:
            others = ", ".join(forms)
            told = "model.%s changes nothing in form %s; forms that read it: %s"
            logger.warning(told, name, form, others)


@dataclass(frozen=True, kw_only=True)
class TrackDataOptions(WindowOptions):  # flat on the command line
    """Windows of single agents: form of the model and size of batches."""

    _argument_group_name = "options of task trajectories"
    rows: ClassVar[str] = "windows"

    form: str = option(
        "modes",
        "modes: several futures with scores; one: one future, step by step; density: modes with a "
        "spread per step; quantized: futures drawn from classes of velocities; tf_paper and "
        "tf_quantized_paper: one and quantized as in their paper",
        choices=tuple(task_entry("trajectories").forms),
    )
    windows_per_step: int = option(256, "windows of an optimizer step", at_least=1)
    windows_per_batch: int = option(256, "windows of a process and micro-batch", at_least=1)
    winner_temperature: float = option(
        0.0,
        "of the loss over modes at the start, in units of the tracks; falls to 0 in two thirds of "
        "the run; 0: only the closest mode is regressed",
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True)
class JointDataOptions(SceneOptions):  # flat on the command line
    """Scenes of agents, and the stage of the model."""

    _argument_group_name = "options of task joint_trajectories"

    stage: str = option(
        "first",
        "first: samples from a learned prior; second: samples that differ, on a first stage",
        choices=tuple(task_entry("joint_trajectories").forms),
    )
    first_stage: str | None = option(
        None, "model folder or Hub id of the first stage, for the second", of_data=True
    )

    def check_with(self, train: "TrainRecipe") -> None:
        """Compare with the shared options.

        Raises:
            ValueError: a new second stage has no first one, or something else has one.
        """
        is_new_second = self.stage == "second" and train.initial_model is None
        if is_new_second != (self.first_stage is not None):
            raise ValueError(
                f"stage={self.stage!r} and first_stage={self.first_stage!r}: give first_stage, a "
                "model folder, for a new second stage and only there"
            )


@dataclass(frozen=True, kw_only=True)
class SceneDataOptions(SceneOptions):  # flat on the command line
    """Scenes of agents and lanes, and the form of the model."""

    _argument_group_name = "options of task scene_trajectories"

    form: str = option(
        "fusion",
        "fusion: Wayformer, with model.fusion and model.encoder; proposals: mmTransformer's idea; "
        "proposals_paper: as in its authors' code; "
        "neighbors: Gatformer; gate: Spatial-Channel; vectors: Huang et al.",
        choices=tuple(task_entry("scene_trajectories").forms),
    )
    with_lanes: bool = option(default=True, text="the model reads lanes, where tracks have some")
