"""Train on generated walkers, compare with simple models, draw: `make demo-tracks`."""

from hf_vanilla.commands import run
from hf_vanilla.plots.tracks import PlotTracksOptions, plot_tracks
from hf_vanilla.recipes.recipe import Recipe, read_recipe
from hf_vanilla.tasks.track_evaluation import EvaluateTracksOptions, evaluate_tracks
from hf_vanilla.training.run import train
from hf_vanilla.trajectories.simple_models import SIMPLE_MODELS

RECIPE = "demo_tracks"


def demo(recipe: Recipe) -> None:
    """Show the whole way once, from tracks to a figure of futures."""
    folder = train(recipe)
    data = recipe.data.dataset
    print(f"\nAgents that were never trained on, errors in metres:\n{'':24}  ADE   FDE")
    for name in (*SIMPLE_MODELS, str(folder)):
        scores = evaluate_tracks(EvaluateTracksOptions(model=name, dataset=data))
        print(f"{name:24} {scores.values['minADE1']:.3f} {scores.values['minFDE1']:.3f}")
    print(f"\nAll scores of the model:\n{scores}")
    output = str(folder / "tracks.png")
    options = PlotTracksOptions(model=str(folder), input=data, output=output, overwrite=True)
    print(f"\nThe model folder: {folder}\nFutures:          {plot_tracks(options)}")


if __name__ == "__main__":
    run(demo, lambda arguments: read_recipe(["--recipe", RECIPE, *arguments]))
