"""Dropout (5.4): the rate, the means, and when it is torch's own."""

import pytest
import torch
from torch.testing import assert_close

from hf_vanilla.models.kernels_vanilla import VanillaDropout

SIZE = 1_000_003  # no multiple of the four draws in a word


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
def test_a_share_of_the_numbers_is_dropped_and_the_others_grow(rate, dtype):
    dropped = VanillaDropout(rate)(torch.ones(SIZE, dtype=dtype))
    share = (dropped == 0).double().mean().item()
    # five standard deviations of a Bernoulli mean, and half a step of the rate
    assert abs(share - rate) < 5 * (rate * (1 - rate) / SIZE) ** 0.5 + 2**-17
    kept = dropped[dropped != 0].unique()
    # the rate is a multiple of 1/65536, and bfloat16 has 8 bits of mantissa
    tolerance = 0.004 if dtype == torch.bfloat16 else 2**-17 / (1 - rate)
    assert_close(kept.double(), torch.tensor([1 / (1 - rate)]).double(), rtol=tolerance, atol=0)


def test_neighbours_are_dropped_independently():
    is_kept = (VanillaDropout(0.5)(torch.ones(SIZE)) > 0).double() - 0.5
    for distance in (1, 2, 3, 4, 8):  # four draws share a word
        together = (is_kept[distance:] * is_kept[:-distance]).mean().item()
        assert abs(together) < 5 * 0.25 / SIZE**0.5


def test_the_gradient_goes_where_the_value_went():
    states = torch.randn(5, 7, 3).transpose(0, 2).requires_grad_()  # not contiguous
    dropped = VanillaDropout(0.4)(states)
    assert dropped.shape == (3, 7, 5)
    dropped.backward(torch.ones_like(dropped))
    assert_close(states.grad * states.detach(), dropped.detach())
    assert (states.grad == 0).any()


def test_a_seed_repeats_it():
    dropout, states = VanillaDropout(0.1), torch.ones(97)
    first, second = (torch.manual_seed(3) and dropout(states) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, dropout(states))


@pytest.mark.parametrize(("rate", "kept"), [(0.0, 1.0), (1.0, 0.0), (1e-9, 1.0)])
def test_at_the_ends_nothing_or_everything_is_dropped(rate, kept):
    assert torch.equal(VanillaDropout(rate)(torch.ones(11)), torch.full((11,), kept))


def test_in_evaluation_nothing_happens():
    states = torch.randn(13)
    assert VanillaDropout(0.5).eval()(states) is states


def test_an_empty_tensor_stays_empty():
    assert VanillaDropout(0.5)(torch.ones(0, 3)).shape == (0, 3)


def test_a_compiled_program_takes_torchs_own():
    dropout = VanillaDropout(0.25)
    compiled = torch.compile(dropout, fullgraph=True, backend="aot_eager")
    states = torch.ones(SIZE)
    share = (compiled(states) == 0).double().mean().item()
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / SIZE) ** 0.5
