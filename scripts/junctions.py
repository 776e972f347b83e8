"""Train all classes of agents and lanes on built-in junctions and print one table; resumes.

scripts/junctions.py [--sweep FILE] [--train False] [--processes N]
"""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hf_vanilla.commands import run
from hf_vanilla.files import write_text
from hf_vanilla.options import Options, option
from hf_vanilla.tracks.built_in_tracks import OBSERVED, UNHINDERED, Junctions, junctions
from hf_vanilla.tracks.evaluation import EvaluateTracksOptions, evaluate_tracks
from hf_vanilla.tracks.forecaster import load_forecaster, predict
from hf_vanilla.tracks.layout import Surroundings
from hf_vanilla.tracks.road_maps import RoadMap
from hf_vanilla.training.sweep import SweepOptions, read_sweep, run_sweep

SWEEP = Path(__file__).parent / "sweeps" / "junctions.yaml"
SCORES = "junction_scores.json"
TEST_SEED = 2  # that of `evaluate`
SCENES = 1000
CHANGES = ("as it is", "no lanes", "other lanes", "no cars", "other cars")
COLUMNS = {
    "parameters": "parameters",
    "cpu": "CPU s per 1,000 cars",
    "minutes": "training minutes",
    "minADE1": "minADE1",
    "minFDE1": "minFDE1",
    "minADE6": "minADE6",
    "minFDE6": "minFDE6",
    "miss_rate": "miss",
    "minJADE6": "minJADE6",
    "minJFDE6": "minJFDE6",
    "joint_collision_share": "collisions",
}


@dataclass(frozen=True, kw_only=True)
class TableOptions(Options):
    """Train what is not trained yet, score it on new junctions, print the table."""

    sweep: str = option(str(SWEEP), "file of the runs")
    train: bool = option(default=True, text="train the runs that are not finished; else leave out")
    processes: int | None = option(None, "trainings at a time; default: one per core", at_least=1)


def table(options: TableOptions) -> str:
    """The tables as Markdown; runs and scores that exist are not made again."""
    path = Path(options.sweep)
    if options.train:
        run_sweep((path, SweepOptions(processes=options.processes)))
    rows = {"constant velocity": _scores("constant_velocity", None)}
    for entry in read_sweep(path).runs:
        record = entry.record()
        if record is not None:
            rows[entry.name] = _scored(entry.folder, record["seconds"] / 60)
    lines = _markdown("model", list(COLUMNS.values()))
    lines += [_line(name, [_shown(row.get(key)) for key in COLUMNS]) for name, row in rows.items()]
    lines += [
        "",
        *_markdown("model", ["right, straight, left (odds)", "brakes, if it has to", "if not"]),
    ]
    for name, row in rows.items():
        odds = ", ".join(
            f"{a:.3f} ({b:.3f})" for a, b in zip(row["found"], row["odds"], strict=True)
        )
        lines.append(_line(name, [odds, f"{row['anticipated']:.3f}", f"{row['feared']:.3f}"]))
    lines += ["", *_markdown("minFDE6 and nats of braking", list(CHANGES))]
    for name, row in rows.items():
        cells = [f"{row['changes'][c][0]:.2f}, {row['changes'][c][1]:.2f}" for c in CHANGES]
        lines.append(_line(name, cells))
    return "\n".join(lines)


def _markdown(first: str, names: list[str]) -> list[str]:
    return [_line(first, names), "|---" * (len(names) + 1) + "|"]


