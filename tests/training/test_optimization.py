"""Optimizers and learning rates: the paper's values, the schedules by hand, groups of weights."""

import copy
import math

import pytest
import torch

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.training.optimization import (
    inverse_sqrt_schedule,
    make_optimizer,
    make_schedule,
    paper_adam,
    peak_learning_rate,
    share_of_peak,
)
from hf_vanilla.training.options import TrainRecipe
from hf_vanilla.training.recipe import read_recipe


def rates(steps, *, d_model=512, warmup_steps=4000, peak=None):
    """The rate of each of these updates."""
    weight = torch.nn.Parameter(torch.zeros(3))
    peak = peak_learning_rate(d_model, warmup_steps) if peak is None else peak
    optimizer = paper_adam([weight], learning_rate=peak)
    schedule = inverse_sqrt_schedule(optimizer, warmup_steps=warmup_steps)
    found = {}
    for step in range(1, max(steps) + 1):
        if step in steps:
            found[step] = optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()
    return found


# d_model ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5), by a calculator
BASE = {1: 1.746928e-07, 1000: 1.746928e-04, 4000: 6.987712e-04, 16000: 3.493856e-04}


def test_the_base_models_rates_are_the_papers():
    # seven digits were noted
    assert rates(BASE) == pytest.approx(BASE, rel=1e-6)


def test_the_big_models_peak_is_the_papers():
    assert peak_learning_rate(1024, 4000) == pytest.approx(4.941059e-04, rel=1e-6)


def test_the_rate_far_beyond_the_warmup_is_the_papers():
    optimizer = paper_adam([torch.nn.Parameter(torch.zeros(1))], learning_rate=1.0)
    (share,) = inverse_sqrt_schedule(optimizer, warmup_steps=4000).lr_lambdas
    rate = peak_learning_rate(512, 4000) * share(100_000 - 1)  # updates done before it
    assert rate == pytest.approx(1.397542e-04, rel=1e-6)


def test_the_rate_rises_in_a_line_and_falls_with_the_root():
    found = rates({1, 2, 3, 7, 28, 63}, warmup_steps=7, peak=0.7)
    expected = {1: 0.1, 2: 0.2, 3: 0.3, 7: 0.7, 28: 0.35, 63: 0.7 / 3}
    assert found == pytest.approx(expected)


def test_a_warmup_of_one_step_starts_at_the_peak():
    assert rates({1, 4}, warmup_steps=1, peak=0.5) == pytest.approx({1: 0.5, 4: 0.25})


@pytest.mark.parametrize("warmup_steps", [0, -5])
def test_no_warmup_is_refused(warmup_steps):
    optimizer = paper_adam([torch.nn.Parameter(torch.zeros(1))], learning_rate=0.1)
    with pytest.raises(ValueError, match=f"warmup_steps={warmup_steps}: give a positive number"):
        inverse_sqrt_schedule(optimizer, warmup_steps=warmup_steps)


def test_adam_is_the_papers():
    optimizer = paper_adam([torch.nn.Parameter(torch.zeros(2))], learning_rate=0.25)
    (group,) = optimizer.param_groups
    assert (group["betas"], group["eps"], group["lr"]) == ((0.9, 0.98), 1e-9, 0.25)
    assert (group["weight_decay"], group["amsgrad"]) == (0, False)


def test_adam_is_what_the_caller_says():
    weights = [torch.nn.Parameter(torch.zeros(2))]
    optimizer = paper_adam(weights, learning_rate=0.1, betas=(0.5, 0.75), epsilon=1e-3)
    assert optimizer.defaults["betas"] == (0.5, 0.75)
    assert optimizer.defaults["eps"] == 1e-3


