"""Scores of forecasts, in units of the world.

Shapes: B windows, M modes, P predicted steps.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_vanilla.models.inputs_vanilla_forecaster import distances
from hf_vanilla.models.modeling_vanilla_tracks import mixture_nats

from .layout import Surroundings, fixed_draws, run_model
from .windows import Windows, pasts_of_rows, rows_of_groups

MODE_COUNTS = (1, 5, 6, 10, 20)
MISS_DISTANCE = 2.0
COLLISION_DISTANCE = 0.2
LEAST_LOG_DENSITY = -20.0  # of one step, as in published figures of this kind
SMALLEST_VARIANCE = 1e-6


class ScoreSums:
    """Sums of scores, which add up over batches and processes.

    Args:
        names: of the scores.

    Attributes:
        sums: `(2, scores)` float64: values, and how many they are of.
        shows_empty: whether a score of nothing is 0; otherwise it is left out.
    """

    shows_empty = True

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.sums = torch.zeros(2, len(names), dtype=torch.float64)

    def means(self, sums: Tensor | None = None) -> dict[str, float]:
        """The mean of each score; of the sums of all processes where these are given."""
        total = (self.sums if sums is None else sums).double().cpu()
        means = total[0] / total[1].clamp(min=1)
        found = zip(self.names, means.tolist(), total[1].tolist(), strict=True)
        return {name: mean for name, mean, count in found if count or self.shows_empty}


class TrackSums(ScoreSums):
    """Sums of scores over windows.

    Best of k means the k most probable modes, each window by itself, ADE and FDE separately.

    Args:
        modes: of the model.
        miss_distance: a final position farther away than this is a miss.
        largest_step: a longer displacement in a step is off-speed; 0: unknown.
        has_spreads: the model states a spread per step, whose likelihood is a score.
    """

    def __init__(
        self,
        modes: int,
        *,
        miss_distance: float = MISS_DISTANCE,
        largest_step: float = 0.0,
        has_spreads: bool = False,
    ) -> None:
        self.counts = [*(k for k in MODE_COUNTS if k < modes), modes]
        self.miss_distance, self.largest_step = miss_distance, largest_step
        self.modes = modes
        names = [f"{kind}{k}" for k in self.counts for kind in ("minADE", "minFDE")]
        names += ["miss_rate", "brier_minFDE"]
        names += ["single_ADE", "single_FDE", "kde_nll"] if modes > 1 else []
        names += ["density_nll"] if has_spreads else []
        names += ["off_speed_share"] if largest_step else []
        super().__init__(names)

    @classmethod
    def of(cls, model: Any, **limits: float) -> "TrackSums":
        """Sums for a forecaster; `limits` are further arguments."""
        modes = 1 if getattr(model, "has_one_future", False) else model.config.num_modes
        has_spreads = hasattr(model, "spread_head")
        return cls(modes, largest_step=model.config.largest_step, has_spreads=has_spreads, **limits)

    def add(
        self,
        trajectories: Tensor,
        mode_logits: Tensor,
        future: Tensor,
        known: Tensor,
        *,
        spreads: Tensor | None = None,
    ) -> None:
        """Add windows to the sums; those without any known future step count nothing.

        Args:
            trajectories: `(B, M, P, 2)`, relative to the last observed position.
            mode_logits: `(B, M)`.
            future: `(B, P, 2)` likewise; anything where it is not known.
            known: `(B, P)` bool; final errors are measured where the last step is known.
            spreads: `(B, M, P)` standard deviations, where the model states them.
        """
        probabilities = mode_logits.double().softmax(-1)
        order = mode_logits.argsort(dim=1, descending=True, stable=True)
        tracks, truth = trajectories.double(), torch.where(known.unsqueeze(-1), future, 0).double()
        errors = distances(tracks, truth.unsqueeze(1)) * known.unsqueeze(1)  # (B, M, P)
        has_any, has_last, steps = known.any(1), known[:, -1], known.sum(1).clamp(min=1)
        means, finals = errors.sum(-1) / steps.unsqueeze(1), errors[..., -1]  # (B, M)
        by_odds = means.gather(1, order), finals.gather(1, order)
        values: dict[str, tuple[Tensor, Tensor]] = {}
        for k in self.counts:
            values[f"minADE{k}"] = by_odds[0][:, :k].amin(1), has_any
            values[f"minFDE{k}"] = by_odds[1][:, :k].amin(1), has_last
        nearest, index = by_odds[1].min(1)
        unsure = (1 - probabilities.gather(1, order).gather(1, index.unsqueeze(1)).squeeze(1)) ** 2
        values["miss_rate"] = nearest.gt(self.miss_distance).double(), has_last
        values["brier_minFDE"] = nearest + unsure, has_last
        if "kde_nll" in self.names:
            one = expected_distances(trajectories, probabilities).argmin(1, keepdim=True)  # (B, 1)
            values["single_ADE"] = means.gather(1, one).squeeze(1), has_any
            values["single_FDE"] = finals.gather(1, one).squeeze(1), has_last
            nats = kernel_density_nats(tracks, probabilities, truth)
            values["kde_nll"] = (nats * known).sum(1) / steps, has_any
        if spreads is not None:
            logits, spreads = mode_logits.double(), spreads.double()
            nats = mixture_nats(tracks, logits, spreads, truth)
            values["density_nll"] = (nats * known).sum(1) / steps, has_any
        if self.largest_step:
            start = torch.zeros_like(tracks[:, :, :1])
            is_far = tracks.diff(dim=2, prepend=start).norm(dim=-1).gt(self.largest_step)
            values["off_speed_share"] = is_far.double().mean((1, 2)), torch.ones_like(has_any)
        for column, name in enumerate(self.names):
            value, counts = values[name]
            self.sums[0, column] += torch.where(counts, value, 0).sum().cpu()
            self.sums[1, column] += counts.sum().cpu()


def expected_distances(trajectories: Tensor, probabilities: Tensor) -> Tensor:
    """How far each mode is expected to be from the truth if the modes' probabilities hold.

    The mode with the smallest value is the single track where the mean distance counts;
    the most probable one may be far from all others.

    Args:
        trajectories: `(B, M, P, 2)`.
        probabilities: `(B, M)`.

    Returns:
        `(B, M)`, per step.
    """
    steps = trajectories.unbind(dim=2)
    between = torch.stack([torch.cdist(step, step) for step in steps]).mean(dim=0)  # (B, M, M)
    return (between * probabilities.to(between.dtype).unsqueeze(1)).sum(-1)


def kernel_density_nats(trajectories: Tensor, probabilities: Tensor, future: Tensor) -> Tensor:
    """Negative log-likelihood of each step under a Gaussian kernel density of the modes, `(B, P)`.

    The kernel is the weighted covariance of the modes times Scott's factor; a step costs at most 20
    nats.

    Args:
        trajectories: `(B, M, P, 2)`.
        probabilities: `(B, M)`.
        future: `(B, P, 2)`.
    """
    weights = probabilities.unsqueeze(-1)  # (B, M, 1)
    centre = (weights.unsqueeze(-1) * trajectories).sum(1, keepdim=True)
    offsets = trajectories - centre  # (B, M, P, 2)
    squares = weights.square().sum(1)  # (B, 1): 1 / effective number of modes
    products = offsets.unsqueeze(-1) * offsets.unsqueeze(-2)  # (B, M, P, 2, 2)
    covariance = (weights[..., None, None] * products).sum(1)
    covariance = covariance / (1 - squares).clamp(min=1e-9)[..., None, None]
    bandwidth = squares ** (1 / 3)  # Scott's factor n ** (-1 / 6), squared
    covariance = covariance * bandwidth[..., None, None]
    covariance = covariance + SMALLEST_VARIANCE * torch.eye(2, dtype=covariance.dtype)
    a, b, d = covariance[..., 0, 0], covariance[..., 0, 1], covariance[..., 1, 1]  # (B, P)
    determinant = (a * d - b * b).clamp(min=SMALLEST_VARIANCE**2)
    x, y = (future.unsqueeze(1) - trajectories).unbind(-1)  # (B, M, P)
    a, b, d = (part.unsqueeze(1) for part in (a, b, d))
    form = (d * x * x - 2 * b * x * y + a * y * y) / determinant.unsqueeze(1)
    logs = torch.logsumexp(weights.clamp(min=1e-30).log() - form / 2, dim=1)
    density = logs - math.log(2 * math.pi) - determinant.log() / 2
    return -density.clamp(min=LEAST_LOG_DENSITY)


def collision_share(
    tracks: np.ndarray, groups: np.ndarray, *, distance: float = COLLISION_DISTANCE
) -> float:
    """Share of pairs of agents in one scene whose predicted tracks come closer than `distance`.

    Args:
        tracks: `(W, P, 2)` one track of each window in the world.
        groups: `(W,)` windows of one scene at one frame have equal numbers.
        distance: in units of the world.

    Returns:
        0 where there is no pair.
    """
    alone = torch.from_numpy(tracks).unsqueeze(1)
    scenes = [close_pairs(alone[rows], distance) for rows in rows_of_groups(groups)]
    pairs = sum(map(len, scenes))
    return sum(int(is_close.sum()) for is_close in scenes) / pairs if pairs else 0.0


class JointSums(ScoreSums):
    """Sums of joint scores over scenes of two or more agents; without any they are left out.

    Mode m of all agents of a scene makes one future of the scene. `minJADE` is the smallest mean
    error of any of these futures, one future for all agents; `minJFDE` that of final errors, for
    itself. An agent counts as much as in `minADE`, which is never larger.
    `joint_collision_share` is the share of pairs of agents that come closer than a distance in the
    same future of their scene, over all its futures.

    Args:
        modes: of the model.
        collision_distance: in units of the world.
    """

    shows_empty = False

    def __init__(self, modes: int, *, collision_distance: float = COLLISION_DISTANCE) -> None:
        super().__init__([f"minJADE{modes}", f"minJFDE{modes}", "joint_collision_share"])
        self.collision_distance = collision_distance

    def add(self, tracks: Tensor, future: Tensor, known: Tensor, groups: np.ndarray) -> None:
        """Add whole scenes; those of one agent count nothing.

        Args:
            tracks: `(W, M, P, 2)` float64 positions in the world.
            future: `(W, P, 2)`; anything where it is not known.
            known: `(W, P)` bool.
            groups: `(W,)` equal numbers for windows of one scene at one frame.
        """
        errors = distances(tracks, future.to(tracks.dtype).unsqueeze(1)) * known.unsqueeze(1)
        steps = known.sum(dim=1)
        mean = errors.sum(dim=-1) / steps.clamp(min=1).unsqueeze(1)  # (W, M)
        for rows in rows_of_groups(groups):
            if len(rows) < 2:
                continue
            has_any, has_last = steps[rows] > 0, known[rows, -1]
            # (N, M) of the agents of a scene; the mode with the smallest mean counts
            for column, each in enumerate((mean[rows][has_any], errors[rows, :, -1][has_last])):
                if len(each):
                    self.sums[0, column] += each.mean(dim=0).amin() * len(each)
                    self.sums[1, column] += len(each)
            close = close_pairs(tracks[rows], self.collision_distance)  # (pairs, M)
            self.sums[0, 2] += close.double().mean(dim=1).sum()
            self.sums[1, 2] += len(close)


def close_pairs(tracks: Tensor, distance: float) -> Tensor:
    """Which pairs of agents come closer than a distance in which mode, bool `(pairs, M)`.

    Args:
        tracks: `(N, M, P, 2)` positions in the world of the agents of one scene.
        distance: in units of the world.
    """
    first, second = torch.triu_indices(len(tracks), len(tracks), 1)
    # step by step: all pairs at all steps would need P times the memory
    is_close = torch.zeros(len(first), tracks.shape[1], dtype=torch.bool)
    for step in tracks.unbind(dim=2):
        is_close |= (step[first] - step[second]).square().sum(dim=-1) < distance**2
    return is_close


@torch.no_grad()
def add_windows(
    sums: TrackSums,
    model: Any,
    windows: Windows,
    rows: np.ndarray,
    together: JointSums | None = None,
    **kwargs: Any,
) -> Tensor:
    """Predict some windows and add them to the sums.

    Args:
        sums: scores of single agents.
        model: a forecaster; of a joint one, `rows` are all windows of their scenes.
        windows: cut from a table.
        rows: `(B,)` numbers of windows.
        together: scores of scenes, where `rows` are all windows of theirs.
        **kwargs: passed to the model, such as `samples_at_once`.

    Returns:
        `(B, P, 2)` float64 top-scored tracks in the world.
    """
    table, last_rows, observed = windows.table, windows.last_rows[rows], windows.observed
    past, is_observed = pasts_of_rows(table, last_rows, observed)
    beside = Surroundings.of_rows(model.config, table, last_rows)
    with fixed_draws(seed=int(rows[0])):
        outputs = run_model(model, past, is_observed, beside, **kwargs)
    tracks, logits = outputs.trajectories.float().cpu(), outputs.mode_logits.float().cpu()
    spreads = getattr(outputs, "spreads", None)
    spreads = None if spreads is None else spreads.float().cpu()
    positions, is_known, origin = windows.positions(rows)
    future, known = positions[:, observed:], torch.from_numpy(is_known[:, observed:])
    sums.add(tracks, logits, torch.from_numpy(future), known, spreads=spreads)
    in_world = tracks.double() + torch.from_numpy(origin)[:, None, None]
    if together is not None:
        true = torch.from_numpy(future + origin[:, None])
        together.add(in_world, true, known, beside.groups)
    return in_world[torch.arange(len(rows)), logits.argmax(1)]


# --- as text: every line has the protocol by which its score was measured ------------------------

_SINGLE = "track of the smallest expected distance"
_SHARES = ("miss_rate", "off_speed_share", "collision_share", "joint_collision_share")
_NATS = ("kde_nll", "density_nll")
_OVER_ALL = {  # what is compared where there are several futures
    "miss_rate": "closest of {} final positions per agent",
    "brier_minFDE": "closest of {} final positions per agent, and its probability",
    "kde_nll": "all {} futures per agent",
    "density_nll": "all {} futures per agent",
    "off_speed_share": "all {} futures per agent",
}
_TOGETHER = "of futures of scenes of two or more agents"


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How windows were cut and compared; `line` is beside every score.

    Attributes:
        data: name of the data and of its split.
        windows: that were scored.
        stride: steps from one window to the next.
        with_company: only scenes with two or more agents (Social-GAN's rule).
        allow_missing: windows may miss steps, which count nothing.
        seed: of the training run, where known.
    """

    data: str
    windows: Windows
    stride: int = 1
    with_company: bool = False
    allow_missing: bool = False
    seed: str = ""

    def line(self, modes: int = 1, *, single: str = "top-scored track") -> str:
        """The protocol of a score over so many modes; `single` says which one, if it is one."""
        cut = "per scene of two or more" if self.with_company else "per agent"
        masked = ", missing steps masked" if self.allow_missing else ""
        windows, seconds = self.windows, self.windows.table.step_seconds
        parts = [
            self.data,
            f"{windows.observed} -> {windows.predicted} steps of {seconds:g} s",
            f"{cut}, stride {self.stride}, {len(windows):,} windows{masked}",
            f"best of {modes} per agent, ADE and FDE separately" if modes > 1 else single,
        ]
        return " | ".join([*parts, f"seed {self.seed}"] if self.seed else parts)


