"""The forecasters: by hand, invariances, cache, masks, failures."""

import math

import pytest
import torch
from torch.testing import assert_close

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.inputs_vanilla_forecaster import TrueFuture, agent_axes
from hf_vanilla.models.modeling_vanilla_tracks import (
    VanillaForTrajectoryPrediction,
    closest_mode_loss,
    mean_distance,
)
from hf_vanilla.models.modeling_vanilla_tracks_forms import VanillaForMultimodalTrajectoryPrediction
from hf_vanilla.tracks.forecaster import SimpleForecaster

SIZES = {
    "observed_steps": 5,
    "predicted_steps": 7,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
    "num_modes": 6,
    "velocity_std": 0.4,
}
FORMS = (VanillaForTrajectoryPrediction, VanillaForMultimodalTrajectoryPrediction)
NEAR = {"rtol": 0, "atol": 1e-5}


@pytest.fixture(params=FORMS, ids=["one", "modes"])
def model(request):
    return request.param(VanillaTracksConfig(**SIZES)).eval()


@pytest.fixture
def one():
    return VanillaForTrajectoryPrediction(VanillaTracksConfig(**SIZES)).eval()


def walks(agents=4, steps=12):
    return torch.randn(agents, 1, 2) * 5 + torch.randn(agents, steps, 2).mul(0.3).cumsum(1)


def split(positions):
    return positions[:, :5], positions[:, 5:]


# --- axes --------------------------------------------------------------------------------------


AHEAD = {"follows_heading": True, "heading_decay": 0.5}


def test_the_heading_is_a_mean_in_which_later_displacements_weigh_more():
    # 2 along x, then 3 along y, then none: (0.5 * 2, 1 * 3), and the last one says nothing
    past = torch.tensor([[[0.0, 0.0], [2.0, 0.0], [2.0, 3.0], [2.0, 3.0]]])
    axes, _, _ = agent_axes(past, torch.ones(1, 4, dtype=torch.bool), **AHEAD, scale=1.0)
    turned = torch.tensor([[[1.0, 3.0]]]) @ axes.rotation
    assert_close(turned, torch.tensor([[[10.0**0.5, 0.0]]]))


def test_axes_by_hand():
    past = torch.tensor([[[0.0, 0.0], [0.0, 1.0], [0.0, 3.0]]])  # along y, 1 then 2 a step
    axes, entered, _ = agent_axes(past, torch.ones(1, 3, dtype=torch.bool), **AHEAD, scale=2.0)
    assert_close(entered, torch.tensor([[[0.5, 0.0], [1.0, 0.0]]]))
    ahead = torch.tensor([[[1.0, 0.0], [0.0, 0.5]]])  # 2 ahead, then 1 to the left
    assert_close(axes.positions(ahead), torch.tensor([[[0.0, 5.0], [-1.0, 5.0]]]))


def test_an_agent_that_stands_keeps_the_axes_of_the_world():
    past = torch.ones(1, 3, 2)
    axes, _, _ = agent_axes(past, torch.ones(1, 3, dtype=torch.bool), **AHEAD, scale=1.0)
    assert_close(axes.rotation[0], torch.eye(2))


@pytest.mark.parametrize("angle", [0.3, 2.0, -3.0])
def test_turning_and_shifting_the_world_turns_and_shifts_predictions(model, angle):
    past, _ = split(walks())
    turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    shift = torch.tensor([3.0, -8.0])
    plain, turned = model(past), model(past @ turn + shift)
    assert_close(turned.trajectories, plain.trajectories @ turn + shift, rtol=0, atol=1e-4)
    assert_close(turned.mode_logits, plain.mode_logits, rtol=0, atol=1e-4)


# --- what may change a prediction --------------------------------------------------------------


def test_the_future_never_changes_a_prediction(model):
    past, future = split(walks())
    plain = model(past)
    for other in (future, future + 9, -future):
        found = model(past, future_values=other)
        assert_close(found.trajectories, plain.trajectories, rtol=0, atol=0)


