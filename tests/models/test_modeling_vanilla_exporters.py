"""The exporters of transformers: torch.export and ONNX of both stacks, for sizes of any kind."""

import copy

import pytest
import torch
from torch.testing import assert_close

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.models.pretrained_vanilla import CACHE_NAME

pytest.importorskip("transformers.exporters.runners", reason="programs that run came with 5.23")
pytestmark = pytest.mark.release

CLOSE = {"rtol": 0, "atol": 1e-5}  # float32, sums in another order


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(17)
    config = VanillaConfig(
        vocab_size=43,
        d_model=24,
        encoder_layers=2,
        encoder_attention_heads=3,
        encoder_ffn_dim=29,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=31,
    )
    return VanillaForConditionalGeneration(config).eval()


@pytest.fixture(scope="module", params=["dynamo", "onnx"])
def exporter(request):
    """An exporter and its config of dynamic sizes."""
    from transformers.exporters.configs import DynamoConfig, OnnxConfig

    if request.param == "dynamo":
        from transformers.exporters.exporter_dynamo import DynamoExporter

        return DynamoExporter(), DynamoConfig(dynamic=True)
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    from transformers.exporters.exporter_onnx import OnnxExporter

    return OnnxExporter(), OnnxConfig(dynamic=True)


def batch(rows, source, target):
    ids = torch.randint(2, 43, (rows, source))
    attention_mask = torch.ones_like(ids)
    attention_mask[0, -2:] = 0
    decoder_input_ids = torch.randint(2, 43, (rows, target))
    return {
        "input_ids": ids,
        "attention_mask": attention_mask,
        "decoder_input_ids": decoder_input_ids,
    }


@torch.no_grad()
def test_an_exported_forward_pass_takes_any_sizes(model, exporter):
    tool, config = exporter
    program = tool.export(model, batch(4, 7, 5), config=config)
    for sizes in ((4, 7, 5), (3, 11, 13), (1, 4, 1)):
        inputs = batch(*sizes)
        assert_close(program(**inputs).logits, model(**inputs).logits, **CLOSE)


@torch.no_grad()
def test_an_exported_step_takes_any_past(model, exporter):
    tool, config = exporter
    sample = batch(4, 7, 5)
    del sample["decoder_input_ids"]
    program = tool.export_for_generation(model, sample, config=config, multi_token_decode=True)
    step = program.runners["decode"]
    for past in (1, 2, 5):
        inputs = batch(3, 9, past)
        told = {
            "encoder_outputs": model.model.encoder(inputs["input_ids"], inputs["attention_mask"]),
            "attention_mask": inputs["attention_mask"],
        }
        first = model(**told, use_cache=True, decoder_input_ids=inputs["decoder_input_ids"])
        told["decoder_input_ids"] = torch.randint(2, 43, (3, 1))
        expected = model(**told, past_key_values=copy.deepcopy(first.past_key_values)).logits
        found = step(**told, **{CACHE_NAME: first.past_key_values}).logits  # as it was exported
        assert_close(found, expected, **CLOSE)
