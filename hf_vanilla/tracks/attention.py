"""Whom an agent attends to: attention weights of forecasters that read whole scenes.

Shapes: A agents of one scene, T observed steps, L polylines, R rows (one per agent), N sequences,
M tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_vanilla.families import entry_of
from hf_vanilla.models.modeling_vanilla_scene import VanillaForSceneTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_scene_forms import VanillaForGatedTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_scene_proposals import (
    VanillaForProposalTrajectoryPrediction,
)
from hf_vanilla.models.rows_vanilla_scene import Rows

from .layout import Surroundings, run_model


@dataclass(frozen=True, eq=False)
class SceneAttention:
    """How much each agent attends to what its scene has.

    Attributes:
        own: `(A, T)` to each of its own steps.
        others: `(A, A)` to all steps of each agent, itself included.
        lanes: `(A, L)` to all pieces of each polyline; L is 0 for a model that reads none.
    """

    own: np.ndarray
    others: np.ndarray
    lanes: np.ndarray


def has_scene_attention(model: Any) -> bool:
    """Whether `attention_in_scene` can say whom an agent attends to.

    Latent queries mix all tokens before anything is predicted, and the other forms have vectors of
    whole sequences or of a picture: their weights belong to no step, agent or lane.
    """
    entry = entry_of(model.config)
    if "lanes" not in entry.reads:
        return entry.is_joint
    if isinstance(model, VanillaForSceneTrajectoryPrediction):
        return model.config.encoder != "latent"
    return isinstance(
        model, VanillaForProposalTrajectoryPrediction | VanillaForGatedTrajectoryPrediction
    )


@torch.inference_mode()
def attention_in_scene(
    model: Any,
    past: np.ndarray,
    is_observed: np.ndarray,
    beside: Surroundings | None = None,
) -> SceneAttention:
    """Attention weights of the agents of one scene, mean of the heads.

    Of a joint forecaster, from the last observed step, in the last layer of the context encoder. Of
    a forecaster of agents and lanes, from its futures, in the last decoder layer, mean of all
    futures; own steps, others, lanes and traffic lights, which are not returned, sum to 1.
    Proposals are refined by three decoders in turn: there own steps sum to 1, others sum to 1, and
    lanes do, each where there is one.

    Args:
        model: a forecaster for which `has_scene_attention` holds, in evaluation mode, with eager
            attention.
        past: `(A, T, 2)` float64, the agents of one scene; anything where not observed.
        is_observed: `(A, T)` bool; last steps are observed.
        beside: as of `run_model`.
    """
    if entry_of(model.config).is_joint:
        weights = run_model(model, past, is_observed, output_attentions=True).attentions[-1]
        count, steps = past.shape[:2]
        of_last = weights[0].double().mean(0)[-count:].cpu()  # (A, T A), agents are the inner axis
        by_agent = of_last.view(count, steps, count).transpose(1, 2)  # (A, A, T)
        own = by_agent.diagonal(dim1=0, dim2=1).T  # (A, T)
        return SceneAttention(own.numpy(), by_agent.sum(2).numpy(), np.zeros((count, 0)))
    rows: list[Rows] = []
    hook = model.tokens.register_forward_pre_hook(lambda _, given: rows.append(given[0]))
    try:
        outputs = run_model(model, past, is_observed, beside, output_attentions=True)
    finally:
        hook.remove()
    weights = [layer.double().mean((1, 2)).cpu() for layer in outputs.cross_attentions]  # (R, M)
    own, others, lanes = _by_sequence(model, rows[0], weights)
    own_total = own.sum(-1)
    of_agents = _by_number(others, rows[0].others.numbers, len(past))
    of_agents += torch.diag(own_total[:, 0])
    road = None if beside is None else beside.maps[0]
    count = 0 if road is None else len(road)
    of_lanes = _by_number(lanes, rows[0].lanes.numbers, max(count, 1))[:, :count]
    return SceneAttention(own[:, 0].numpy(), of_agents.numpy(), of_lanes.numpy())


def _by_sequence(model: Any, rows: Rows, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Weights `(R, N, steps)` on own steps, others and lanes, from those of the decoder layers."""
    config = model.config
    is_one_grid = (  # all families were in one factorised encoder
        isinstance(model, VanillaForSceneTrajectoryPrediction)
        and config.encoder in ("sequential", "interleaved")
        and config.fusion != "late"
    )
    seen = (rows.own, rows.others, rows.lanes, rows.lights)
    families = [each.is_real.shape for each in seen if each is not None]
    if isinstance(model, VanillaForProposalTrajectoryPrediction):
        last = config.decoder_layers
        own, lanes, others = (weights[stage * last - 1] for stage in (1, 2, 3))
        parts = [own, others, lanes]
    elif is_one_grid:  # shorter sequences are padded at their end
        longest = max(shape[2] for shape in families)
        grid = weights[-1].view(len(weights[-1]), -1, longest)
        parts = list(grid.split([shape[1] for shape in families], dim=1))
        parts = [part[..., : shape[2]] for part, shape in zip(parts, families, strict=True)]
    else:
        parts = list(weights[-1].split([shape[1] * shape[2] for shape in families], dim=1))
    own, others, lanes, *_ = (
        part.reshape(shape) for part, shape in zip(parts, families, strict=True)
    )
    return own, others, lanes


def _by_number(weights: Tensor, numbers: Tensor, count: int) -> Tensor:
    """Weights `(R, N, steps)` of sequences as `(R, count)` by their numbers in the scene."""
    total = weights.new_zeros(len(weights), count)
    return total.scatter_add(1, numbers.cpu(), weights.sum(-1))
