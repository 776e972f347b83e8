"""Train and score every class of forecasters on ETH/UCY and on junctions; prints one table.

    python scripts/forecasters.py --folder FOLDER_OF_ETH_UCY [--page docs/forecasters.md]

A row that has its file of scores is not made again, and a model that is in its folder is not
trained again, so the command continues after a stop. Each training is a process of its own with one
thread.
"""

import json
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hf_vanilla.commands import run
from hf_vanilla.families import entry_of
from hf_vanilla.file_values import read_yaml
from hf_vanilla.files import write_text
from hf_vanilla.options import Options, option
from hf_vanilla.tracks.eth_ucy import TEST_FILES
from hf_vanilla.tracks.evaluation import (
    EvaluateTracksOptions,
    score_windows,
    scored_table,
    windows_to_score,
)
from hf_vanilla.tracks.forecaster import load_forecaster, predict
from hf_vanilla.tracks.layout import scene_batches
from hf_vanilla.tracks.protocol import Protocol
from hf_vanilla.tracks.windows import Windows

logger = logging.getLogger(__name__)

SWEEP = "scripts/sweeps/junctions.yaml"
SAME_AS_INTERLEAVED = "hierarchical, sequential"  # one layer for each part
SAMPLES = 20
TIMED_AGENTS, BATCH = 1000, 256
DATA = {"eth_ucy": "ETH/UCY", "junctions": "junctions"}
OF_TRACKS = {
    "constant velocity": None,
    "TF, one track": "--form one --speed_change 0.1 --model.heading_decay 0",
    "TF_q": "--form quantized",
    "TF, as in the paper": "--form tf_paper --mirror 0 --speed_change 0 --position_noise 0 "
    "--model.dropout 0.1",
    "TF_q, as in the paper": "--form tf_quantized_paper --mirror 0 --position_noise 0 "
    "--model.dropout 0.1",
    "K modes": "",
    "K modes with spreads": "--form density",
}
STAGES = {
    "AgentFormer, first stage": "",
    "AgentFormer, both stages": "--stage second --max_steps 800 --eval_steps 800 "
    "--learning_rate 1e-3 --model.num_modes 20 --model.joint_weight 1",
}
ON_JUNCTIONS = {
    "tracks": "--recipe demo_tracks --dataset junctions --mirror 0 --model.num_modes 6",
    "joint": "--recipe demo_scenes --dataset junctions --mirror 0 --max_steps 1000 "
    "--eval_steps 1000 --model.position_scale 10 --model.num_modes 10",
    "scenes": "--recipe junctions",
}
ON_ETH_UCY = {
    "tracks": "--recipe tracks_{scene}",
    "joint": "--recipe scenes_eth_ucy",
    "scenes": "--recipe junctions --mirror 0.5 --rotate true --speed_change 0.3 "
    "--position_noise 0.05 --max_steps 300 --eval_steps 300 --model.num_seeds 20 "
    "--model.num_modes 20",
}
OWN_ON_ETH_UCY = {
    "proposals": "--model.num_regions 5",
    "proposals, as in the paper": "--model.num_regions 5 --model.max_others 8",
    "neighbors": "--model.neighbor_distance 8 --model.num_neighbors 8",
}
COLUMNS = {
    "parameters": "parameters",
    "minutes": "training, CPU min",
    "cpu": "CPU s per 1,000",
    "ADE1": "top-scored ADE/FDE",
    "ADE6": "best of 6",
    "ADE20": "best of 20",
    "miss_rate": "missed",
    "JADE": "joint, of all",
    "joint_collision_share": "collisions",
}


@dataclass(frozen=True, kw_only=True)
class TableOptions(Options):
    """Every class of forecasters: errors, size and time on ETH/UCY and on junctions."""

    folder: str = option(text="folder of the eight text files of ETH and UCY")
    test_scene: str = option("zara1", "scene of it to score", choices=tuple(TEST_FILES))
    output: str = option("runs/forecasters", "folder of the models and scores")
    train: bool = option(default=True, text="train the models that are missing; else leave out")
    page: str | None = option(None, "Markdown file between whose two marks the tables are put")


