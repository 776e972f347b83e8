"""TF_q: codebook, cache, samples by the model's own probabilities."""

import pytest
import torch
from torch.testing import assert_close
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.inputs_vanilla_forecaster import k_means
from hf_vanilla.models.modeling_vanilla_tracks_forms import VanillaForQuantizedTrajectoryPrediction

SIZES = {
    "observed_steps": 5,
    "predicted_steps": 3,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
    "num_modes": 6,
    "num_codes": 7,
    "velocity_std": 0.4,
}


def walks(agents=11):
    positions = torch.randn(agents, 1, 2) * 5 + torch.randn(agents, 8, 2).mul(0.3).cumsum(1)
    return positions[:, :5], positions[:, 5:]


@pytest.fixture
def model():
    torch.manual_seed(3)
    model = VanillaForQuantizedTrajectoryPrediction(VanillaTracksConfig(**SIZES)).eval()
    model.fit_codebook(*walks())
    return model


def test_centres_of_three_groups_by_hand():
    groups = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 9.0], [0.2, 0.0], [5.0, 0.4], [0.0, 9.6]])
    assert_close(
        k_means(groups, groups[:3], 10), torch.tensor([[0.1, 0.0], [5.0, 0.2], [0.0, 9.3]])
    )


def test_a_centre_without_points_stays_where_it_is():
    points = torch.tensor([[1.0, 1.0], [1.0, 1.0], [4.0, 4.0]])
    assert_close(k_means(points, points[:2], 10)[1], points[1])


def test_without_a_codebook_a_forecast_is_refused():
    past, _ = walks()
    with pytest.raises(ValueError, match=r"call fit_codebook\(\)"):
        VanillaForQuantizedTrajectoryPrediction(VanillaTracksConfig(**SIZES)).eval()(past)


def test_standing_agents_give_no_codes(model):
    still = torch.ones(200, 5, 2)
    with pytest.raises(ValueError, match="no agent of the windows moves"):
        model.fit_codebook(still, still[:, :3])


def test_every_sampled_step_is_a_code_along_the_axes_of_the_agent(model):
    past, _ = walks()
    tracks = model(past).trajectories
    assert tracks.shape == (11, 6, 3, 2)
    axes = model.encoder(past).axes
    steps = torch.diff(tracks, dim=2, prepend=past[:, None, -1:].expand(-1, 6, -1, -1))
    turned = axes.enter(steps.flatten(1, 2))  # (B, M * P, 2)
    nearest = model.decoder.codebook[model.decoder.nearest_codes(turned)]
    assert_close(turned, nearest, rtol=0, atol=1e-4)


def test_a_code_with_all_the_probability_is_always_drawn(model):
    torch.nn.init.zeros_(model.decoder.head.weight)
    model.decoder.head.bias.data[4] = 50.0
    past, _ = walks()
    axes = model.encoder(past).axes
    step = model.decoder.codebook[4].expand(11, 6, 3, 2)
    assert_close(model(past).trajectories, axes.positions(step))


def test_samples_are_drawn_as_often_as_their_probability_says(model):
    torch.nn.init.zeros_(model.decoder.head.weight)
    wanted = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05, 1e-9, 1e-9])
    model.decoder.head.bias.data = wanted.log()
    past, _ = walks(agents=400)
    encoded = model.encoder(past)
    torch.manual_seed(0)
    codes = model.sample(encoded, model.decoder.nearest_codes(encoded.velocity))
    assert codes.shape == (400, 6, 3)
    shares = torch.bincount(codes.flatten(), minlength=7) / codes.numel()
    assert_close(shares, wanted, rtol=0, atol=0.02)  # 4 standard deviations of 7,200 draws


def test_a_cache_changes_no_logits(model):
    past, _ = walks()
    seen = model.encoder(past)
    mask, codes = seen.attention_mask, torch.randint(7, (11, 4))
    encoded = BaseModelOutput(last_hidden_state=seen.hidden_states)
    whole = model.decoder(codes, encoded, mask).logits
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    parts = [
        model.decoder(codes[:, i : i + 1], encoded, mask, past_key_values=cache).logits
        for i in range(4)
    ]
    assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)


def test_the_loss_is_the_cross_entropy_of_the_nearest_codes(model):
    past, future = walks()
    seen = model.encoder(past)
    total = 0.0
    for agent in range(11):
        before, here = model.decoder.nearest_codes(seen.velocity)[agent], past[agent, -1]
        codes = [before]
        for step in range(3):
            velocity = (future[agent, step] - here) @ seen.axes.rotation[agent] / 0.4
            wanted = (model.decoder.codebook - velocity).norm(dim=-1).argmin()
            encoded = BaseModelOutput(last_hidden_state=seen.hidden_states[agent : agent + 1])
            logits = model.decoder(torch.stack(codes)[None], encoded).logits[0, -1]
            total -= logits.log_softmax(-1)[wanted]
            codes.append(wanted)
            here = future[agent, step]
    assert_close(model(past, future_values=future).loss, total / 33)


def test_missing_future_steps_weigh_nothing(model):
    past, future = walks()
    mask = torch.ones(11, 3)
    mask[0, 2] = mask[4] = 0
    unknown = future.masked_fill(~mask.bool().unsqueeze(-1), float("nan"))
    first, second = (
        model(past, future_values=f, future_observed_mask=mask).loss for f in (future, unknown)
    )
    assert first.isfinite()
    assert_close(first, second, rtol=0, atol=0)


def test_the_codebook_is_saved_with_the_weights(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = VanillaForQuantizedTrajectoryPrediction.from_pretrained(tmp_path).eval()
    past, future = walks()
    assert_close(again.decoder.codebook, model.decoder.codebook, rtol=0, atol=0)
    losses = [m(past, future_values=future).loss for m in (again, model)]
    assert_close(*losses, rtol=0, atol=0)


def test_fewer_velocities_than_codes_are_refused(model):
    past, future = walks(agents=2)
    with pytest.raises(ValueError, match="num_codes=7, but the windows have 6 velocities: lower"):
        model.fit_codebook(past, future)
