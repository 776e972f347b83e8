"""Forecasters of agents and lanes: properties of every class, parts against slow references."""

import math

import pytest
import torch
from reference import encoder_layer, feed_forward, layer_norm, multi_head, part
from scene_models import CLASSES, GRID, SIZES, scene_model, scenes, without_future
from torch.testing import assert_close

from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
from hf_vanilla.models.inputs_vanilla_forecaster import TrueFuture
from hf_vanilla.models.modeling_vanilla_scene import Mixture, closest_future_loss, thin
from hf_vanilla.models.modeling_vanilla_scene_forms import AgentGate, nearest_neighbors
from hf_vanilla.models.modeling_vanilla_scene_proposals import (
    PolylineEncoder,
    VanillaForProposalTrajectoryPrediction,
    fit_regions,
    region_loss,
)
from hf_vanilla.models.rows_vanilla_scene import read_rows
from hf_vanilla.models.stacks_vanilla_scene import (
    ENCODERS,
    Grid,
    LatentQueryEncoder,
    RasterEncoder,
    SceneTokens,
)

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def tracks(model, inputs):
    with torch.no_grad():
        return model(**without_future(inputs)).trajectories


def padded(values, axis, count):
    shape = list(values.shape)
    shape[axis] = count
    return torch.cat((values, values.new_full(shape, 7)), dim=axis)


@pytest.mark.parametrize("name", CLASSES)
def test_order_padding_batch_mates_and_the_future_change_nothing_else(name):
    model, inputs = scene_model(name), scenes()
    expected = tracks(model, inputs)
    assert expected.shape == (2, 4, 4, 3, 2)
    assert expected.isfinite().all()

    order, roads = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 2, 0])
    turned = {
        key: values[:, roads] if key.startswith("lane") else values[:, order]
        for key, values in inputs.items()
    }
    assert_close(tracks(model, turned), expected[:, order], **EXACT)

    more = dict(inputs)
    for key in ("past_values", "past_observed_mask", "agent_mask"):
        more[key] = padded(inputs[key], 1, 2)
    more["agent_mask"][:, 4:] = 0
    for key in ("lane_values", "lane_mask", "lane_kinds"):
        more[key] = padded(inputs[key], 1, 2)
    more["lane_mask"][:, 3:] = 0
    more["lane_kinds"][:, 3:] = 0
    longer = {key: padded(more[key], 2, 3) for key in ("lane_values", "lane_mask")}
    longer["lane_mask"][:, :, 4:] = 0
    for changed in (more, {**more, **longer}):
        found = tracks(model, changed)
        assert_close(found[:, :4], expected, **EXACT)
        assert not found[:, 4:].any()

    for scene in range(2):
        alone = tracks(model, {key: values[scene : scene + 1] for key, values in inputs.items()})
        assert_close(alone, expected[scene : scene + 1], **EXACT)

    futures = [
        model(**{**inputs, "future_values": inputs["future_values"] + shift}) for shift in (0, 5)
    ]
    assert_close(futures[1].trajectories, expected, **EXACT)
    assert futures[0].loss != futures[1].loss


@pytest.mark.parametrize("name", CLASSES)
def test_lanes_and_others_change_a_forecast_and_one_agent_asked_for_is_as_all(name):
    model, inputs = scene_model(name), scenes()
    expected = tracks(model, inputs)
    without = {key: values for key, values in inputs.items() if not key.startswith("lane")}
    assert (tracks(model, without) - expected).abs().max() > 1e-3
    moved = {**inputs, "past_values": inputs["past_values"].clone()}
    moved["past_values"][:, 1:] += 0.5
    assert (tracks(model, moved) - expected)[:, 0].abs().max() > 1e-3
    focal = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]])
    found = tracks(model, {**inputs, "focal_mask": focal})
    assert_close(found, expected * focal[..., None, None, None], **EXACT)


@pytest.mark.parametrize("name", ["early full", "late latent", "neighbors", "vectors"])
def test_turning_and_moving_the_world_turns_and_moves_the_forecast(name):
    model, inputs = scene_model(name), scenes()
    turn = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    moved = {
        key: values @ turn + 4 if key in ("past_values", "lane_values") else values
        for key, values in inputs.items()
    }
    assert_close(tracks(model, moved), tracks(model, inputs) @ turn + 4, **EXACT)


