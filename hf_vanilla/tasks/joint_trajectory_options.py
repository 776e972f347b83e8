"""What a recipe can set for joint trajectories: scenes, the stage, the size of a step."""

from dataclasses import dataclass

from hf_vanilla.options import option
from hf_vanilla.recipes.measures import Measure
from hf_vanilla.trajectories.loading import STAGES

from .trajectory_options import UNIT, WindowOptions

MEASURES = {
    "min_ade": Measure("validation minADE of all samples", UNIT, better="lower", precision=3),
    "min_fde": Measure("validation minFDE of all samples", UNIT, better="lower", precision=3),
    "joint_ade": Measure("validation minJADE of all samples", UNIT, better="lower", precision=3),
    "joint_fde": Measure("validation minJFDE of all samples", UNIT, better="lower", precision=3),
    "loss": Measure("training loss", "per agent"),
}


@dataclass(frozen=True, kw_only=True)
class JointDataOptions(WindowOptions):  # flat on the command line
    """Scenes of agents: stage of the model and size of batches."""

    _argument_group_name = "options of task joint_trajectories"

    stage: str = option(
        "first",
        "first: samples from a learned prior; second: samples that differ, on a first stage",
        choices=tuple(STAGES),
    )
    first_stage: str | None = option(
        None, "model folder or Hub id of the first stage, for the second", of_data=True
    )
    scenes_per_step: int = option(16, "scenes of an optimizer step", at_least=1)
    scenes_per_batch: int = option(16, "scenes of a process and micro-batch", at_least=1)
    max_agents: int = option(
        32, "agents of a training scene; of larger ones so many at random", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scenes_per_step % self.scenes_per_batch:
            raise ValueError(
                f"scenes_per_step={self.scenes_per_step} is not a multiple of "
                f"scenes_per_batch={self.scenes_per_batch}: change either"
            )
        if (self.stage == "second") != (self.first_stage is not None):
            raise ValueError(
                f"stage={self.stage!r} and first_stage={self.first_stage!r}: give first_stage, a "
                "model folder, for the second stage and only there"
            )
