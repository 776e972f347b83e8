"""Linear layers by oneDNN: outputs and gradients of `nn.Linear`, and when they are used."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.onednn_vanilla import can_multiply
from hf_vanilla.training import processes
from hf_vanilla.training.processes import OneDnnLinear, use_faster_products

SIZES = {"wide": (5, 11), "narrow": (11, 5)}
needs_onednn = pytest.mark.skipif(not can_multiply(torch.float32), reason="no such operator")


@pytest.fixture
def amd(monkeypatch):
    monkeypatch.setattr(processes, "is_onednn_faster", lambda: True)


def gradients(layer, states, gradient):
    states = states.clone().requires_grad_()
    outputs = layer(states)
    outputs.backward(gradient.expand_as(outputs))
    return [outputs.detach(), states.grad, *(each.grad for each in layer.parameters())]


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", ["as stored", "not contiguous", "one sum"])
def test_onednn_layer_has_the_outputs_and_gradients_of_a_linear_layer(order, size, bias):
    inputs, outputs = SIZES[size]
    plain = nn.Linear(inputs, outputs, bias=bias)
    fast = OneDnnLinear(inputs, outputs, bias=bias)
    fast.load_state_dict(plain.state_dict())
    states, gradient = torch.randn(3, 7, inputs), torch.randn(3, 7, outputs)
    if order == "not contiguous":
        states, gradient = (each.transpose(0, 1) for each in (states, gradient))
    if order == "one sum":
        gradient = torch.ones(())
    expected = gradients(plain, states, gradient)
    found = gradients(fast, states, gradient)
    # sums of at most 21 products of numbers of size 1, in another order
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_frozen_weights_get_no_gradient_and_pass_it_on():
    layer = OneDnnLinear(5, 3).requires_grad_(False)
    states = torch.randn(7, 5, requires_grad=True)
    layer(states).sum().backward()
    assert layer.weight.grad is layer.bias.grad is None
    assert_close(states.grad, layer.weight.sum(0).expand(7, 5))


@pytest.mark.parametrize(
    "kind", ["bfloat16", "float64", "empty", "autocast", "compiled", "exported"]
)
def test_other_inputs_take_torchs_own_layer(kind, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("oneDNN was called")

    dtype = {"bfloat16": torch.bfloat16, "float64": torch.float64}.get(kind, torch.float32)
    plain = nn.Linear(5, 3).to(dtype)
    layer = OneDnnLinear(5, 3).to(dtype)
    layer.load_state_dict(plain.state_dict())
    states = torch.randn(0 if kind == "empty" else 7, 5).to(dtype)
    monkeypatch.setattr(processes, "float_product", refuse)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        expected = plain(states)
        if kind == "compiled":
            layer = torch.compile(layer, backend="eager", fullgraph=True)
        if kind == "exported":
            layer = torch.export.export(layer, (states,)).module()
        assert torch.equal(layer(states), expected)


@needs_onednn
@pytest.mark.usefixtures("amd")
def test_a_model_keeps_its_weights_names_ties_and_gradients(tiny_config):
    torch.manual_seed(0)
    tiny_config.dropout = 0.0
    model = VanillaForConditionalGeneration(tiny_config).train()
    names, tied = list(model.state_dict()), model.lm_head.weight
    ids = torch.randint(3, 20, (3, 7))
    losses, all_gradients = [], []
    for _ in range(2):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        losses.append(loss.detach())
        all_gradients.append({name: weight.grad for name, weight in model.named_parameters()})
        model.zero_grad(set_to_none=True)
        use_faster_products(model)
    assert type(model.lm_head) is OneDnnLinear
    assert model.lm_head.weight is tied is model.model.decoder.embed_tokens.weight
    assert list(model.state_dict()) == names
    assert_close(losses[1], losses[0], rtol=1e-6, atol=0)
    assert_close(all_gradients[1], all_gradients[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_f": False}, False),
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_f": True}, False),
        ({}, False),
    ],
)
def test_the_processor_decides(facts, expected, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: facts, raising=False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert processes.is_onednn_faster() is expected


def test_other_processors_keep_their_layers(monkeypatch):
    monkeypatch.setattr(processes, "is_onednn_faster", lambda: False)
    model = nn.Sequential(nn.Linear(5, 3))
    use_faster_products(model)
    assert type(model[0]) is nn.Linear
