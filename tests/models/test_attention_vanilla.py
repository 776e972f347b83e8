"""Multi-head attention (3.2): against PyTorch's, under every mask, in every precision."""

import pytest
import torch
from reference import multi_head
from theirs import causal, copy_attention
from torch import nn
from torch.testing import assert_close

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.models.attention_vanilla import VanillaAttention, eager_attention

BOTH = pytest.mark.parametrize("implementation", ["eager", "sdpa"])
B, T, S, D, H = 2, 5, 7, 12, 3
# one float32 softmax and two matrix products of width 12: a few units of the seventh digit
FLOAT32 = {"rtol": 0, "atol": 2e-6}


def attention(implementation="eager", *, is_causal=False, **changes):
    sizes = {"d_model": D, "encoder_attention_heads": H, "decoder_attention_heads": H}
    config = VanillaConfig(**{**sizes, **changes})
    config._attn_implementation = implementation
    return VanillaAttention(config, H, is_causal=is_causal).eval()


def same_weights(module, implementation, **changes):
    other = attention(implementation, is_causal=module.is_causal, **changes)
    other.load_state_dict(module.state_dict())
    return other


def inputs(queries=T, keys=S):
    return torch.randn(B, queries, D), torch.randn(B, keys, D), torch.randn(B, keys, D)


def some_mask():
    """Every query sees something, no two queries the same; `(B, 1, T, S)`, True = may look."""
    may_attend = torch.rand(B, 1, T, S) < 0.5
    may_attend[..., 0] = True
    return may_attend


@BOTH
def test_it_equals_torchs_multi_head_attention(implementation):
    ours = attention(implementation, attention_bias=True)
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    nn.init.normal_(ours.q_proj.bias)
    nn.init.normal_(ours.k_proj.bias)
    nn.init.normal_(ours.v_proj.bias)
    copy_attention(theirs, ours)
    query, key, value = inputs()
    may_attend = some_mask()
    hidden = ~may_attend.expand(B, H, T, S).flatten(0, 1)  # torch's masks are True where it hides
    expected, _ = theirs(query, key, value, attn_mask=hidden, need_weights=False)
    assert_close(ours(query, key, value, may_attend)[0], expected, **FLOAT32)


def test_its_weights_are_torchs_weights():
    ours = attention(attention_bias=True)
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    copy_attention(theirs, ours)
    query, key, value = inputs()
    _, expected = theirs(query, key, value, average_attn_weights=False)
    assert_close(ours(query, key, value)[1], expected, **FLOAT32)


@BOTH
@pytest.mark.parametrize("is_causal", [False, True])
def test_it_equals_the_reference_with_widths_of_its_own(implementation, is_causal):
    module = attention(implementation, is_causal=is_causal, head_dim=5, v_head_dim=11).double()
    states = torch.randn(1, T, D, dtype=torch.float64)
    may_attend = ~causal(T)[None, None] if is_causal else None
    weights = module.state_dict()
    expected = multi_head(states[0], states[0], states[0], weights, heads=H, is_causal=is_causal)
    # double precision on both sides
    assert_close(module(states, states, states, may_attend)[0][0], expected, rtol=0, atol=1e-13)


def test_keys_and_values_may_be_narrower_or_wider_than_a_share_of_the_width():
    module = attention(head_dim=5, v_head_dim=11)
    assert module.q_proj.weight.shape == module.k_proj.weight.shape == (15, D)
    assert module.v_proj.weight.shape == (33, D)
    assert module.out_proj.weight.shape == (D, 33)
    attended, weights = module(*inputs())
    assert attended.shape == (B, T, D)
    assert weights.shape == (B, H, T, S)


@pytest.mark.parametrize("has_mask", [False, True], ids=["no mask", "padding"])
@pytest.mark.parametrize("keys", [3, S], ids=["S < T", "S > T"])
@pytest.mark.parametrize("v_head_dim", [4, 11])
def test_sdpa_equals_eager_where_source_and_target_differ_in_length(has_mask, keys, v_head_dim):
    eager = attention("eager", v_head_dim=v_head_dim)
    sdpa = same_weights(eager, "sdpa", v_head_dim=v_head_dim)
    states = inputs(keys=keys)
    may_attend = some_mask()[..., :keys] if has_mask else None
    assert_close(sdpa(*states, may_attend)[0], eager(*states, may_attend)[0], **FLOAT32)


@BOTH
def test_without_a_mask_the_last_key_of_a_longer_source_is_seen(implementation):
    module = attention(implementation)
    query, key, value = inputs()
    before, _ = module(query, key, value)
    value[:, -1] += 1
    after, _ = module(query, key, value)
    assert (after - before).abs().amin(dim=-1).min() > 0  # every query, the first one too


def test_only_the_decoders_own_attention_is_causal(tiny_config):
    model = VanillaForConditionalGeneration(tiny_config)
    attentions = {
        name: module.is_causal
        for name, module in model.named_modules()
        if isinstance(module, VanillaAttention)
    }
    assert len(attentions) == 2 + 2 * 5
    for name, is_causal in attentions.items():
        assert is_causal is ("decoder" in name and name.endswith("self_attn"))


def test_queries_keys_and_values_are_three_inputs():
    module = attention()
    states = inputs()
    result, weights = module(*states)
    for place in range(3):
        changed = list(states)
        changed[place] = changed[place] + torch.randn_like(changed[place])
        other, other_weights = module(*changed)
        assert not torch.allclose(other, result)
        assert torch.equal(other_weights, weights) == (place == 2)  # values have no say in them


