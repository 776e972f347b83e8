"""The authors' DETR from a clone of their repository, with the weights of one of ours.

Transformer, heads, matching and criterion are theirs. The backbone is ours, as theirs needs
torchvision, whose names are replaced while their files are imported.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from hf_vanilla.convert.detr import to_authors
from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection

TORCHVISION = ("torchvision", "torchvision.models", "torchvision.models._utils", "torchvision.ops")
TORCHVISION += ("torchvision.ops.boxes",)


def official_detr(
    folder: Path, ours: VanillaForObjectDetection
) -> tuple[nn.Module, Callable[[dict[str, Any], list[dict[str, Tensor]]], Tensor]]:
    """The authors' model and its weighted loss.

    Args:
        folder: a clone of github.com/facebookresearch/detr.
        ours: model whose backbone is shared and whose other weights are copied.

    Returns:
        The model: pixels `(B, 3, H, W)` to a dictionary. The loss: of that dictionary and targets
        with `labels` and `boxes`.
    """
    detr, transformer, matcher, positions, misc = (
        _import(folder, name)
        for name in (
            "models.detr",
            "models.transformer",
            "models.matcher",
            "models.position_encoding",
            "util.misc",
        )
    )
    config: VanillaDetrConfig = ours.config
    backbone = _Backbone(
        ours.model.backbone,
        positions.PositionEmbeddingSine(config.d_model // 2, normalize=True),
        misc.NestedTensor,
    )
    layers = transformer.Transformer(
        d_model=config.d_model,
        dropout=config.dropout,
        nhead=config.encoder_attention_heads,
        dim_feedforward=config.encoder_ffn_dim,
        num_encoder_layers=config.encoder_layers,
        num_decoder_layers=config.decoder_layers,
        return_intermediate_dec=True,
    )
    model = detr.DETR(backbone, layers, config.num_labels, config.num_queries, aux_loss=True)
    weights = {
        name: weight for name, weight in to_authors(ours).items() if not name.startswith("backbone")
    }
    own = {name for name in model.state_dict() if not name.startswith("backbone")}
    if weights.keys() != own:
        raise ValueError(f"other names of weights: {sorted(weights.keys() ^ own)}")
    model.load_state_dict(weights, strict=False)
    costs = matcher.HungarianMatcher(config.class_cost, config.bbox_cost, config.giou_cost)
    factors = {
        "loss_ce": 1.0,
        "loss_bbox": config.bbox_loss_coefficient,
        "loss_giou": config.giou_loss_coefficient,
    }
    criterion = detr.SetCriterion(
        config.num_labels, costs, factors, config.eos_coefficient, ["labels", "boxes"]
    )

    def loss(outputs: dict[str, Any], targets: list[dict[str, Tensor]]) -> Tensor:
        found = criterion(outputs, targets)
        parts = {name: name.rsplit("_", 1)[0] if name[-1].isdigit() else name for name in found}
        weighted = [factors[parts[name]] * found[name] for name in found if parts[name] in factors]
        return torch.stack(weighted).sum()

    return model, loss


class _Backbone(nn.Module):
    """Feature maps and positions, as the authors' transformer takes them; nothing is padded."""

    def __init__(self, backbone: nn.Module, positions: nn.Module, nested: Callable) -> None:
        super().__init__()
        self.backbone, self.positions, self.nested = backbone, positions, nested
        self.num_channels: int = backbone.width

    def forward(self, samples: Any) -> tuple[list[Any], list[Tensor]]:
        features = self.backbone(samples.tensors)
        is_padded = torch.zeros_like(features[:, 0], dtype=torch.bool)
        nested = self.nested(features, is_padded)
        return [nested], [self.positions(nested)]


def _import(folder: Path, name: str) -> ModuleType:
    stand_ins = {each: ModuleType(each) for each in TORCHVISION}
    vars(stand_ins["torchvision"]).update(__version__="1.0", _is_tracing=lambda: False)
    vars(stand_ins["torchvision.models._utils"]).update(IntermediateLayerGetter=SimpleNamespace)
    vars(stand_ins["torchvision.ops.boxes"]).update(box_area=_areas)
    for each in TORCHVISION[1:]:
        parent, _, child = each.rpartition(".")
        setattr(stand_ins[parent], child, stand_ins[each])
    before = {each: sys.modules.get(each) for each in TORCHVISION}
    sys.modules |= stand_ins
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"{folder} is no clone of github.com/facebookresearch/detr: {error}"
        ) from error
    finally:
        sys.path.remove(str(folder))
        for each, module in before.items():
            if module is None:
                del sys.modules[each]
            else:
                sys.modules[each] = module


def _areas(boxes: Tensor) -> Tensor:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
