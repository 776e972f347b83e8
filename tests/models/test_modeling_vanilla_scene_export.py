"""Export of the forecasters of agents and lanes, which have no loop over steps."""

import pytest
import torch
from scene_models import scene_model, scenes
from torch import nn
from torch.testing import assert_close

SCENES = torch.export.Dim("scenes", max=64)
AGENTS, LANES = torch.export.Dim("agents", max=64), torch.export.Dim("lanes", max=64)
POINTS = (
    torch.export.Dim.AUTO
)  # torch cannot prove a guard of interleaved layers, which always holds
SHAPES = {
    "past_values": {0: SCENES, 1: AGENTS},
    "past_observed_mask": {0: SCENES, 1: AGENTS},
    "agent_mask": {0: SCENES, 1: AGENTS},
    "lane_values": {0: SCENES, 1: LANES, 2: POINTS},
    "lane_mask": {0: SCENES, 1: LANES, 2: POINTS},
    "lane_kinds": {0: SCENES, 1: LANES},
}


class Futures(nn.Module):
    """Futures and their logits by name of the input, as an exporter needs them."""

    def __init__(self, name):
        super().__init__()
        self.model = scene_model(name).float()

    def forward(
        self, past_values, past_observed_mask, agent_mask, lane_values, lane_mask, lane_kinds
    ):
        outputs = self.model(
            past_values,
            past_observed_mask,
            agent_mask,
            lane_values=lane_values,
            lane_mask=lane_mask,
            lane_kinds=lane_kinds,
        )
        return outputs.trajectories, outputs.mode_logits


def inputs(**sizes):
    """Scenes of which one has a padded agent and a padded lane, and one agent a hidden step."""
    found = {key: part for key, part in scenes(**sizes).items() if key in SHAPES}
    found["agent_mask"][1, -1] = 0
    found["lane_mask"][1, -1] = 0
    found["past_observed_mask"][0, 0, 0] = 0
    return tuple(part.float() if part.is_floating_point() else part for part in found.values())


def assert_same(found, expected, is_agent):
    for theirs, ours in zip(found, expected, strict=True):
        assert_close(theirs[is_agent], ours[is_agent], rtol=1e-4, atol=1e-4)


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    ["neighbors", "hierarchical interleaved", "late latent", "proposals", "vectors", "gate"],
)
@torch.no_grad()
def test_an_exported_program_reads_any_number_of_scenes_agents_lanes_and_points(name):
    model = Futures(name).eval()
    program = torch.export.export(model, inputs(), dynamic_shapes=SHAPES, strict=False).module()
    most = model.model.config  # 9 other agents, 11 lanes
    for agents, lanes in ((6, 7), (most.max_others + 3, most.max_lanes + 5)):
        given = inputs(count=3, agents=agents, lanes=lanes, points=5)
        assert_same(program(*given), model(*given), given[2].bool())
