"""TF and TF_q as in their paper, against the layers written slowly."""

import math

import pytest
import torch
from reference import decoder_layer, encoder_layer, linear, part, position_vector
from torch.testing import assert_close

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_tracks import VanillaForTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_tracks_forms import VanillaForQuantizedTrajectoryPrediction

MEAN, DEVIATION = torch.tensor([0.2, -0.1]).double(), torch.tensor([0.5, 0.3]).double()
SIZES = {
    "observed_steps": 5,
    "predicted_steps": 3,
    "d_model": 12,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 17,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 19,
    "num_modes": 4,
    "num_codes": 7,
    "velocity_std": 0.4,  # not read
    "follows_paper": True,
    "velocity_mean": MEAN.tolist(),
    "velocity_deviation": DEVIATION.tolist(),
}
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def walks(agents=6):
    draw = torch.Generator().manual_seed(1)
    moves = torch.randn(agents, 8, 2, generator=draw, dtype=torch.float64).mul(0.3)
    positions = 5 + moves.cumsum(1)
    return positions[:, :5], positions[:, 5:]


def velocities(past, future):
    """Of one agent: `(4, 2)` observed, `(3, 2)` future, along the world's axes."""
    moves = torch.cat((past, future)).diff(dim=0)
    return moves[:4], moves[4:]


def tokens(vectors):
    """Embedded steps `(L, D)`: times the root of the width, plus the position."""
    places = [position_vector(i, 12) for i in range(len(vectors))]
    return vectors * math.sqrt(12) + torch.stack([torch.as_tensor(p) for p in places])


def decoded(model, decoder, source, target):
    """States `(L, D)` of the decoder after embedded source and target."""
    weights, states = model.state_dict(), tokens(source)
    for number in range(2):
        states = encoder_layer(states, part(weights, f"encoder.layers.{number}"), model.config)
    source, states = states, tokens(target)
    for number in range(2):
        layer = part(weights, f"{decoder}layers.{number}")
        states = decoder_layer(states, source, layer, model.config)
    return states


@pytest.fixture
def one():
    torch.manual_seed(3)
    return VanillaForTrajectoryPrediction(VanillaTracksConfig(**SIZES)).double().eval()


@pytest.fixture
def quantized():
    torch.manual_seed(3)
    model = VanillaForQuantizedTrajectoryPrediction(VanillaTracksConfig(**SIZES)).double().eval()
    model.fit_codebook(*walks())
    return model


def numbers_of(model, seen, inputs):
    """The three numbers `(L, 3)` after inputs `(L, 3)` and the observed velocities."""
    weights = model.state_dict()
    source = linear((seen - MEAN) / DEVIATION, part(weights, "encoder.embedding.projection"))
    target = linear(inputs, part(weights, "embedding.projection"))
    return linear(decoded(model, "", source, target), part(weights, "head"))


@torch.no_grad()
def test_the_loss_of_tf_is_the_distance_and_the_third_number_after_true_velocities(one):
    past, future = walks()
    total = 0.0
    for agent in range(6):
        seen, true = velocities(past[agent], future[agent])
        wanted = (true - MEAN) / DEVIATION
        start = torch.tensor([[0.0, 0.0, 1.0]]).double()
        inputs = torch.cat((start, torch.cat((wanted[:2], torch.zeros(2, 1)), dim=1)))
        found = numbers_of(one, seen, inputs)
        total += (found[:, :2] - wanted).norm(dim=1).sum() + found[:, 2].abs().sum()
    assert_close(one(past, future_values=future).loss, total / 18, **EXACT)
    assert_close(one.train()(past, future_values=future).loss, total / 18, **EXACT)


@torch.no_grad()
def test_a_rollout_of_tf_feeds_back_all_three_numbers(one):
    past, future = walks()
    found = one(past).trajectories
    for agent in range(6):
        seen, _ = velocities(past[agent], future[agent])
        inputs = torch.tensor([[0.0, 0.0, 1.0]]).double()
        for _ in range(3):
            inputs = torch.cat((inputs, numbers_of(one, seen, inputs)[-1:]))
        steps = inputs[1:, :2] * DEVIATION + MEAN
        assert_close(found[agent, 0], past[agent, -1] + steps.cumsum(0), **EXACT)


@torch.no_grad()
def test_the_loss_of_tf_q_is_the_cross_entropy_after_a_start_token_and_true_codes(quantized):
    past, future = walks()
    weights, total = quantized.state_dict(), 0.0
    for agent in range(6):
        moves = torch.cat(velocities(past[agent], future[agent]))
        codes = torch.cdist(moves, quantized.decoder.codebook).argmin(1)
        source = weights["encoder.embedding.projection.weight"][codes[:4]]
        target = weights["decoder.embedding.projection.weight"][[7, *codes[4:6].tolist()]]
        logits = linear(
            decoded(quantized, "decoder.", source, target), part(weights, "decoder.head")
        )
        total -= logits.log_softmax(1)[torch.arange(3), codes[4:]].sum()
    loss = quantized(past, future_values=future).loss.item()  # in float32
    assert loss == pytest.approx(total.item() / 18, abs=1e-6)


def test_forecasts_of_tf_q_are_steps_of_codes_that_observed_steps_enter_too(quantized):
    past, future = walks()
    steps = torch.diff(
        quantized(past).trajectories, dim=2, prepend=past[:, None, -1:].expand(6, 4, 1, 2)
    )
    assert torch.cdist(steps.flatten(0, 2), quantized.decoder.codebook).amin(1).max() < 1e-6
    quantized.fit_codebook(past[:1], future[:1])  # 4 observed and 3 future steps for 7 codes
    moves = torch.cat(velocities(past[0], future[0]))
    assert torch.cdist(moves, quantized.decoder.codebook).amin(1).max() < 1e-6


def test_statistics_and_form_are_saved(one, tmp_path):
    one.save_pretrained(tmp_path)
    again = VanillaForTrajectoryPrediction.from_pretrained(tmp_path, dtype=torch.float64).eval()
    past, _ = walks()
    assert_close(again(past).trajectories, one(past).trajectories, **EXACT)
    for change, message in (
        ({"velocity_deviation": [1, 0]}, r"velocity_deviation=\[1, 0\]: give positive"),
        ({"velocity_mean": [1]}, "give two numbers each"),
    ):
        with pytest.raises(Exception, match=message):
            VanillaTracksConfig(**{**SIZES, **change})
