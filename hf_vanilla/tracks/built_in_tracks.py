"""Generated tracks: walkers, forks where several futures are right with known odds, junctions.

Cars of junctions drive on the right. Arms are numbered 0 to 3 against the clock; from arm i, the
arm to the right is i + 1, straight on is i + 2, to the left i + 3. Shapes: S scenes, L steps.
"""

from dataclasses import dataclass, replace

import numpy as np

from .road_maps import LANE_KINDS, LIGHT_STATES, RoadMap
from .table import Rows, TrackTable, table_of_rows

STEP_SECONDS = 0.4
BUILT_IN = ("walkers", "forks", "junctions")
FORK_ODDS = (0.6, 0.3, 0.1)  # left, straight on, right
FORK_ANGLES = (0.9, 0.0, -0.9)  # radians
FORK_STEPS = 20
WALK_STEPS = 30
PEOPLE = 6  # of a scene of walkers, in pairs that meet

JUNCTION_CARS = 3  # of a scene: one that arrives, one that it has to mind, one that leaves
JUNCTION_STEPS = 20
OBSERVED = 8  # steps that say nothing about the branch
TURNS = (1, 2, 3)  # right, straight on, left
TURN_ODDS = (0.2, 0.5, 0.3)  # of those that the junction has
UNHINDERED, LEADER, YIELD = 0, 1, 2  # nobody to mind; a car ahead; a car from the right

EDGE = 8.0  # metres from the middle to where the arms begin
OFFSET = 2.0  # of a lane from the middle of its arm
HEADWAY = 14.0  # to the car ahead
DELAY = 3  # steps after which a driver brakes as the car ahead
BRAKING = 3.5  # metres per second squared
NOISE = 0.03
LANE_DISTANCES = (48.0, 28.0, EDGE)  # metres from the middle, of the points of a lane
CAR_KINDS = ("vehicle", "bus", "unknown")
KIND_ODDS = np.array((0.8, 0.1, 0.1))  # independent of how a car drives
KIND_SIZES = np.array(((4.5, 1.8), (12.0, 2.5), (0.0, 0.0)))  # metres
CURVE = np.linspace(0, 1, 17)


def built_in_tracks(name: str, *, agents: int, seed: int) -> TrackTable:
    """Generated scenes in metres with steps of 0.4 s; equal arguments give equal tracks.

    Walkers go straight, turn, stop, or meet another one and make way. An agent of `forks` walks 8
    steps straight on, then leaves to the left, straight on or to the right with the odds
    `FORK_ODDS`; nothing in the first 8 steps says where. Only cars of
    `junctions` have maps.

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
        tracks, maps = np.concatenate(drawn.tracks)[:agents], drawn.maps
        for key, of_scenes in (("kind", drawn.kinds), ("size", drawn.sizes)):
            columns[key] = np.repeat(np.concatenate(of_scenes)[:agents], JUNCTION_STEPS, axis=0)
    else:
        tracks = _walkers(draw, agents) if name == "walkers" else _forks(draw, agents)
    steps = tracks.shape[1]
    people = {"walkers": PEOPLE, "forks": 1, "junctions": JUNCTION_CARS}[name]
    rows = Rows(
        source=f"built-in {name}",
        frame=np.tile(np.arange(steps), agents),
        agent=np.repeat(np.arange(agents), steps),
        positions=tracks.reshape(-1, 2),
        scene=np.repeat(np.arange(agents) // people, steps),
        step_seconds=STEP_SECONDS,
        columns=columns,
    )
    return replace(table_of_rows(rows, name=name), maps=maps)


def _forks(draw: np.random.Generator, agents: int) -> np.ndarray:
    branch = draw.choice(len(FORK_ODDS), size=agents, p=FORK_ODDS)
    speed = draw.uniform(0.4, 0.6, (agents, 1))
    start, angle = draw.uniform(-5, 5, (agents, 1, 2)), draw.uniform(-np.pi, np.pi, (agents, 1))
    turn = np.array(FORK_ANGLES)[branch][:, None]
    is_after = np.arange(FORK_STEPS) >= 8
    displacements = _displacements(speed, angle + turn * is_after)
    noise = draw.normal(0, 0.01, (agents, FORK_STEPS, 2))
    return start + displacements.cumsum(1) + noise


def _walkers(draw: np.random.Generator, agents: int) -> np.ndarray:
    """Straight, turning and stopping agents, and pairs that meet."""
    number, steps = np.arange(agents), np.arange(WALK_STEPS)
    kind = np.array((0, 1, 2, 0, 3, 3))[number % PEOPLE]
    speed, angle = draw.uniform(0.3, 0.6, (agents, 1)), draw.uniform(-np.pi, np.pi, (agents, 1))
    rate = draw.uniform(0.02, 0.09, (agents, 1)) * draw.choice((-1, 1), (agents, 1))
    angle = angle + np.where(kind[:, None] == 1, rate * steps, 0)
    stop = draw.integers(8, 22, (agents, 1))
    slower = np.clip((stop + 4 - steps) / 4, 0, 1)
    speed = speed * np.where(kind[:, None] == 2, slower, 1)
    start = draw.uniform(-6, 6, (agents, 1, 2))
    tracks = start + _displacements(speed, angle).cumsum(1)
    for second in np.flatnonzero((kind == 3) & (number % PEOPLE == PEOPLE - 1)):
        tracks[second - 1], tracks[second] = _meeting(draw, start[second, 0])
    return tracks + draw.normal(0, 0.01, tracks.shape)


def _meeting(draw: np.random.Generator, middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two agents on one line who make way to their right while they pass each other."""
    angle, speed = draw.uniform(-np.pi, np.pi), draw.uniform(0.35, 0.5)
    ahead = np.array([np.cos(angle), np.sin(angle)])
    right = _right_of(ahead)
    along = (np.arange(WALK_STEPS) - WALK_STEPS / 2) * speed
    aside = 0.4 * np.exp(-((along / 2.0) ** 2))
    first = middle + along[:, None] * ahead + aside[:, None] * right
    return first, middle - along[:, None] * ahead - aside[:, None] * right