def test_one_update_by_hand():
    weight = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = paper_adam([weight], learning_rate=0.1)
    for gradient in (3.0, -1.0):
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
    first, second = 0.0, 0.0
    expected = 2.0
    for step, gradient in enumerate((3.0, -1.0), start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * gradient**2
        expected -= 0.1 * (first / (1 - 0.9**step)) / ((second / (1 - 0.98**step)) ** 0.5 + 1e-9)
    assert weight.item() == pytest.approx(expected, rel=1e-12)


def test_the_state_of_the_schedule_comes_back():
    found = {}
    for resumed_at in (0, 5):
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = paper_adam([weight], learning_rate=0.3)
        schedule = inverse_sqrt_schedule(optimizer, warmup_steps=4)
        for step in range(9):
            if resumed_at and step == resumed_at:
                states = optimizer.state_dict(), schedule.state_dict()
                optimizer = paper_adam([weight], learning_rate=0.3)
                schedule = inverse_sqrt_schedule(optimizer, warmup_steps=4)
                optimizer.load_state_dict(states[0])
                schedule.load_state_dict(states[1])
            optimizer.step()
            schedule.step()
        found[resumed_at] = optimizer.param_groups[0]["lr"]
    assert found[0] == found[5]


def test_the_update_is_adams_by_hand():
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    optimizer = paper_adam([weight], learning_rate=0.25)
    expected = weight.detach().clone()
    mean, square = torch.zeros_like(expected), torch.zeros_like(expected)
    for step in range(1, 6):
        gradient = torch.randn(3, dtype=torch.float64)
        weight.grad = gradient.clone()
        optimizer.step()
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.98 * square + 0.02 * gradient**2
        ratio = (mean / (1 - 0.9**step)) / ((square / (1 - 0.98**step)).sqrt() + 1e-9)
        expected -= 0.25 * ratio
    # double precision on both sides
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_eighty_steps_follow_the_curve_of_torchs_own_loss_and_adam(tiny_config):
    tiny_config.label_smoothing_type = "uniform"  # torch's
    ours = VanillaForConditionalGeneration(tiny_config).train()
    for module in ours.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    plain = copy.deepcopy(ours)
    adam = {"betas": (0.9, 0.98), "eps": 1e-9}
    optimizers = [
        paper_adam(ours.parameters(), learning_rate=3e-3),
        torch.optim.Adam(plain.parameters(), lr=3e-3, foreach=False, fused=False, **adam),
    ]
    batches = [torch.randint(2, tiny_config.vocab_size, (5, 7)) for _ in range(11)]
    curves = []
    for step in range(80):
        ids = batches[step % len(batches)]
        labels = ids.flip(1).masked_fill(torch.arange(7) > 2 + step % 5, -100)
        logits = plain(input_ids=ids, labels=labels).logits
        losses = [
            ours(input_ids=ids, labels=labels).loss,
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), label_smoothing=tiny_config.label_smoothing
            ),
        ]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        curves.append([loss.item() for loss in losses])
    own, torchs = torch.tensor(curves).T
    assert own[-11:].mean() < own[:11].mean() - 0.5  # it learned
    torch.testing.assert_close(own, torchs, rtol=0, atol=5e-3)  # rounding, over 80 steps


# --- optimizer and schedule by name --------------------------------------------------------------


def recipe(**changes):
    return TrainRecipe(**{"learning_rate": 0.5, "warmup_steps": 3, "max_steps": 12, **changes})


def scheduled_rates(**changes):
    """The rate of every update of a run by `make_optimizer` and `make_schedule`."""
    options = recipe(**changes)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=options.learning_rate)
    schedule = make_schedule(optimizer, options)
    found = []
    for _ in range(options.max_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # rate 6, peak at update 3 of 12, by hand
        ("constant", [2, 4, *[6] * 10]),
        ("inverse_sqrt", [2, 4, *(6 * (3 / step) ** 0.5 for step in range(3, 13))]),
        ("step", [2, 4, *[6] * 6, *[0.6] * 4]),  # a tenth after update 8, two thirds of 12
        ("cosine", [2, 4, *(3 * (1 + math.cos(math.pi * k / 10)) for k in range(10))]),
    ],
)
def test_a_schedule_follows_the_values_computed_by_hand(schedule, expected):
    found = scheduled_rates(schedule=schedule, learning_rate=6.0)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("warmup_steps", "max_steps"), [(2, 11), (3, 10), (9, 10)])
def test_one_cycle_equals_torchs_one_cycle(warmup_steps, max_steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=0.25,
        total_steps=max_steps,
        pct_start=warmup_steps / max_steps,
        cycle_momentum=False,
    )
    expected = []
    for _ in range(max_steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step() if len(expected) < max_steps else None
    found = scheduled_rates(
        schedule="one_cycle", learning_rate=0.25, warmup_steps=warmup_steps, max_steps=max_steps
    )
    assert found == pytest.approx(expected, rel=1e-9)


def test_beyond_the_last_step_the_rate_stays_at_its_end():
    told = {"warmup_steps": 3, "max_steps": 12}
    assert share_of_peak(40, schedule="one_cycle", **told) == pytest.approx(4e-6)
    assert share_of_peak(40, schedule="cosine", **told) == 0
    assert share_of_peak(40, schedule="step", **told) == pytest.approx(0.1)


@pytest.mark.parametrize("schedule", ["one_cycle", "cosine", "step"])
def test_a_schedule_that_ends_before_its_peak_is_refused(schedule):
    with pytest.raises(ValueError, match=r"falls from warmup_steps=12 to max_steps=12: give more"):
        recipe(schedule=schedule, warmup_steps=12)
    recipe(schedule="constant", warmup_steps=12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer='sgd': choose one of adam, adamw"),
        ({"schedule": "linear"}, "schedule='linear': choose one of inverse_sqrt, one_cycle, cos"),
        ({"weight_decay": -0.1}, r"weight_decay=-0\.1: give 0 or more"),
        ({"learning_rate_of": {"encoder": 0.0}}, r"learning_rate_of encoder=0\.0: give a positive"),
    ],
    ids=str,
)
def test_an_impossible_optimizer_or_schedule_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        recipe(**changes)


