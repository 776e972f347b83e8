"""Generated tracks: walkers, forks where several futures are right with known odds, junctions."""

from dataclasses import replace

import numpy as np

from .built_in_junctions import JUNCTION_CARS, junctions
from .table import Rows, TrackTable, table_of_rows

STEP_SECONDS = 0.4
BUILT_IN = ("walkers", "forks", "junctions")
FORK_ODDS = (0.6, 0.3, 0.1)  # left, straight on, right
FORK_ANGLES = (0.9, 0.0, -0.9)  # radians
FORK_STEPS = 20
WALK_STEPS = 30
PEOPLE = 6  # of a scene of walkers, in pairs that meet


def built_in_tracks(name: str, *, agents: int, seed: int) -> TrackTable:
    """Generated scenes in metres with steps of 0.4 s; equal arguments give equal tracks.

    Walkers go straight, turn, stop, or meet another one and make way. An agent of `forks` walks 8
    steps straight on, then leaves to the left, straight on or to the right with the odds
    `FORK_ODDS`; nothing in the first 8 steps says where. Cars of `junctions` are in
    `built_in_junctions.py`; only they have maps.

    Args:
        name: one of `BUILT_IN`.
        agents: how many.
        seed: of the generator.

    Raises:
        ValueError: there is no such name.
    """
    if name not in BUILT_IN:
        raise ValueError(f"built-in tracks {name!r}: choose one of {', '.join(BUILT_IN)}")
    draw, maps = np.random.default_rng((BUILT_IN.index(name), seed)), None
    columns: dict[str, np.ndarray] = {}
    if name == "junctions":
        drawn = junctions(scenes=-(-agents // JUNCTION_CARS), seed=seed)
        tracks, maps = drawn.tracks.reshape(-1, *drawn.tracks.shape[2:])[:agents], drawn.maps
        count = tracks.shape[1]
        columns["kind"] = np.repeat(drawn.kinds.reshape(-1)[:agents], count)
        columns["size"] = np.repeat(drawn.sizes.reshape(-1, 2)[:agents], count, axis=0)
    else:
        tracks = _walkers(draw, agents) if name == "walkers" else _forks(draw, agents)[0]
    steps = tracks.shape[1]
    people = {"walkers": PEOPLE, "forks": 1, "junctions": JUNCTION_CARS}[name]
    scene = np.arange(agents) // people
    rows = Rows(
        source=f"built-in {name}",
        frame=np.tile(np.arange(steps), agents),
        agent=np.repeat(np.arange(agents), steps),
        positions=tracks.reshape(-1, 2),
        scene=np.repeat(scene, steps),
        step_seconds=STEP_SECONDS,
        columns=columns,
    )
    return replace(table_of_rows(rows, name=name), maps=maps)


def fork_branches(*, agents: int, seed: int) -> np.ndarray:
    """`(agents,)` branch of each agent of `built_in_tracks("forks", ...)`: 0, 1 or 2."""
    return _forks(np.random.default_rng((BUILT_IN.index("forks"), seed)), agents)[1]


def _forks(draw: np.random.Generator, agents: int) -> tuple[np.ndarray, np.ndarray]:
    branch = draw.choice(len(FORK_ODDS), size=agents, p=FORK_ODDS)
    speed = draw.uniform(0.4, 0.6, (agents, 1))
    start, angle = draw.uniform(-5, 5, (agents, 1, 2)), draw.uniform(-np.pi, np.pi, (agents, 1))
    turn = np.array(FORK_ANGLES)[branch][:, None]
    is_after = np.arange(FORK_STEPS) >= 8
    displacements = _displacements(speed, angle + turn * is_after)
    noise = draw.normal(0, 0.01, (agents, FORK_STEPS, 2))
    return start + displacements.cumsum(1) + noise, branch


def _walkers(draw: np.random.Generator, agents: int) -> np.ndarray:
    """Straight, turning and stopping agents, and pairs that meet."""
    number, steps = np.arange(agents), np.arange(WALK_STEPS)
    kind = np.array((0, 1, 2, 0, 3, 3))[number % PEOPLE]
    speed = np.broadcast_to(draw.uniform(0.3, 0.6, (agents, 1)), (agents, WALK_STEPS)).copy()
    angle = np.broadcast_to(draw.uniform(-np.pi, np.pi, (agents, 1)), speed.shape).copy()
    rate = draw.uniform(0.02, 0.09, (agents, 1)) * draw.choice((-1, 1), (agents, 1))
    angle += np.where(kind[:, None] == 1, rate * steps, 0)
    stop = draw.integers(8, 22, (agents, 1))
    slower = np.clip((stop + 4 - steps) / 4, 0, 1)
    speed *= np.where(kind[:, None] == 2, slower, 1)
    start = draw.uniform(-6, 6, (agents, 1, 2))
    tracks = start + _displacements(speed, angle).cumsum(1)
    for second in np.flatnonzero((kind == 3) & (number % PEOPLE == PEOPLE - 1)):
        tracks[second - 1], tracks[second] = _meeting(draw, start[second, 0])
    return tracks + draw.normal(0, 0.01, tracks.shape)


def _meeting(draw: np.random.Generator, middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two agents on one line who make way to their right while they pass each other."""
    angle, speed = draw.uniform(-np.pi, np.pi), draw.uniform(0.35, 0.5)
    ahead = np.array([np.cos(angle), np.sin(angle)])
    right = np.array([ahead[1], -ahead[0]])
    along = (np.arange(WALK_STEPS) - WALK_STEPS / 2) * speed
    aside = 0.4 * np.exp(-((along / 2.0) ** 2))
    first = middle + along[:, None] * ahead + aside[:, None] * right
    return first, middle - along[:, None] * ahead - aside[:, None] * right


def _displacements(speed: np.ndarray, angle: np.ndarray) -> np.ndarray:
    return np.stack((speed * np.cos(angle), speed * np.sin(angle)), axis=-1)