@pytest.mark.parametrize("name", ["early interleaved", "hierarchical latent", "proposals", "gate"])
def test_hidden_steps_and_a_scene_of_one_agent_without_lanes_are_finite(name):
    model, inputs = scene_model(name), scenes(agents=1)
    hidden = inputs["past_observed_mask"].clone()
    hidden[:, :, :-1] = 0  # present for one step
    inputs["past_values"][:, :, :-1] = torch.nan
    inputs |= {"past_observed_mask": hidden, "lane_mask": torch.zeros_like(inputs["lane_mask"])}
    model.train()
    output = model(**inputs)
    output.loss.backward()
    assert output.trajectories.isfinite().all()
    assert all(
        weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None
    )


@pytest.mark.parametrize("name", CLASSES)
def test_sdpa_equals_eager(name):
    inputs = scenes()
    model = scene_model(name)
    expected = tracks(model, inputs)
    model.set_attn_implementation("eager")
    assert_close(tracks(model, inputs), expected, rtol=1e-9, atol=1e-9)


# --- parts ---------------------------------------------------------------------------------------


def grid(*shape, seed=1):
    draw = torch.Generator().manual_seed(seed)
    states = torch.randn(*shape, 8, dtype=torch.float64, generator=draw)
    is_real = torch.rand(*shape, generator=draw) > 0.3
    is_real[..., -1] = True
    return Grid(states, is_real)


@pytest.mark.parametrize(
    ("name", "axes"), [("sequential", "ttaa"), ("interleaved", "tata")], ids=str
)
def test_factorised_attention_equals_one_sequence_after_the_other(name, axes):
    config = VanillaSceneConfig(**SIZES)
    torch.manual_seed(0)
    encoder = ENCODERS[name](config, 2).double().eval()
    tokens = grid(2, 3, 5)
    expected, is_real = tokens.states.clone(), tokens.is_real
    for axis, layer in zip(axes, encoder.layers, strict=True):
        before = expected.clone()
        for row in range(2):
            for line in range(3 if axis == "t" else 5):
                place = (row, line) if axis == "t" else (row, slice(None), line)
                real = is_real[place]
                if not real.any():
                    continue
                expected[place] = 0.0
                found = encoder_layer(before[place][real], layer.state_dict(), config)
                expected[place] = expected[place].index_put((real.nonzero()[:, 0],), found)
    with torch.no_grad():
        found = encoder([tokens])
    assert_close(found.states[is_real], expected[is_real], **EXACT)


def test_latent_queries_equal_attention_written_slowly():
    config = VanillaSceneConfig(**SIZES)
    torch.manual_seed(0)
    encoder = LatentQueryEncoder(config, 2).double().eval()
    tokens = grid(2, 3, 5)
    with torch.no_grad():
        found = encoder([tokens])
    assert found.states.shape == (2, 1, 3, 8)
    weights, heads, eps = encoder.reader.state_dict(), 2, config.layer_norm_eps
    for row in range(2):
        source = tokens.states[row][tokens.is_real[row]]
        states = encoder.queries.weight.detach()
        own = multi_head(states, states, states, part(weights, "self_attn"), heads=heads)
        states = layer_norm(states + own, part(weights, "self_attn_layer_norm"), eps)
        read = multi_head(states, source, source, part(weights, "encoder_attn"), heads=heads)
        states = layer_norm(states + read, part(weights, "encoder_attn_layer_norm"), eps)
        states = states + feed_forward(states, weights, "relu")
        states = layer_norm(states, part(weights, "final_layer_norm"), eps)
        states = encoder_layer(states, encoder.layers[0].state_dict(), config)
        assert_close(found.states[row, 0], states, **EXACT)


def test_loss_by_hand():
    means = torch.tensor(
        [[[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 3.0]]]], dtype=torch.float64
    )
    spreads = torch.full_like(means, 0.5)
    logits = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    truth = TrueFuture(
        torch.tensor([[[1.0, 0.5], [9.0, 9.0]]], dtype=torch.float64), torch.tensor([[True, False]])
    )
    # one known step: future 0 is .5 away, future 1 is sqrt(1.25) away
    nats = 0.5 * (0.5 / 0.5) ** 2 + 2 * math.log(0.5) + math.log(2 * math.pi)
    class_nats = math.log(1 + math.exp(-0.5))
    config, futures = VanillaSceneConfig(score_loss_weight=2.0), Mixture(means, spreads, logits)
    loss = closest_future_loss(config, futures, truth)
    assert loss.item() == pytest.approx(nats + 2 * class_nats, abs=1e-6)
    may_win = torch.tensor([[False, True]])
    other = closest_future_loss(config, futures, truth, may_win, num_items_in_batch=4)
    nats = 0.5 * (1.25 / 0.25) + 2 * math.log(0.5) + math.log(2 * math.pi)
    assert other.item() == pytest.approx((nats + 2 * math.log(1 + math.exp(0.5))) / 4, abs=1e-6)