def _line(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _scored(folder: Path, minutes: float) -> dict[str, Any]:
    path = folder / SCORES
    if not path.is_file():
        write_text(path, json.dumps(_scores(str(folder), minutes)))
    return json.loads(path.read_text(encoding="utf-8"))


def _scores(name: str, minutes: float | None) -> dict[str, Any]:
    scored = evaluate_tracks(EvaluateTracksOptions(model=name, dataset="junctions", device="cpu"))
    model = load_forecaster(name, device="cpu")
    drawn = junctions(scenes=SCENES, seed=TEST_SEED)
    started = time.process_time()
    tracks, probabilities = _forecasts(model, drawn, "as it is")
    seconds = time.process_time() - started
    parameters = sum(weight.numel() for weight in model.parameters())
    is_free = drawn.situation == UNHINDERED
    odds = drawn.odds[is_free].mean(axis=0)
    found = _branch_odds(tracks[is_free], probabilities[is_free], drawn, is_free)
    stops = _stopping(tracks, probabilities, drawn)
    minds = drawn.situation != UNHINDERED
    return {
        **scored.values,
        "parameters": parameters,
        "cpu": 1000 * seconds / drawn.tracks[:, :, 0, 0].size,
        "minutes": minutes,
        "odds": odds.tolist(),
        "found": found.tolist(),
        "anticipated": float(stops[minds & drawn.brakes].mean()),
        "feared": float(stops[minds & ~drawn.brakes].mean()),
        "changes": {change: _changed(model, drawn, change) for change in CHANGES},
    }


def _changed(model: Any, drawn: Junctions, change: str) -> list[float]:
    """minFDE6 of the arriving car, and nats of whether it brakes, with changed inputs."""
    tracks, probabilities = _forecasts(model, drawn, change)
    ends = drawn.tracks[:, 0, -1]
    final = np.linalg.norm(tracks[:, :6, -1] - ends[:, None], axis=-1).min(axis=1)
    minds = drawn.situation != UNHINDERED
    stops = _stopping(tracks, probabilities, drawn)[minds].clip(1e-3, 1 - 1e-3)
    nats = -np.log(np.where(drawn.brakes[minds], stops, 1 - stops))
    return [float(final.mean()), float(nats.mean())]


def _forecasts(model: Any, drawn: Junctions, change: str) -> tuple[np.ndarray, np.ndarray]:
    """Tracks `(S, M, P, 2)` and probabilities of the arriving cars."""
    past = drawn.tracks[:, :, :OBSERVED]
    scenes, cars = past.shape[:2]
    middles = past[:, 0, -1]
    maps: list[RoadMap | None] = list(drawn.maps)
    if change == "no lanes":
        maps = [None] * scenes
    elif change == "other lanes":
        before = [(drawn.maps[s - 1], middles[s] - middles[s - 1]) for s in range(scenes)]
        maps = [replace(road, points=road.points + offset) for road, offset in before]
    elif change == "other cars":
        others = np.roll(past, 1, axis=0) - np.roll(middles, 1, axis=0)[:, None, None]
        past = np.concatenate((past[:, :1], others[:, 1:] + middles[:, None, None]), axis=1)
    elif change == "no cars":
        past, cars = past[:, :1], 1
    found, chances = [], []
    for first in range(0, scenes, 100):
        rows = slice(first, first + 100)
        group = np.repeat(np.arange(scenes)[rows], cars)
        flat = past[rows].reshape(-1, *past.shape[2:])
        mask = np.ones(flat.shape[:2], bool)
        beside = Surroundings(group, [maps[scene] for scene in group])
        tracks, probabilities = predict(model, flat, mask, beside)
        found.append(tracks[::cars])
        chances.append(probabilities[::cars])
    return np.concatenate(found), np.concatenate(chances)


def _branch_odds(
    tracks: np.ndarray, probabilities: np.ndarray, drawn: Junctions, chosen: np.ndarray
) -> np.ndarray:
    """Mean probability of each turn: a future belongs to the turn whose track is nearest."""
    apart = tracks[:, :, None] - drawn.branches[chosen][:, None, :, OBSERVED:]
    apart = np.linalg.norm(apart, axis=-1).mean(axis=-1)  # (S, M, 3)
    owner = np.where(drawn.odds[chosen][:, None] > 0, apart, np.inf).argmin(axis=-1)
    return np.stack([(probabilities * (owner == t)).sum(1).mean() for t in range(3)])


def _stopping(tracks: np.ndarray, probabilities: np.ndarray, drawn: Junctions) -> np.ndarray:
    """`(S,)` probability that the arriving car nearly stands in its last predicted step."""
    last = np.linalg.norm(tracks[:, :, -1] - tracks[:, :, -2], axis=-1)
    before = drawn.tracks[:, 0, OBSERVED - 1] - drawn.tracks[:, 0, 0]
    speed = np.linalg.norm(before, axis=-1) / (OBSERVED - 1)
    return (probabilities * (last < speed[:, None] * 0.4)).sum(axis=1)


if __name__ == "__main__":
    print(run(table, TableOptions))
