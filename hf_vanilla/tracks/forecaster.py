"""Forecasters by name, with weights and without; forecasts while frames arrive, and in batches.

Shapes: A agents, B rows of a batch, T observed steps, M modes, P predicted steps.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForTimeSeriesPrediction

import hf_vanilla
from hf_vanilla.families import entry_of
from hf_vanilla.loading import device_named, load_model, load_saved
from hf_vanilla.models.configuration_vanilla_tracks import (
    VanillaForecasterConfig,
    VanillaTracksConfig,
)
from hf_vanilla.models.inputs_vanilla_forecaster import last_known, observed_velocities
from hf_vanilla.models.modeling_vanilla_tracks import VanillaTrajectoryOutput, read_past
from hf_vanilla.options import option

from .layout import Surroundings, run_model
from .options import TrackFileOptions
from .table import FARTHEST, TrackTable, check_positive

STEP_TOLERANCE = 1e-3  # relative


def new_forecaster(config: VanillaForecasterConfig) -> Any:
    """A model with initial weights, of the class that `class_name` gives."""
    return getattr(hf_vanilla, class_name(config))(config)


def class_name(config: VanillaForecasterConfig) -> str:
    """The class that `config.architectures` names; without one of its task, its first form."""
    names = [*entry_of(config).forms.values()]
    return next((name for name in config.architectures or [] if name in names), names[0])


def load_forecaster(name: str, *, device: str | None = None, **simple: Any) -> Any:
    """A forecaster in evaluation mode.

    Args:
        name: model folder, Hub id, or a name of `SIMPLE_MODELS`.
        device: such as cpu; None: a GPU if there is one.
        **simple: steps, rate and unit of a simple model, fields of `VanillaTracksConfig`.

    Raises:
        ValueError: the model is no forecaster, or damaged.
        OSError: there is no such model.
    """
    target = device_named(device)
    if name in SIMPLE_MODELS:
        return SimpleForecaster(name, VanillaTracksConfig(**simple)).eval().to(target)
    if not isinstance(load_saved(AutoConfig, name), VanillaForecasterConfig):
        raise ValueError(
            f"{name} is no trajectory forecaster: give a folder of task trajectories, "
            f"joint_trajectories or scene_trajectories, or one of {', '.join(SIMPLE_MODELS)}"
        )
    return load_model(AutoModelForTimeSeriesPrediction, name).to(target)


@dataclass(frozen=True, eq=False)
class Forecast:
    """Futures of the agents of one frame, the most probable mode first.

    Attributes:
        frame: number of the last observed frame.
        agents: names, in the order of their first appearance.
        trajectories: `(A, M, P, 2)` float64 positions in the world.
        probabilities: `(A, M)`, falling.
    """

    frame: int
    agents: tuple[Hashable, ...]
    trajectories: np.ndarray
    probabilities: np.ndarray


class Forecaster:
    """Stateful: pass the rows of each frame; it stores each agent's last T steps.

    A frame that arrives late is put in order, and the forecast starts at the newest frame again.
    An agent has a future where the newest frame has a row of it, and `least_observed` of its last T
    steps are there; missing steps are masked. What is older than T steps is dropped.

    Args:
        model: a forecaster in evaluation mode.
        frames_per_step: how far frame numbers advance in one step of the model.
        least_observed: fewest observed steps of an agent.

    Raises:
        ValueError: a number is too small or too large.

    Examples:
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> from hf_vanilla.tracks.forecaster import Forecaster, SimpleForecaster
        >>> config = VanillaTracksConfig(observed_steps=2, predicted_steps=1)
        >>> live = Forecaster(SimpleForecaster("constant_velocity", config))
        >>> live.observe(0, [("ada", 0.0, 0.0)]).agents
        ()
        >>> live.observe(1, [("ada", 1.0, 0.5)]).trajectories
        array([[[[2., 1.]]]])
    """

    def __init__(self, model: Any, *, frames_per_step: int = 1, least_observed: int = 2) -> None:
        check_positive(frames_per_step=frames_per_step, least_observed=least_observed)
        if least_observed > model.config.observed_steps:
            raise ValueError(
                f"least_observed={least_observed}: the model observes "
                f"{model.config.observed_steps} steps, so give no more"
            )
        self.model = model
        self.frames_per_step = frames_per_step
        self.least_observed = least_observed
        self.newest: int | None = None
        self._history: dict[Hashable, dict[int, tuple[float, float]]] = {}

    def observe(self, frame: int, rows: Iterable[tuple[Hashable, float, float]]) -> Forecast:
        """Store the rows of a frame, as `store` does, and forecast from the newest frame."""
        newest, observed = self.store(frame, rows), self.model.config.observed_steps
        frames = [newest + self.frames_per_step * step for step in range(1 - observed, 1)]
        agents = tuple(
            agent
            for agent, steps in self._history.items()
            if newest in steps and len(steps) >= self.least_observed
        )
        missing = (np.nan, np.nan)
        positions = [[self._history[agent].get(f, missing) for f in frames] for agent in agents]
        past = np.array(positions).reshape(len(agents), observed, 2)
        return Forecast(newest, agents, *predict(self.model, past, np.isfinite(past).all(-1)))

    def store(self, frame: int, rows: Iterable[tuple[Hashable, float, float]]) -> int:
        """Store the rows of a frame without a forecast; returns the newest frame.

        Args:
            frame: number of the frame.
            rows: agent, x and y each.

        Raises:
            ValueError: a frame lies between two steps, a position is not finite, or an agent is
                twice in the frame; then nothing of the frame is stored.
        """
        # tensors hash by identity: the same agent would be another one in each frame
        frame = frame.item() if isinstance(frame, Tensor) else frame
        rows = [(row[0].item() if isinstance(row[0], Tensor) else row[0], *row[1:]) for row in rows]
        self._check(frame, rows)
        self.newest = frame if self.newest is None else max(frame, self.newest)
        for agent, x, y in rows:
            self._history.setdefault(agent, {})[frame] = (float(x), float(y))
        oldest = self.newest - (self.model.config.observed_steps - 1) * self.frames_per_step
        for agent, steps in list(self._history.items()):
            for old in [number for number in steps if number < oldest]:
                del steps[old]
            if not steps:
                del self._history[agent]
        return self.newest

    def _check(self, frame: int, rows: list[tuple[Hashable, float, float]]) -> None:
        if self.newest is not None and (frame - self.newest) % self.frames_per_step:
            raise ValueError(
                f"frame {frame} lies between two steps of {self.frames_per_step} frames: pass "
                "every step's frame, or give another frames_per_step"
            )
        agents = set()
        for agent, x, y in rows:
            if not (np.abs([x, y]) < FARTHEST).all():  # NaN too
                raise ValueError(
                    f"frame {frame}: ({x}, {y}) of agent {agent} is not finite and below "
                    f"{FARTHEST:g}: leave it out"
                )
            if agent in agents or frame in self._history.get(agent, {}):
                raise ValueError(f"frame {frame}: agent {agent} is there twice: keep one row")
            agents.add(agent)


@torch.inference_mode()
def predict(
    model: Any,
    past: np.ndarray,
    is_observed: np.ndarray,
    beside: Surroundings | None = None,
    **kwargs: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Futures of agents in one batch, the most probable mode first.

    Args:
        model: a forecaster in evaluation mode.
        past: `(A, T, 2)` float64; anything where not observed.
        is_observed: `(A, T)` bool; last steps are observed.
        beside: what else a model of scenes reads, see `run_model`.
        **kwargs: passed to the model, such as `samples_at_once`.

    Returns:
        `(A, M, P, 2)` float64 and probabilities `(A, M)` float64.
    """
    config = model.config
    if not len(past):
        return np.zeros((0, 1, config.predicted_steps, 2)), np.zeros((0, 1))
    outputs = run_model(model, past, is_observed, beside, **kwargs)
    probabilities, order = _sorted_modes(outputs)
    tracks = outputs.trajectories.double().cpu()
    tracks = tracks.gather(1, order[..., None, None].expand_as(tracks)).numpy()
    return tracks + past[:, None, -1:], probabilities.numpy()


