"""Figures of forecasts: past, truth, and futures by their probability."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_vanilla.families import entry_of
from hf_vanilla.files import whole_file
from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.options import option
from hf_vanilla.plots.figures import (
    SUFFIXES,
    check_output,
    figure_style,
    new_figure,
    save_figure,
    theme_of,
)

from .attention import attention_in_scene, has_scene_attention
from .forecaster import SIMPLE_MODELS, check_rate, load_forecaster, predict
from .formats import on_plane, read_homography
from .layout import Surroundings, fixed_draws
from .options import TrackFileOptions
from .road_maps import LANE_KINDS, RoadMap
from .table import TrackTable
from .windows import pasts_of_rows

SIZE = (6.4, 6.0)  # inches
GIF = ".gif"
GIF_FRAMES: dict[str, Any] = {"save_all": True, "duration": 400, "loop": 0}  # milliseconds
ATTENTION_WIDTH = 16  # points, of a line with attention weight 1
LANE_STYLES = {"lane": "-", "crossing": ":", "boundary": "--"}


@dataclass(frozen=True, kw_only=True)
class PlotTracksOptions(TrackFileOptions):  # the files' options, flat on the command line
    """Past, truth and predicted futures of the agents of one frame, on a plane or a picture."""

    model: str = option(text=f"model folder, Hub id, or one of {', '.join(SIMPLE_MODELS)}")
    input: str = option(text="file of tracks, walkers, forks or junctions (built in)")
    output: str = option("tracks.png", "figure file, .png or .svg; .gif: the scene walks")
    scene: str | None = option(None, "name of the scene; default: the first")
    frame: int | None = option(
        None, "last observed frame; default: the one with most agents that have a future"
    )
    frames: int = option(
        20, "pictures of a .gif, one per step from the chosen frame on", at_least=1
    )
    picture: str | None = option(
        None, "picture of the place, with the homography from its pixels to the plane"
    )
    picture_homography: str | None = option(
        None, "file of it, where the tracks are on the plane already; default: --homography"
    )
    attention_of: str | None = option(
        None,
        "agent whose attention is drawn, of a model of scenes: lines to other agents, and lanes, "
        "are as wide as their weight",
    )
    theme: str = option("light", "light or dark")
    overwrite: bool = option(default=False, text="replace an existing figure")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention_of is not None and self.output.lower().endswith(GIF):
            raise ValueError(f"attention_of={self.attention_of!r} is for one frame: no .gif")
        if self.picture_homography is not None and self.picture is None:
            raise ValueError(
                f"picture_homography={self.picture_homography!r} needs a picture: give --picture"
            )


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a figure shows of one agent.

    Attributes:
        name: of the agent.
        past: `(T, 2)` observed positions, NaN where missing.
        future: `(F, 2)` true positions after it, as far as there are any.
        tracks: `(M, P, 2)` futures, the most probable first.
        probabilities: `(M,)`.
        row: of the table, where it is in one.
    """

    name: Any
    past: np.ndarray
    future: np.ndarray
    tracks: np.ndarray
    probabilities: np.ndarray
    row: int = -1


def plot_tracks(options: PlotTracksOptions) -> Path:
    """Draw the agents of one frame and save the figure; returns the file.

    Raises:
        ValueError: the frame or the scene has no agent, or the tracks do not match the model.
        OSError: a file is missing, or the figure exists and `overwrite` is off.
    """
    path = check_output(
        options.output, overwrite=options.overwrite, theme=options.theme, suffixes=(*SUFFIXES, GIF)
    )
    table = options.read(options.input, seed=2)
    rate = {"step_seconds": table.step_seconds, "unit": table.unit}
    model = load_forecaster(options.model, device="cpu", **rate)
    check_rate(table, model.config, options.input)
    _check_attention(model, options)
    name = table.scene_names[0] if options.scene is None else options.scene
    if name not in table.scene_names:
        raise ValueError(f"scene={name!r}: there are {', '.join(table.scene_names[:10])}")
    number = table.scene_names.index(name)
    table = table.rows(table.scene == number)
    frame = _fullest_frame(table, model.config) if options.frame is None else options.frame
    road = None if table.maps is None else table.maps[number]
    if path.suffix.lower() == GIF:
        per_step = int(table.frames_per_step[number])
        frames = range(frame, frame + per_step * options.frames, per_step)
        walk = [(f, drawn_agents(model, table, f)) for f in frames]
        save_walk(walk, path, options, name, road=road)
    else:
        agents = drawn_agents(model, table, frame)
        if not agents:
            raise ValueError(f"frame={frame}: no agent has two observed steps there")
        lines = _attention_lines(model, agents, table, options.attention_of)
        with figure_style(options.theme) as colours:
            figure = new_figure(SIZE)
            panel = figure.subplots()
            _paint(panel, agents, options, f"{name}, frame {frame}", road)
            style, to_pixels = {"color": colours.lines[0], "alpha": 0.35}, _to_pixels(options)
            for points, weight in lines:  # each as wide as its weight
                across = on_plane(points, to_pixels).T
                panel.plot(*across, linewidth=ATTENTION_WIDTH * weight, **style)
            save_figure(figure, path)
    return path


