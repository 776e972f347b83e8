"""Train on generated walkers, compare with simple models, draw: `make demo-tracks`."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from hf_vanilla.commands import run
from hf_vanilla.tracks.built_in_tracks import FORK_ANGLES, FORK_ODDS, built_in_tracks
from hf_vanilla.tracks.evaluation import EvaluateTracksOptions, evaluate_tracks
from hf_vanilla.tracks.forecaster import SIMPLE_MODELS, load_forecaster, predict
from hf_vanilla.tracks.plot import PlotTracksOptions, plot_tracks
from hf_vanilla.tracks.windows import cut_windows
from hf_vanilla.training.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train

RECIPE = "demo_tracks"
FORK_AGENTS = 1000
FORK_STEPS = 250  # one kind of track is learned sooner than four


def forks(recipe: Recipe) -> str:
    """Train on forks, and compare the modes' probabilities with the true odds of the branches.

    Returns:
        A table: branch, true odds, mean probability of the modes that end there, and the share of
        agents of this branch whose future lies within a metre of a mode's end.
    """
    folder = Path(recipe.train.output_dir).with_name(f"{Path(recipe.train.output_dir).name}_forks")
    steps = min(FORK_STEPS, recipe.train.max_steps)
    shared = replace(recipe.train, output_dir=str(folder), max_steps=steps, eval_steps=steps)
    # a mirror image would exchange the odds of left and right
    train(replace(recipe, train=shared, data=replace(recipe.data, dataset="forks", mirror=0.0)))
    model = load_forecaster(str(folder), device="cpu")
    scenes = built_in_tracks("forks", agents=FORK_AGENTS, seed=2)
    windows = cut_windows(scenes, observed=8, predicted=12)
    positions, known, _ = windows.positions(np.arange(len(windows)))
    tracks, probabilities = predict(model, positions[:, :8].astype(float), known[:, :8])
    ahead = positions[:, 7] - positions[:, 0]
    branch = branch_of_ends(ahead, tracks[:, :, -1])  # (A, M)
    true = branch_of_ends(ahead, positions[:, None, -1])[:, 0]
    apart = np.linalg.norm(tracks[:, :, -1] - positions[:, None, -1], axis=-1).min(1)
    lines = ["branch    odds  predicted  hit"]
    for number, name in enumerate(("left", "straight", "right")):
        share = (probabilities * (branch == number)).sum(1).mean()
        hit = (apart[true == number] < 1).mean()
        lines.append(f"{name:9} {FORK_ODDS[number]:.2f}  {share:9.3f}  {hit:.1%}")
    return "\n".join(lines)


def branch_of_ends(ahead: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The branch `(A, M)` whose angle is closest to each end `(A, M, 2)`, seen along `ahead`."""
    angle = np.arctan2(ends[..., 1], ends[..., 0]) - np.arctan2(ahead[:, 1], ahead[:, 0])[:, None]
    angle = (angle + np.pi) % (2 * np.pi) - np.pi
    return np.abs(angle[..., None] - np.array(FORK_ANGLES)).argmin(-1)


def demo(recipe: Recipe) -> None:
    """Show the whole way once, from tracks to a figure of futures."""
    folder = train(recipe)
    data = recipe.data.dataset
    print(f"\nAgents that were never trained on, errors in metres:\n{'':24}  ADE   FDE")
    for name in (*SIMPLE_MODELS, str(folder)):
        scores = evaluate_tracks(EvaluateTracksOptions(model=name, dataset=data))
        print(f"{name:24} {scores.values['minADE1']:.3f} {scores.values['minFDE1']:.3f}")
    print(f"\nAll scores of the model:\n{scores}")
    print(f"\nProbabilities of the branches of a fork, and their true odds:\n{forks(recipe)}")
    output = str(folder / "tracks.png")
    options = PlotTracksOptions(model=str(folder), input=data, output=output, overwrite=True)
    print(f"\nThe model folder: {folder}\nFutures:          {plot_tracks(options)}")


if __name__ == "__main__":
    run(demo, lambda arguments: read_recipe(["--recipe", RECIPE, *arguments]))
