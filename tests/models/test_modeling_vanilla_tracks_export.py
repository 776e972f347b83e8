"""Export of the forecasters: torch.export and ONNX with any number of agents."""

import torch
from torch import nn
from torch.testing import assert_close

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_tracks import VanillaForTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_tracks_forms import VanillaForMultimodalTrajectoryPrediction

SIZES = {"observed_steps": 5, "predicted_steps": 3, "num_modes": 4, "d_model": 24}
HEADS = {"encoder_attention_heads": 3, "decoder_attention_heads": 2}
NEAR = {"rtol": 0, "atol": 1e-5}


class Modes(nn.Module):
    """The two outputs that an exported model with several modes needs."""

    def __init__(self):
        super().__init__()
        config = VanillaTracksConfig(**SIZES, **HEADS, velocity_std=0.4)
        self.model = VanillaForMultimodalTrajectoryPrediction(config)

    def forward(self, past_values, past_observed_mask):
        outputs = self.model(past_values, past_observed_mask)
        return outputs.trajectories, outputs.mode_logits


class Step(nn.Module):
    """TF's step: the next velocity along the axes after the observed and the predicted ones."""

    def __init__(self):
        super().__init__()
        config = VanillaTracksConfig(**SIZES, **HEADS, velocity_std=0.4)
        self.model = VanillaForTrajectoryPrediction(config)

    def forward(self, past_values, past_observed_mask, velocities):
        past = self.model.encoder(past_values, past_observed_mask)
        inputs = torch.cat((past.velocity.unsqueeze(1), velocities), dim=1)
        return self.model._next_steps(past, inputs)[:, -1]


def agents(count):
    past = torch.randn(count, 5, 2).mul(0.3).cumsum(1)
    mask = torch.ones(count, 5, dtype=torch.long)
    mask[0, :2] = 0
    return past, mask


BATCH = torch.export.Dim("batch", max=4096)
MODES = {"past_values": {0: BATCH}, "past_observed_mask": {0: BATCH}}


@torch.no_grad()
def test_an_exported_program_forecasts_any_number_of_agents():
    model = Modes().eval()
    program = torch.export.export(model, agents(3), dynamic_shapes=MODES, strict=False).module()
    for count in (2, 7):
        given = agents(count)
        for ours, theirs in zip(model(*given), program(*given), strict=True):
            assert_close(theirs, ours, **NEAR)


@torch.no_grad()
def test_the_exported_step_repeated_is_the_rollout():
    model = Step().eval()
    shapes = {**MODES, "velocities": {0: BATCH, 1: torch.export.Dim("steps", max=64)}}
    given = (*agents(3), torch.zeros(3, 2, 2))
    program = torch.export.export(model, given, dynamic_shapes=shapes, strict=False).module()
    past, mask = agents(6)
    axes = model.model.encoder(past, mask).axes
    steps = model(past, mask, torch.zeros(6, 0, 2)).unsqueeze(1)
    for _ in range(2):
        steps = torch.cat((steps, program(past, mask, steps).unsqueeze(1)), dim=1)
    rollout = model.model(past, mask).trajectories[:, 0]
    assert_close(axes.positions(steps), rollout, **NEAR)
