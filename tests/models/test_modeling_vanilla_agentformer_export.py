"""Export of AgentFormer's context encoder, which has no loop: torch.export and ONNX."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.modeling_vanilla_agentformer import VanillaForJointTrajectoryPrediction
from hf_vanilla.models.stacks_vanilla_agentformer import read_observed

SIZES = {"observed_steps": 5, "d_model": 24, "latent_dim": 6, "encoder_ffn_dim": 29}
HEADS = {"encoder_attention_heads": 3, "decoder_attention_heads": 2}


class Context(nn.Module):
    """The context of every observed step and the mean of the prior of each agent's latent."""

    def __init__(self):
        super().__init__()
        config = VanillaAgentFormerConfig(**SIZES, **HEADS, connection_distance=3.0)
        self.model = VanillaForJointTrajectoryPrediction(config)

    def forward(self, past_values, past_observed_mask, agent_mask):
        scene = read_observed(self.model.config, past_values, past_observed_mask, agent_mask)
        context, agent_context = self.model.context_encoder(scene)
        return context, self.model.future_decoder.prior(agent_context).mean


def scenes(batch, agents):
    past = torch.randn(batch, agents, 5, 2).mul(0.3).cumsum(2)
    is_observed = torch.ones(batch, agents, 5, dtype=torch.bool)
    is_observed[0, 0, :2] = False
    is_agent = torch.ones(batch, agents, dtype=torch.bool)
    is_agent[1, 2:] = False
    return past, is_observed, is_agent


AXES = {0: torch.export.Dim("batch", max=512), 1: torch.export.Dim("agents", max=512)}
SHAPES = {"past_values": AXES, "past_observed_mask": AXES, "agent_mask": AXES}


@pytest.mark.release
@torch.no_grad()
def test_an_exported_context_encoder_reads_any_number_of_scenes_and_agents():
    model = Context().eval()
    program = torch.export.export(model, scenes(2, 3), dynamic_shapes=SHAPES, strict=False).module()
    given = scenes(3, 7)
    for ours, theirs in zip(model(*given), program(*given), strict=True):
        assert_close(theirs, ours, rtol=0, atol=1e-5)


@pytest.mark.release
@torch.no_grad()
def test_onnx_reads_any_number_of_scenes_and_agents(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = Context().eval()
    program = torch.onnx.export(model, scenes(2, 3), dynamic_shapes=SHAPES, dynamo=True)
    program.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    names = [entry.name for entry in session.get_inputs()]
    given = scenes(3, 7)
    found = session.run(None, dict(zip(names, (part.numpy() for part in given), strict=True)))
    for ours, theirs in zip(model(*given), found, strict=True):
        assert_close(torch.from_numpy(theirs), ours, rtol=0, atol=1e-4)