def test_an_agent_alone_equals_the_agent_in_a_batch(model):
    past, _ = split(walks())
    together = model(past).trajectories
    for agent in range(len(past)):
        alone = model(past[agent : agent + 1]).trajectories
        assert_close(alone[0], together[agent], **NEAR)


def test_positions_of_missing_steps_change_nothing(model):
    past, _ = split(walks())
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 1, 1, 1], [0, 0, 0, 0, 1]])
    other = torch.where(mask.bool().unsqueeze(-1), past, float("nan"))
    plain, changed = (model(values, mask).trajectories for values in (past, other))
    assert_close(plain, changed, rtol=0, atol=0)
    assert plain.isfinite().all()
    assert not torch.equal(plain[1], model(past).trajectories[1])


def test_missing_future_steps_weigh_nothing(model):
    past, future = split(walks())
    mask = torch.ones(4, 7, dtype=torch.long)
    mask[0, 3:] = mask[2] = 0
    unknown = future.masked_fill(~mask.bool().unsqueeze(-1), float("nan"))
    first, second = (
        model(past, future_values=f, future_observed_mask=mask).loss for f in (future, unknown)
    )
    assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_sdpa_equals_eager_without_any_mask(form):
    past, _ = split(walks())
    config = VanillaTracksConfig(**SIZES)
    models = [form(config).eval() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    found = []
    for model, attention in zip(models, ("eager", "sdpa"), strict=True):
        model.set_attn_implementation(attention)
        found.append(model(past).trajectories)
    assert_close(*found, **NEAR)


# --- TF ----------------------------------------------------------------------------------------


def test_the_rollout_equals_teacher_forcing_on_its_own_output(one):
    past, _ = split(walks())
    own = one(past).trajectories[:, 0]
    encoded, truth = one.encoder(past), TrueFuture(own, torch.ones(4, 7).bool())
    true, _ = truth.velocities(encoded.axes)
    forced = one._next_steps(encoded, torch.cat((encoded.velocity.unsqueeze(1), true[:, :-1]), 1))
    assert_close(encoded.axes.positions(forced), own, **NEAR)


def test_a_later_step_never_changes_an_earlier_one(one):
    past, future = split(walks())
    one.train()
    one.config.forcing_loss_weight, one.config.rollout_loss_weight = 1.0, 0.0
    for module in one.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    changed = future.clone()
    changed[:, 4] += 3
    first, second = (one(past, future_values=f).trajectories[:, 0] for f in (future, changed))
    assert_close(first[:, :5], second[:, :5], rtol=0, atol=0)
    assert not torch.equal(first[:, 6], second[:, 6])


def test_the_rollout_loss_is_the_distance_of_the_rollout(one):
    past, future = split(walks())
    one.config.forcing_loss_weight, one.config.rollout_loss_weight = 1.0, 0.0
    plain = one(past, future_values=future)
    one.config.rollout_loss_weight = 0.5
    both = one(past, future_values=future)
    distance = (plain.trajectories[:, 0] - future).norm(dim=-1).mean()
    assert_close(both.loss, plain.loss + 0.5 * distance)


def test_training_runs_the_rollout_of_inference(one):
    past, future = split(walks())
    expected = one(past).trajectories
    assert_close(one.train()(past, future_values=future).trajectories, expected, **NEAR)


def test_the_gradient_of_the_rollout_is_that_of_finite_differences(one):
    past, future = split(walks())
    one = one.double().train()
    past, future = past.double(), future.double()
    weight = one.head.weight
    one(past, future_values=future).loss.backward()
    found = weight.grad[1, 3].item()
    losses = []
    for change in (1e-6, -2e-6):
        with torch.no_grad():
            weight[1, 3] += change
        losses.append(one(past, future_values=future).loss.item())
    assert found == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4)


def test_training_on_own_steps_changes_all_weights_and_never_reads_the_future(one):
    past, future = split(walks())
    one.train()
    first, second = (one(past, future_values=f) for f in (future, future + 1))
    assert_close(first.trajectories, second.trajectories, rtol=0, atol=0)
    first.loss.backward()
    assert all(weight.grad is not None for weight in one.parameters())


