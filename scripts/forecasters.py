"""Train and score every class of forecasters on ETH/UCY and on junctions; prints three tables.

    python scripts/forecasters.py --folder FOLDER_OF_ETH_UCY [--page docs/forecasters.md]

The five rows of a table with the smallest best-of-K errors get more seeds, and those of ETH/UCY are
trained again, with as many, without the two files that no test scene contains, on which the third
table scores them. A row that has its file of scores is not made again, and a model that is in its
folder is not trained again, so the command continues after a stop. Each training is a process of
its own with one thread.
"""

import json
import logging
import os
import resource
import shlex
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
from hf_vanilla.tracks.eth_ucy import FIRST_VALIDATION_FRAME, TEST_FILES
from hf_vanilla.tracks.evaluation import (
    EvaluateTracksOptions,
    score_windows,
    scored_table,
    scoring_protocol,
)
from hf_vanilla.tracks.forecaster import load_forecaster, predict
from hf_vanilla.tracks.layout import Surroundings, scene_batches
from hf_vanilla.tracks.scores import Protocol
from hf_vanilla.tracks.windows import Windows, pasts_of_rows

# `run` shows the lines of the loggers below hf_vanilla
logger = logging.getLogger("hf_vanilla.forecasters")

SWEEP = Path(__file__).with_name("sweeps") / "junctions.yaml"
SAME_AS_INTERLEAVED = "hierarchical, sequential"  # one layer for each part
SAMPLES = 20
TIMED_AGENTS, BATCH = 1000, 256
DATA = {"eth_ucy": "ETH/UCY", "junctions": "junctions"}
OUTSIDE = ("crowds_zara03", "uni_examples")  # no test scene contains them
ONE = "--form one --speed_change 0.1 --model.heading_decay 0"
MEAN = "TF, mean with constant velocity"
SINGLE = ("constant velocity", "TF, one track", MEAN)  # rows of OUTSIDE beside the best ones
BEST = 5
OF_TRACKS = {
    "constant velocity": None,
    "TF, one track": ONE,
    MEAN: f"{ONE} --model.constant_velocity_share 0.5",
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
    "single_ADE": "single track",
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
    seeds: int = option(3, "trainings of the five best rows of a table", at_least=1)
    train: bool = option(default=True, text="train the models that are missing; else leave out")
    page: str | None = option(None, "Markdown file between whose two marks the tables are put")


def table(options: TableOptions) -> str:
    """The tables as Markdown."""
    if options.page is not None:
        around_tables(Path(options.page))  # before hours of training
    parts = []
    outside: dict[str, list[dict[str, Any]]] = {}
    for data, title in DATA.items():
        names = arguments_of_models(data, options)
        rows = {name: rows_of(name, data, options) for name in names}
        best = best_rows(rows)
        for name in best:
            rows[name] = rows_of(name, data, options, options.seeds)
        about = f", test scene {options.test_scene}" if data == "eth_ucy" else ""
        parts += [f"{title}{about}:", markdown(rows, COLUMNS)]
        if data == "eth_ucy":
            for name in names:
                if name in (*SINGLE, *best):
                    seeds = options.seeds if names[name] else 1
                    outside[name] = rows_of(name, "outside", options, seeds)
    columns = {
        f"{file} {key}": f"{file}, {title}"
        for file in OUTSIDE
        for key, title in (("single_ADE", "single track"), ("ADE20", "best of 20"))
    }
    parts += [f"{' and '.join(OUTSIDE)}, trained without them:", markdown(outside, columns)]
    text = "\n\n".join(parts)
    if options.page is not None:
        put_into_page(Path(options.page), text)
    return text


def best_rows(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The rows with the smallest ADE, best of the most futures that all of them have."""
    of_6 = {
        name: made[0]["minADE6"] for name, made in rows.items() if made and "minADE6" in made[0]
    }
    of_20 = {name: rows[name][0].get("minADE20") for name in of_6}
    values = of_6 if None in of_20.values() else of_20
    return sorted(values, key=values.__getitem__)[:BEST]


def arguments_of_models(
    data: str, options: TableOptions, seed: int = 0
) -> dict[str, list[str] | None]:
    """Arguments of `hf-vanilla train` by row; None: a model without weights."""
    common = ON_JUNCTIONS
    if data != "junctions":
        tracks = f" --dataset {shlex.quote(options.folder)} --test_scene {options.test_scene}"
        if data == "outside":
            others = shlex.quote(str(_others_folder(options)))
            tracks = f" --dataset {others} --test_scene none"
        common = {k: v.format(scene=options.test_scene) + tracks for k, v in ON_ETH_UCY.items()}
    found: dict[str, list[str] | None] = {}
    for name, own in OF_TRACKS.items():
        found[name] = None if own is None else shlex.split(f"{common['tracks']} {own}")
    for name, own in STAGES.items():
        found[name] = shlex.split(f"{common['joint']} {own}")
    first, second = STAGES
    found[second] = [*found[second], "--first_stage", str(model_folder(first, data, options, seed))]
    for name, section in read_yaml(SWEEP)["runs"].items():
        if name != SAME_AS_INTERLEAVED:
            own = [f"--{key}={value}" for key, value in section.items()]
            more = "" if data == "junctions" else OWN_ON_ETH_UCY.get(name, "")
            found[name] = [*shlex.split(common["scenes"]), *own, *more.split()]
    return found


def _others_folder(options: TableOptions) -> Path:
    """A folder of the files that are neither of the test scene nor of `OUTSIDE`."""
    folder = Path(options.output) / f"others_{options.test_scene}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in FIRST_VALIDATION_FRAME:
        link = folder / f"{name}.txt"
        if name not in (*OUTSIDE, *TEST_FILES[options.test_scene]) and not link.exists():
            link.symlink_to((Path(options.folder) / link.name).resolve())
    return folder


def model_folder(name: str, data: str, options: TableOptions, seed: int = 0) -> Path:
    """The folder of a model; the training tracks of all but junctions depend on the test scene."""
    last = name.replace(", ", "_").replace(" ", "_") + (f"_{seed}" if seed else "")
    tracks = data if data == "junctions" else f"{data}_{options.test_scene}"
    return Path(options.output) / tracks / last


def rows_of(name: str, data: str, options: TableOptions, seeds: int = 1) -> list[dict[str, Any]]:
    """The scores of a row for each seed; empty: not trained, and not to be."""
    rows = [row(name, data, options, seed) for seed in range(seeds)]
    return [scores for scores in rows if scores is not None]


def row(name: str, data: str, options: TableOptions, seed: int = 0) -> dict[str, Any] | None:
    """Scores of one model, from their file or made now; None: not trained, and not to be."""
    folder = model_folder(name, data, options, seed)
    scores = folder.with_suffix(".json")
    if scores.is_file():
        return json.loads(scores.read_text(encoding="utf-8"))
    arguments = arguments_of_models(data, options, seed)[name]
    if arguments is None:
        found = measured(name.replace(" ", "_"), data, options)
    else:
        if not (folder / "model.safetensors").is_file():
            if not options.train:
                return None
            first, second = STAGES
            if name == second:
                row(first, data, options, seed)
            train([*arguments, "--seed", str(seed)], folder)
        found = measured(str(folder), data, options)
    minutes = minutes_file(folder)
    if minutes.is_file():
        found["minutes"] = json.loads(minutes.read_text(encoding="utf-8"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_text(scores, json.dumps(found, indent=2))
    logger.info("%s, %s, seed %d: %s", data, name, seed, json.dumps(found))
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
    model = load_forecaster(model_name, device="cpu")
    if entry_of(model.config).is_joint:
        model.config.num_modes = SAMPLES  # a first stage was trained with fewer, to save time
    if data == "outside":
        return {
            f"{file} {key}": value
            for file in OUTSIDE
            for key, value in _scores(model, f"{options.folder}/{file}.txt", None)[0].items()
        }
    tracks = (options.folder, options.test_scene) if data == "eth_ucy" else (data, None)
    values, windows = _scores(model, *tracks)
    size = sum(weight.numel() for weight in model.parameters())
    return {**values, "parameters": size, "cpu": cpu_seconds(model, windows)}


def _scores(model: Any, dataset: str, scene: str | None) -> tuple[dict[str, float], Windows]:
    protocol, asked = _test_windows(dataset, scene)
    return score_windows(model, protocol, asked).values, protocol.windows


@cache
def _test_windows(dataset: str, scene: str | None) -> tuple[Protocol, EvaluateTracksOptions]:
    """The windows to score, the same for all models: 8 observed and 12 predicted steps."""
    asked = EvaluateTracksOptions(
        model="constant_velocity",
        dataset=dataset,
        test_scene=scene,
        batch_size=BATCH,
        device="cpu",
    )
    scenes, name = scored_table(asked)
    config = load_forecaster(asked.model, device="cpu").config
    return scoring_protocol(scenes, asked, data=name, config=config), asked


def cpu_seconds(model: Any, windows: Windows) -> float:
    """CPU time of a forecast of 1,000 agents in whole scenes, after one batch to warm up."""
    groups = windows.groups
    ends = np.cumsum(np.bincount(groups))
    rows = np.flatnonzero(groups <= np.searchsorted(ends, min(TIMED_AGENTS, ends[-1])))
    batches = [rows[part] for part in scene_batches(groups[rows], BATCH)]

    def forecast(batch: np.ndarray) -> None:
        table, last_rows = windows.table, windows.last_rows[batch]
        past, is_observed = pasts_of_rows(table, last_rows, windows.observed)
        beside = Surroundings.of_rows(model.config, table, last_rows)
        predict(model, past, is_observed, beside)

    forecast(batches[0])
    started = time.process_time()
    for batch in batches:
        forecast(batch)
    return 1000 * (time.process_time() - started) / len(rows)


# --- the table -----------------------------------------------------------------------------------


def markdown(rows: Mapping[str, Sequence[Mapping[str, Any]]], columns: Mapping[str, str]) -> str:
    """Rows as a table: means, of errors also the standard deviation; what is missing is a dash.

    Args:
        rows: the scores of each seed by row; one without any is left out.
        columns: titles by the name of a score; of errors, that of the ADE.
    """
    lines = [f"| model | {' | '.join(columns.values())} |", "|---" * (len(columns) + 1) + "|"]
    for name, seeds in rows.items():
        if seeds:
            lines.append(f"| {name} | {' | '.join(_cell(key, seeds) for key in columns)} |")
    return "\n".join(lines)


def _cell(key: str, seeds: Sequence[Mapping[str, Any]]) -> str:
    file, _, key = key.rpartition(" ")
    joint = next((name for name in seeds[0] if name.startswith("minJADE")), "")
    if "ADE" in key:
        first = {"JADE": joint, "single_ADE": "single_ADE"}.get(key, f"min{key}")
        if first == "single_ADE" and f"{file} single_ADE".strip() not in seeds[0]:
            first = "minADE1"  # the only one
        names = [f"{file} {name}".strip() for name in (first, first.replace("ADE", "FDE"))]
        if names[0] not in seeds[0]:
            return "-"
        values = np.array([[scores[name] for name in names] for scores in seeds])
        mean, deviation = values.mean(0), values.std(0, ddof=1 if len(seeds) > 1 else 0)
        text = "/".join(f"{value:.3f}" for value in mean)
        return text + (f" ± {'/'.join(f'{v:.3f}' for v in deviation)}" if len(seeds) > 1 else "")
    if key not in seeds[0] or (key == "joint_collision_share" and not joint):
        return "-"
    value = np.mean([scores[key] for scores in seeds if key in scores])
    if key in ("miss_rate", "joint_collision_share"):
        return f"{100 * value:.2f} %"
    return f"{value:,.0f}" if key == "parameters" else f"{value:.2f}"


def put_into_page(page: Path, text: str) -> None:
    """Replace what is between the marks of a page."""
    head, tail = around_tables(page)
    write_text(page, f"{head}\n\n{text}\n\n{tail}")


def around_tables(page: Path) -> tuple[str, str]:
    """What a page has before and after the tables, with their marks.

    Raises:
        ValueError: the page does not have both marks.
        OSError: it cannot be read.
    """
    begin, end = (f"<!-- scripts/forecasters.py: {word} -->" for word in ("begin", "end"))
    whole = page.read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page}: put the lines {begin!r} and {end!r} where the tables belong")
    return whole.split(begin)[0] + begin, end + whole.split(end)[1]


if __name__ == "__main__":
    print(run(table, TableOptions))
