"""AgentFormer: a slow reference, padding, order, cache, what may change a prediction, failures."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.testing import assert_close

from hf_vanilla.models.attention_vanilla_agentformer import AgentAwareAttention
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.modeling_vanilla_agentformer import (
    JointErrors,
    VanillaForDiverseTrajectoryPrediction,
    VanillaForJointTrajectoryPrediction,
)
from hf_vanilla.models.positions_vanilla import sinusoid

SIZES = {
    "observed_steps": 5,
    "predicted_steps": 4,
    "num_modes": 3,
    "latent_dim": 6,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "posterior_layers": 1,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
    "map_dims": [11, 7],
}
STAGES = (VanillaForJointTrajectoryPrediction, VanillaForDiverseTrajectoryPrediction)
NEAR = {"rtol": 0, "atol": 1e-5}


def lively(model):
    """Heads start near zero, so that all samples would be equal."""
    for name, weight in model.named_parameters():
        if "head" in name or "map_" in name or name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


@pytest.fixture
def first():
    return lively(VanillaForJointTrajectoryPrediction(VanillaAgentFormerConfig(**SIZES)))


@pytest.fixture(params=STAGES, ids=["first", "second"])
def model(request):
    return lively(request.param(VanillaAgentFormerConfig(**SIZES)))


def scenes(batch=2, agents=3, steps=9):
    start = torch.randn(batch, agents, 1, 2) * 4
    tracks = start + torch.randn(batch, agents, steps, 2).mul(0.3).cumsum(2)
    return tracks[:, :, :5], tracks[:, :, 5:]


def noise_for(batch=2, agents=3, samples=3):
    return torch.randn(batch, agents, samples, 6)


def predict(model, past, noise, **kwargs):
    """Trajectories; the second stage draws nothing."""
    drawn = {"noise": noise} if isinstance(model, VanillaForJointTrajectoryPrediction) else {}
    with torch.no_grad():
        return model(past, **drawn, **kwargs).trajectories


# --- a slow reference: one scene, no cache, one number after the other ---------------------------


def slow_attention(layer, queries, keys, agents, may_attend):
    """Section 3.1 for `(L, D)` queries and `(S, D)` keys; `may_attend` is a function of both."""
    heads = layer.q_proj.out_features // layer.head_dim
    by_head = [
        projection(inputs).view(len(inputs), heads, -1)
        for projection, inputs in (
            (layer.q_proj, queries),
            (layer.own_q_proj, queries),
            (layer.k_proj, keys),
            (layer.own_k_proj, keys),
            (layer.v_proj, keys),
        )
    ]
    query, own_query, key, own_key, value = by_head
    rows = []
    for row in range(len(queries)):
        allowed = [column for column in range(len(keys)) if may_attend(row, column)]
        means = []
        for head in range(heads):
            scores = []
            for column in allowed:
                is_own = row % agents == column % agents
                left, right = (own_query, own_key) if is_own else (query, key)
                scores.append((left[row, head] @ right[column, head]) / math.sqrt(layer.head_dim))
            weights = torch.stack(scores).softmax(0)
            means.append((weights.unsqueeze(1) * value[allowed, head]).sum(0))
        rows.append(torch.cat(means))
    return layer.out_proj(torch.stack(rows))


def slow_layer(layer, states, agents, may_attend, context=None):
    attended = slow_attention(layer.self_attn, states, states, agents, may_attend)
    states = layer.self_attn_layer_norm(states + attended)
    if context is not None:
        attended = slow_attention(layer.encoder_attn, states, context, agents, lambda *_: True)
        states = layer.encoder_attn_layer_norm(states + attended)
    return layer.final_layer_norm(states + layer.fc2(layer.fc1(states).relu()))


def slow_embedding(embedding, inputs, agents):
    """`(L A, width)` inputs in time-major order."""
    steps = torch.arange(len(inputs)) // agents
    vectors = embedding.projection(inputs)
    code = sinusoid(steps, vectors.shape[1]).float()
    return embedding.time_projection(torch.cat((vectors, code), 1))


def slow_forecast(model, past, noise):
    """Futures `(A, K, P, 2)` of one scene `(A, T, 2)`, each step computed anew."""
    agents, steps = past.shape[:2]
    origin = past[:, -1].mean(0)
    rows = []
    for step in range(steps):
        for agent in range(agents):
            at = max(step, 1)
            velocity = past[agent, at] - past[agent, at - 1]
            rows.append(torch.cat((past[agent, step] - origin, velocity)))
    context = slow_embedding(model.context_encoder.embedding, torch.stack(rows), agents)
    for layer in model.context_encoder.layers:
        context = slow_layer(layer, context, agents, lambda *_: True)
    pooled = torch.stack([context[agent::agents].mean(0) for agent in range(agents)])
    mean, log_variance = model.future_decoder.prior_head(pooled).chunk(2, dim=1)
    futures = []
    for sample in range(noise.shape[1]):
        latent = mean + (log_variance / 2).exp() * noise[:, sample]
        start = past[:, -1] - origin
        found = [start]
        for _ in range(model.config.predicted_steps):
            inputs = torch.cat([torch.cat((position, latent), 1) for position in found])
            states = slow_embedding(model.future_decoder.embedding, inputs, agents)
            for layer in model.future_decoder.layers:
                states = slow_layer(
                    layer, states, agents, lambda q, k: k // agents <= q // agents, context
                )
            found.append(start + model.future_decoder.head(states[-agents:]))
        futures.append(torch.stack(found[1:], 1) + origin)
    return torch.stack(futures, 1)


@pytest.mark.parametrize("agents", range(1, 8))
def test_forecasts_equal_a_slow_reference(first, agents):
    past, _ = scenes(1, agents)
    noise = noise_for(1, agents, 2)
    with torch.no_grad():
        assert_close(
            predict(first, past, noise)[0], slow_forecast(first, past[0], noise[0]), **NEAR
        )


@pytest.mark.parametrize("agents", [1, 2, 5])
def test_agent_aware_attention_equals_a_slow_reference(agents):
    layer = AgentAwareAttention(VanillaAgentFormerConfig(**SIZES), 3).eval()
    queries, keys = torch.randn(4 * agents, 24), torch.randn(7 * agents, 24)
    may = torch.rand(4 * agents, 7 * agents) < 0.6
    may[:, 0] = True
    found, weights = layer(
        queries[None], keys[None], keys[None], may[None, None], num_agents=agents
    )
    wanted = slow_attention(layer, queries, keys, agents, lambda q, k: bool(may[q, k]))
    assert_close(found[0], wanted, **NEAR)
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert not weights[0, :, ~may].any()


def test_agent_aware_attention_with_equal_pairs_is_plain_attention():
    config = VanillaAgentFormerConfig(**SIZES)
    layer = AgentAwareAttention(config, 3).eval()
    layer.own_q_proj.load_state_dict(layer.q_proj.state_dict())
    layer.own_k_proj.load_state_dict(layer.k_proj.state_dict())
    states = torch.randn(2, 6, 24)
    theirs = torch.nn.MultiheadAttention(24, 3, batch_first=True).eval()
    for kind in ("weight", "bias"):
        parts = [getattr(p, kind) for p in (layer.q_proj, layer.k_proj, layer.v_proj)]
        getattr(theirs, f"in_proj_{kind}").data = torch.cat(parts).data
    theirs.out_proj.load_state_dict(layer.out_proj.state_dict())
    found = layer(states, states, states, num_agents=2)[0]
    assert_close(found, theirs(states, states, states)[0], **NEAR)


# --- what may change a prediction ----------------------------------------------------------------


def test_the_rollout_with_a_cache_equals_the_pass_over_all_steps(model):
    past, _ = scenes()
    mask = torch.tensor([[1, 1, 1], [1, 0, 1]])
    noise = noise_for()
    cached = predict(model, past, noise, agent_mask=mask)
    drawn = {"noise": noise} if isinstance(model, VanillaForJointTrajectoryPrediction) else {}
    assert_close(model(past, agent_mask=mask, **drawn).trajectories, cached, **NEAR)


def test_scenes_in_a_batch_equal_scenes_alone(model):
    past, _ = scenes(3, 5)
    noise = noise_for(3, 5)
    counts = (5, 2, 1)
    mask = torch.tensor([[number < count for number in range(5)] for count in counts])
    unknown = past.masked_fill(~mask[..., None, None], float("nan"))
    together = predict(model, unknown, noise, agent_mask=mask)
    for row, count in enumerate(counts):
        alone = predict(model, past[row : row + 1, :count], noise[row : row + 1, :count])
        assert_close(together[row, :count], alone[0], **NEAR)
        assert not together[row, count:].any()


def test_the_order_of_agents_changes_nothing_but_the_order(model):
    past, _ = scenes(2, 4)
    noise, order = noise_for(2, 4), torch.tensor([2, 0, 3, 1])
    found = predict(model, past[:, order], noise[:, order])
    assert_close(found, predict(model, past, noise)[:, order], **NEAR)


def test_the_future_never_changes_a_prediction(model):
    past, future = scenes()
    noise = noise_for()
    plain = predict(model, past, noise)
    for other in (future, future + 9, -future):
        found = predict(model, past, noise, future_values=other)
        assert_close(found, plain, **NEAR)


def test_shifting_the_world_shifts_predictions(model):
    past, _ = scenes()
    noise, shift = noise_for(), torch.tensor([3.0, -8.0])
    found = predict(model, past + shift, noise)
    assert_close(found, predict(model, past, noise) + shift, rtol=0, atol=1e-4)


def test_positions_of_missing_steps_change_nothing(model):
    past, future = scenes()
    mask = torch.ones(2, 3, 5)
    mask[0, 1, :3] = mask[1, 2, 1] = 0
    noise = noise_for()
    unknown = past.masked_fill(mask[..., None] == 0, float("nan"))
    found = predict(model, unknown, noise, past_observed_mask=mask)
    assert_close(found, predict(model, past, noise, past_observed_mask=mask), rtol=0, atol=0)
    assert (found - predict(model, past, noise)).abs().max() > 1e-4
    assert model(unknown, past_observed_mask=mask, future_values=future).loss.isfinite()


def test_another_agent_changes_a_prediction_unless_it_is_too_far_away():
    config = VanillaAgentFormerConfig(**SIZES, connection_distance=2.0)
    model = lively(VanillaForJointTrajectoryPrediction(config))
    past, _ = scenes(1, 2)
    past[:, 1] += past[:, 0, -1:] - past[:, 1, -1:]  # side by side
    noise = noise_for(1, 2)

    def changes(distance):
        # the other agent moves elsewhere but ends in the same place, so the origin is the same
        near = past.clone()
        near[:, 1, :, 0] += distance
        other = near.clone()
        other[:, 1, :-1] += 1.0
        found = [predict(model, values, noise)[:, 0] for values in (near, other)]
        return (found[0] - found[1]).abs().max()

    assert changes(0.5) > 1e-4
    assert changes(2.5) < 1e-6


def test_fewer_samples_at_once_give_the_same_futures_with_the_same_seed(model):
    past, _ = scenes(2, 4)
    found = []
    for size in (None, 2, 1):
        torch.manual_seed(3)
        with torch.no_grad():
            found.append(model(past, samples_at_once=size).trajectories)
    # some processors compute products of fewer rows in another order
    for other in found[1:]:
        assert_close(other, found[0], rtol=0, atol=1e-5)


def test_more_steps_change_no_earlier_step(model):
    past, _ = scenes()
    noise = noise_for()
    plain = predict(model, past, noise)
    longer = predict(model, past, noise, predicted_steps=6)
    assert longer.shape[3] == 6
    assert_close(longer[..., :4, :], plain, **NEAR)


# --- losses --------------------------------------------------------------------------------------


def test_the_losses_by_hand():
    truth = JointErrors(
        future=torch.tensor([[[[1.0, 0.0]], [[0.0, 2.0]]]]),  # one scene, two agents, one step
        is_known=torch.ones(1, 2, 1, dtype=torch.bool),
        is_agent=torch.ones(1, 2, dtype=torch.bool),
        divisor=torch.tensor(2),
    )
    # sample 0: errors 1 and 4; sample 1: errors 4 and 0
    futures = torch.tensor([[[[[0.0, 0.0], [0.0, 0.0]]], [[[3.0, 0.0], [0.0, 2.0]]]]])
    assert truth.closest(futures) == 0.5  # (1 + 0) / 2
    assert truth.closest_together(futures) == 2.0  # 4 / 2, sample 1
    assert truth.closest(futures[:, :1]) == 2.5  # (1 + 4) / 2
    assert truth.divergence(torch.tensor([[1.0, 2.0]]), floor=2.0) == 2.0
    assert truth.divergence(torch.tensor([[3.0, 4.0]]), floor=2.0) == 3.5
    wanted = (math.exp(-9 / 5) + math.exp(-4 / 5)) / 2
    assert_close(truth.similarity(futures, 5.0), torch.tensor(wanted))


@pytest.mark.parametrize("joint_weight", [0.0, 0.5])
def test_samples_that_are_closest_for_nobody_have_no_gradient(monkeypatch, joint_weight):
    rates = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    config = VanillaAgentFormerConfig(**{**SIZES, "num_modes": 13}, **rates)
    config.joint_weight = joint_weight
    model = lively(VanillaForJointTrajectoryPrediction(config)).train().double()
    past, future = (part.double() for part in scenes(3, 4))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])

    def gradients():
        torch.manual_seed(0)
        model.zero_grad()
        output = model(past, agent_mask=mask, future_values=future)
        output.loss.backward()
        return output, [weight.grad for weight in model.parameters()]

    output, found = gradients()
    every = torch.arange(13).expand(3, -1)
    monkeypatch.setattr(JointErrors, "needed_samples", lambda *_, **__: every)
    whole, wanted = gradients()
    assert_close(output.trajectories, whole.trajectories, rtol=0, atol=0)
    assert_close(output.loss, whole.loss)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_the_needed_samples_by_hand():
    truth = JointErrors(
        future=torch.zeros(2, 3, 1, 2),
        is_known=torch.tensor([[1, 1, 1], [1, 0, 0]]).bool().unsqueeze(2),
        is_agent=torch.tensor([[True, True, True], [True, False, False]]),
        divisor=torch.tensor(4),
    )
    # distances of samples 0 to 3 from the truth, one column per agent
    apart = torch.tensor(
        [
            [[5.0, 1.0, 5.0], [2.0, 2.0, 2.0], [1.0, 5.0, 1.0], [9.0, 9.0, 9.0]],
            [[3.0, 0.0, 0.0], [3.0, 0.0, 0.0], [3.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        ]
    )
    futures = torch.stack((apart, torch.zeros_like(apart)), dim=-1).unsqueeze(2)
    found = truth.needed_samples(futures, together=False)
    assert sorted(found[0].tolist()) == [0, 2]
    assert 3 in found[1].tolist()
    assert sorted(truth.needed_samples(futures, together=True)[0].tolist()) == [0, 1, 2]


def test_micro_batches_of_scenes_add_up_to_the_batch():
    config = VanillaAgentFormerConfig(
        **SIZES, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, joint_weight=0.5
    )
    model = lively(VanillaForDiverseTrajectoryPrediction(config)).train().double()
    past, future = (part.double() for part in scenes(3, 4))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    model(past, agent_mask=mask, future_values=future).loss.backward()
    together = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    for row, count in enumerate((4, 2, 1)):
        part = {"past_values": past[row : row + 1, :count], "num_items_in_batch": 7}
        model(**part, future_values=future[row : row + 1, :count]).loss.backward()
    apart = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert len(apart) == len(list(model.map_hidden.parameters())) + 4
    for one, other in zip(together, apart, strict=True):
        assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_the_first_stage_learns_to_follow_its_posterior():
    torch.manual_seed(0)
    model = VanillaForJointTrajectoryPrediction(VanillaAgentFormerConfig(**SIZES)).train()
    past, future = scenes(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        output = model(past, future_values=future)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        losses.append(output.reconstruction_loss.item())
    assert all(weight.grad is not None for weight in model.parameters())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("is_loaded", [False, True], ids=["built", "loaded"])
def test_the_second_stage_leaves_the_first_as_it_is(is_loaded, tmp_path):
    model = VanillaForDiverseTrajectoryPrediction(VanillaAgentFormerConfig(**SIZES))
    if is_loaded:
        model.save_pretrained(tmp_path)
        model = VanillaForDiverseTrajectoryPrediction.from_pretrained(tmp_path)
    model.train()
    assert not model.first_stage.training
    past, future = scenes()
    model(past, future_values=future).loss.backward()
    assert all(weight.grad is None for weight in model.first_stage.parameters())
    assert all(weight.grad is not None for weight in model.map_hidden.parameters())


def test_training_starts_near_standing_agents_and_equal_latents():
    model = VanillaForDiverseTrajectoryPrediction(VanillaAgentFormerConfig()).eval()
    first = model.first_stage
    for head in (first.future_decoder.head, first.future_encoder.latent_head, model.map_hidden[1]):
        assert 0.008 < head.weight.std() < 0.012
        assert not head.bias.any()
    bound = 1 / math.sqrt(256)
    assert 0.9 * bound < model.map_scale.weight.abs().max() <= bound
    glorot = math.sqrt(6 / (2 * 256 + 256))  # of the d x 2d matrix of own queries and keys
    own = first.context_encoder.layers[0].self_attn.own_q_proj.weight.abs().max()
    assert 0.98 * glorot < own <= glorot
    past = torch.randn(1, 2, 8, 2)
    with torch.no_grad():
        output = first(past, future_values=past[:, :, -1:].expand(-1, -1, 12, -1))
    assert output.sample_loss < 12 * 0.5  # half a metre per step and coordinate
    assert output.divergence == 2.0


# --- sizes, saving, failures ---------------------------------------------------------------------


def test_the_sizes_of_the_authors_have_their_number_of_parameters():
    with torch.device("meta"):
        model = VanillaForJointTrajectoryPrediction(VanillaAgentFormerConfig())
    assert sum(weight.numel() for weight in model.parameters()) == 5_972_098


def test_attention_weights_are_recorded_for_each_layer(first):
    past, _ = scenes()
    found = first(past, output_attentions=True).attentions
    assert [tuple(weights.shape) for weights in found] == [(2, 3, 15, 15)] * 2
    assert_close(found[0].sum(-1), torch.ones(2, 3, 15))


def test_wrong_inputs_are_refused(first):
    cases = [
        ({"past_values": torch.zeros(2, 3, 4, 2)}, r"\(2, 3, 4, 2\).* give \(scenes, agents, 5, 2"),
        ({"agent_mask": torch.ones(2, 4)}, r"agent_mask has shape \(2, 4\)"),
        (
            {"agent_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])},
            "scene 1 has no agent to forecast: leave",
        ),
        ({"past_values": torch.full((2, 3, 5, 2), float("nan"))}, "NaN or infinite"),
        ({"past_observed_mask": torch.ones(2, 3, 4)}, r"past_observed_mask has shape \(2, 3, 4\)"),
        (
            {"past_observed_mask": torch.tensor([1, 1, 1, 1, 0]).expand(2, 3, 5)},
            "agent 0 of scene 0 is missing",
        ),
        ({"future_values": torch.zeros(2, 3, 5, 2)}, r"future_values has shape \(2, 3, 5, 2\)"),
        ({"future_values": torch.zeros(2, 2, 4, 2)}, "give the same"),
        ({"noise": torch.zeros(2, 3, 3, 5)}, r"noise has shape .* give \(2, 3, samples, 6\)"),
        ({"samples_at_once": 0}, "samples_at_once=0: give a positive number"),
    ]
    for change, message in cases:
        inputs = {"past_values": scenes()[0]} | change
        with pytest.raises(ValueError, match=message):
            first(**inputs)


def test_an_agent_that_was_seen_once_and_scenes_of_500_agents_have_finite_futures():
    model = lively(VanillaForJointTrajectoryPrediction(VanillaAgentFormerConfig(**SIZES)))
    model.future_decoder.head.weight.data.mul_(0.1)
    past = scenes(1, 500)[0]
    mask = torch.ones(1, 500, 5)
    mask[0, 7, :4] = 0
    found = predict(model, past, noise_for(1, 500), past_observed_mask=mask, samples_at_once=1)
    assert found.shape == (1, 500, 3, 4, 2)
    assert found.isfinite().all()
    alone = predict(model, past[:, 7:8], noise_for(1, 1), past_observed_mask=mask[:, 7:8])
    assert alone.isfinite().all()


def test_a_number_of_agents_that_does_not_divide_the_positions_is_refused():
    layer = AgentAwareAttention(VanillaAgentFormerConfig(**SIZES), 3)
    states = torch.zeros(1, 7, 24)
    with pytest.raises(ValueError, match="num_agents=2 does not divide the 7 queries"):
        layer(states, states, states, num_agents=2)


def test_wrong_configs_are_refused():
    cases = [
        ({"observed_steps": 1}, "observed_steps=1"),
        ({"latent_dim": 0}, "latent_dim=0"),
        ({"d_model": 9}, "d_model=9"),
        ({"map_dims": []}, "map_dims"),
        ({"head_dims": [0]}, "head_dims"),
        ({"divergence_floor": -1}, "divergence_floor=-1"),
        ({"reconstruction_weight": 0, "sample_weight": 0}, "are all 0"),
    ]
    for change, message in cases:
        with pytest.raises(StrictDataclassError) as caught:
            VanillaAgentFormerConfig(**change)
        assert message in str(caught.value.__cause__ or caught.value)
