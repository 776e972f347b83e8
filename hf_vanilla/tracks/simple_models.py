"""Forecasts without any weights, with the interface of the models.

Shapes: B agents, T observed steps, P predicted steps.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.inputs_vanilla_forecaster import observed_velocities
from hf_vanilla.models.modeling_vanilla_tracks import (
    VanillaTrajectoryOutput,
    mean_distance,
    read_future,
    read_past,
)


def constant_velocity(past: Tensor, is_observed: Tensor, steps: int) -> Tensor:
    """Positions `(B, P, 2)` that repeat the last known displacement; without one, no motion."""
    last, _, _ = _last_displacements(past, is_observed)
    return past[:, -1:] + last.unsqueeze(1) * _counted(steps, past)


def constant_turn(past: Tensor, is_observed: Tensor, steps: int) -> Tensor:
    """Positions `(B, P, 2)` that repeat speed and turn between the last two known displacements."""
    last, before, between = _last_displacements(past, is_observed)
    cross = before[:, 0] * last[:, 1] - before[:, 1] * last[:, 0]
    turn = torch.atan2(cross, (before * last).sum(-1)) / between  # (B,), 0 where one of them is 0
    angle = turn.unsqueeze(1) * _counted(steps, past).squeeze(-1)  # (B, P)
    cosine, sine = angle.cos(), angle.sin()
    x, y = last[:, :1], last[:, 1:]
    displacements = torch.stack((cosine * x - sine * y, sine * x + cosine * y), dim=-1)
    return past[:, -1:] + displacements.cumsum(dim=1)


def linear_fit(past: Tensor, is_observed: Tensor, steps: int) -> Tensor:
    """Positions `(B, P, 2)` on the straight lines of least squares through the observed steps."""
    weight = is_observed.to(past.dtype).unsqueeze(-1)  # (B, T, 1)
    time = torch.arange(1 - past.shape[1], 1, device=past.device, dtype=past.dtype).view(1, -1, 1)
    count = weight.sum(1, keepdim=True)
    middle = (weight * time).sum(1, keepdim=True) / count
    centre = (weight * past).sum(1, keepdim=True) / count
    spread = (weight * (time - middle).square()).sum(1, keepdim=True)
    slope = (weight * (time - middle) * (past - centre)).sum(1, keepdim=True)
    slope = slope / torch.where(spread > 0, spread, 1)
    return centre + slope * (_counted(steps, past) - middle)


SIMPLE_MODELS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "constant_velocity": constant_velocity,
    "constant_turn": constant_turn,
    "linear_fit": linear_fit,
}


class SimpleForecaster(nn.Module):
    """One of `SIMPLE_MODELS` with inputs and outputs of `VanillaForTrajectoryPrediction`.

    Args:
        name: a name of `SIMPLE_MODELS`.
        config: read for steps and rate.

    Raises:
        ValueError: there is no such name.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> from hf_vanilla.tracks.simple_models import SimpleForecaster
        >>> config = VanillaTracksConfig(observed_steps=2, predicted_steps=2)
        >>> model = SimpleForecaster("constant_velocity", config)
        >>> model(torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])).trajectories
        tensor([[[[2., 0.],
                  [3., 0.]]]])
    """

    def __init__(self, name: str, config: VanillaTracksConfig) -> None:
        super().__init__()
        if name not in SIMPLE_MODELS:
            raise ValueError(f"model={name!r}: choose one of {', '.join(SIMPLE_MODELS)}")
        self.name = name
        self.config = config

    def forward(
        self,
        past_values: Tensor,
        past_observed_mask: Tensor | None = None,
        future_values: Tensor | None = None,
        future_observed_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> VanillaTrajectoryOutput:
        """The future of each agent; arguments and errors as of the models.

        Raises:
            ValueError: an input does not fit.
        """
        past, is_observed = read_past(self.config, past_values, past_observed_mask)
        future = SIMPLE_MODELS[self.name](past, is_observed, self.config.predicted_steps)
        loss = None
        if future_values is not None:
            truth = read_future(self.config, future_values, future_observed_mask)
            divisor = kwargs.get("num_items_in_batch")
            loss = mean_distance(
                future, truth.positions, truth.is_known, num_items_in_batch=divisor
            )
        return VanillaTrajectoryOutput(
            loss=loss, trajectories=future.unsqueeze(1), mode_logits=future.new_zeros(len(past), 1)
        )


def _last_displacements(past: Tensor, is_observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The last and the last but one known displacement, and how many steps lie between them.

    Returns:
        `(B, 2)`, `(B, 2)`, 0 where there is none, and `(B,)`, 1 or more.
    """
    velocities, is_known = observed_velocities(past, is_observed)
    number = torch.arange(1, is_known.shape[1] + 1, device=past.device)
    indices = (is_known * number).topk(min(2, len(number)), dim=1).values  # 0: none
    earlier = (indices - 1).clamp(min=0).unsqueeze(-1).expand(-1, -1, 2)
    displacements = velocities.gather(1, earlier) * indices.gt(0).unsqueeze(-1)
    between = (indices[:, 0] - indices[:, -1]).clamp(min=1)
    before = displacements[:, -1] if len(number) > 1 else displacements[:, 0]
    return displacements[:, 0], before, between


def _counted(steps: int, like: Tensor) -> Tensor:
    """1 to `steps`, `(1, P, 1)`."""
    return torch.arange(1, steps + 1, device=like.device, dtype=like.dtype).view(1, -1, 1)