def test_thinning_keeps_different_end_points_and_gives_each_the_probability_around_it():
    ends = torch.tensor([[[0.0, 0.0], [0.09, 0.0], [5.0, 0.0], [0.2, 0.0], [9.0, 0.0]]])
    chances = torch.tensor([[0.2, 0.15, 0.25, 0.1, 0.3]])
    means = ends.unsqueeze(2)
    kept = thin(Mixture(means, means + 1, chances.log()), 4, distance=0.15)
    # 9 with .3, 5 with .25, 0 with .2; .09 is near 0, .2 is not
    assert kept.means[0, :, 0, 0].tolist() == pytest.approx([9.0, 5.0, 0.0, 0.2])
    assert kept.logits.softmax(-1)[0].tolist() == pytest.approx([0.3, 0.25, 0.35, 0.1])
    assert_close(kept.spreads, kept.means + 1)
    kept = thin(Mixture(means, None, chances.log()), 4, distance=0.3)
    # when all are suppressed, the most probable is next
    assert kept.means[0, :, 0, 0].tolist() == pytest.approx([9.0, 5.0, 0.0, 0.09])
    same = torch.zeros(1, 5, 1, 2)
    kept = thin(Mixture(same, same, chances.log()), 3, distance=0.15)
    assert kept.logits.softmax(-1).sum() == pytest.approx(1.0)


def test_neighbors_by_distance_number_and_field_of_view():
    # of an agent at 0, whose heading is x
    positions = torch.tensor([[[2.0, 0.0], [-1.0, 0.0], [0.0, 4.0], [0.0, 0.5]]])
    heading, there = torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True, True, False]])

    def seen(heading=heading, **limits):
        config = VanillaSceneConfig(**limits)
        places, sees = nearest_neighbors(config, positions, heading, there)
        return places[sees].tolist(), places.shape[1]

    assert seen() == ([1, 0, 2], 4)
    assert seen(neighbor_distance=2.5) == ([1, 0], 4)
    assert seen(num_neighbors=1) == ([1], 1)
    assert seen(num_neighbors=2, field_of_view=190) == ([0, 2], 2)
    assert seen(field_of_view=170) == ([0], 4)
    assert seen(heading=0 * heading, field_of_view=170) == ([1, 0, 2], 4)


def test_a_node_attends_to_itself_and_to_its_neighbors_nodes_and_edges():
    model, inputs = scene_model("neighbors", num_neighbors=2, neighbor_distance=6.0), scenes()
    states = []
    for layer in model.graph_layers:
        layer.register_forward_hook(lambda _, given, out: states.append((given[0], out)))
    with torch.no_grad():
        model(**without_future(inputs))
    past, config = inputs["past_values"], model.config
    rows = read_rows(config, past, all_agents=True)
    for layer, (before, after) in zip(model.graph_layers, states, strict=True):
        weights = layer.state_dict()
        for row in range(8):
            scene, agent = divmod(row, 4)
            here, apart = before[row], {}
            for other in set(range(4)) - {agent}:
                apart[other] = (past[scene, other, -1] - past[scene, agent, -1]).norm().item()
            near = [other for other in sorted(apart, key=apart.get)[:2] if apart[other] <= 6]
            source = [here]
            for other in near:
                offset = past[scene, other, -1] - past[scene, agent, -1]
                move = past[scene, other, -1] - past[scene, other, -2]
                turned = torch.stack((offset / 3, move)) @ rows.axes.rotation[row]
                edge = model.edges(turned.flatten())
                source.append(before[4 * scene + other] + edge)
            source = torch.cat([part.detach().view(1, -1) for part in source])
            read = multi_head(here, source, source, part(weights, "self_attn"), heads=2)
            found = layer_norm(here + read, part(weights, "self_attn_layer_norm"), 1e-6)
            found = found + feed_forward(found, weights, "relu")
            assert_close(after[row], layer_norm(found, part(weights, "final_layer_norm"), 1e-6))


