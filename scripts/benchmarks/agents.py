"""Speed and memory of AgentFormer: scripts/benchmarks/agents.py [--official CLONE].

With a clone of the authors' repository: agents trained per second and agents with 20 samples per
second, at the authors' sizes, on the same scenes. Theirs takes one scene a step, ours all of them.
Always: an agent-aware layer beside a plain one, and the memory of 20 samples of 64 agents and 20
steps, all at once and half of them. Times are CPU time; ratios are medians of rounds in turn.
"""

import copy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from agents_official import SETTINGS, official_agentformer, official_samples, official_step
from torch import Tensor
from transformers import AutoModelForTimeSeriesPrediction

from hf_vanilla import VanillaAgentFormerConfig
from hf_vanilla.commands import run
from hf_vanilla.convert.agentformer import AgentFormerOptions, convert_agentformer
from hf_vanilla.models.layers_vanilla import VanillaEncoderLayer
from hf_vanilla.models.stacks_vanilla_agentformer import AgentEncoderLayer
from hf_vanilla.options import Options, option

AGENTS = (5, 5, 5, 6, 6)  # of the scenes of a round; the training task sorts scenes by size


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(Options):
    """Speed and memory of AgentFormer."""

    official: str | None = option(None, "a clone of github.com/Khrylx/AgentFormer")
    rounds: int = option(5, "rounds measured", at_least=1)
    agents: int = option(64, "agents of the scene whose memory is measured", at_least=1)


def cpu(work: Callable[[], object]) -> float:
    """Seconds of CPU time of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def walks() -> list[tuple[Tensor, Tensor]]:
    """Scenes of the sizes of `AGENTS`, observed and future part."""
    tracks = [
        4 * torch.randn(agents, 1, 2) + 0.3 * torch.randn(agents, 20, 2).cumsum(1)
        for agents in AGENTS
    ]
    return [(track[:, :8], track[:, 8:]) for track in tracks]


def padded(scenes: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The inputs of our model."""
    names = ("past_values", "future_values")
    found = {
        name: torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
        for name, parts in zip(names, zip(*scenes, strict=True), strict=True)
    }
    sizes = torch.tensor([len(past) for past, _ in scenes])
    return {**found, "agent_mask": torch.arange(int(sizes.max())) < sizes.unsqueeze(1)}


def converted(theirs: Any) -> Any:
    """Our model with the authors' weights."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        torch.save({"model_dict": theirs.state_dict()}, place / "model.p")
        (place / "model.yml").write_text(yaml.safe_dump(SETTINGS), encoding="utf-8")
        files = {"input": str(place / "model.p"), "config": str(place / "model.yml")}
        made = convert_agentformer(AgentFormerOptions(**files, output=str(place / "ours")))
        return AutoModelForTimeSeriesPrediction.from_pretrained(made)


def beside_the_authors(folder: Path, rounds: int) -> list[str]:
    """Training and sampling, in agents per CPU second."""
    theirs = official_agentformer(folder)
    ours = converted(theirs)
    optimizers = [torch.optim.Adam(model.parameters(), 1e-4) for model in (ours, theirs)]

    def train_ours(scenes: list[tuple[Tensor, Tensor]]) -> None:
        ours.train()
        optimizers[0].zero_grad()
        ours(**padded(scenes)).loss.backward()
        optimizers[0].step()

    @torch.no_grad()
    def sample_ours(scenes: list[tuple[Tensor, Tensor]]) -> None:
        inputs = padded(scenes)
        del inputs["future_values"]
        ours.eval()(**inputs)

    works = {
        "training": (train_ours, lambda scenes: official_step(theirs, scenes, optimizers[1])),
        "20 samples": (sample_ours, lambda scenes: official_samples(theirs, scenes)),
    }
    lines = []
    for name, (mine, other) in works.items():
        scenes = walks()
        mine(scenes), other(scenes)
        rows = []
        for _ in range(rounds):
            drawn = walks()
            rows.append((cpu(lambda: mine(drawn)), cpu(lambda: other(drawn))))  # noqa: B023
        speeds = [sum(AGENTS) / statistics.median(times) for times in zip(*rows, strict=True)]
        ratio = statistics.median(slow / fast for fast, slow in rows)
        lines.append(
            f"{name}: {speeds[0]:.1f} agents per CPU s, the authors' code {speeds[1]:.1f}: "
            f"{ratio:.2f} times as fast"
        )
    return lines


def layer_ratio(rounds: int) -> float:
    """CPU time of an agent-aware encoder layer beside a plain one, forward and backward."""
    config = VanillaAgentFormerConfig(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
    config._attn_implementation = "eager"
    aware, plain = AgentEncoderLayer(config), VanillaEncoderLayer(copy.deepcopy(config))
    inputs = torch.randn(16, 64, config.d_model)  # 8 agents, 8 steps

    def both() -> tuple[float, float]:
        return (
            cpu(lambda: aware(inputs, num_agents=8).sum().backward()),
            cpu(lambda: plain(inputs).sum().backward()),
        )

    both()
    return statistics.median(mine / other for mine, other in (both() for _ in range(4 * rounds)))


SAMPLE = """
import sys
from pathlib import Path
import torch
from hf_vanilla import VanillaAgentFormerConfig, VanillaForJointTrajectoryPrediction

def peak_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024

torch.set_num_threads(1)
agents, at_once = (int(number) for number in sys.argv[1:])
torch.manual_seed(0)
model = VanillaForJointTrajectoryPrediction(VanillaAgentFormerConfig(predicted_steps=20)).eval()
past = torch.randn(1, agents, 8, 2)
before = peak_mib()
with torch.inference_mode():
    found = model(past, samples_at_once=at_once).trajectories
print(round(peak_mib() - before), found.double().sum().item())
"""


def memory(agents: int) -> list[str]:
    """Memory that a forecast adds at its peak, in processes of their own."""
    lines, results = [], set()
    for at_once in (20, 10, 5):
        command = [sys.executable, "-c", SAMPLE, str(agents), str(at_once)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        more, result = done.stdout.split()
        results.add(result)
        lines.append(f"{agents} agents, 20 steps, 20 samples, {at_once} at once: {more} MiB more")
    same = "the same" if len(results) == 1 else "DIFFERENT"
    return [*lines, f"futures of the same seed: {same}"]


def benchmark(options: BenchmarkOptions) -> str:
    """All figures, a line each."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lines = []
    if options.official is not None:
        lines += beside_the_authors(Path(options.official), options.rounds)
    lines.append(f"agent-aware layer: {layer_ratio(options.rounds):.2f} times a plain one")
    return "\n".join([*lines, *memory(options.agents)])


if __name__ == "__main__":
    print(run(benchmark, BenchmarkOptions))
