"""Dropout (5.4) and attention in bfloat16: the formulas, and when torch's own are called."""

from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_vanilla.models import kernels_vanilla
from hf_vanilla.models.attention_vanilla import VanillaAttention, eager_attention
from hf_vanilla.models.kernels_vanilla import (
    VanillaDropout,
    VanillaLayerNorm,
    attention_in_products,
    faster_attention,
    sdpa_in_float32,
)

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


BATCH, QUERIES, KEYS = 3, 5, 7
MASKS = {
    "none": None,
    "bool": torch.rand(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) < 0.6,
    "float": torch.zeros(BATCH, 1, QUERIES, KEYS).masked_fill_(
        torch.arange(KEYS) > torch.arange(QUERIES)[:, None] + 1, float("-inf")
    ),
    "a query without keys": torch.arange(QUERIES)[:, None].expand(BATCH, 1, -1, KEYS) > 0,
    "causal": None,
}


def attention_of(name, config):
    module = VanillaAttention(config, 2, is_causal=name == "causal").eval()
    keys = QUERIES if name == "causal" else KEYS
    return module, [torch.randn(BATCH, 2, n, 6).bfloat16() for n in (QUERIES, keys, keys)]


@pytest.mark.parametrize("name", MASKS)
def test_bfloat16_attention_in_products_is_the_formula(name, tiny_config):
    module, states = attention_of(name, tiny_config)
    mask = MASKS[name]
    rounded = mask.bfloat16() if name == "float" else mask
    found, _ = attention_in_products(module, *states, rounded, scaling=6**-0.5)
    expected, _ = eager_attention(module, *(each.float() for each in states), mask)
    assert found.dtype == torch.bfloat16
    assert_close(found.float(), expected, rtol=0, atol=0.03)  # 8 bits of mantissa, values up to 3


@pytest.mark.parametrize("name", MASKS)
def test_bfloat16_attention_in_products_has_the_gradients_of_the_formula(name, tiny_config):
    module, states = attention_of(name, tiny_config)
    mask, gradient = MASKS[name], torch.randn(BATCH, QUERIES, 2, 6).bfloat16()
    rounded = mask.bfloat16() if name == "float" else mask
    found = [each.clone().requires_grad_() for each in states]
    attention_in_products(module, *found, rounded, scaling=6**-0.5)[0].backward(gradient)
    expected = [each.float().requires_grad_() for each in states]
    eager_attention(module, *expected, mask)[0].backward(gradient.float())
    for one, other in zip(found, expected, strict=True):
        # 8 bits of mantissa, sums of up to five gradients of size 1
        assert_close(one.grad.float(), other.grad, rtol=0.03, atol=0.06)


def test_bfloat16_attention_with_dropout_is_that_of_sdpa_in_float32(tiny_config):
    module, states = attention_of("none", tiny_config)
    found, expected = (
        torch.manual_seed(3) and attend(module.train(), *states, None, dropout=0.4, scaling=0.3)[0]
        for attend in (attention_in_products, sdpa_in_float32)
    )
    assert torch.equal(found, expected)


def test_only_half_precision_on_a_cpu_takes_another_way_than_sdpa():
    sdpa, query = ALL_ATTENTION_FUNCTIONS["sdpa"], torch.ones(1, 1, 2, 4)
    assert faster_attention(sdpa, query.bfloat16()) is attention_in_products
    assert faster_attention(sdpa, query.half().requires_grad_()) is sdpa_in_float32
    for other in (query, query.half(), query.bfloat16().to("meta")):
        assert faster_attention(sdpa, other) is sdpa
    assert faster_attention(eager_attention, query.bfloat16()) is eager_attention


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32), (None, torch.float32)],
)
def test_the_residual_stream_is_bfloat16_where_autocast_is(dtype, expected, tiny_model):
    seen = []
    tiny_model.model.decoder.layers[-1].register_forward_hook(lambda *parts: seen.append(parts[2]))
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        tiny_model(input_ids=torch.ones(2, 3, dtype=torch.long), labels=torch.ones(2, 5).long())
    assert seen[0].dtype == expected


@pytest.mark.parametrize(("is_cast", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_norms_of_a_gpu_keep_bfloat16_in_autocast(is_cast, dtype, monkeypatch):
    casts = []
    monkeypatch.setattr(kernels_vanilla, "is_autocast_bfloat16", lambda device: is_cast)
    monkeypatch.setattr(torch, "autocast", lambda *given, **on: casts.append(on) or nullcontext())
    norm = VanillaLayerNorm(8, device="meta")
    assert norm(torch.empty(2, 8, dtype=dtype, device="meta")).dtype == dtype
    assert casts == [{"enabled": False}] * is_cast


def test_loss_and_gradients_in_autocast_are_those_of_float32_within_their_mantissa(tiny_model):
    torch.manual_seed(0)
    ids, labels = torch.randint(3, 43, (3, 7)), torch.randint(3, 43, (3, 5))
    found = []
    for is_cast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            loss = tiny_model(input_ids=ids, labels=labels).loss
        loss.backward()
        found.append((loss.item(), tiny_model.lm_head.weight.grad))
        tiny_model.zero_grad(set_to_none=True)
    (plain, gradient), (cast, rounded) = found
    assert cast == pytest.approx(plain, rel=0.01)
    assert (rounded - gradient).norm() < 0.05 * gradient.norm()