def test_a_picture_has_lanes_by_kind_and_others_where_they_are():
    config = VanillaSceneConfig(**SIZES, neighbor_distance=4.0, num_lane_kinds=2)
    # the agent walks along y and ends at (1, 1); its picture is 8 m wide, cells are 1 m
    past = torch.stack((torch.ones(5), torch.arange(-3.0, 2.0)), dim=1)
    other = past + torch.tensor([1.5, 2.2])  # 2.2 ahead, 1.5 to the right, at its last step
    lane = torch.tensor([[1.0, 1.5], [1.0, 3.5]])  # ahead, .5 to 2.5 m
    rows = read_rows(
        config,
        torch.stack((past, other))[None],
        lane_values=lane[None, None],
        lane_kinds=torch.tensor([[1]]),
    )
    picture = RasterEncoder(config).picture(rows)[0]  # of the first agent
    assert picture.shape == (3, 8, 8)
    assert not picture[0].any()
    # rows are left of the heading, columns along it; the agent is between cells 3 and 4
    assert picture[1].nonzero().tolist() == [[4, 4], [4, 6]]
    assert picture[2].nonzero().tolist() == [[2, 2], [2, 3], [2, 4], [2, 5], [2, 6]]


def test_an_agent_that_no_neighbor_sees_changes_nothing():
    inputs = scenes(agents=5)
    inputs["past_values"][:, 4] += 500
    limits = {"map_distance": 2000.0}
    for limit, is_seen in ((100.0, False), (0.0, True)):
        model = scene_model("neighbors", neighbor_distance=limit, **limits)
        expected = tracks(model, inputs)[:, :4]
        moved = {**inputs, "past_values": inputs["past_values"].clone()}
        moved["past_values"][:, 4] += 30
        change = (tracks(model, moved)[:, :4] - expected).abs().max()
        assert (change > 1e-6) == is_seen
        assert is_seen or change == 0


def test_the_gate_weights_agents_by_the_mean_of_their_real_steps():
    config = VanillaSceneConfig(**SIZES)  # 1 + 9 agents, 2 hidden numbers
    gate, tokens = AgentGate(config).double(), grid(2, 3, 5)
    with torch.no_grad():
        found = gate(tokens.states, tokens.is_real)
        for row in range(2):
            for feature in range(8):
                means = torch.zeros(10, dtype=torch.float64)
                for agent in range(3):
                    real = tokens.is_real[row, agent]
                    means[agent] = tokens.states[row, agent, real, feature].mean()
                factors = torch.sigmoid(gate.excite(torch.relu(gate.squeeze(means))))
                expected = tokens.states[row, :, :, feature] * factors[:3, None]
                assert_close(found[row, :, :, feature], expected, **EXACT)


def test_each_mode_attends_with_a_query_of_its_own_to_keys_that_all_share():
    model, inputs, given = scene_model("vectors"), scenes(), []
    model.attention.register_forward_hook(lambda _, args, out: given.append((args, out)))
    with torch.no_grad():
        model(**without_future(inputs))
    (_, mask, _, source), found = given[0]
    layer, weights = model.attention.self_attn, model.state_dict()
    for row in range(8):
        real = source[row][mask[row, 0, 0]]
        keys, values = real @ layer.k_proj.weight.T, real @ layer.v_proj.weight.T
        for mode in range(6):
            query = weights["modes.weight"][8 * mode : 8 * mode + 8] @ source[row, 0]
            query = query + weights["modes.bias"][8 * mode : 8 * mode + 8]
            scores = (layer.q_proj.weight @ query) @ keys.T / math.sqrt(8)
            read = layer.out_proj.weight @ (scores.softmax(0) @ values)
            state = layer_norm(
                query[None] + read, part(weights, "attention.self_attn_layer_norm"), 1e-6
            )
            state = state + feed_forward(state, part(weights, "attention"), "relu")
            state = layer_norm(state, part(weights, "attention.final_layer_norm"), 1e-6)
            assert_close(found[row, mode], state[0], **EXACT)


def test_learned_positions_are_added_to_a_projection_with_a_relu():
    config = VanillaSceneConfig(**SIZES, learned_positions=3)
    tokens = SceneTokens(config)
    rows = read_rows(config, scenes()["past_values"].float())
    found = tokens(rows)[0].states[:, 0]  # own steps
    for step in range(5):
        vector = tokens.own.projection(rows.own.features[:, 0, step]) + tokens.own.kinds.weight[0]
        expected = vector.relu() + tokens.own.positions.weight[min(step, 2)]
        assert_close(found[:, step], expected)


READS_BOTH = {"num_agent_kinds": 3, "reads_sizes": True}