def _displacements(speed: np.ndarray, angle: np.ndarray) -> np.ndarray:
    return np.stack((speed * np.cos(angle), speed * np.sin(angle)), axis=-1)


# --- junctions ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Junctions:
    """Generated scenes.

    Attributes:
        tracks: `(S, JUNCTION_CARS, L, 2)` metres; the arriving car first.
        maps: of each scene.
        kinds: `(S, JUNCTION_CARS)` name of each car's kind.
        sizes: `(S, JUNCTION_CARS, 2)` length and width, 0 where unknown.
        situation: `(S,)` `UNHINDERED`, `LEADER` or `YIELD`.
        brakes: `(S,)` bool, whether the arriving car has to stop.
        branch: `(S,)` index into `TURNS` of the arriving car.
        branches: `(S, 3, L, 2)` its tracks if it were free, for each turn.
        odds: `(S, 3)` of the turns, 0 for a turn that the junction does not have.
    """

    tracks: np.ndarray
    maps: tuple[RoadMap, ...]
    kinds: np.ndarray
    sizes: np.ndarray
    situation: np.ndarray
    brakes: np.ndarray
    branch: np.ndarray
    branches: np.ndarray
    odds: np.ndarray


@dataclass(frozen=True, eq=False)
class Layout:
    """Position and arms of the junctions.

    Attributes:
        middle: `(S, 1, 2)`.
        angle: `(S,)` of arm 0.
        closed: `(S,)` arm that does not exist; -1: all do.
    """

    middle: np.ndarray
    angle: np.ndarray
    closed: np.ndarray

    def arm(self, number: np.ndarray) -> np.ndarray:
        """Directions `(S, 2)` of arms `(S,)`, away from the middle."""
        angle = self.angle + np.pi / 2 * number
        return np.stack((np.cos(angle), np.sin(angle)), axis=-1)


def junctions(*, scenes: int, seed: int) -> Junctions:
    """Scenes of cars; equal arguments give equal ones.

    In each scene one car arrives. A third of the junctions has three arms. Nothing in its first
    `OBSERVED` steps says where the arriving car turns, and nothing in its own steps says whether it
    has to stop: behind a car that brakes, `DELAY` steps later; or for a car that comes from the
    right.

    Args:
        scenes: how many.
        seed: of the generator.
    """
    draw = np.random.default_rng((2, seed))
    arm = draw.integers(0, 4, scenes)
    # never the arm of the arriving car
    closed = np.where(draw.random(scenes) < 1 / 3, (arm + draw.integers(1, 4, scenes)) % 4, -1)
    middle = draw.uniform(-20, 20, (scenes, 1, 2))
    layout = Layout(middle, draw.uniform(-np.pi, np.pi, scenes), closed)
    branch, odds = _turns(draw, arm, closed)
    situation = draw.integers(0, 3, scenes)
    situation[(situation == YIELD) & (closed == (arm + 1) % 4)] = UNHINDERED
    speed, gap = draw.uniform(6, 8, scenes), draw.uniform(8, 16, scenes)
    is_behind = situation == LEADER
    brakes = (situation == YIELD) | (is_behind & (draw.random(scenes) < 0.5))
    onset = draw.integers(OBSERVED - 3, OBSERVED - 1, scenes)  # of the leader

    free = [_track(layout, arm, turn, -gap, _turning(speed, turn)) for turn in TURNS]
    branches = np.stack(free, axis=1)
    cases = [(situation == case)[:, None] for case in (LEADER, YIELD)]

    turn = np.array(TURNS)[branch]
    stopped = _braking(speed, onset + DELAY, np.full_like(speed, BRAKING))
    in_line = np.where(brakes[:, None], stopped, speed[:, None])  # straight up to the junction
    waiting = _braking(speed, np.full(len(speed), OBSERVED), speed**2 / (2 * (gap - 1)))
    speeds = np.select(cases, [in_line, waiting], _turning(speed, turn))
    first = _track(layout, arm, turn, -(gap + HEADWAY * is_behind), speeds)

    stopped = _braking(speed, onset, np.full_like(speed, BRAKING))
    of_leader = np.where((brakes & is_behind)[:, None], stopped, speed[:, None])
    others = _others(draw, layout, arm, speed, gap, of_leader)
    second = np.select([case[:, None] for case in cases], others[:2], others[2])
    leaving = (arm + draw.integers(1, 4, scenes)) % 4
    third = _leaving(draw, layout, np.where(leaving == closed, arm, leaving))
    tracks = np.stack((first, second, third), axis=1)
    tracks = tracks + draw.normal(0, NOISE, tracks.shape)
    maps = _maps(layout, arm, situation == YIELD, seed)
    kinds, sizes = _kinds_and_sizes(scenes, seed)
    return Junctions(tracks, maps, kinds, sizes, situation, brakes, branch, branches, odds)


