"""What a recipe can set for trajectories: tracks, windows, the size of a step."""

from dataclasses import dataclass

from hf_vanilla.families import Measure
from hf_vanilla.options import check_multiple, option
from hf_vanilla.training.recipe import TrainRecipe

from .eth_ucy import TEST_FILES
from .file_options import TrackFileOptions
from .loading import FORMS

UNIT = "units of the tracks"
MEASURES = {
    "min_ade": Measure("validation minADE of all modes", UNIT, better="lower", precision=3),
    "min_fde": Measure("validation minFDE of all modes", UNIT, better="lower", precision=3),
    "ade": Measure("validation ADE of the top-scored track", UNIT, better="lower", precision=3),
    "fde": Measure("validation FDE of the top-scored track", UNIT, better="lower", precision=3),
    "loss": Measure("training loss", "per future step"),
}


@dataclass(frozen=True, kw_only=True)
class WindowOptions(TrackFileOptions):  # the files' options, flat on the command line
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
        "file or folder to validate on; default: a share of the agents, of built-in tracks new "
        "ones, of ETH and UCY the published cut",
        of_data=True,
    )
    validation_share: float = option(
        0.1, "share of the agents kept for validation", at_least=0, below=1
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

    def check_with(self, train: TrainRecipe) -> None:
        """Nothing here depends on the shared options."""


@dataclass(frozen=True, kw_only=True)
class SceneOptions(WindowOptions):  # flat on the command line
    """Windows of whole scenes: size of scenes, batches and steps."""

    scenes_per_step: int = option(16, "scenes of an optimizer step", at_least=1)
    scenes_per_batch: int = option(16, "scenes of a process and micro-batch", at_least=1)
    max_agents: int = option(
        32, "agents of a training scene; of larger ones so many at random", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "scenes_per_step", "scenes_per_batch")


@dataclass(frozen=True, kw_only=True)
class TrackDataOptions(WindowOptions):  # flat on the command line
    """Windows of single agents: form of the model and size of batches."""

    _argument_group_name = "options of task trajectories"

    form: str = option(
        "modes",
        "modes: several futures with scores; one: one future, step by step; density: modes with a "
        "spread per step; quantized: futures drawn from classes of velocities",
        choices=tuple(FORMS),
    )
    windows_per_step: int = option(256, "windows of an optimizer step", at_least=1)
    windows_per_batch: int = option(256, "windows of a process and micro-batch", at_least=1)
    winner_temperature: float = option(
        0.0,
        "of the loss over modes at the start, in units of the tracks; falls to 0 in two thirds of "
        "the run; 0: only the closest mode is regressed",
        at_least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "windows_per_step", "windows_per_batch")
