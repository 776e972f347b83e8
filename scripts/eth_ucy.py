"""Train and score all scenes of ETH and UCY; resumes: scripts/eth_ucy.py --folder DIR."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from hf_vanilla.commands import run
from hf_vanilla.files import write_text
from hf_vanilla.options import Options, option
from hf_vanilla.tracks.eth_ucy import TEST_FILES
from hf_vanilla.tracks.evaluation import EvaluateTracksOptions, evaluate_tracks
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train

# published ADE / FDE on the same windows, beside ours; the protocol in the first column
PUBLISHED = {
    "TF, one track": "1.03/2.10 | .36/.71 | .53/1.32 | .44/1.00 | .34/.76 | .54/1.17",
    "TF_q, best of 20": ".61/1.12 | .18/.30 | .35/.65 | .22/.38 | .17/.32 | .31/.55",
    "Trajectron++ without its leak, best of 20": (
        ".67/1.18 | .18/.28 | .30/.54 | .25/.41 | .18/.32 | .32/.55"
    ),
    "AgentFormer corrected, best of 20": (
        ".45/.75 | .14/.22 | .25/.45 | .18/.30 | .14/.24 | .23/.39"
    ),
}
ONE = ["--form", "one", "--speed_change", "0.1", "--model.heading_decay", "0"]
FORM_OPTIONS = {
    "modes": ["--form", "modes"],
    "one": ONE,
    "mean": [*ONE, "--model.constant_velocity_share", "0.5"],
    "quantized": ["--form", "quantized"],
}


@dataclass(frozen=True, kw_only=True)
class TableOptions(Options):
    """Train, score and print the whole table of ETH and UCY."""

    folder: str = option(text="folder of the eight text files")
    output: str = option("runs/eth_ucy", "folder of the runs and scores")
    seeds: int = option(3, "runs of each scene", at_least=1)
    form: str = option(
        "modes",
        "form of the models; mean: TF (one) and constant velocity",
        choices=tuple(FORM_OPTIONS),
    )
    max_steps: int | None = option(
        None, "optimizer steps of each run; default: the recipe's", at_least=1
    )


def table(options: TableOptions) -> str:
    """The table as Markdown; runs and scores that exist are not made again."""
    rows = {"constant velocity": [[_scores("constant_velocity", s, options)] for s in TEST_FILES]}
    ours = [[_trained(s, seed, options) for seed in range(options.seeds)] for s in TEST_FILES]
    rows[f"ours ({options.form}), top-scored"] = ours
    lines = [
        f"| ADE/FDE in metres | {' | '.join(TEST_FILES)} | average |",
        "|---" * 7 + "|",
        *(_row(name, values, "minADE1", "minFDE1") for name, values in rows.items()),
    ]
    if options.form not in ("one", "mean"):
        name = f"ours ({options.form})"
        single = f"{name}, the one of the smallest expected distance"
        lines.append(_row(single, ours, "single_ADE", "single_FDE"))
        lines.append(_row(f"{name}, best of 20", ours, "minADE20", "minFDE20"))
    lines += [f"| {name} (published) | {values} |" for name, values in PUBLISHED.items()]
    protocol = (
        "ETH/UCY leave-one-out | 8 -> 12 steps of 0.4 s | per person, stride 1 | best of 20 per "
        f"person, ADE and FDE separately | mean ± standard deviation, seeds: {options.seeds}"
    )
    return "\n".join([*lines, "", protocol])


def _trained(scene: str, seed: int, options: TableOptions) -> dict[str, float]:
    steps = "" if options.max_steps is None else f"_{options.max_steps}_steps"
    run_folder = Path(options.output) / f"{options.form}_{scene}_{seed}{steps}"
    scores = run_folder / "test_scores.json"
    if not scores.is_file():
        arguments = ["--recipe", f"tracks_{scene}", "--dataset", options.folder]
        arguments += ["--test_scene", scene, "--seed", str(seed)]
        arguments += FORM_OPTIONS[options.form]
        arguments += ["--output_dir", str(run_folder)]
        if options.max_steps is not None:
            arguments += ["--max_steps", str(options.max_steps)]
        train(read_recipe(arguments))
        write_text(scores, json.dumps(_scores(str(run_folder), scene, options)))
    return json.loads(scores.read_text(encoding="utf-8"))


def _scores(model: str, scene: str, options: TableOptions) -> dict[str, float]:
    asked = EvaluateTracksOptions(model=model, dataset=options.folder, test_scene=scene)
    return dict(evaluate_tracks(asked).values)


def _row(name: str, scenes: list[list[dict[str, float]]], ade: str, fde: str) -> str:
    """Means over seeds of each scene, and of the mean of scenes, with their deviation."""
    cells, averages = [], {}
    for key in (ade, fde):
        values = [[scores[key] for scores in seeds] for seeds in scenes]
        cells.append([statistics.mean(seeds) for seeds in values])
        averages[key] = [statistics.mean(seed) for seed in zip(*values, strict=True)]
    shown = [f"{near:.3f}/{far:.3f}" for near, far in zip(*cells, strict=True)]
    mean = "/".join(f"{statistics.mean(values):.3f}" for values in averages.values())
    if len(averages[ade]) > 1:
        mean += f" ± {'/'.join(f'{statistics.stdev(values):.3f}' for values in averages.values())}"
    return f"| {name} | {' | '.join(shown)} | {mean} |"


if __name__ == "__main__":
    print(run(table, TableOptions))
