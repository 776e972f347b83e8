"""The learning rate over the steps of training (5.3).

python docs/figures/schedule.py
python docs/figures/schedule.py --recipe hf_vanilla/recipes/numbers.yaml --output numbers.svg
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_vanilla.commands import run
from hf_vanilla.plots.figures import THEMES, check_output, figure_style, new_figure, save_figure
from hf_vanilla.training.optimization import peak_learning_rate, share_of_peak
from hf_vanilla.training.recipe import read_recipe

# d_model and warmup of the curves that most introductions to the paper show
KNOWN_SCHEDULES = ((512, 4000), (512, 8000), (256, 4000))


@dataclass(frozen=True)
class Schedule:
    """One curve.

    Attributes:
        name: for the legend.
        peak: highest learning rate.
        warmup_steps: step of the peak.
        last_step: where training ends; None: not known.
        schedule: a name of `hf_vanilla.training.optimization.SCHEDULES`.
    """

    name: str
    peak: float
    warmup_steps: int
    last_step: int | None = None
    schedule: str = "inverse_sqrt"

    def rate(self, step: int) -> float:
        """The learning rate of one update, counted from 1."""
        return self.peak * share_of_peak(
            step, self.warmup_steps, schedule=self.schedule, max_steps=self.last_step
        )


def main(options: argparse.Namespace) -> None:
    """Draw the schedules of recipes, or those of tensor2tensor's well-known figure."""
    path = check_output(options.output, overwrite=True, theme=options.theme)
    schedules = [recipe_schedule(name) for name in options.recipe]
    schedules = schedules or [paper_schedule(*pair) for pair in KNOWN_SCHEDULES]
    save_schedules(schedules, path, theme=options.theme)
    print(path)


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """What is drawn, and where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", nargs="*", default=[], help="YAML files, a curve each")
    parser.add_argument("--output", default="schedule.png", help=".png or .svg, is replaced")
    parser.add_argument("--theme", default="light", choices=THEMES)
    return parser.parse_args(arguments)


def paper_schedule(d_model: int, warmup_steps: int) -> Schedule:
    """The schedule of 5.3 with the paper's peak."""
    name = f"d_model {d_model}, warmup {warmup_steps:,}"
    return Schedule(name, peak_learning_rate(d_model, warmup_steps), warmup_steps)


def recipe_schedule(path: str) -> Schedule:
    """The schedule that a recipe trains with.

    Raises:
        ValueError: the recipe is impossible.
        OSError: it cannot be read.
    """
    recipe = read_recipe(["--recipe", path])
    train, d_model = recipe.train, recipe.config().d_model
    peak = train.learning_rate or peak_learning_rate(d_model, train.warmup_steps)
    name = f"{Path(path).stem} (d_model {d_model}, warmup {train.warmup_steps:,})"
    return Schedule(name, peak, train.warmup_steps, train.max_steps, train.schedule)


def save_schedules(schedules: Sequence[Schedule], path: Path, *, theme: str = "light") -> None:
    """Save the learning rate of each schedule over the steps; the legend names its peak.

    Args:
        schedules: a curve each, drawn to its last step at most.
        path: file of the figure.
        theme: `"light"` or `"dark"`.
    """
    ends = [schedule.last_step for schedule in schedules if schedule.last_step is not None]
    steps = max(ends or [5 * schedule.warmup_steps // 2 for schedule in schedules])
    title = "Learning rate over the steps of training"
    if all(schedule.schedule == "inverse_sqrt" for schedule in schedules):
        title = "Learning rate: linear warmup, then the inverse square root of the step (5.3)"
    with figure_style(theme):
        figure = new_figure((8, 4.5))
        axes = figure.subplots()
        for schedule in schedules:
            last = min(steps, schedule.last_step or steps)
            # the peak is a corner, which evenly spaced steps would cut
            drawn = {1, last, min(schedule.warmup_steps, last), *range(1, last, last // 500 + 1)}
            label = f"{schedule.name}: peak {schedule.peak:.2g}"
            axes.plot(sorted(drawn), [schedule.rate(step) for step in sorted(drawn)], label=label)
        axes.set(xlabel="optimizer step", ylabel="learning rate", ylim=(0, None), xlim=(0, steps))
        axes.set_title(title)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(visible=True)
        axes.legend()
        save_figure(figure, path)


if __name__ == "__main__":
    run(main, read_options)
