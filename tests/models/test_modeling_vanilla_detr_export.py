"""Export of DETR: torch.export and ONNX with a dynamic batch, height, width and mask."""

import pytest
import torch
from detection_files import tiny_detector
from torch import nn
from torch.testing import assert_close


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
