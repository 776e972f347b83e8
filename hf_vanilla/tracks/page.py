"""The web page for trajectory forecasters: draw a path, or step through a scene.

`page.js` draws it and calls `draw` and `frame`.
Shapes: T observed steps, M modes, P predicted steps.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_vanilla.app.page import Served, named_model, page_of_component, whole_number
from hf_vanilla.app.worker import Worker
from hf_vanilla.families import entry_of
from hf_vanilla.hub.card import public_name

from .attention import SceneAttention, attention_in_scene, has_scene_attention
from .built_in_tracks import BUILT_IN
from .forecaster import (
    SIMPLE_MODELS,
    Forecaster,
    attention_of_modes,
    constant_velocity,
    load_forecaster,
    predict,
)
from .layout import Surroundings, fixed_draws
from .options import TrackFileOptions
from .plot import Drawn, drawn_agents
from .road_maps import resampled
from .table import TrackTable

logger = logging.getLogger(__name__)

TITLE = "Where will they walk? Observed tracks and predicted futures"
STEPS_ACROSS = 40  # of usual length, over the width of the plane to draw on
MOST_ROWS = 5000  # of a request for a forecast
MOST_POINTS = 2000  # of a drawn path
DIGITS = 3


class TracksPage:
    """The layout of the page, and what its script calls. It stores nothing about a visitor.

    Args:
        model: folder, Hub id, or name of a model without weights.
        tracks: file or folder to step through, or the name of built-in tracks; they are resampled
            to the model's rate. A model in another unit than built-in tracks has none to show.
        frame_seconds: time between two frame numbers of a file that does not state its rate.
        columns: names of a file's columns, as of `read_columns`.

    Raises:
        ValueError: the model or the tracks cannot be used.
        OSError: a file cannot be read.
    """

    def __init__(
        self,
        model: str,
        *,
        tracks: str = BUILT_IN[0],
        frame_seconds: float | None = None,
        columns: str = "",
    ) -> None:
        self.model = load_forecaster(model, device="cpu")
        if model not in SIMPLE_MODELS and not entry_of(self.model.config).is_joint:
            self.model.set_attn_implementation("eager")  # the only one that returns weights
        self.name = public_name(model)
        config = self.model.config
        options = TrackFileOptions(
            step_seconds=config.step_seconds,
            unit=config.unit,
            frame_seconds=frame_seconds,
            columns=columns,
        )
        self.table: TrackTable = options.read(tracks, seed=2)
        if self.table.unit != config.unit:  # of built-in tracks; a file has the model's
            logger.warning(
                "%s has positions in %s, but the model in %s: the page has no scenes",
                *(tracks, self.table.unit, config.unit),
            )
            self.table = self.table.rows(slice(0))

    def start(self) -> dict[str, Any]:
        """What the script needs at the start: sizes, unit, and the scenes with their frames."""
        config, table = self.model.config, self.table
        frames = [table.frame[table.scene == n] for n in range(len(table.scene_names))]
        is_joint = entry_of(config).is_joint
        if is_joint:
            lengths = table.displacements
            usual = np.mean(lengths**2) ** 0.5 if len(lengths) else config.largest_step or 1.0
        else:
            usual = config.velocity_std * 2**0.5
        return {
            "model": self.name,
            "isJoint": is_joint,
            "looksAtOthers": has_scene_attention(self.model),
            "hasLanes": any(road is not None for road in table.maps or ()),
            "observed": config.observed_steps,
            "predicted": config.predicted_steps,
            "stepSeconds": config.step_seconds,
            "unit": config.unit,
            "width": round(STEPS_ACROSS * float(usual), DIGITS),
            "scenes": [
                {
                    "number": number,
                    "name": table.scene_names[number],
                    "first": int(of_scene.min()),
                    "last": int(of_scene.max()),
                    "step": int(table.frames_per_step[number]),
                }
                for number, of_scene in enumerate(frames)
                if len(of_scene)
            ],
        }

    def draw(self, points: list[list[float]]) -> dict[str, Any]:
        """Futures of one agent that walks along a drawn path at constant speed.

        Args:
            points: the path, in units of the world.

        Returns:
            `agents`, a list of one.

        Raises:
            ValueError: it is no path.
        """
        past = path_in_steps(points, self.model.config.observed_steps)
        with fixed_draws():
            tracks, probabilities = predict(self.model, past[None], np.ones((1, len(past)), bool))
        drawn = Drawn("drawn", past, np.zeros((0, 2)), tracks[0], probabilities[0])
        return {"agents": self._shown([drawn])}

    def frame(self, scene: int, frame: int) -> dict[str, Any]:
        """Agents of a frame with their futures, and what really came.

        Args:
            scene: number of the scene.
            frame: number of the last observed frame.

        Returns:
            `agents`, none where nobody has two observed steps; `lanes` of a scene with a map.
        """
        table = self.table.rows(self.table.scene == scene)
        agents = drawn_agents(self.model, table, frame)
        road = None if table.maps is None else table.maps[scene]
        found: dict[str, Any] = {"agents": self._shown(agents, table) if agents else []}
        if road is not None:
            found["lanes"] = [_rounded(line) for line in road.lines]
        return found

    def _shown(self, agents: list[Drawn], table: TrackTable | None = None) -> list[dict[str, Any]]:
        """Agents as the script draws them, with constant velocity and the attention weights."""
        past = np.stack([agent.past for agent in agents])
        mask = np.isfinite(past).all(-1)
        beside = None
        if table is not None:
            rows = np.array([agent.row for agent in agents])
            beside = Surroundings.of_rows(self.model.config, table, rows)
        attention = self._attention(past, mask, beside)
        straight = constant_velocity(
            torch.from_numpy(np.nan_to_num(past)), torch.from_numpy(mask), agents[0].tracks.shape[1]
        ).numpy()
        return [
            {
                "name": str(agent.name),
                "past": _rounded(agent.past[mask[row]]),
                "truth": _rounded(agent.future),
                "tracks": _rounded(agent.tracks),
                "probabilities": _rounded(agent.probabilities),
                "straight": _rounded(straight[row]),
                "looks": _rounded(attention.own[row][:, mask[row]]),
                "others": _rounded(attention.others[row]),
                "lanes": _rounded(attention.lanes[row]),
            }
            for row, agent in enumerate(agents)
        ]

    def _attention(
        self, past: np.ndarray, mask: np.ndarray, beside: Surroundings | None
    ) -> SceneAttention:
        """Weights of each agent; `own` is `(A, M, T)`, and M = 0 where the model records none."""
        count, steps = mask.shape
        if has_scene_attention(self.model):
            modes = getattr(self.model.config, "num_modes", 0)
            found = attention_in_scene(self.model, past, mask, beside)
            own = np.repeat(found.own[:, None], modes, axis=1)  # the same for all futures
            return SceneAttention(own, found.others, found.lanes)
        looks = attention_of_modes(self.model, past, mask)
        if looks is None:
            looks = np.zeros((count, 0, steps - 1))
        # (A, M, T): a displacement's weight belongs to the step at which it ends
        own, none = np.pad(looks, ((0, 0), (0, 0), (1, 0))), np.zeros((count, 0))
        return SceneAttention(own, none, none)


def path_in_steps(points: list[list[float]], steps: int) -> np.ndarray:
    """`(steps, 2)` points at equal distances along a path.

    Raises:
        ValueError: the path is no list of finite points, or has no length.
    """
    try:
        path = np.array(points, np.float64)
    except (TypeError, ValueError):
        path = np.zeros(0)
    if path.ndim != 2 or path.shape[1] != 2 or not 2 <= len(path) <= MOST_POINTS:
        raise ValueError("Draw a path with the pressed mouse button.")
    if not 0 < np.linalg.norm(np.diff(path, axis=0), axis=1).sum() < np.inf:
        raise ValueError("The path has no length: draw a longer one.")
    return resampled(path, steps)


def _rounded(values: np.ndarray) -> list[Any]:
    return np.round(values, DIGITS).tolist()


def open_service(models: Sequence[str], settings: Any, worker: Worker) -> Served:
    """What forecasters answer: the page of the first, and `POST /v1/forecast`."""
    given = {name: getattr(settings, name) for name in ("tracks", "frame_seconds", "columns")}
    pages = {public_name(name): TracksPage(name, **given) for name in models}

    def forecast(body: Any) -> dict[str, Any]:
        model = named_model(pages, body, "rows", "frames_per_step").model
        rows = checked_rows(body.get("rows"))
        if isinstance(body.get("frames_per_step"), str):  # of a form it would be one
            raise ValueError("frames_per_step is text: give a number.")
        live = Forecaster(model, frames_per_step=whole_number(body, "frames_per_step", 1, 10**6))
        frames = sorted({row[0] for row in rows})[-model.config.observed_steps :]
        of_frame = {frame: [row[1:] for row in rows if row[0] == frame] for frame in frames}
        for frame in frames[:-1]:
            live.store(frame, of_frame[frame])
        with fixed_draws():
            futures = live.observe(frames[-1], of_frame[frames[-1]])
        *earlier, newest = ({row[0] for row in of_frame[frame]} for frame in frames)
        if not futures.agents and newest & set().union(*earlier):
            raise ValueError(
                f"No agent of frame {frames[-1]} has two rows within the observed steps of "
                f"{live.frames_per_step} frames: give another frames_per_step."
            )
        return {
            "frame": frames[-1],
            "agents": list(futures.agents),
            "trajectories": _rounded(futures.trajectories),
            "probabilities": _rounded(futures.probabilities),
        }

    first = next(iter(pages.values()))
    views = {
        "start": lambda _: first.start(),
        "draw": first.draw,
        "frame": lambda request: first.frame(request["scene"], request["frame"]),
    }
    files = page_of_component(TITLE, Path(__file__).parent)
    return Served(files, views, {"/v1/forecast": worker.alone(forecast)})


def checked_rows(rows: Any) -> list[tuple[int, str, float, float]]:
    """Frame, agent, x and y of each row of a request.

    Raises:
        ValueError: they are none, or too many, a number is text, a frame is no whole number, or an
            agent has no name.
    """
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_ROWS:
        raise ValueError(f"rows is not a list of 1 to {MOST_ROWS:,} rows.")
    try:
        checked = [(int(frame), str(name), float(x), float(y)) for frame, name, x, y in rows]
        broken = next((row[0] for row in rows if float(row[0]) % 1), None)
    except (OverflowError, TypeError, ValueError):
        raise ValueError("A row is not a list of frame, agent, x and y.") from None
    if broken is not None:
        raise ValueError(f"frame {broken} is not a whole number: number the frames.")
    for frame, name, *point in rows:
        for number in (frame, *point):
            if isinstance(number, bool | str):
                raise ValueError(f"{number!r} is no number: give frame, x and y as numbers.")
        if isinstance(name, bool) or not isinstance(name, str | int | float):
            raise ValueError(f"agent {name} is no text and no number: give it a name.")
    return checked