@dataclass(frozen=True)
class TrackScores:
    """Scores with their protocol.

    Attributes:
        values: by name, such as `minADE20`.
        protocol: how they were measured.
    """

    values: Mapping[str, float]
    protocol: Protocol

    def __str__(self) -> str:
        return "\n".join(self._line(name, value) for name, value in self.values.items())

    def _line(self, name: str, value: float) -> str:
        modes = int("".join(filter(str.isdigit, name)) or 1)
        if name in _SHARES:
            shown = f"{100 * value:.2f} %"
        else:
            unit = "nats" if name in _NATS else self.protocol.windows.table.unit
            shown = f"{value:.3f} {unit}"
        compared = self._compared(name, modes)
        line = self.protocol.line(single=compared) if compared else self.protocol.line(modes)
        return f"{name} {shown} | {line}"

    def _compared(self, name: str, modes: int) -> str | None:
        """What a score compares; None: the best of its modes, or the top-scored track."""
        if name.startswith("single_"):
            return _SINGLE
        if name.startswith(("minJ", "joint_")):
            best = f"best of {modes}" if name.startswith("minJ") else "all"
            return f"{best} {_TOGETHER}"
        counts = [int(other[6:]) for other in self.values if other.startswith("minADE")]
        most = max(counts, default=1)
        return _OVER_ALL[name].format(most) if name in _OVER_ALL and most > 1 else None
