"""The paper's learning rates, read from the real optimizer and schedule."""

import copy

import pytest
import torch

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.recipes.schedules import peak_learning_rate
from hf_vanilla.training.optimization import inverse_sqrt_schedule, paper_adam


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
def test_two_hundred_steps_follow_the_curve_of_torchs_own_loss_and_adam(tiny_config):
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
    for step in range(200):
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
    torch.testing.assert_close(own, torchs, rtol=0, atol=1e-3)  # rounding, over 200 steps