def table(options: TableOptions) -> str:
    """Both tables as Markdown."""
    parts = []
    for data, title in DATA.items():
        rows = {name: row(name, data, options) for name in arguments_of_models(data, options)}
        found = {name: scores for name, scores in rows.items() if scores is not None}
        about = f", test scene {options.test_scene}" if data == "eth_ucy" else ""
        parts += [f"{title}{about}:", markdown(found)]
    text = "\n\n".join(parts)
    if options.page is not None:
        put_into_page(Path(options.page), text)
    return text


def arguments_of_models(data: str, options: TableOptions) -> dict[str, list[str] | None]:
    """Arguments of `hf-vanilla train` by row; None: a model without weights."""
    common = ON_JUNCTIONS
    if data == "eth_ucy":
        tracks = f" --dataset {options.folder} --test_scene {options.test_scene}"
        common = {k: v.format(scene=options.test_scene) + tracks for k, v in ON_ETH_UCY.items()}
    found: dict[str, list[str] | None] = {}
    for name, own in OF_TRACKS.items():
        found[name] = None if own is None else f"{common['tracks']} {own}".split()
    for name, own in STAGES.items():
        found[name] = f"{common['joint']} {own}".split()
    first, second = STAGES
    found[second] = [*found[second], "--first_stage", str(model_folder(first, data, options))]
    for name, section in read_yaml(Path(SWEEP))["runs"].items():
        if name != SAME_AS_INTERLEAVED:
            own = [f"--{key}={value}" for key, value in section.items()]
            more = OWN_ON_ETH_UCY.get(name, "") if data == "eth_ucy" else ""
            found[name] = [*common["scenes"].split(), *own, *more.split()]
    return found


def model_folder(name: str, data: str, options: TableOptions) -> Path:
    """The folder of a model."""
    return Path(options.output) / data / name.replace(", ", "_").replace(" ", "_")


