"""Export a forecaster to ONNX: one graph, its config, a program."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_vanilla.families import entry_of
from hf_vanilla.tracks.forecaster import class_name, load_forecaster

from .files import write_graph

ANY = torch.export.Dim.AUTO
RUNNER = Path(__file__).with_name("runners") / "forecast.py"
# what a graph cannot do, by the class that does it
SAMPLES = "draws samples or searches"
FAULTS = {
    "VanillaForQuantizedTrajectoryPrediction": SAMPLES,
    "VanillaForJointTrajectoryPrediction": SAMPLES,
    "VanillaForDiverseTrajectoryPrediction": SAMPLES,
    "VanillaForProposalTrajectoryPrediction": "gives other futures in ONNX Runtime",
    "VanillaForSocialProposalTrajectoryPrediction": "has the stages of form proposals, which gives "
    "other futures in ONNX Runtime",
    "VanillaForGatedTrajectoryPrediction": "has a gate that torch.export fixes to one number of "
    "agents",
}


class Futures(nn.Module):
    """Futures and their logits, from inputs in the order of `names`."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Trajectories and logits of the modes."""
        outputs = self.model(**dict(zip(self.names, inputs, strict=True)))
        return outputs.trajectories, outputs.mode_logits


def export_forecaster(name: str, folder: Path, dtype: str) -> None:
    """Write model.onnx, for any number of agents and lanes, and forecast.py.

    Args:
        name: folder or Hub id of our model.
        folder: to fill.
        dtype: of the weights.

    Raises:
        ValueError: a graph cannot do what the model does.
    """
    model = load_forecaster(name, device="cpu")
    if (form := class_name(model.config)) in FAULTS:
        raise ValueError(
            f"{name} is a {form}, which {FAULTS[form]}: export a model of another form"
        )
    inputs = _inputs(model.config)
    write_graph(
        Futures(model.float(), tuple(inputs)),
        tuple(example for example, _ in inputs.values()),
        folder / "model.onnx",
        names=(list(inputs), ("trajectories", "mode_logits")),
        sizes=(tuple(dict.fromkeys(axes, ANY) for _, axes in inputs.values()),),
        dtype=dtype,
    )
    model.config.save_pretrained(folder)
    shutil.copy(RUNNER, folder)


def _inputs(config: Any) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """Name of an input -> an example and its axes of any size."""
    reads, steps = entry_of(config).reads, config.observed_steps
    if not reads:
        past = torch.randn(3, steps, 2).cumsum(1)
        is_observed = torch.ones(3, steps, dtype=torch.bool)
        return {"past_values": (past, (0,)), "past_observed_mask": (is_observed, (0,))}
    agents, lanes, points = 4, 5, 6
    past = torch.randn(2, agents, steps, 2).cumsum(2)
    return {
        "past_values": (past, (0, 1)),
        "past_observed_mask": (torch.ones(2, agents, steps, dtype=torch.bool), (0, 1)),
        "agent_mask": (torch.ones(2, agents, dtype=torch.bool), (0, 1)),
        "lane_values": (torch.randn(2, lanes, points, 2), (0, 1, 2)),
        "lane_mask": (torch.ones(2, lanes, points, dtype=torch.bool), (0, 1, 2)),
        "lane_kinds": (torch.zeros(2, lanes, dtype=torch.long), (0, 1)),
    }
