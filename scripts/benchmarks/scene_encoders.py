"""CPU time of the encoders of agents and lanes as the number of tokens grows, and of Gatformer.

    scripts/benchmarks/scene_encoders.py --output scene_encoders.png

Full attention, factorised attention and latent queries on one scene, forward pass only, one thread;
rounds go over all of them in turn, and the median of each is shown. The factorised encoder is also
measured along each axis alone: more steps of 16 sequences, more sequences of 16 steps. A second
table: forecasts by Gatformer of all agents of a crowd, by the number of neighbors that each sees.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from hf_vanilla.commands import run
from hf_vanilla.files import write_text
from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
from hf_vanilla.models.modeling_vanilla_scene_forms import VanillaForNeighborTrajectoryPrediction
from hf_vanilla.models.stacks_vanilla_scene import ENCODERS, Grid
from hf_vanilla.options import Options, option
from hf_vanilla.plots.figures import figure_style, new_figure, save_figure

SIDE = 16
TOKENS = (64, 256, 1024, 4096)
AGENTS = (125, 250, 500, 1000)
NEIGHBORS = (4, 16, None)  # None: all
# name of the line: encoder, and whether sequences or steps grow
LINES = {
    "full attention": ("full", "sequences"),
    "factorised, more sequences": ("interleaved", "sequences"),
    "factorised, more steps": ("interleaved", "steps"),
    "64 latent queries": ("latent", "sequences"),
}


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(Options):
    """Measure the encoders and Gatformer, and draw the figure."""

    output: str = option(text="picture; the numbers are written beside it as JSON")
    rounds: int = option(5, "times each point is measured", at_least=1)


@torch.inference_mode()
def measure(options: EncoderOptions) -> str:
    """Measure all points, write numbers and figure; returns the table as Markdown."""
    torch.set_num_threads(1)
    config = VanillaSceneConfig(d_model=64, num_latents=64, attn_implementation="sdpa")
    encoders = {name: ENCODERS[encoder](config, 2).eval() for name, (encoder, _) in LINES.items()}
    found = _medians(
        {
            name: [partial(encoders[name], [_grid(LINES[name][1], count)]) for count in TOKENS]
            for name in LINES
        },
        options.rounds,
    )
    crowds = _medians(
        {
            f"{count or 'all'} neighbors": [_crowd(agents, count) for agents in AGENTS]
            for count in NEIGHBORS
        },
        options.rounds,
    )
    path = Path(options.output)
    numbers = {"tokens": TOKENS, "milliseconds": found, "agents": AGENTS, "crowds": crowds}
    write_text(path.with_suffix(".json"), json.dumps(numbers))
    _draw(found, path)
    return f"{_table(TOKENS, 'tokens', found)}\n\n{_table(AGENTS, 'agents', crowds)}"


def _medians(lines: dict[str, list[Callable[[], object]]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, measured in turn; the first round warms up."""
    seconds = {name: [[] for _ in calls] for name, calls in lines.items()}
    for _ in range(rounds + 1):
        for name, calls in lines.items():
            for taken, call in zip(seconds[name], calls, strict=True):
                started = time.process_time()
                call()
                taken.append(time.process_time() - started)
    return {
        name: [1000 * statistics.median(taken[1:]) for taken in points]
        for name, points in seconds.items()
    }


def _table(counts: Sequence[int], of: str, found: dict[str, list[float]]) -> str:
    header = f"| milliseconds of CPU time | {' | '.join(f'{n:,}' for n in counts)} {of} |"
    rows = [
        f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |"
        for name, values in found.items()
    ]
    return "\n".join([header, "|---" * (len(counts) + 1) + "|", *rows])


def _crowd(agents: int, neighbors: int | None) -> Callable[[], object]:
    """A forecast of so many walkers, 4 m^2 for each."""
    count = neighbors or agents
    config = VanillaSceneConfig(
        d_model=64, max_others=count, num_neighbors=count, neighbor_distance=8.0
    )
    start = 2 * agents**0.5 * torch.rand(1, agents, 1, 2)
    past = start + torch.randn(1, agents, 8, 2).mul(0.3).cumsum(2)
    return partial(VanillaForNeighborTrajectoryPrediction(config).eval(), past)


def _grid(grows: str, tokens: int) -> Grid:
    other = tokens // SIDE
    shape = (1, other, SIDE) if grows == "sequences" else (1, SIDE, other)
    return Grid(torch.randn(*shape, 64), torch.ones(shape, dtype=torch.bool))


def _draw(found: dict[str, list[float]], path: Path) -> None:
    with figure_style("light"):
        figure = new_figure((6.0, 4.0))
        panel = figure.subplots()
        for name, values in found.items():
            panel.plot(TOKENS, values, marker="o", label=name)
        panel.set(xscale="log", yscale="log", xlabel="tokens", ylabel="milliseconds of CPU time")
        panel.set_xticks(TOKENS, [f"{count:,}" for count in TOKENS])
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.legend()
        save_figure(figure, path)


if __name__ == "__main__":
    print(run(measure, EncoderOptions))
