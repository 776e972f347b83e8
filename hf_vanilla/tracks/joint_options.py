"""What a recipe can set for joint trajectories: scenes, the stage, the size of a step."""

from dataclasses import dataclass

from hf_vanilla.families import Measure
from hf_vanilla.options import option
from hf_vanilla.training.recipe import TrainRecipe

from .loading import STAGES
from .options import UNIT, SceneOptions

MEASURES = {
    "min_ade": Measure("validation minADE of all samples", UNIT, better="lower", precision=3),
    "min_fde": Measure("validation minFDE of all samples", UNIT, better="lower", precision=3),
    "joint_ade": Measure("validation minJADE of all samples", UNIT, better="lower", precision=3),
    "joint_fde": Measure("validation minJFDE of all samples", UNIT, better="lower", precision=3),
    "loss": Measure("training loss", "per agent"),
}


@dataclass(frozen=True, kw_only=True)
class JointDataOptions(SceneOptions):  # flat on the command line
    """Scenes of agents, and the stage of the model."""

    _argument_group_name = "options of task joint_trajectories"

    stage: str = option(
        "first",
        "first: samples from a learned prior; second: samples that differ, on a first stage",
        choices=tuple(STAGES),
    )
    first_stage: str | None = option(
        None, "model folder or Hub id of the first stage, for the second", of_data=True
    )

    def check_with(self, train: TrainRecipe) -> None:
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