@torch.inference_mode()
def attention_of_modes(model: Any, past: np.ndarray, is_observed: np.ndarray) -> np.ndarray | None:
    """Attention weights of each mode in the last cross-attention, mean of its heads.

    Args:
        model: a forecaster in evaluation mode with eager attention.
        past: `(A, T, 2)` float64; anything where not observed.
        is_observed: `(A, T)` bool; last steps are observed.

    Returns:
        `(A, M, T - 1)`, modes in the order of `predict`; weight t belongs to the displacement from
        step t to step t + 1. None where the model records none.
    """
    if entry_of(model.config).reads:
        return None
    outputs = run_model(model, past, is_observed, output_attentions=True)
    if not outputs.cross_attentions:
        return None
    weights = outputs.cross_attentions[-1].double().mean(1).cpu()  # (A, M, T - 1)
    _, order = _sorted_modes(outputs)
    return weights.gather(1, order.unsqueeze(-1).expand_as(weights)).numpy()


def _sorted_modes(outputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities `(A, M)`, falling, and the numbers of the modes in that order."""
    probabilities = outputs.mode_logits.double().softmax(-1).cpu()
    order = probabilities.argsort(dim=1, descending=True, stable=True)
    return probabilities.gather(1, order), order


def check_rate(table: TrackTable, config: Any, source: str) -> None:
    """Refuse tracks whose steps are not those of a model, or of the tracks of a new one.

    Raises:
        ValueError: they take another time, or positions have another unit.
    """
    theirs, ours = table.step_seconds, config.step_seconds
    if abs(theirs - ours) > STEP_TOLERANCE * ours:
        raise ValueError(
            f"{source} has steps of {theirs:g} s, but the model has {ours:g} s: resample by "
            f"--step_seconds {ours:g}, or correct --frame_seconds"
        )
    if table.unit != config.unit:
        raise ValueError(
            f"{source} has positions in {table.unit}, but the model in {config.unit}: convert "
            f"them, or give --unit {config.unit} if they are"
        )


# --- forecasts without any weights, with the interface of the models ------------------------------


def constant_velocity(past: Tensor, is_observed: Tensor, steps: int) -> Tensor:
    """Positions `(B, P, 2)` that repeat the last known displacement; without one, no motion."""
    last = last_known(*observed_velocities(past, is_observed))
    return past[:, -1:] + last.unsqueeze(1) * _counted(steps, past)


def constant_turn(past: Tensor, is_observed: Tensor, steps: int) -> Tensor:
    """Positions `(B, P, 2)` that repeat speed and turn between the last two known displacements."""
    velocities, is_known = observed_velocities(past, is_observed)
    number = torch.arange(1, is_known.shape[1] + 1, device=past.device)
    numbers = (is_known * number).topk(min(2, len(number)), dim=1).values  # (B, 2); 0: none
    places = (numbers - 1).clamp(min=0).unsqueeze(-1).expand(-1, -1, 2)
    found = velocities.gather(1, places) * numbers.gt(0).unsqueeze(-1)
    last, before = found[:, 0], found[:, -1]
    between = (numbers[:, 0] - numbers[:, -1]).clamp(min=1)
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
        >>> from hf_vanilla.tracks.forecaster import SimpleForecaster
        >>> config = VanillaTracksConfig(observed_steps=2, predicted_steps=2)
        >>> model = SimpleForecaster("constant_velocity", config)
        >>> model(torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])).trajectories
        tensor([[[[2., 0.],
                  [3., 0.]]]])
    """

    has_one_future = True

    def __init__(self, name: str, config: VanillaTracksConfig) -> None:
        super().__init__()
        if name not in SIMPLE_MODELS:
            raise ValueError(f"model={name!r}: choose one of {', '.join(SIMPLE_MODELS)}")
        self.name = name
        self.config = config

    def forward(
        self, past_values: Tensor, past_observed_mask: Tensor | None = None, **kwargs: Any
    ) -> VanillaTrajectoryOutput:
        """The future of each agent; arguments and errors as of the models, but there is no loss.

        Raises:
            ValueError: an input does not fit.
        """
        past, is_observed = read_past(self.config, past_values, past_observed_mask)
        future = SIMPLE_MODELS[self.name](past, is_observed, self.config.predicted_steps)
        logits = future.new_zeros(len(past), 1)
        return VanillaTrajectoryOutput(trajectories=future.unsqueeze(1), mode_logits=logits)


def _counted(steps: int, like: Tensor) -> Tensor:
    """1 to `steps`, `(1, P, 1)`."""
    return torch.arange(1, steps + 1, device=like.device, dtype=like.dtype).view(1, -1, 1)


# --- options of the commands ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ForecasterOptions(TrackFileOptions):  # the files' options, flat on the command line
    """A forecaster and the files of tracks that it reads."""

    model: str = option(text=f"model folder, Hub id, or one of {', '.join(SIMPLE_MODELS)}")
    samples_at_once: int | None = option(
        None,
        "samples of a joint forecaster to decode at a time; fewer need less memory; default: all",
        at_least=1,
    )
    device: str | None = option(None, "such as cpu; default: a GPU if there is one")