@pytest.mark.parametrize("form", FORMS)
def test_a_model_whose_head_is_zero_walks_straight_on(form):
    model = form(VanillaTracksConfig(**SIZES)).eval()
    head = model.head if hasattr(model, "head") else model.track_head
    torch.nn.init.zeros_(head.weight)
    past, _ = split(walks())
    mask = torch.ones(4, past.shape[1])
    mask[2, -2] = 0  # the last displacement takes two steps
    last = past[:, -1] - past[:, -2]
    last[2] = (past[2, -1] - past[2, -3]) / 2
    steps = torch.arange(1, 8).view(1, -1, 1)
    found = model(past, past_observed_mask=mask).trajectories
    expected = past[:, -1:] + last.unsqueeze(1) * steps
    assert_close(found, expected.unsqueeze(1).expand_as(found), **NEAR)


def test_a_share_of_constant_velocity_is_in_the_forecast_and_not_in_the_loss(one):
    past, future = split(walks())
    mask = torch.ones(4, past.shape[1])
    mask[2, -2] = 0
    plain = one(past, mask, future)
    one.config.constant_velocity_share = 0.25
    mixed = one(past, mask, future)
    straight = SimpleForecaster("constant_velocity", one.config)(past, mask).trajectories
    assert (straight - plain.trajectories).abs().max() > 0.1
    assert_close(mixed.trajectories, 0.25 * straight + 0.75 * plain.trajectories, **NEAR)
    assert_close(mixed.loss, plain.loss, rtol=0, atol=0)
    own = one.train()(past, mask, future).trajectories
    assert_close(own, plain.trajectories, **NEAR)


# --- losses ------------------------------------------------------------------------------------


def test_mean_distance_by_hand():
    predicted = torch.tensor([[[3.0, 4.0], [0.0, 0.0]], [[0.0, 2.0], [9.0, 9.0]]])
    known = torch.tensor([[1, 1], [1, 0]]).bool()
    assert mean_distance(predicted, torch.zeros(2, 2, 2), known) == pytest.approx((5 + 0 + 2) / 3)
    assert mean_distance(
        predicted, torch.zeros(2, 2, 2), known, num_items_in_batch=10
    ) == pytest.approx(0.7)


def test_the_closest_mode_is_regressed_and_its_score_classified():
    tracks = torch.zeros(1, 3, 2, 2, requires_grad=True)
    offsets = torch.tensor([[[[1.0, 0.0]] * 2, [[0.5, 0.0]] * 2, [[4.0, 0.0]] * 2]])
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    config = VanillaTracksConfig(score_loss_weight=1.0, final_loss_weight=0.0)
    truth = TrueFuture(torch.zeros(1, 2, 2), torch.ones(1, 2, dtype=torch.bool))
    loss = closest_mode_loss(config, tracks + offsets, logits, truth)
    entropy = math.log(math.exp(2) + math.exp(1) + 1) - 1
    assert loss.item() == pytest.approx(0.5 + entropy, rel=1e-5)
    loss.backward()
    assert [mode.abs().sum().item() > 0 for mode in tracks.grad[0]] == [False, True, False]


def losses_of_two_modes(final_weight=0.0, **options):
    """Mode 0: 1 m at both steps. Mode 1: 0 m, then 3 m; no scores."""
    apart = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [3.0, 0.0]]]])
    config = VanillaTracksConfig(score_loss_weight=0.0, final_loss_weight=final_weight)
    truth = TrueFuture(torch.zeros(1, 2, 2), torch.ones(1, 2, dtype=torch.bool))
    return closest_mode_loss(config, apart, torch.zeros(1, 2), truth, **options).item()


def test_a_temperature_regresses_all_modes_by_their_distance():
    near = math.exp(-1.0 / 0.5) / (math.exp(-1.0 / 0.5) + math.exp(-1.5 / 0.5))
    expected = near * 1.0 + (1 - near) * 1.5
    assert losses_of_two_modes(temperature=0.5) == pytest.approx(expected, rel=1e-5)
    assert losses_of_two_modes(temperature=0.0) == pytest.approx(1.0)
    assert losses_of_two_modes() == pytest.approx(1.0)


