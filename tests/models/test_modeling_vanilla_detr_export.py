"""DETR exported, with a dynamic batch, height, width and mask; compiled, in bfloat16, in int8."""

import copy

import pytest
import torch
from detection_files import tiny_detector
from torch import nn
from torch.testing import assert_close
from transformers import AutoModelForObjectDetection

from hf_vanilla import quantize


class Boxes(nn.Module):
    """The two outputs that an exported detector needs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, pixel_mask):
        outputs = self.model(pixel_values, pixel_mask)
        return outputs.logits, outputs.pred_boxes


def batch(images, height, width):
    """Images whose right and lower part is padding, the first one whole."""
    pixels, mask = torch.randn(images, 3, height, width), torch.ones(images, height, width).long()
    for image in range(1, images):
        mask[image, height - 9 * image :] = 0
        mask[image, :, width - 7 * image :] = 0
    return pixels * mask[:, None], mask


def dynamic():
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("height", min=33, max=4096)}
    sizes[2] = torch.export.Dim("width", min=33, max=4096)
    return {"pixel_values": {0: sizes[0], 2: sizes[1], 3: sizes[2]}, "pixel_mask": sizes}


@pytest.fixture
def model(tmp_path):
    return Boxes(tiny_detector(tmp_path / "model")).eval()


@torch.no_grad()
def test_an_exported_program_gives_the_boxes_of_padded_batches_of_other_sizes(model):
    example = batch(2, 64, 80)
    program = torch.export.export(model, example, dynamic_shapes=dynamic(), strict=False).module()
    for size in ((3, 96, 72), (2, 80, 120)):
        given = batch(*size)
        for ours, theirs in zip(model(*given), program(*given), strict=True):
            assert_close(theirs, ours, atol=1e-5, rtol=0)


@pytest.mark.release
@torch.no_grad()
def test_a_compiled_detector_gives_the_same_boxes(model):
    given = batch(2, 64, 80)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for ours, theirs in zip(model(*given), compiled(*given), strict=True):
        assert_close(theirs, ours, atol=1e-5, rtol=0)


@torch.no_grad()
def test_boxes_in_bfloat16_are_close(model):
    pixels, mask = batch(2, 64, 80)
    logits, boxes = model(pixels, mask)
    half_logits, half_boxes = copy.deepcopy(model).bfloat16()(pixels.bfloat16(), mask)
    assert half_logits.dtype == half_boxes.dtype == torch.bfloat16
    assert_close(half_boxes.float(), boxes, atol=0.03, rtol=0)  # 8 bits of mantissa
    assert_close(half_logits.float(), logits, atol=0.15, rtol=0)


@torch.no_grad()
def test_boxes_in_int8_are_close_and_come_back_from_disk(model, tmp_path):
    given = batch(2, 64, 80)
    logits, boxes = model(*given)
    found = quantize(copy.deepcopy(model.model))
    assert found.class_labels_classifier.weight.dtype == torch.int8
    outputs = found(*given)
    assert 0 < (outputs.pred_boxes - boxes).abs().max() < 0.03
    assert_close(outputs.logits, logits, atol=0.15, rtol=0)
    found.save_pretrained(tmp_path / "int8")
    again = AutoModelForObjectDetection.from_pretrained(tmp_path / "int8")
    assert torch.equal(again(*given).pred_boxes, outputs.pred_boxes)