def test_the_weights_of_every_query_sum_to_one_and_are_none_where_it_may_not_look():
    may_attend = some_mask()
    _, weights = attention()(*inputs(), may_attend)
    assert_close(weights.sum(dim=-1), torch.ones(B, H, T), **FLOAT32)
    assert (weights >= 0).all()
    assert weights.masked_select(~may_attend).abs().max() == 0


@BOTH
@pytest.mark.parametrize("hidden", ["minimum", "infinity"])
def test_a_float_mask_means_the_same_as_a_bool_mask(implementation, hidden):
    module = attention(implementation)
    states, may_attend = inputs(), some_mask()
    lowest = torch.finfo(torch.float32).min if hidden == "minimum" else float("-inf")
    added = torch.zeros(B, 1, T, S).masked_fill(~may_attend, lowest)
    assert_close(module(*states, added)[0], module(*states, may_attend)[0], **FLOAT32)


@BOTH
def test_a_float_mask_may_also_prefer_one_key_to_another(implementation):
    module = attention(implementation)
    query, key, value = inputs()
    bias = torch.zeros(B, 1, T, S)
    bias[..., 2] = 90.0  # e^90 times the weight of any other key
    only_third = module.out_proj(module.v_proj(value[:, 2]))
    attended, _ = module(query, key, value, bias)
    assert_close(attended, only_third.unsqueeze(1).expand(B, T, D), **FLOAT32)


def test_eager_accepts_minus_infinity_and_the_minimum_in_an_empty_row():
    module = attention()
    states = inputs()
    for hidden in (torch.finfo(torch.float32).min, float("-inf")):
        mask = torch.zeros(B, 1, T, S)
        mask[0, :, 2] = hidden
        attended, weights = module(*states, mask)
        assert attended[0, 2].abs().max() == 0
        assert weights[0, :, 2].abs().max() == 0


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_query_that_may_see_nothing_gets_zeros_and_a_finite_gradient(implementation, dtype):
    module = attention(implementation).to(dtype)
    states = [state.to(dtype).requires_grad_() for state in inputs()]
    may_attend = some_mask()
    may_attend[0, :, 3] = False
    may_attend[1] = False
    attended, _ = module(*states, may_attend)
    assert attended[0, 3].abs().max() == 0
    assert attended[1].abs().max() == 0
    assert attended[0, 2].abs().max() > 0
    (attended.float() ** 2).sum().backward()
    for tensor in (*states, *module.parameters()):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().max() > 0


def test_half_precision_adds_the_mask_and_takes_the_softmax_in_float32():
    # two scores of 256, one favoured by a half: bfloat16 has no 256.5 and would see a tie
    query, key = torch.full((1, 1, 1, 1), 16.0), torch.full((1, 1, 2, 1), 16.0)
    favour = torch.tensor([0.0, 0.5])
    half = [tensor.to(torch.bfloat16) for tensor in (query, key, key, favour[None, None, None])]
    _, weights = eager_attention(nn.Module(), *half)
    assert torch.equal(weights.flatten(), favour.softmax(dim=-1).to(torch.bfloat16))


def test_dropout_on_the_weights_is_for_training_only():
    module = attention(attention_dropout=0.5)
    states = inputs()
    assert torch.equal(module(*states)[0], module(*states)[0])
    _, weights = module.train()(*states)
    assert (weights == 0).any()
    kept = weights[weights > 0]
    assert_close(kept, 2 * module.eval()(*states)[1][weights > 0], **FLOAT32)


@pytest.mark.parametrize("is_masked", [True, False], ids=["padding", "causal"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_learning_in_half_precision_on_a_cpu_loses_nothing_between_the_products(dtype, is_masked):
    module = attention("sdpa", is_causal=not is_masked).to(dtype)
    states = torch.randn(B, T, D, dtype=dtype)
    mask = some_mask()[..., :T] if is_masked else None
    learning, _ = module(states, states, states, mask)
    with torch.no_grad():
        query, key, value = (
            project(states).unflatten(-1, (H, -1)).transpose(1, 2).double()
            for project in (module.q_proj, module.k_proj, module.v_proj)
        )
        exact = eager_attention(module, query, key, value, mask)[0].flatten(2)
        expected = module.out_proj(exact.to(dtype))
    # equal but for the last bit, where the two roundings to half precision fall apart
    step = torch.finfo(dtype).eps
    assert_close(learning.detach(), expected, rtol=step, atol=step)
    learning.sum().backward()
    assert module.q_proj.weight.grad.dtype == dtype


@torch.no_grad()
def test_reading_in_float16_is_transformers_own():
    module = attention("sdpa").to(torch.float16)
    states = [state.to(torch.float16) for state in inputs()]
    query, key, value = (
        project(state).unflatten(-1, (H, -1)).transpose(1, 2)
        for project, state in zip(
            (module.q_proj, module.k_proj, module.v_proj), states, strict=True
        )
    )
    theirs = nn.functional.scaled_dot_product_attention(query, key, value)
    assert torch.equal(module(*states)[0], module.out_proj(theirs.transpose(1, 2).flatten(2)))


def test_without_a_mask_causal_eager_attention_lets_the_last_query_see_every_key():
    module = attention(is_causal=True)
    query, key = torch.randn(B, H, 3, 4), torch.randn(B, H, 5, 4)  # two keys are in the cache
    _, weights = eager_attention(module, query, key, key, None)
    seen = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert torch.equal((weights > 0).int(), torch.tensor(seen).int().expand(B, H, 3, 5))