def _check_attention(model: Any, options: PlotTracksOptions) -> None:
    if options.attention_of is None:
        return
    if not has_scene_attention(model):
        raise ValueError(
            f"attention_of={options.attention_of!r}: {type(model).__name__} does not say whom an "
            "agent attends to; models of scenes do, but for latent encoders and the forms vectors, "
            "neighbors and proposals_paper: leave it out"
        )
    if not entry_of(model.config).is_joint:
        model.set_attn_implementation("eager")  # the only one that returns weights


def _attention_lines(
    model: Any, agents: list[Drawn], table: TrackTable, name: str | None
) -> list[tuple[np.ndarray, float]]:
    """Lines `(L, 2)` from an agent to others, and lanes, each with its attention weight."""
    if name is None:
        return []
    names = [str(agent.name) for agent in agents]
    if name not in names:
        raise ValueError(f"attention_of={name!r}: the frame has {', '.join(names[:10])}")
    row = names.index(name)
    past = np.stack([agent.past for agent in agents])
    beside = Surroundings.of_rows(model.config, table, np.array([agent.row for agent in agents]))
    found = attention_in_scene(model, past, np.isfinite(past).all(-1), beside)
    lines = [
        (np.stack((past[row, -1], past[other, -1])), float(found.others[row, other]))
        for other in range(len(agents))
        if other != row
    ]
    road = beside.maps[0]
    lanes = [] if road is None else road.lines
    return lines + list(zip(lanes, found.lanes[row].tolist(), strict=True))


def drawn_agents(model: Any, table: TrackTable, frame: int) -> list[Drawn]:
    """Futures of the agents of a frame that have two observed steps, with what really came."""
    config = model.config
    rows = np.flatnonzero(table.frame == frame)
    past, mask = pasts_of_rows(table, rows, config.observed_steps)
    is_enough = mask.sum(1) >= 2
    rows, past, mask = rows[is_enough], past[is_enough], mask[is_enough]
    if not len(rows):
        return []
    with fixed_draws():
        beside = Surroundings.of_rows(config, table, rows)
        tracks, probabilities = predict(model, past, mask, beside)
    found = []
    for number, row in enumerate(rows):
        per_step = table.frames_per_step[table.scene[row]]
        last = frame + config.predicted_steps * per_step
        near = table.rows(slice(row, row + config.predicted_steps + 1))
        future = near.positions[(near.agent == near.agent[0]) & (near.frame <= last)]
        seen = np.where(mask[number][:, None], past[number], np.nan)
        name = table.agent_names[table.agent[row]]
        found.append(Drawn(name, seen, future, tracks[number], probabilities[number], int(row)))
    return found


