"""Scores by hand, and models without weights."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.tracks.forecaster import SIMPLE_MODELS, SimpleForecaster
from hf_vanilla.tracks.scores import (
    Protocol,
    TrackScores,
    TrackSums,
    collision_share,
    expected_distances,
    kernel_density_nats,
)
from hf_vanilla.tracks.windows import Windows

# three windows, two modes, two steps; the truth stays at 0; the second mode is the more probable
TRACKS = torch.tensor(
    [
        [[[3.0, 0.0], [3.0, 4.0]], [[1.0, 0.0], [6.0, 0.0]]],
        [[[0.0, 1.0], [0.0, 1.0]], [[0.0, 3.0], [0.0, 0.5]]],
        [[[9.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [7.0, 7.0]]],
    ]
)
LOGITS = torch.tensor([[0.0, math.log(3)]] * 3)
TRUTH = torch.zeros(3, 2, 2)
KNOWN = torch.tensor([[True, True], [True, True], [True, False]])
WINDOWS = Windows(SimpleNamespace(step_seconds=0.4, unit="m"), 8, 12, np.zeros(1197))
PROTOCOL = Protocol(data="walks", windows=WINDOWS, seed="0")


def test_errors_of_three_windows_by_hand():
    sums = TrackSums(2, miss_distance=4.5, largest_step=5.5)
    sums.add(TRACKS, LOGITS, TRUTH, KNOWN)
    means = sums.means()
    # means of modes: (4, 3.5), (1, 1.75), (9, 2); last steps: (5, 6), (1, 0.5), unknown
    assert means["minADE1"] == pytest.approx((3.5 + 1.75 + 2) / 3)
    assert means["minADE2"] == pytest.approx((3.5 + 1 + 2) / 3)
    assert means["minFDE1"] == pytest.approx((6 + 0.5) / 2)
    assert means["minFDE2"] == pytest.approx((5 + 0.5) / 2)
    assert means["miss_rate"] == pytest.approx(1 / 2)
    assert means["brier_minFDE"] == pytest.approx((5 + 0.75**2 + 0.5 + 0.25**2) / 2)
    # lengths of steps by mode: (3, 4), (1, 5); (1, 0), (3, 2.5); (9, 9), (2, 8.6)
    assert means["off_speed_share"] == pytest.approx((0 + 0 + 3 / 4) / 3)


def test_the_only_step_of_a_future_may_be_too_long():
    sums = TrackSums(2, largest_step=2.0)
    sums.add(TRACKS[:, :, :1], LOGITS, TRUTH[:, :1], KNOWN[:, :1])
    assert sums.means()["off_speed_share"] == pytest.approx((1 / 2 + 1 / 2 + 1 / 2) / 3)


def test_the_single_track_is_the_one_in_the_middle_not_the_most_probable():
    # two modes near each other have 0.3 each, a lonely one 0.4
    ends = torch.tensor([0.0, 0.2, 8.0])
    tracks = torch.stack((ends, torch.zeros(3)), -1).view(1, 3, 1, 2)
    probabilities = torch.tensor([[0.3, 0.3, 0.4]])
    found = expected_distances(tracks, probabilities)
    by_hand = [0.3 * 0.2 + 0.4 * 8, 0.3 * 0.2 + 0.4 * 7.8, 0.3 * 8 + 0.3 * 7.8]
    assert_close(found, torch.tensor([by_hand]))
    sums = TrackSums(3)
    known = torch.ones(1, 1, dtype=torch.bool)
    sums.add(tracks, probabilities.log(), torch.tensor([[[0.2, 0.0]]]), known)
    means = sums.means()
    assert means["single_ADE"] == pytest.approx(0, abs=1e-6)
    assert means["minADE1"] == pytest.approx(7.8)


def test_sums_of_two_parts_equal_the_sums_of_all():
    whole, first, second = (TrackSums(2) for _ in range(3))
    whole.add(TRACKS, LOGITS, TRUTH, KNOWN)
    first.add(TRACKS[:1], LOGITS[:1], TRUTH[:1], KNOWN[:1])
    second.add(TRACKS[1:], LOGITS[1:], TRUTH[1:], KNOWN[1:])
    assert_close(first.sums + second.sums, whole.sums)


def test_what_is_not_known_of_a_future_changes_no_score():
    found = []
    for unknown in (0.0, math.nan, math.inf):
        truth, sums = TRUTH.clone(), TrackSums(2, largest_step=5.5, has_spreads=True)
        truth[2, 1] = unknown
        sums.add(TRACKS, LOGITS, truth, KNOWN, spreads=torch.ones(3, 2, 2))
        found.append(sums.means())
    assert found[0] == found[1] == found[2]


def test_kernel_density_equals_scipy():
    stats = pytest.importorskip("scipy.stats")
    tracks, future = torch.randn(2, 7, 3, 2).double(), torch.randn(2, 3, 2).double()
    weights = torch.rand(2, 7).double().softmax(-1)
    found = kernel_density_nats(tracks, weights, future)
    for row in range(2):
        for step in range(3):
            density = stats.gaussian_kde(tracks[row, :, step].T.numpy(), weights=weights[row])
            theirs = -density.logpdf(future[row, step].numpy())[0]
            assert found[row, step].item() == pytest.approx(min(theirs, 20), abs=1e-3)


def test_the_likelihood_of_spreads_is_a_score_in_nats():
    spreads = torch.full((3, 2, 2), 2.0)
    sums = TrackSums(2, has_spreads=True)
    sums.add(TRACKS, LOGITS, TRUTH, KNOWN, spreads=spreads)
    nats = []
    for window, steps in ((0, 2), (1, 2), (2, 1)):  # the last step of the last window is unknown
        total = 0.0
        for step in range(steps):
            squares = TRACKS[window, :, step].square().sum(-1)
            densities = (-squares / 8).exp() / (8 * math.pi)
            total -= math.log(densities[0] / 4 + densities[1] * 3 / 4)
        nats.append(total / steps)
    assert sums.means()["density_nll"] == pytest.approx(sum(nats) / 3)
    shown = str(TrackScores({**sums.means()}, PROTOCOL))
    assert f"density_nll {sum(nats) / 3:.3f} nats |" in shown


def test_pairs_of_one_scene_collide_where_they_come_closer():
    tracks = np.zeros((4, 2, 2))
    tracks[1] = [[3, 0], [0.1, 0]]  # meets the first one at the last step
    tracks[2] = [[9, 9], [9, 9]]
    groups = np.array([0, 0, 0, 1])  # the last one is alone in another scene
    assert collision_share(tracks, groups, distance=0.2) == pytest.approx(1 / 3)
    assert collision_share(tracks[3:], groups[3:]) == 0.0


def test_no_score_is_shown_without_its_protocol():
    values = {"minADE1": 0.5, "minADE20": 0.25, "miss_rate": 0.1, "brier_minFDE": 1.0}
    values |= {"kde_nll": 2.0, "off_speed_share": 0.5}
    lines = str(TrackScores(values, PROTOCOL)).splitlines()
    assert lines[1] == (
        "minADE20 0.250 m | walks | 8 -> 12 steps of 0.4 s | per agent, stride 1, 1,197 windows | "
        "best of 20 per agent, ADE and FDE separately | seed 0"
    )
    assert lines[2].startswith("miss_rate 10.00 % | walks")
    for line, compared in (
        (lines[0], "top-scored track"),
        (lines[2], "closest of 20 final positions per agent"),
        (lines[3], "closest of 20 final positions per agent, and its probability"),
        (lines[4], "all 20 futures per agent"),
        (lines[5], "all 20 futures per agent"),
        (str(TrackScores({"minADE1": 0.5, "miss_rate": 0.1}, PROTOCOL)), "top-scored track"),
    ):
        assert line.endswith(f"1,197 windows | {compared} | seed 0")


# --- models without weights --------------------------------------------------------------------

CONFIG = VanillaTracksConfig(observed_steps=4, predicted_steps=3)


def test_each_simple_model_continues_its_own_kind_of_track():
    angle = torch.arange(7) * 0.3
    circle = torch.stack((angle.cos(), angle.sin()), -1)
    line = torch.stack((torch.arange(7) * 0.5, 2 - torch.arange(7) * 0.2), -1)
    for name, track in {
        "constant_velocity": line,
        "constant_turn": circle,
        "linear_fit": line,
    }.items():
        found = SimpleForecaster(name, CONFIG)(track[None, :4]).trajectories
        assert_close(found[0, 0], track[4:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SIMPLE_MODELS)
def test_simple_models_do_not_see_missing_steps(name):
    past = torch.tensor([[[50.0, 50.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]])
    mask = torch.tensor([[0, 1, 1, 1]])
    found = SimpleForecaster(name, CONFIG)(past, mask).trajectories[0, 0]
    assert_close(found, torch.tensor([[4.0, 0.0], [5.0, 0.0], [6.0, 0.0]]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SIMPLE_MODELS)
def test_an_agent_seen_once_is_expected_to_stay(name):
    past, mask = torch.ones(1, 4, 2), torch.tensor([[0, 0, 0, 1]])
    assert_close(SimpleForecaster(name, CONFIG)(past, mask).trajectories, torch.ones(1, 1, 3, 2))