def named_groups(model, **changes):
    """For every group of the optimizer: rate, weight decay and names of its weights."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    return [
        (group["lr"], group["weight_decay"], {names[id(weight)] for weight in group["params"]})
        for group in make_optimizer(model, recipe(**changes)).param_groups
    ]


def test_without_options_all_weights_are_one_group_of_the_papers_adam(tiny_model):
    optimizer = make_optimizer(tiny_model, TrainRecipe())
    (group,) = optimizer.param_groups
    assert type(optimizer) is torch.optim.Adam
    assert all(a is b for a, b in zip(group["params"], tiny_model.parameters(), strict=True))
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0)
    assert group["lr"] == pytest.approx((12 * 4000) ** -0.5)


def test_weight_decay_leaves_out_norms_biases_and_positions(tiny_config):
    tiny_config.position_embedding_type, tiny_config.attention_bias = "learned", True
    model = VanillaForConditionalGeneration(tiny_config)
    (_, decay, decayed), (_, no_decay, rest) = named_groups(model, weight_decay=0.3)
    assert (decay, no_decay) == (0.3, 0)
    layer = "model.decoder.layers.4"
    assert {"model.shared.weight", f"{layer}.fc1.weight"} <= decayed
    assert {f"{layer}.fc1.bias", f"{layer}.final_layer_norm.weight"} <= rest
    assert {"model.encoder.embed_positions.weight", f"{layer}.self_attn.q_proj.bias"} <= rest
    assert decayed | rest == {name for name, _ in model.named_parameters()}


def test_a_prefix_gives_its_weights_another_rate_and_the_longest_decides(tiny_model):
    of = {"encoder": 0.01, "model.encoder.layers.1": 0.02}
    (usual, _, rest), *others = named_groups(tiny_model, learning_rate_of=of)
    assert usual == 0.5
    found = {rate: names for rate, _, names in others}
    encoder = {n for n, _ in tiny_model.named_parameters() if n.startswith("model.encoder.")}
    second = {name for name in encoder if name.startswith("model.encoder.layers.1.")}
    assert found == {0.01: encoder - second, 0.02: second}
    assert not rest & encoder


def test_frozen_weights_are_not_trained(tiny_model):
    tiny_model.model.encoder.layers.requires_grad_(requires_grad=False)
    ((_, _, names),) = named_groups(tiny_model)
    assert names == {n for n, _ in tiny_model.named_parameters() if ".encoder.layers." not in n}


def test_a_prefix_of_no_weight_is_refused_with_the_names_there_are(tiny_model):
    with pytest.raises(ValueError, match=r"learning_rate_of='backbone': no trained weight .*model"):
        make_optimizer(tiny_model, recipe(learning_rate_of={"backbone": 1e-5}))


def test_every_groups_rate_follows_the_schedule(tiny_model):
    options = recipe(learning_rate_of={"encoder": 0.05}, schedule="constant")
    optimizer = make_optimizer(tiny_model, options)
    schedule = make_schedule(optimizer, options)
    assert schedule.get_last_lr() == pytest.approx([0.5 / 3, 0.05 / 3])


def test_adamw_decays_the_weight_and_adam_the_gradient_by_hand(tiny_model):
    weights = {}
    for name in ("adam", "adamw"):
        model = copy.deepcopy(tiny_model).double()
        weight = model.model.decoder.layers[0].fc1.weight
        before, gradient = weight.detach().clone(), torch.randn_like(weight)
        weight.grad = gradient.clone()
        make_optimizer(model, recipe(optimizer=name, weight_decay=0.25)).step()
        weights[name] = before, gradient, weight.detach()
    # the first update of Adam moves every weight by the rate, 0.5, against its gradient's sign
    before, gradient, after = weights["adamw"]
    expected = before * (1 - 0.5 * 0.25) - 0.5 * gradient / (gradient.abs() + 1e-9)
    torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-12)
    before, gradient, after = weights["adam"]
    gradient = gradient + 0.25 * before
    expected = before - 0.5 * gradient / (gradient.abs() + 1e-9)
    torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-12)


def test_a_recipe_file_names_rates_as_keys_and_values(tmp_path):
    text = "optimizer: adamw\nschedule: cosine\nlearning_rate_of: {backbone: 1e-5, class_head: 2}\n"
    (tmp_path / "mine.yaml").write_text(text)
    read = read_recipe(["--recipe", str(tmp_path / "mine.yaml")])
    assert read.train.learning_rate_of == {"backbone": 1e-5, "class_head": 2.0}
    (tmp_path / "again.yaml").write_text(read.to_yaml())
    assert read_recipe(["--recipe", str(tmp_path / "again.yaml")]) == read
