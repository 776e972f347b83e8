"""What a step makes a GPU's host wait for, counted on tensors of another device.

A host that waits launches nothing; copies of values that were made in `forward` wait too.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from other_device import Waits, to_device
from scene_models import every_forecaster
from torch.nn.utils import clip_grad_norm_
from torch.optim import optimizer as optimizers
from transformers import ResNetConfig

from hf_vanilla import (
    VanillaConfig,
    VanillaDetrConfig,
    VanillaForConditionalGeneration,
    VanillaForImageClassification,
    VanillaForObjectDetection,
    VanillaVitConfig,
)
from hf_vanilla.training import train_step
from hf_vanilla.training.train_step import MicroBatch, on_device

SIZES = {"d_model": 12, "encoder_layers": 1, "encoder_attention_heads": 3, "encoder_ffn_dim": 29}
DECODER = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 31}
BACKBONE = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
# values read by the host, and tensors made on the CPU, in forward, backward and update. Objects are
# matched on the CPU; a forecaster of scenes has a row for each agent; of samples, only those that
# the loss needs are decoded again
CEILINGS = {
    "VanillaForConditionalGeneration": (0, 0),
    "VanillaForImageClassification": (0, 0),
    "VanillaForObjectDetection": (1, 1),
    "VanillaForSceneTrajectoryPrediction": (1, 0),
    "VanillaForProposalTrajectoryPrediction": (1, 0),
    "VanillaForSocialProposalTrajectoryPrediction": (1, 0),
    "VanillaForNeighborTrajectoryPrediction": (1, 0),
    "VanillaForGatedTrajectoryPrediction": (1, 0),
    "VanillaForVectorTrajectoryPrediction": (1, 0),
    "VanillaForMultimodalTrajectoryPrediction": (0, 0),
    "VanillaForTrajectoryPrediction": (0, 0),
    "VanillaForTrajectoryDensityPrediction": (0, 0),
    "VanillaForQuantizedTrajectoryPrediction": (0, 0),
    "VanillaForJointTrajectoryPrediction": (2, 0),
    "VanillaForDiverseTrajectoryPrediction": (2, 0),
}


def translator():
    torch.manual_seed(5)
    return VanillaForConditionalGeneration(VanillaConfig(**SIZES, **DECODER, vocab_size=43))


def padded_ids():
    ids = torch.randint(3, 43, (2, 5), generator=torch.Generator().manual_seed(7))
    mask = torch.ones_like(ids)
    mask[0, 4] = 0
    return {"input_ids": ids, "attention_mask": mask}


def every_model():
    """One random model of each class, with a batch that has padding."""
    yield translator(), {**padded_ids(), "labels": torch.tensor([[5, 6, 1], [7, 1, -100]])}
    vit = VanillaVitConfig(**SIZES, image_size=8, patch_size=4, num_labels=3)
    pixels = torch.randn(2, 3, 8, 8)
    yield (
        VanillaForImageClassification(vit),
        {"pixel_values": pixels, "labels": torch.tensor([1, 2])},
    )
    backbone = ResNetConfig(**BACKBONE, out_features=["stage2"])
    detr = VanillaDetrConfig(
        **SIZES, **DECODER, backbone_config=backbone, num_queries=5, num_labels=3
    )
    mask = torch.ones(2, 32, 32, dtype=torch.long)
    mask[0, :, 20:] = 0
    yield (
        VanillaForObjectDetection(detr),
        {
            "pixel_values": torch.randn(2, 3, 32, 32),
            "pixel_mask": mask,
            "labels": torch.tensor([[1, 2], [0, -100]]),
            "boxes": torch.rand(2, 2, 4) / 2,
            "num_images": torch.tensor(2),
        },
    )
    yield from every_forecaster()


def without_dropout(model):
    """The model in training mode; the two devices would draw different dropout."""
    model.train().config.attention_dropout = 0.0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def test_a_train_step_waits_for_no_more_values_than_its_ceiling(monkeypatch):
    # as on a GPU, one fused operator updates all weights
    monkeypatch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: ["meta"])
    counts, losses = {}, {}
    for model, inputs in every_model():
        name = type(model).__name__
        inputs["num_items_in_batch"] = torch.tensor(3)
        torch.manual_seed(11)
        losses[name] = [without_dropout(model)(**inputs).loss.item()]
        model, inputs = to_device(model, inputs)
        waits = Waits()
        torch.manual_seed(11)
        with waits:
            loss = model(**inputs).loss
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            torch.optim.Adam(model.parameters(), fused=True).step()
        losses[name].append(loss.values.item())
        counts[name] = (waits.reads.total(), waits.copies.total())
    assert counts == CEILINGS
    for name, (here, there) in losses.items():
        assert there == pytest.approx(here, rel=1e-5), name


def test_a_model_without_regions_or_codes_is_refused_there_too():
    refused = []
    for model, inputs in every_forecaster():
        buffers = model.named_buffers()
        empty = [b.zero_() for name, b in buffers if name.endswith(("centres", "codebook"))]
        if empty:
            model, inputs = to_device(model.train(), inputs)
            with Waits(), pytest.raises(ValueError, match=r"call (set_regions|fit_codebook)"):
                model(**inputs)
            refused.append(type(model).__name__)
    assert refused == [
        "VanillaForProposalTrajectoryPrediction",
        "VanillaForSocialProposalTrajectoryPrediction",
        *["VanillaForQuantizedTrajectoryPrediction"] * 2,
    ]


def test_a_step_of_the_search_reads_once(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # it refuses the name
    model, inputs = to_device(translator().eval(), padded_ids())
    for beams in (1, 3):
        reads = []
        for steps in (4, 9):
            waits = Waits()
            with waits:
                model.generate(
                    **inputs, num_beams=beams, min_new_tokens=steps, max_new_tokens=steps
                )
            reads.append((waits.reads.total(), waits.copies.total()))
        (few, first), (many, last) = reads
        assert (many - few, last - first) == (5, 0)


def test_the_next_micro_batch_is_copied_while_one_is_computed(monkeypatch):
    events = []

    def copied(values, _):
        events.append(f"copy {int(values)}")
        return values

    stream = SimpleNamespace(wait_stream=lambda _: events.append("wait"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(train_step, "_copy_stream", lambda _: stream)
    monkeypatch.setattr(train_step, "to_device", copied)
    run = SimpleNamespace(accelerator=SimpleNamespace(device=torch.device("cuda")))
    parts = [MicroBatch(n, {"ids": torch.tensor(n)}, is_last=n == 2) for n in range(3)]
    for part in on_device(run, parts):
        events.append(f"compute {part.number}")
    assert ", ".join(events) == (
        "copy 0, wait, copy 1, compute 0, wait, copy 2, compute 1, wait, compute 2"
    )
