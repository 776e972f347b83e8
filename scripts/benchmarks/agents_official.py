"""The authors' AgentFormer from a clone of their repository, first stage.

The names that their files import and that today's torch or this environment lacks are replaced
while they are imported: torchvision and glob2, which only maps and file lists need, and names that
torch's modules had when the files were written.
"""

import importlib
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.modules.linear
from torch import Tensor, nn

TYPES = ("Any", "List", "Optional", "Tuple", "Union")  # once names of torch.nn.functional
SETTINGS: dict[str, Any] = {
    "dataset": "zara1",
    "past_frames": 8,
    "future_frames": 12,
    "motion_dim": 2,
    "forecast_dim": 2,
    "traj_scale": 1,
    "model_id": "agentformer",
    "tf_model_dim": 256,
    "tf_ff_dim": 512,
    "tf_nhead": 8,
    "tf_dropout": 0.1,
    "input_type": ["scene_norm", "vel"],
    "pred_type": "scene_norm",
    "sn_out_type": "norm",
    "pos_concat": True,
    "rand_rot_scene": True,
    "context_encoder": {"nlayer": 2},
    "future_decoder": {"nlayer": 2},
    "future_encoder": {"nlayer": 2},
    "nz": 32,
    "sample_k": 20,
    "learn_prior": True,
    "loss_cfg": {
        "mse": {"weight": 1.0},
        "kld": {"weight": 1.0, "min_clip": 2.0},
        "sample": {"weight": 1.0, "k": 20},
    },
}


class Settings(dict):
    """A dictionary whose keys are attributes too, as their files read it, at every depth."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(
            {k: Settings(v) if isinstance(v, Mapping) else v for k, v in values.items()}
        )

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


def official_agentformer(folder: Path) -> Any:
    """The authors' first stage with the sizes of `SETTINGS` and initial weights.

    Args:
        folder: a clone of github.com/Khrylx/AgentFormer.

    Raises:
        ValueError: it is none.
    """
    names = ("torchvision", "glob2")
    stand_ins = {name: ModuleType(name) for name in names if name not in sys.modules}
    if "torchvision" in stand_ins:
        stand_ins["torchvision"].models = None  # type: ignore[attr-defined]
    linear: Any = torch.nn.modules.linear
    former = ((linear, "_LinearWithBias", linear.NonDynamicallyQuantizableLinear),)
    former += tuple((torch.nn.functional, name, getattr(typing, name)) for name in TYPES)
    added = [(place, name, value) for place, name, value in former if not hasattr(place, name)]
    sys.modules |= stand_ins
    sys.path.insert(0, str(folder))
    for place, name, value in added:
        setattr(place, name, value)
    try:
        module = importlib.import_module("model.agentformer")
    except ImportError as error:
        raise ValueError(
            f"{folder} is no clone of github.com/Khrylx/AgentFormer: {error}"
        ) from error
    finally:
        sys.path.remove(str(folder))
        for name in stand_ins:
            del sys.modules[name]
        for place, name, _ in added:
            delattr(place, name)
    return module.AgentFormer(Settings(SETTINGS))


def official_scene(model: Any, past: Tensor, future: Tensor) -> None:
    """Hand a scene to the authors' model: `past` `(A, 8, 2)`, `future` `(A, 12, 2)`."""
    model.set_data(
        {
            "pre_motion_3D": list(past),
            "fut_motion_3D": list(future),
            "pre_motion_mask": list(torch.ones(past.shape[:2])),
            "fut_motion_mask": list(torch.ones(future.shape[:2])),
            "heading": None,
        }
    )


def official_step(model: Any, scenes: list[tuple[Tensor, Tensor]], optimizer: Any) -> None:
    """An update for each scene, as their training does it."""
    model.train()
    for past, future in scenes:
        official_scene(model, past, future)
        model()
        loss, *_ = model.compute_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def official_samples(model: nn.Module, scenes: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """20 joint futures `(A, 20, 12, 2)` of each scene."""
    model.eval()
    found = []
    for past, future in scenes:
        official_scene(model, past, future)
        found.append(model.inference(sample_num=20)[0])  # type: ignore[operator]
    return found
