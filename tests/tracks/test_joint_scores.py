"""Joint scores by hand; layouts and batches of scenes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hf_vanilla.tracks.layout import SceneLayout, Surroundings, scene_batches, scene_inputs
from hf_vanilla.tracks.scores import JointSums, Protocol, TrackScores, TrackSums, close_pairs
from hf_vanilla.tracks.windows import Windows

WINDOWS = Windows(SimpleNamespace(step_seconds=0.4, unit="m"), 8, 12, np.zeros(4))
PROTOCOL = Protocol(data="walks", windows=WINDOWS, seed="0")
# four agents, two modes, two steps; the truth is 0; agents 0, 2 and 3 are together, 1 is alone
X = torch.tensor(
    [
        [[1.0, 3.0], [4.0, 0.0]],
        [[9.0, 9.0], [0.0, 0.0]],
        [[5.0, 1.0], [0.0, 2.0]],
        [[1.0, 1.0], [2.0, 6.0]],
    ]
)
TRACKS = torch.stack((X, torch.zeros_like(X)), dim=-1).double()
TRUTH, KNOWN = torch.zeros(4, 2, 2), torch.ones(4, 2, dtype=torch.bool)
GROUPS = np.array([5, 8, 5, 5])


def test_joint_errors_by_hand():
    sums = JointSums(2, collision_distance=1.5)
    sums.add(TRACKS, TRUTH, KNOWN, GROUPS)
    means = sums.means()
    # means of modes: (2, 2), (3, 1), (1, 4); last steps: (3, 0), (1, 2), (1, 6)
    assert means["minJADE2"] == pytest.approx(min(2 + 3 + 1, 2 + 1 + 4) / 3)
    assert means["minJFDE2"] == pytest.approx(min(3 + 1 + 1, 0 + 2 + 6) / 3)
    # mode 0: |1-5|,|3-1|; |1-1|; |1-1|; mode 1: |4-0|,|0-2|; |4-2|,|0-6|; |0-2|,|2-6|
    assert means["joint_collision_share"] == pytest.approx(2 / 6)


def test_a_joint_error_is_never_smaller_than_the_marginal_one_and_equal_for_one_mode():
    tracks, truth = torch.randn(12, 5, 3, 2).double(), torch.randn(12, 3, 2)
    known = torch.ones(12, 3, dtype=torch.bool)
    groups = np.arange(12) // 4
    for modes in (5, 1):
        joint, marginal = JointSums(modes), TrackSums(modes)
        joint.add(tracks[:, :modes], truth, known, groups)
        marginal.add(tracks[:, :modes], torch.zeros(12, modes), truth, known)
        found, least = joint.means(), marginal.means()
        for kind in ("ADE", "FDE"):
            if modes == 1:
                wanted = pytest.approx(least[f"min{kind}1"])
                assert found[f"minJ{kind}1"] == wanted
            else:
                assert found[f"minJ{kind}5"] > least[f"min{kind}5"] + 1e-3


def test_unknown_steps_and_single_agents_count_nothing():
    known = KNOWN.clone()
    known[3] = False  # nothing of this agent is known
    known[2, 1] = False
    truth = TRUTH.masked_fill(~known[..., None], float("nan"))
    sums = JointSums(2)
    sums.add(TRACKS, truth, known, GROUPS)
    means = sums.means()
    assert means["minJADE2"] == pytest.approx(min(2 + 5, 2 + 0) / 2)
    assert means["minJFDE2"] == pytest.approx(0)
    alone = JointSums(2)
    alone.add(TRACKS[:1], TRUTH[:1], KNOWN[:1], GROUPS[:1])
    assert alone.means() == {}


def test_sums_of_parts_are_the_sums_of_the_whole():
    whole, first, second = JointSums(2), JointSums(2), JointSums(2)
    tracks, groups = torch.cat((TRACKS, TRACKS + 1)), np.concatenate((GROUPS, GROUPS + 10))
    whole.add(tracks, TRUTH.repeat(2, 1, 1), KNOWN.repeat(2, 1), groups)
    first.add(tracks[:4], TRUTH, KNOWN, GROUPS)
    second.add(tracks[4:], TRUTH, KNOWN, GROUPS)
    assert_close(first.sums + second.sums, whole.sums)


def test_close_pairs_are_those_at_any_step():
    tracks = torch.tensor([[[[0.0, 0.0], [5.0, 0.0]]], [[[9.0, 0.0], [5.1, 0.0]]]]).double()
    assert close_pairs(tracks, 0.2).tolist() == [[True]]
    assert close_pairs(tracks, 0.05).tolist() == [[False]]


def test_joint_scores_are_printed_with_what_they_compare():
    values = {"minADE20": 0.1, "minJADE20": 0.25, "joint_collision_share": 0.014}
    lines = str(TrackScores(values, PROTOCOL)).splitlines()
    assert lines[1].startswith("minJADE20 0.250 m |")
    assert lines[1].endswith("best of 20 of futures of scenes of two or more agents | seed 0")
    assert lines[2].startswith("joint_collision_share 1.40 % |")


def test_a_layout_pads_and_returns_rows():
    groups = np.array([4, 2, 4, 4, 2])
    layout = SceneLayout.of_groups(groups)
    values = torch.arange(1, 6).float().unsqueeze(1)
    padded = layout.pad(values)
    assert padded.squeeze(-1).tolist() == [[2, 5, 0], [1, 3, 4]]
    assert_close(layout.unpad(padded), values)
    last = np.array([[0.0, 0.0], [1e7, 0.0], [3.0, 3.0], [0.0, 3.0], [1e7 + 2, 0.0]])
    _, _, offset = scene_inputs({}, last, Surroundings(groups, [None] * 5))
    middles = {4: [1, 2], 2: [1e7 + 1, 0]}
    assert (last - offset[:, 0].numpy()).tolist() == [middles[group] for group in groups]


def test_batches_have_whole_scenes_of_similar_size():
    groups = np.random.default_rng(0).integers(0, 30, 200)
    counts = np.bincount(groups)
    batches = list(scene_batches(groups, 40))
    assert sorted(np.concatenate(batches).tolist()) == list(range(200))
    for rows in batches:
        scenes = np.unique(groups[rows])
        assert len(rows) == counts[scenes].sum()
        assert len(scenes) * counts[scenes].max() <= 40
    largest = [counts[groups[rows]].max() for rows in batches]
    assert largest == sorted(largest)
    assert [len(rows) for rows in scene_batches(np.zeros(9, int), 4)] == [9]
    assert list(scene_batches(np.zeros(0, int), 4)) == []