def row(name: str, data: str, options: TableOptions) -> dict[str, Any] | None:
    """Scores of one model, from their file or made now; None: not trained, and not to be."""
    folder = model_folder(name, data, options)
    scores = folder.with_suffix(".json")
    if scores.is_file():
        return json.loads(scores.read_text(encoding="utf-8"))
    arguments = arguments_of_models(data, options)[name]
    if arguments is None:
        found = measured(name.replace(" ", "_"), data, options)
    else:
        if not (folder / "model.safetensors").is_file():
            if not options.train:
                return None
            train(arguments, folder)
        found = measured(str(folder), data, options)
    minutes = minutes_file(folder)
    if minutes.is_file():
        found["minutes"] = json.loads(minutes.read_text(encoding="utf-8"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_text(scores, json.dumps(found, indent=2))
    logger.info("%s, %s: %s", DATA[data], name, markdown({name: found}).splitlines()[-1])
    return found


def minutes_file(folder: Path) -> Path:
    """Where the CPU minutes of a training are, over all its processes."""
    return folder.with_suffix(".minutes")


def train(arguments: Sequence[str], folder: Path) -> None:
    """Train in a process of its own; its CPU time is added to the file of minutes.

    Raises:
        ValueError: the training failed.
    """
    logger.info("training %s", folder)
    command = [sys.executable, "-m", "hf_vanilla", "train", *arguments]
    command += ["--output_dir", str(folder), "--use_cpu", "True", "--trackers", "none"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    minutes, before = minutes_file(folder), _children_seconds()
    spent = json.loads(minutes.read_text(encoding="utf-8")) if minutes.is_file() else 0.0
    with folder.with_suffix(".log").open("ab") as log:
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    write_text(minutes, json.dumps(spent + (_children_seconds() - before) / 60))
    if done.returncode:
        raise ValueError(f"training {folder} failed: see {folder.with_suffix('.log')}")


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(model_name: str, data: str, options: TableOptions) -> dict[str, Any]:
    """Scores of a model, its size, and the CPU seconds it takes to forecast 1,000 agents."""
    windows, protocol, asked = _test_windows(data, options.folder, options.test_scene)
    model = load_forecaster(model_name, device="cpu")
    if entry_of(model.config).is_joint:
        model.config.num_modes = SAMPLES  # a first stage was trained with fewer, to save time
    values = score_windows(model, windows, protocol, asked).values
    size = sum(weight.numel() for weight in model.parameters())
    return {**values, "parameters": size, "cpu": cpu_seconds(model, windows)}


@cache
def _test_windows(
    data: str, folder: str, scene: str
) -> tuple[Windows, Protocol, EvaluateTracksOptions]:
    """The windows to score, the same for all models: 8 observed and 12 predicted steps."""
    tracks = {"dataset": folder, "test_scene": scene} if data == "eth_ucy" else {"dataset": data}
    asked = EvaluateTracksOptions(
        model="constant_velocity", batch_size=BATCH, device="cpu", **tracks
    )
    scenes, name = scored_table(asked)
    config = load_forecaster(asked.model, device="cpu").config
    return *windows_to_score(scenes, asked, data=name, config=config), asked


def cpu_seconds(model: Any, windows: Windows) -> float:
    """CPU time of a forecast of 1,000 agents in whole scenes, after one batch to warm up."""
    groups = windows.groups
    ends = np.cumsum(np.bincount(groups))
    rows = np.flatnonzero(groups <= np.searchsorted(ends, min(TIMED_AGENTS, ends[-1])))
    batches = [rows[part] for part in scene_batches(groups[rows], BATCH)]

    def forecast(batch: np.ndarray) -> None:
        positions, is_known, origin = windows.positions(batch)
        past = positions[:, : windows.observed] + origin[:, None]
        maps = windows.table.maps_of(windows.last_rows[batch])
        predict(model, past, is_known[:, : windows.observed], groups[batch], maps)

    forecast(batches[0])
    started = time.process_time()
    for batch in batches:
        forecast(batch)
    return 1000 * (time.process_time() - started) / len(rows)


# --- the table -----------------------------------------------------------------------------------


def markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Rows as a table; a score that a model does not have is a dash."""
    lines = [f"| model | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, scores in rows.items():
        cells = [_cell(key, scores) for key in COLUMNS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(key: str, scores: Mapping[str, Any]) -> str:
    if key.startswith(("ADE", "JADE")):
        first = _joint_name(scores) if key == "JADE" else f"min{key}"
        second = first.replace("ADE", "FDE") if first else ""
        both = [scores.get(first), scores.get(second)]
        return "-" if None in both else "/".join(f"{value:.3f}" for value in both)
    value = scores.get(key)
    if value is None or (key == "joint_collision_share" and not _joint_name(scores)):
        return "-"
    if key in ("miss_rate", "joint_collision_share"):
        return f"{100 * value:.2f} %"
    return f"{value:,}" if key == "parameters" else f"{value:.2f}"


def _joint_name(scores: Mapping[str, Any]) -> str:
    return next((name for name in scores if name.startswith("minJADE")), "")


def put_into_page(page: Path, text: str) -> None:
    """Replace what is between the marks of a page.

    Raises:
        ValueError: the page does not have both marks.
    """
    begin, end = (f"<!-- scripts/forecasters.py: {word} -->" for word in ("begin", "end"))
    whole = page.read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page}: put the lines {begin!r} and {end!r} where the tables belong")
    head, tail = whole.split(begin)[0], whole.split(end)[1]
    write_text(page, f"{head}{begin}\n\n{text}\n\n{end}{tail}")


if __name__ == "__main__":
    print(run(table, TableOptions))