def _others(
    draw: np.random.Generator,
    layout: Layout,
    arm: np.ndarray,
    speed: np.ndarray,
    gap: np.ndarray,
    of_leader: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The car ahead, the car from the right, and one that waits far away on another arm."""
    straight = np.where((arm + 2) % 4 == layout.closed, 1, 2)
    leader = _track(layout, arm, straight, -gap, of_leader)
    right = (arm + 1) % 4
    turn = np.array(TURNS)[_turns(draw, right, layout.closed)[0]]
    from_right = _track(layout, right, turn, -0.8 * gap, _turning(speed, turn))
    side = (arm + 2) % 4
    side = np.where(side == layout.closed, (arm + 3) % 4, side)
    return leader, from_right, _in_lane(layout, side, draw.uniform(10, 30, (len(arm), 1)))


def _leaving(draw: np.random.Generator, layout: Layout, arm: np.ndarray) -> np.ndarray:
    """Tracks `(S, L, 2)` of cars that leave by an arm at constant speed."""
    out, shape = layout.arm(arm), (len(arm), 1)
    start, pace = draw.uniform(5, 25, shape), draw.uniform(5, 9, shape)
    along = start + pace * STEP_SECONDS * np.arange(JUNCTION_STEPS)
    lane = EDGE * out + OFFSET * _right_of(out)
    return layout.middle + lane[:, None] + along[..., None] * out[:, None]


def _kinds_and_sizes(scenes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Kinds and sizes; a generator of their own leaves the tracks as they are without them."""
    draw = np.random.default_rng((3, seed))
    kind = (draw.random((scenes, JUNCTION_CARS, 1)) > KIND_ODDS.cumsum()).sum(axis=-1).clip(max=2)
    sizes = KIND_SIZES[kind] * draw.uniform(0.9, 1.1, (scenes, JUNCTION_CARS, 1))
    return np.array(CAR_KINDS, object)[kind], sizes


def _turns(
    draw: np.random.Generator, arm: np.ndarray, closed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A turn `(S,)` for a car from each arm, by the odds `(S, 3)` of the turns that there are."""
    goals = (arm[:, None] + np.array(TURNS)) % 4
    odds = np.where(goals == closed[:, None], 0, TURN_ODDS)
    odds = odds / odds.sum(axis=1, keepdims=True)
    return (draw.random((len(arm), 1)) > odds.cumsum(axis=1)).sum(axis=1).clip(max=2), odds


def _turning(speed: np.ndarray, turn: "np.ndarray | int") -> np.ndarray:
    """Speeds `(S, L)` of a free car: where it turns, it is slower, after the observed steps."""
    slower = 1 - 0.25 * np.clip((np.arange(JUNCTION_STEPS) - OBSERVED + 1) / 3, 0, 1)
    is_turn = np.broadcast_to(np.asarray(turn) != 2, speed.shape)
    return speed[:, None] * np.where(is_turn[:, None], slower, 1)


def _braking(speed: np.ndarray, onset: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Speeds `(S, L)` of a car that brakes from step `onset` until it stands."""
    seconds = STEP_SECONDS * (np.arange(JUNCTION_STEPS) - onset[:, None] + 1).clip(min=0)
    return (speed[:, None] - strength[:, None] * seconds).clip(min=0)


def _track(
    layout: Layout, arm: np.ndarray, turn: "np.ndarray | int", start: np.ndarray, speeds: np.ndarray
) -> np.ndarray:
    """Positions `(S, L, 2)` of cars on their way through the junction.

    Args:
        layout: of the junctions.
        arm: `(S,)` they come from.
        turn: 1, 2 or 3 arms further on.
        start: `(S,)` metres from the edge at the last observed step, negative before it.
        speeds: `(S, L)`.
    """
    way = (speeds * STEP_SECONDS).cumsum(axis=1)
    along = start[:, None] + way - way[:, OBSERVED - 1 : OBSERVED]  # (S, L)
    goal = (arm + turn) % 4
    coming, going = layout.arm(arm), layout.arm(goal)
    lane_in, lane_out = OFFSET * _right_of(-coming), OFFSET * _right_of(going)
    corner = np.where((goal == (arm + 2) % 4)[:, None], lane_in, lane_in + lane_out)
    ends = (EDGE * coming + lane_in, corner, EDGE * going + lane_out)
    length = np.linalg.norm(np.diff(_curve(*ends, CURVE[None]), axis=1), axis=-1).sum(axis=1)
    share = (along / length[:, None]).clip(0, 1)
    inside = _curve(*ends, share)
    before, after = along.clip(max=0), (along - length[:, None]).clip(min=0)
    straight = -before[..., None] * coming[:, None] + after[..., None] * going[:, None]
    return layout.middle + inside + straight


def _curve(
    first: np.ndarray, corner: np.ndarray, last: np.ndarray, share: np.ndarray
) -> np.ndarray:
    """Quadratic curves `(S, L, 2)` of three points `(S, 2)` at shares `(S, L)`."""
    share = share[..., None]
    parts = ((1 - share) ** 2, 2 * share * (1 - share), share**2)
    points = (first, corner, last)
    return sum(part * point[:, None] for part, point in zip(parts, points, strict=True))


def _right_of(direction: np.ndarray) -> np.ndarray:
    return np.stack((direction[..., 1], -direction[..., 0]), axis=-1)


def _in_lane(layout: Layout, arm: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Points `(S, L, 2)` on the incoming lane, `(S, L)` metres from the edge."""
    out = layout.arm(arm)
    along = (EDGE + distance[..., None]) * out[:, None]
    return layout.middle + along + OFFSET * _right_of(-out)[:, None]


def _maps(
    layout: Layout, arm: np.ndarray, has_to_stop: np.ndarray, seed: int
) -> tuple[RoadMap, ...]:
    """Two lanes per arm, and a boundary at a closed side.

    Every second junction has lights where its lanes come in; they change once. Then they are red
    for the arriving car where it has to stop for one from the right, else green, and the opposite
    on the crossing arms.

    Args:
        layout: of the junctions.
        arm: `(S,)` the arriving car comes from.
        has_to_stop: `(S,)` bool.
        seed: of the lights.
    """
    distances = np.array(LANE_DISTANCES) - EDGE
    count, shape = len(arm), (len(arm), len(distances))
    lines: list[np.ndarray] = []
    for number in range(4):
        this_arm = np.full(count, number)
        out = layout.arm(this_arm)
        coming = _in_lane(layout, this_arm, np.broadcast_to(distances, shape))
        going = coming[:, ::-1] + 2 * OFFSET * _right_of(out)[:, None]
        side = np.array((-EDGE, 0, EDGE))[None, :, None] * _right_of(out)[:, None]
        lines += [coming, going, layout.middle + EDGE * out[:, None] + side]
    points = np.stack(lines, axis=1)  # (S, 12, 3, 2), three lines for each arm
    kinds = np.array([LANE_KINDS.index(kind) for kind in ("lane", "lane", "boundary")] * 4)
    is_open = layout.closed[:, None] != np.arange(4)
    is_there = np.stack((is_open, is_open, ~is_open), axis=-1).reshape(count, -1)
    lights = points[:, ::3, -1]  # where the lanes come in, (S, 4, 2)

    draw = np.random.default_rng((4, seed))  # a generator of its own, as of kinds and sizes
    has_lights = draw.random(count) < 0.5
    is_after = np.arange(JUNCTION_STEPS) >= draw.integers(0, 5, (count, 1))
    red, yellow, green = (LIGHT_STATES.index(name) for name in ("red", "yellow", "green"))
    to_red, to_green = np.where(is_after, red, yellow), np.where(is_after, green, red)
    roads = []
    for scene, there in enumerate(is_there):
        road = RoadMap(points[scene][there], np.ones((there.sum(), shape[1]), bool), kinds[there])
        if has_lights[scene]:
            arms = np.flatnonzero(is_open[scene])
            stops = ((arms - arm[scene]) % 2 == 1) != has_to_stop[scene]
            states = np.where(stops[:, None], to_red[scene], to_green[scene])
            road = replace(road, light_points=lights[scene, arms], light_states=states)
        roads.append(road)
    return tuple(roads)