def save_walk(
    frames: list[tuple[int, list[Drawn]]],
    path: Path,
    options: PlotTracksOptions,
    name: str,
    *,
    road: RoadMap | None = None,
) -> None:
    """Save a GIF in which a scene walks, one step per picture.

    Args:
        frames: number of each frame, and its agents.
        path: .gif file.
        options: theme, picture and homography.
        name: of the scene.
        road: its lanes.

    Raises:
        ValueError: no frame has an agent.
    """
    from PIL import Image

    drawn = [agent for _, agents in frames for agent in agents]
    shown = [points for a in drawn for points in (a.past, a.future, *a.tracks)]
    if not shown:
        raise ValueError(f"no agent has two observed steps from frame {frames[0][0]} on")
    last = max(number for number, (_, agents) in enumerate(frames) if agents)
    points = on_plane(np.concatenate(shown), _to_pixels(options))
    low, high = np.nanmin(points, axis=0), np.nanmax(points, axis=0)
    middle, half = (low + high) / 2, 0.525 * (high - low).max()  # a square with a margin
    images = []
    with figure_style(options.theme):
        figure = new_figure(SIZE)
        for frame, agents in frames[: last + 1]:
            figure.clear()
            panel = figure.subplots()
            _paint(panel, agents, options, f"{name}, frame {frame}", road)
            if options.picture is None:
                (left, bottom), (right, top) = middle - half, middle + half
                panel.set(adjustable="box", xlim=(left, right), ylim=(bottom, top))
            figure.canvas.draw()
            images.append(Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB"))
    with whole_file(path) as unfinished:
        images[0].save(unfinished, format="GIF", append_images=images[1:], **GIF_FRAMES)


def _to_pixels(options: PlotTracksOptions) -> np.ndarray:
    """The homography `(3, 3)` from the plane to the picture; the identity where there is none."""
    name = options.picture_homography or options.homography
    if options.picture is None or name is None:
        return np.eye(3)
    return np.linalg.inv(read_homography(name))


def _paint(
    panel: Any,
    agents: list[Drawn],
    options: PlotTracksOptions,
    title: str,
    road: RoadMap | None = None,
) -> None:
    """Draw agents: a future is the more opaque, the more probable it is; lanes are below it."""
    colors, to_pixels = theme_of(options.theme), _to_pixels(options)
    if options.picture is not None:
        panel.imshow(_picture(options.picture))

    def line(points: np.ndarray, **style: Any) -> None:
        panel.plot(*on_plane(points, to_pixels).T, **style)

    for points, kind in [] if road is None else zip(road.lines, road.kinds, strict=True):
        style = LANE_STYLES[LANE_KINDS[kind]]
        line(points, color=colors.text, alpha=0.35, linewidth=1, linestyle=style, zorder=0)
    for agent in agents:
        start = agent.past[-1:]
        strongest = agent.probabilities.max()
        for mode in range(len(agent.tracks))[::-1]:
            shade = 0.08 + 0.82 * agent.probabilities[mode] / strongest
            points = np.concatenate((start, agent.tracks[mode]))
            label = "predicted" if mode == 0 else None
            line(points, color=colors.lines[1], alpha=shade, linewidth=1, label=label)
        truth = "truth" if len(agent.future) > 1 else None  # it starts at the last observed step
        line(agent.future, color=colors.lines[2], linewidth=1.6, label=truth, linestyle="--")
        line(agent.past, color=colors.lines[0], linewidth=2, marker=".", label="observed")
    if options.picture is None:
        panel.set_aspect("equal", adjustable="datalim")
        panel.set_xlabel(f"x ({options.unit})")
        panel.set_ylabel(f"y ({options.unit})")
    panel.set_title(title)
    if agents:
        handles, names = panel.get_legend_handles_labels()
        of_name = dict(zip(names, handles, strict=True))  # each name once
        panel.legend(of_name.values(), of_name.keys())


def _picture(path: str) -> np.ndarray:
    from matplotlib.image import imread

    try:
        return imread(path)
    except (SyntaxError, ValueError):
        raise ValueError(f"picture={path!r} is not a picture") from None


def _fullest_frame(table: TrackTable, config: VanillaTracksConfig) -> int:
    """The frame of a scene with most agents, among those with enough frames before and after."""
    frames, counts = np.unique(table.frame, return_counts=True)
    inner = slice(min(config.observed_steps, len(frames)) - 1, None)
    frames, counts = frames[inner], counts[inner]
    future = config.predicted_steps * table.frames_per_step[table.scene[0]]
    has_future = frames <= frames[-1] - future
    if has_future.any():
        frames, counts = frames[has_future], counts[has_future]
    return int(frames[counts.argmax()])