def kinds_and_sizes(count=2, agents=4):
    draw = torch.Generator().manual_seed(5)
    sizes = 0.5 + torch.rand(count, agents, 2, generator=draw, dtype=torch.float64)
    return {
        "agent_kinds": torch.randint(1, 3, (count, agents), generator=draw),
        "agent_sizes": sizes,
    }


@pytest.mark.parametrize("name", GRID)
def test_kinds_and_sizes_of_an_agent_and_of_others_change_a_forecast(name):
    model, known = scene_model(name, **READS_BOTH), kinds_and_sizes()
    inputs = {**scenes(), **known}
    expected = tracks(model, inputs)
    order = torch.tensor([2, 0, 3, 1])
    turned = {
        key: values if key.startswith("lane") else values[:, order]
        for key, values in inputs.items()
    }
    assert_close(tracks(model, turned), expected[:, order], **EXACT)
    unknown = tracks(model, scenes())
    for key, values in known.items():
        assert_close(tracks(model, {**scenes(), key: 0 * values}), unknown, **EXACT)
        for agent in (0, 2):  # itself, another one
            other = values.clone()
            other[0, agent] = 0
            found = (tracks(model, {**inputs, key: other}) - expected).abs().amax((2, 3, 4))
            assert found[0, 0] > 1e-4
            assert not found[1].any()


def lights(count=2, number=3):
    draw = torch.Generator().manual_seed(6)
    places = 3 * torch.randn(count, number, 2, generator=draw, dtype=torch.float64)
    states = torch.randint(1, 4, (count, number, SIZES["observed_steps"]), generator=draw)
    return {"light_values": places, "light_states": states}


@pytest.mark.parametrize("name", GRID)
def test_lights_change_a_forecast_and_those_not_known_change_nothing(name):
    model, known = scene_model(name, num_light_states=4), lights()
    inputs = {**scenes(), **known}
    expected, without = tracks(model, inputs), tracks(model, scenes())
    assert (expected - without).abs().amax((1, 2, 3, 4)).min() > 1e-4
    none = {**scenes(), **lights(number=0)}
    dark = {**inputs, "light_states": torch.zeros_like(known["light_states"])}
    for given in (none, dark):
        assert_close(tracks(model, given), without, **EXACT)
    one_more = {key: padded(values, 1, 1) for key, values in known.items()}
    one_more["light_states"][:, -1] = 0
    order = torch.tensor([2, 3, 0, 1])
    for given in (one_more, {key: values[:, order] for key, values in one_more.items()}):
        assert_close(tracks(model, {**inputs, **given}), expected, **EXACT)
    changed_state = known["light_states"].clone()
    changed_state[0, 1, 2] = changed_state[0, 1, 2] % 3 + 1  # one state at one step
    found = (tracks(model, {**inputs, "light_states": changed_state}) - expected).abs()
    assert found[0].amax((1, 2, 3)).min() > 1e-6
    assert not found[1].any()

    turn = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    moved = {key: part @ turn + 4 for key, part in inputs.items() if part.dtype == torch.float64}
    moved = {key: part for key, part in moved.items() if key.endswith("_values")}
    assert_close(tracks(model, {**inputs, **moved}), expected @ turn + 4, **EXACT)


def test_a_light_has_its_place_and_a_state_at_each_step():
    config = VanillaSceneConfig(**SIZES, num_light_states=4)
    past = torch.tensor([[[[0.0, float(y)] for y in range(5)]]])  # heads along y, ends at (0, 4)
    states = torch.tensor([[[0, 2, 2, 1, 3]]])
    place = torch.tensor([[[-3.0, 10.0]]])
    rows = read_rows(config, past, light_values=place, light_states=states)
    assert rows.lights.is_real.tolist() == [[[False, True, True, True, True]]]
    assert rows.lights.kinds.tolist() == states.tolist()
    # 6 ahead and 3 to the left, of 3 predicted steps
    expected = torch.tensor([[0.0] * 4] + [[2.0, 1.0, 0.0, 0.0]] * 4)
    assert_close(rows.lights.features[0, 0], expected)
    tokens = SceneTokens(config)
    found = tokens(rows)[3].states[0, 0, 3]
    vector = tokens.lights.projection(expected[3]) + tokens.lights.kinds.weight[1]
    angles = torch.tensor([3.0, 0.3, 0.03, 0.003])  # of the sinusoid of width 8 at step 3
    position = torch.stack((angles.sin(), angles.cos()), dim=1).flatten()
    assert_close(found, vector * math.sqrt(8) + position)


