"""Whom an agent attends to, against the weights of the model's own layers."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scene_models import SIZES, scene_model, scenes

from hf_vanilla.tracks.attention import attention_in_scene, has_scene_attention
from hf_vanilla.tracks.layout import Surroundings
from hf_vanilla.tracks.road_maps import RoadMap

STEPS, AGENTS, LANES, PIECES = SIZES["observed_steps"], 4, 3, 3


def one_scene():
    """Past `(A, T, 2)` of four agents, and three lanes of four points."""
    inputs = scenes(count=1, agents=AGENTS, lanes=LANES)
    points = inputs["lane_values"][0].numpy()
    road = RoadMap(points, np.ones(points.shape[:2], bool), inputs["lane_kinds"][0].numpy())
    return inputs["past_values"][0].numpy(), road


def looked(name, **changes):
    model = scene_model(name, **changes).float()
    model.set_attn_implementation("eager")
    past, road = one_scene()
    mask = np.ones(past.shape[:2], bool)
    beside = Surroundings(np.zeros(AGENTS, int), [road] * AGENTS)
    return attention_in_scene(model, past, mask, beside), model


def tokens_of(family):
    """Numbers of the tokens of own steps, each other agent, or each lane, side by side."""
    lengths = [STEPS, *[STEPS] * AGENTS, *[PIECES] * LANES]
    ends = np.cumsum(lengths)
    parts = [range(end - length, end) for length, end in zip(lengths, ends, strict=True)]
    return {"own": parts[:1], "others": parts[1 : 1 + AGENTS], "lanes": parts[1 + AGENTS :]}[family]


@pytest.mark.parametrize("name", ["early full", "hierarchical full", "late interleaved"])
def test_weights_are_those_of_the_last_decoder_layer(name):
    found, model = looked(name)
    seen = []
    attend = model.layers[-1].encoder_attn
    hook = attend.register_forward_hook(lambda *call: seen.append(call[-1][1]))
    past, road = one_scene()
    beside = Surroundings(np.zeros(AGENTS, int), [road] * AGENTS)
    attention_in_scene(model, past, np.ones(past.shape[:2], bool), beside)
    hook.remove()
    weights = seen[0].mean((1, 2)).numpy()  # (A, M)
    assert_allclose(found.own, weights[:, tokens_of("own")[0]], atol=1e-6)
    for lane, tokens in enumerate(tokens_of("lanes")):
        assert_allclose(found.lanes[:, lane], weights[:, tokens].sum(1), atol=1e-6)
    for other, tokens in enumerate(tokens_of("others")):
        wanted = weights[:, tokens].sum(1)
        wanted[other] = found.own[other].sum()
        assert_allclose(found.others[:, other], wanted, atol=1e-6)
    assert_allclose(found.others.sum(1) + found.lanes.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("name", ["early interleaved", "hierarchical sequential", "gate"])
def test_what_is_hidden_from_an_agent_has_no_weight_and_all_weights_sum_to_one(name):
    found, _ = looked(name, max_others=2, max_lanes=1)
    assert ((found.others > 1e-6).sum(1) == 3).all()  # itself and two others
    assert ((found.lanes > 1e-6).sum(1) == 1).all()
    assert_allclose(found.others.sum(1) + found.lanes.sum(1), 1, atol=1e-5)
    assert_allclose(found.own.sum(1), found.others.diagonal(), atol=1e-6)


def test_proposals_look_at_each_family_in_turn():
    found, _ = looked("proposals")
    own = found.others.diagonal()
    assert_allclose(own, 1, atol=1e-5)
    assert_allclose(found.others.sum(1) - own, 1, atol=1e-5)
    assert_allclose(found.lanes.sum(1), 1, atol=1e-5)


def test_latent_queries_and_vectors_do_not_say_whom_an_agent_looks_at():
    for name in ("early latent", "late latent", "vectors", "neighbors", "proposals_paper"):
        assert not has_scene_attention(scene_model(name))
