# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Checks of what all forecasters read. A compiled or exported program has none of values.

Shapes: B agents or scenes, A agents of a scene, L steps.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

OF_SCENES = ("scenes", "agents")


def known_steps(
    name: str,
    values: Tensor,
    mask: Tensor | None,
    steps: int,
    *,
    axes: Sequence[str] = OF_SCENES,
) -> Tensor:
    """Which steps are known, `(B, L)` or `(B, A, L)` bool.

    Args:
        name: past or future.
        values: positions, `(B, L, 2)` or `(B, A, L, 2)`.
        mask: 1 = known; None: all are.
        steps: L.
        axes: names of the axes before the steps.

    Raises:
        ValueError: a shape does not fit.
    """
    if values.dim() != len(axes) + 2 or tuple(values.shape[-2:]) != (steps, 2):
        raise ValueError(
            f"{name}_values has shape {tuple(values.shape)}, but the model has {steps} such steps: "
            f"give ({', '.join(axes)}, {steps}, 2)"
        )
    if mask is None:
        return torch.ones(values.shape[:-1], dtype=torch.bool, device=values.device)
    if mask.shape != values.shape[:-1]:
        raise ValueError(
            f"{name}_observed_mask has shape {tuple(mask.shape)}, but {name}_values needs "
            f"{tuple(values.shape[:-1])}"
        )
    return mask.bool()


def check_finite(name: str, values: Tensor, is_known: Tensor) -> None:
    """Known positions are finite numbers.

    Raises:
        ValueError: one is not.
    """
    if not torch.compiler.is_compiling() and not values[is_known].isfinite().all():
        raise ValueError(
            f"{name}_values has NaN or infinite positions: mark missing steps by "
            f"{name}_observed_mask"
        )


def known_future(values: Tensor, mask: Tensor | None, steps: int, shape: tuple[int, ...]) -> Tensor:
    """Which future steps of scenes are known, `(B, A, L)` bool.

    Args:
        values: `(B, A, L, 2)`.
        mask: `(B, A, L)`; None: all are.
        steps: L.
        shape: B and A of the observed part.

    Raises:
        ValueError: a shape does not fit.
    """
    is_known = known_steps("future", values, mask, steps)
    if tuple(is_known.shape[:2]) != tuple(shape):
        raise ValueError(
            f"future_values has {tuple(is_known.shape[:2])} scenes and agents, past_values "
            f"{tuple(shape)}: give the same"
        )
    return is_known


def agents_of(name: str, mask: Tensor | None, is_observed: Tensor) -> Tensor:
    """A mask of agents, `(B, A)` bool; None: all.

    Raises:
        ValueError: a shape does not fit.
    """
    if mask is None:
        return torch.ones_like(is_observed[..., 0])
    if mask.shape != is_observed.shape[:2]:
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, but past_values needs "
            f"{tuple(is_observed.shape[:2])}"
        )
    return mask.bool()


def check_agents(is_forecast: Tensor, is_observed: Tensor, *, mask: str) -> None:
    """Each scene has an agent to forecast, and each of these is observed at the last step.

    Args:
        is_forecast: `(B, A)` bool.
        is_observed: `(B, A, T)` bool.
        mask: the input that excludes agents.

    Raises:
        ValueError: it is not so.
    """
    if torch.compiler.is_compiling():
        return
    if not is_forecast.any(dim=1).all():
        scene = int(is_forecast.any(dim=1).logical_not().nonzero()[0])
        raise ValueError(f"scene {scene} has no agent to forecast: leave it out")
    is_missing = is_forecast & ~is_observed[..., -1]
    if is_missing.any():
        scene, agent = is_missing.nonzero()[0].tolist()
        raise ValueError(
            f"the last observed step of agent {agent} of scene {scene} is missing, and predictions "
            f"start there: leave such agents out, or exclude them by {mask}"
        )