def test_the_final_distance_adds_to_the_mean_distance():
    assert losses_of_two_modes(final_weight=0.5) == pytest.approx(1.0 + 0.5 * 1.0)
    # mode 1 is chosen if only its first step is known, and its last one weighs nothing then
    apart = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [3.0, 0.0]]]])
    config = VanillaTracksConfig(score_loss_weight=0.0, final_loss_weight=0.5)
    truth = TrueFuture(torch.zeros(1, 2, 2), torch.tensor([[True, False]]))
    loss = closest_mode_loss(config, apart, torch.zeros(1, 2), truth)
    assert loss.item() == 0.0


def test_a_perfect_prediction_has_a_finite_gradient():
    tracks = torch.ones(2, 3, 2, requires_grad=True)
    mean_distance(tracks, torch.ones(2, 3, 2), torch.ones(2, 3, dtype=torch.bool)).backward()
    assert tracks.grad.isfinite().all()


def test_micro_batches_with_the_count_of_the_step_sum_to_the_whole_loss(model):
    past, future = split(walks())
    mask = torch.ones(4, 7)
    mask[0, 2:] = 0
    whole = model(past, future_values=future, future_observed_mask=mask).loss
    parts = sum(
        model(
            past[rows],
            future_values=future[rows],
            future_observed_mask=mask[rows],
            num_items_in_batch=int(mask.sum()),
        ).loss
        for rows in (slice(None, 1), slice(1, None))
    )
    assert_close(parts, whole)


@pytest.mark.parametrize("form", FORMS)
def test_it_learns_to_go_straight_on(form):
    torch.manual_seed(0)
    config = VanillaTracksConfig(**SIZES | {"dropout": 0.0, "num_modes": 2})
    model = form(config).train()
    speeds = 0.1 + torch.rand(32, 1, 1)
    direction = torch.randn(32, 1, 2)
    ahead = direction / direction.norm(dim=-1, keepdim=True) * speeds
    past, future = split(torch.arange(12).view(1, -1, 1) * ahead)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(120):
        loss = model(past, future_values=future).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3


# --- saving and failures -----------------------------------------------------------------------


def test_a_saved_model_comes_back_to_the_bit(model, tmp_path):
    past, _ = split(walks())
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert_close(again(past).trajectories, model(past).trajectories, rtol=0, atol=0)
    assert (again.config.step_seconds, again.config.velocity_std) == (0.4, 0.4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda past: past[:, :4], r"past_values has shape \(4, 4, 2\), but the model has 5"),
        (lambda past: past[..., :1], r"give \(B, 5, 2\)"),
        (lambda past: past[:0], r"past_values has shape \(0, 5, 2\): give one row or more"),
        (lambda past: past.index_fill(0, torch.tensor([1]), float("nan")), "NaN or infinite"),
    ],
)
def test_a_past_that_does_not_fit_is_named(model, change, message):
    past, _ = split(walks())
    with pytest.raises(ValueError, match=message):
        model(change(past))


def test_an_agent_whose_last_step_is_missing_is_named(model):
    past, _ = split(walks())
    mask = torch.ones(4, 5)
    mask[2, -1] = 0
    with pytest.raises(ValueError, match="last observed step of agent 2 is missing"):
        model(past, mask)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observed_steps": 1}, "observed_steps=1"),
        ({"predicted_steps": 0}, "predicted_steps=0"),
        ({"velocity_std": 0}, "velocity_std=0"),
        ({"d_model": 25, "encoder_attention_heads": 5, "decoder_attention_heads": 5}, "odd"),
        ({"score_loss_weight": -1}, "score_loss_weight=-1"),
        ({"constant_velocity_share": 1.5}, "constant_velocity_share=1.5: give a share"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(options, message):
    with pytest.raises(Exception, match=message):
        VanillaTracksConfig(**options)
