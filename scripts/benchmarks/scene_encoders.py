"""CPU time of the encoders of agents and lanes as the number of tokens grows.

    scripts/benchmarks/scene_encoders.py --output scene_encoders.png

Full attention, factorised attention and latent queries on one scene, forward pass only, one thread;
rounds go over all of them in turn, and the median of each is shown. The factorised encoder is also
measured along each axis alone: more steps of 16 sequences, more sequences of 16 steps.
"""

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from hf_vanilla.commands import run
from hf_vanilla.files import write_text
from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
from hf_vanilla.models.stacks_vanilla_scene import ENCODERS, Grid
from hf_vanilla.options import Options, option
from hf_vanilla.plots.figures import figure_style, new_figure, save_figure

SIDE = 16
TOKENS = (64, 256, 1024, 4096)
# name of the line: encoder, and whether sequences or steps grow
LINES = {
    "full attention": ("full", "sequences"),
    "factorised, more sequences": ("interleaved", "sequences"),
    "factorised, more steps": ("interleaved", "steps"),
    "64 latent queries": ("latent", "sequences"),
}


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(Options):
    """Measure the encoders and draw the figure."""

    output: str = option(text="picture; the numbers are written beside it as JSON")
    rounds: int = option(5, "times each point is measured", at_least=1)


@torch.inference_mode()
def measure(options: EncoderOptions) -> str:
    """Measure all points, write numbers and figure; returns the table as Markdown."""
    torch.set_num_threads(1)
    config = VanillaSceneConfig(d_model=64, num_latents=64, attn_implementation="sdpa")
    encoders = {name: ENCODERS[encoder](config, 2).eval() for name, (encoder, _) in LINES.items()}
    inputs = {(name, count): _grid(LINES[name][1], count) for name in LINES for count in TOKENS}
    seconds: dict[tuple[str, int], list[float]] = {point: [] for point in inputs}
    for _ in range(options.rounds + 1):  # the first one warms up
        for (name, count), grid in inputs.items():
            seconds[name, count].append(_seconds(encoders[name], grid))
    found = {
        name: [1000 * statistics.median(seconds[name, count][1:]) for count in TOKENS]
        for name in LINES
    }
    path = Path(options.output)
    write_text(path.with_suffix(".json"), json.dumps({"tokens": TOKENS, "milliseconds": found}))
    _draw(found, path)
    header = f"| milliseconds of CPU time | {' | '.join(f'{count:,}' for count in TOKENS)} |"
    rows = [
        f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |"
        for name, values in found.items()
    ]
    return "\n".join([header, "|---" * (len(TOKENS) + 1) + "|", *rows])


def _grid(grows: str, tokens: int) -> Grid:
    other = tokens // SIDE
    shape = (1, other, SIDE) if grows == "sequences" else (1, SIDE, other)
    return Grid(torch.randn(*shape, 64), torch.ones(shape, dtype=torch.bool))


def _seconds(encoder: nn.Module, grid: Grid) -> float:
    started = time.process_time()
    encoder([grid])
    return time.process_time() - started


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
