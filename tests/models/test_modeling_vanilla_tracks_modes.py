"""The form with densities: likelihood against torch, and what the spreads must not change."""

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.testing import assert_close

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_tracks import mixture_nats
from hf_vanilla.models.modeling_vanilla_tracks_forms import (
    VanillaForMultimodalTrajectoryPrediction,
    VanillaForTrajectoryDensityPrediction,
)

SIZES = {
    "observed_steps": 5,
    "predicted_steps": 3,
    "d_model": 24,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
    "num_modes": 4,
    "velocity_std": 0.4,
}


@pytest.fixture
def model():
    return VanillaForTrajectoryDensityPrediction(VanillaTracksConfig(**SIZES))


def walks(agents=7):
    positions = torch.randn(agents, 8, 2).mul(0.3).cumsum(1)
    return positions[:, :5], positions[:, 5:]


def test_the_likelihood_equals_a_mixture_of_torch():
    tracks, logits = torch.randn(5, 4, 3, 2).double(), torch.randn(5, 4).double()
    spreads, future = torch.rand(5, 4, 3).double() + 0.1, torch.randn(5, 3, 2).double()
    found = mixture_nats(tracks, logits, spreads, future)
    for step in range(3):
        normal = Normal(tracks[:, :, step], spreads[:, :, step, None].expand(-1, -1, 2))
        mixture = MixtureSameFamily(Categorical(logits=logits), Independent(normal, 1))
        assert_close(found[:, step], -mixture.log_prob(future[:, step]))


def test_spreads_change_neither_tracks_nor_scores_nor_their_gradients(model):
    plain = VanillaForMultimodalTrajectoryPrediction(model.config)
    plain.load_state_dict(model.state_dict(), strict=False)
    past, future = walks()
    outputs = [m(past, future_values=future) for m in (model, plain)]
    assert_close(outputs[0].trajectories, outputs[1].trajectories, rtol=0, atol=0)
    assert_close(outputs[0].mode_logits, outputs[1].mode_logits, rtol=0, atol=0)
    for output in outputs:
        output.loss.backward()
    gradients = dict(model.named_parameters())
    for name, weight in plain.named_parameters():
        assert_close(gradients[name].grad, weight.grad, rtol=0, atol=1e-6)
    assert model.spread_head.weight.grad.abs().sum() > 0


def test_the_loss_adds_the_likelihood_per_known_step(model):
    past, future = walks()
    mask = torch.ones(7, 3, dtype=torch.bool)
    mask[0, 1:] = mask[3] = False
    unknown = future.masked_fill(~mask.unsqueeze(-1), float("nan"))
    found = model(past, future_values=unknown, future_observed_mask=mask)
    plain = VanillaForMultimodalTrajectoryPrediction(model.config)
    plain.load_state_dict(model.state_dict(), strict=False)
    rest = plain(past, future_values=unknown, future_observed_mask=mask).loss
    nats = mixture_nats(found.trajectories, found.mode_logits, found.spreads, future)
    assert_close(found.loss, rest + nats[mask].mean())


def test_spreads_learn_the_noise_of_the_data(model):
    """Agents stand; their next positions are drawn with a standard deviation of 0.1, 0.3, 0.5."""
    torch.manual_seed(0)
    past, noise = torch.zeros(512, 5, 2), torch.tensor([0.1, 0.3, 0.5]).view(1, 3, 1)
    for head in (model.track_head, model.score_head):  # all modes stay at 0
        torch.nn.init.zeros_(head.weight)
        head.weight.requires_grad_(False)
        head.bias.requires_grad_(False)
    optimizer = torch.optim.Adam(model.spread_head.parameters(), lr=0.05)
    for _ in range(150):
        loss = model(past, future_values=noise * torch.randn(512, 3, 2)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spreads = model.eval()(past[:1]).spreads[0].mean(0)
    assert_close(spreads, noise.flatten(), rtol=0.1, atol=0)


def test_another_number_of_steps_is_refused(model):
    past, _ = walks(2)
    for steps in (None, 3):
        assert model(past, predicted_steps=steps).trajectories.shape[2] == 3
    with pytest.raises(ValueError, match="computes its 3 steps at once"):
        model(past, predicted_steps=20)
