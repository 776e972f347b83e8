"""What a recipe can set for scenes of agents and lanes: form of the model, size of a step."""

from dataclasses import dataclass

from hf_vanilla.families import Measure
from hf_vanilla.options import option

from .loading import SCENE_FORMS
from .options import UNIT, SceneOptions

MEASURES = {
    "min_ade": Measure("validation minADE of all futures", UNIT, better="lower", precision=3),
    "min_fde": Measure("validation minFDE of all futures", UNIT, better="lower", precision=3),
    "ade": Measure("validation ADE of the top-scored track", UNIT, better="lower", precision=3),
    "fde": Measure("validation FDE of the top-scored track", UNIT, better="lower", precision=3),
    "loss": Measure("training loss", "nats per future step"),
}


@dataclass(frozen=True, kw_only=True)
class SceneDataOptions(SceneOptions):  # flat on the command line
    """Scenes of agents and lanes, and the form of the model."""

    _argument_group_name = "options of task scene_trajectories"

    form: str = option(
        "fusion",
        "fusion: Wayformer, with model.fusion and model.encoder; proposals: mmTransformer; "
        "neighbors: Gatformer; gate: Spatial-Channel; vectors: Huang et al.",
        choices=tuple(SCENE_FORMS),
    )
    with_lanes: bool = option(default=True, text="read the lanes of tracks that have some")