def test_a_step_has_the_size_of_its_agent_in_units_of_positions():
    config = VanillaSceneConfig(**SIZES, **READS_BOTH, velocity_std=0.5)
    sizes = torch.tensor([[[3.0, 1.5], [0.0, 0.0], [6.0, 0.0]]])
    past = scenes(count=1, agents=3)["past_values"].float()
    rows = read_rows(config, past, agent_kinds=torch.tensor([[1, 0, 2]]), agent_sizes=sizes)
    # positions are divided by .5 times 3 predicted steps
    expected = torch.tensor([[2.0, 1.0, 1.0], [0.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
    assert_close(rows.own.features[:, 0, :, 4:], expected.unsqueeze(1).expand(-1, 5, -1))
    assert_close(rows.others.features[0, :, 3, 4:], expected)
    assert rows.own.kinds.tolist() == [[1], [0], [2]]
    assert rows.others.kinds.tolist() == [[1, 0, 2]] * 3
    found = SceneTokens(config)
    wide = found.own.projection.weight.shape, found.others.kinds.weight.shape
    assert wide == ((8, 7), (3, 8))


@pytest.mark.parametrize(
    ("changes", "given", "message"),
    [
        (
            {},
            kinds_and_sizes(),
            "agent_kinds is given, but the model has num_agent_kinds=0: leave it out",
        ),
        ({"num_agent_kinds": 3}, kinds_and_sizes(), "agent_sizes is given, .* reads_sizes=False"),
        (
            {**READS_BOTH, "num_agent_kinds": 2},
            kinds_and_sizes(),
            "agent_kinds has 1 to 2: give numbers below",
        ),
        (READS_BOTH, kinds_and_sizes(agents=3), r"agent_kinds has shape \(2, 3\): give \(2, 4\)"),
        ({}, lights(), "light_values is given, but the model has num_light_states=0"),
        ({"num_light_states": 3}, lights(), "light_states has 1 to 3: give numbers below"),
        ({"num_light_states": 4}, lights(count=1), r"\(1, 3, 2\) and \(1, 3, 5\): give \(2, li"),
        (
            {"num_light_states": 4},
            {"light_values": lights()["light_values"]},
            r"shapes \(2, 3, 2\) and None: give \(2, lights, 2\) and \(2, lights, 5\)",
        ),
        (
            {"num_light_states": 4},
            {**lights(), "light_values": lights()["light_values"] / 0},
            "light_values has NaN or infinite places",
        ),
        (READS_BOTH, {"agent_sizes": torch.zeros(2, 4)}, r"agent_sizes .* give \(2, 4, 2\)"),
        (
            READS_BOTH,
            {"agent_sizes": -kinds_and_sizes()["agent_sizes"]},
            "give 0 where a size is not",
        ),
        (
            READS_BOTH,
            {"agent_sizes": kinds_and_sizes()["agent_sizes"] * math.nan},
            "agent_sizes has NaN",
        ),
    ],
)
def test_kinds_and_sizes_that_do_not_fit_are_refused(changes, given, message):
    with pytest.raises(ValueError, match=message):
        scene_model("early full", **changes)(**{**scenes(), **given})


@pytest.mark.parametrize("name", sorted(set(CLASSES) - set(GRID)))
def test_other_forms_refuse_what_wayformer_alone_reads(name):
    with pytest.raises(ValueError, match=r"reads_sizes=True: VanillaFor.* does not read that"):
        scene_model(name, reads_sizes=True)


# --- mmTransformer as in its authors' code -------------------------------------------------------


def test_a_polyline_is_one_vector_whatever_its_padding():
    config = VanillaSceneConfig(**{**SIZES, "d_model": 12})
    encoder = PolylineEncoder(config).double()
    pieces = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    is_real = torch.ones(2, 3, 5, dtype=torch.bool)
    is_real[0, 1, 3:] = False
    with torch.no_grad():
        found = encoder(pieces, is_real)
        for row in range(2):
            for lane in range(3):
                states = pieces[row, lane][is_real[row, lane]]
                for layer in encoder.layers:
                    states = layer(states)
                    most = states.max(dim=0).values
                    states = torch.stack([torch.cat((state, most)) for state in states])
                assert_close(found[row, lane], states.max(dim=0).values, **EXACT)


def test_every_even_width_of_heads_is_possible_for_every_form():
    for name in CLASSES:
        sizes = {"d_model": 18, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
        assert scene_model(name, **sizes)(**scenes()).loss.isfinite()


def test_proposals_meet_in_a_stage_of_all_agents_refined_proposals():
    model, inputs = scene_model("proposals_paper"), scenes()
    given = {}
    for name in ("motion", "social", "track_head"):
        module = getattr(model, name)
        module.register_forward_hook(
            lambda _, args, out, name=name: given.update({name: (args, out)})
        )
    with torch.no_grad():
        model(**without_future(inputs))
    rows = read_rows(model.config, **without_future(inputs))
    motion, (head_inputs,) = given["motion"][1], given["track_head"][0]
    for row in range(8):
        places, social = [rows.own.features[row, 0, -1, :2]], []
        seen = [0] + [1 + i for i in range(4) if i != row % 4]
        places += [rows.others.features[row, i - 1, -1, :2] for i in seen[1:]]
        for place, agent in zip(places, seen, strict=True):
            place = model.position(place)
            states = motion.unflatten(0, (8, 5))[row, agent]  # (K, D)
            states = torch.stack([model.motion_fusion(torch.cat((place, s))) for s in states])
            lanes, real = model.lanes.encoder([model._lanes(rows)]).flat()
            for layer in model.lanes.layers:
                states = layer(states[None], None, lanes[row : row + 1, real[row]])[0]
            if agent == 0:
                refined = states
            social.append(model.social_fusion(torch.cat((place, model.distance(states.flatten())))))
        states = torch.stack(social).detach()
        for layer in model.social.layers:
            states = encoder_layer(states, layer.state_dict(), model.config)
        for mode in range(6):
            expected = torch.cat((states[0], refined[mode]))
            assert_close(head_inputs[row, mode], expected.detach(), **EXACT)


def test_region_loss_by_hand():
    # 4 proposals in 2 regions, one step; the truth at (1, 0) is in region 0
    means = torch.tensor([[[[1.0, 0.5]], [[3.0, 0.0]], [[9.0, 9.0]], [[8.0, 8.0]]]]).double()
    logits = torch.tensor([[0.1, 0.4, -0.2, 0.3]]).double()
    truth = TrueFuture(torch.tensor([[[1.0, 0.0]]]).double(), torch.tensor([[True]]))
    of_region = torch.tensor([[True, True, False, False]])
    # errors of 1 and 4 m: Huber's .5 and 3.5
    config = VanillaSceneConfig(score_loss_weight=0.3, velocity_std=2.0)
    p = [math.exp(v) for v in logits[0].tolist()]
    p = [v / sum(p) for v in p]
    wanted = [math.exp(-1), math.exp(-4)]
    wanted = [v / sum(wanted) for v in wanted]
    within = [p[0] / (p[0] + p[1]), p[1] / (p[0] + p[1])]
    divergence = sum(w * math.log(w / q) for w, q in zip(wanted, within, strict=True))
    expected = (0.5 + 3.5) / 2 + 0.3 * (divergence - math.log(p[0] + p[1]))
    futures = Mixture(means, None, logits)
    loss = region_loss(config, futures, truth, of_region)
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    best = closest_future_loss(config, futures, truth)
    assert best.item() == pytest.approx(0.5 - 0.3 * math.log(p[0]), abs=1e-6)


def test_regions_are_clusters_and_only_proposals_of_the_truth_are_trained():
    middles = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = (middles + 0.1 * torch.randn(40, 1, 2)).flatten(0, 1)
    centres = fit_regions(points, 3)
    assert torch.cdist(centres, middles).amin(0).max() < 0.2
    with pytest.raises(ValueError, match="2 different end points, so a region would be empty"):
        fit_regions(points[:2].repeat(5, 1), 3)
    with pytest.raises(ValueError, match="num_seeds=6 proposals cannot be divided among"):
        VanillaForProposalTrajectoryPrediction(VanillaSceneConfig(**{**SIZES, "num_regions": 7}))

    model, inputs = scene_model("proposals").train(), scenes()
    model.set_regions(**inputs)
    futures = []
    model.head.register_forward_hook(lambda *call: futures.append(call[-1]))
    loss = model(**inputs).loss
    means = futures[0].means
    trained = torch.autograd.grad(loss, means)[0].abs().sum((2, 3)) > 0  # (8, 6)
    rows = read_rows(model.config, inputs["past_values"], None, None)
    ends = inputs["future_values"][:, :, -1].flatten(0, 1) - rows.axes.origin
    regions = torch.cdist(rows.axes.enter(ends.unsqueeze(1)).squeeze(1), model.centres).argmin(1)
    assert len(regions.unique()) > 1
    assert trained.sum(1).tolist() == [1] * 8
    assert torch.equal(trained.int().argmax(1) // 2, regions)


def test_an_agent_sees_the_nearest_others_and_lanes():
    config = VanillaSceneConfig(**{**SIZES, "max_others": 2, "max_lanes": 1})
    inputs = scenes(agents=6, lanes=5)
    rows = read_rows(config, inputs["past_values"], None, None, lane_values=inputs["lane_values"])
    last = inputs["past_values"][0, :, -1]
    apart = torch.cdist(inputs["past_values"][0].flatten(0, 1), last)  # every step, last steps
    nearest = apart.view(6, 5, 6).amin(1)[:, 0]
    nearest[0] = torch.inf
    found = rows.others.features[0, :, :, :2].norm(dim=-1) * SIZES["predicted_steps"]
    assert_close(found.amin(1).sort().values, nearest.sort().values[:2], rtol=1e-6, atol=1e-6)
    assert rows.lanes.features.shape == (12, 1, 3, 4)


# --- bad input -----------------------------------------------------------------------------------


def changed(key, place, value):
    inputs = scenes()
    inputs[key][place] = value
    return inputs


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (changed("agent_mask", 1, 0), "scene 1 has no agent to forecast: leave it out"),
        (changed("past_observed_mask", (1, 2, -1), 0), "last observed step of agent 2 of scene 1"),
        (changed("past_values", (0, 0, 0, 0), math.nan), "past_values has NaN"),
        (changed("future_values", (0, 0, 0, 0), math.inf), "future_values has NaN or infinite"),
        (changed("lane_values", (0, 0, 0, 0), math.nan), "lane_values has NaN"),
        (changed("lane_mask", (1, 2, slice(1, None)), 0), "polyline 2 of scene 1 has one point"),
        (changed("lane_kinds", (0, 0), 3), "lane_kinds has 0 to 3: give numbers below"),
        (
            {**scenes(), "lane_values": scenes()["lane_values"] + 5e5},
            "lanes of scene 0 are .* m from all its agents, and map_distance=1000",
        ),
        ({**scenes(), "lane_values": torch.zeros(2, 3, 1, 2)}, "2 or more points"),
        ({**scenes(), "lane_kinds": torch.zeros(2, 4)}, r"lane_kinds has shape \(2, 4\)"),
        ({**scenes(), "agent_mask": torch.ones(2, 5)}, r"agent_mask has shape \(2, 5\)"),
        ({**scenes(), "past_values": torch.zeros(2, 4, 6, 2)}, "the model has 5 such steps"),
        ({**scenes(), "future_values": torch.zeros(2, 3, 3, 2)}, "give the same"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        scene_model("early full")(**inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_modes": 7}, "num_modes=7 futures cannot be kept of num_seeds=6"),
        ({"fusion": "middle"}, "fusion='middle': choose one of late, early, hierarchical"),
        ({"encoder": "half"}, "encoder='half': choose one of full, sequential"),
        ({"fusion": "hierarchical", "encoder_layers": 1}, "hierarchical fusion needs 2 or more"),
        ({"field_of_view": 0}, "field_of_view=0: give up to 360 degrees"),
        ({"raster_cells": 12}, "raster_cells=12: give a multiple of 8"),
        ({"num_latents": 0}, "num_latents=0: give a positive number"),
        ({"neighbor_distance": -1}, "neighbor_distance=-1: give 0 or more"),
        ({"observed_steps": 1}, "a velocity needs 2 or more"),
        ({"d_model": 9, "encoder_attention_heads": 3, "decoder_attention_heads": 3}, "is odd"),
        ({"num_agent_kinds": -1}, "num_agent_kinds=-1: give 0 or more"),
        ({"heading_decay": 2}, "heading_decay=2: give a factor"),
    ],
)
def test_impossible_configs_are_refused(change, message):
    with pytest.raises(Exception, match=message):
        VanillaSceneConfig(**{**SIZES, **change})


def test_500_agents_are_cut_to_the_nearest_and_reported(caplog):
    inputs = scenes(count=1, agents=500, lanes=2)
    focal = torch.zeros(1, 500)
    focal[0, 3] = 1
    with caplog.at_level("WARNING"):
        found = tracks(scene_model("early latent"), {**inputs, "focal_mask": focal})
    assert found[0, 3].isfinite().all()
    assert "a scene has 500 agents; an agent sees the nearest max_others=9" in caplog.text
