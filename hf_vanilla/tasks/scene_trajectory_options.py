"""What a recipe can set for scenes of agents and lanes: form of the model, size of a step."""

from dataclasses import dataclass

from hf_vanilla.options import option
from hf_vanilla.recipes.measures import Measure
from hf_vanilla.trajectories.loading import SCENE_FORMS

from .trajectory_options import UNIT, WindowOptions

MEASURES = {
    "min_ade": Measure("validation minADE of all futures", UNIT, better="lower", precision=3),
    "min_fde": Measure("validation minFDE of all futures", UNIT, better="lower", precision=3),
    "ade": Measure("validation ADE of the top-scored track", UNIT, better="lower", precision=3),
    "fde": Measure("validation FDE of the top-scored track", UNIT, better="lower", precision=3),
    "loss": Measure("training loss", "nats per future step"),
}


@dataclass(frozen=True, kw_only=True)
class SceneDataOptions(WindowOptions):  # flat on the command line
    """Scenes of agents and lanes: form of the model and size of batches."""

    _argument_group_name = "options of task scene_trajectories"

    form: str = option(
        "fusion",
        "fusion: Wayformer, with model.fusion and model.encoder; proposals: mmTransformer; "
        "neighbors: Gatformer; gate: Spatial-Channel; vectors: Huang et al.",
        choices=tuple(SCENE_FORMS),
    )
    scenes_per_step: int = option(16, "scenes of an optimizer step", at_least=1)
    scenes_per_batch: int = option(16, "scenes of a process and micro-batch", at_least=1)
    max_agents: int = option(
        32, "agents of a training scene; of larger ones so many at random", at_least=1
    )
    with_lanes: bool = option(default=True, text="read the lanes of tracks that have some")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scenes_per_step % self.scenes_per_batch:
            raise ValueError(
                f"scenes_per_step={self.scenes_per_step} is not a multiple of "
                f"scenes_per_batch={self.scenes_per_batch}: change either"
            )
