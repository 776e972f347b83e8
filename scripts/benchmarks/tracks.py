"""Speed of trajectory models: scripts/benchmarks/tracks.py [--folder DIR] [--rows 10000000].

Training windows per second beside the same TF written with `torch.nn.Transformer`, on identical
batches and with a loader that reads one sample after the other; CPU time of a frame of 1,000 agents
with 20 modes; with `--folder`, the time to read ETH and UCY; with `--rows`, the time and memory to
read a Parquet file of so many rows. Ratios are medians of rounds in turn; above 1 ours is faster.
"""

import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hf_vanilla import (
    VanillaForMultimodalTrajectoryPrediction,
    VanillaForTrajectoryPrediction,
    VanillaTracksConfig,
)
from hf_vanilla.commands import run
from hf_vanilla.models.positions_vanilla import sinusoid
from hf_vanilla.options import Options, option
from hf_vanilla.tracks.built_in_tracks import built_in_tracks
from hf_vanilla.tracks.eth_ucy import FIRST_VALIDATION_FRAME
from hf_vanilla.tracks.forecaster import predict
from hf_vanilla.tracks.formats import read_tracks
from hf_vanilla.tracks.windows import Windows, cut_windows

BATCH = 256


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(Options):
    """Speed of trajectory models."""

    folder: str | None = option(None, "folder of ETH and UCY, to measure reading")
    rows: int = option(0, "rows of a Parquet file to write and read; 0: none", at_least=0)
    rounds: int = option(9, "rounds measured", at_least=1)


class TheirTF(nn.Module):
    """TF with `torch.nn.Transformer`, teacher forcing."""

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__()
        self.width = config.d_model
        self.source, self.target = nn.Linear(2, self.width), nn.Linear(2, self.width)
        self.transformer = nn.Transformer(
            *(self.width, config.encoder_attention_heads),
            *(config.encoder_layers, config.decoder_layers, config.encoder_ffn_dim),
            batch_first=True,
        )
        self.head = nn.Linear(self.width, 2)

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        """Mean distance of the predicted displacements."""
        steps = torch.cat((past, future), 1).diff(dim=1)
        source, wanted = steps[:, : past.shape[1] - 1], steps[:, past.shape[1] - 1 :]
        target = torch.cat((source[:, -1:], wanted[:, :-1]), 1)
        inputs = [
            layer(x) * math.sqrt(self.width)
            + sinusoid(torch.arange(x.shape[1]), self.width).to(x.dtype)
            for layer, x in ((self.source, source), (self.target, target))
        ]
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        found = self.head(self.transformer(*inputs, tgt_mask=mask, tgt_is_causal=True))
        return (found - wanted).norm(dim=-1).mean()


def train_step(model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Adam) -> None:
    """One update."""
    model.train()
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def training_ratios(windows: Windows, rounds: int) -> tuple[float, float]:
    """Windows per second beside theirs: on identical batches, and with a loader per sample."""
    # teacher forcing and dropout as theirs
    config = VanillaTracksConfig(
        velocity_std=0.4, dropout=0.1, forcing_loss_weight=1.0, rollout_loss_weight=0.0
    )
    ours, theirs = VanillaForTrajectoryPrediction(config), TheirTF(config)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (ours, theirs)]
    steps = windows.observed

    def tensors(rows: np.ndarray) -> tuple[Tensor, Tensor]:
        values = torch.from_numpy(windows.positions(rows)[0])
        return values[:, :steps], values[:, steps:]

    # as research code has it: a dictionary of arrays for each sample, collated by torch
    positions = windows.positions(np.arange(len(windows)))[0]
    samples = [{"past": p[:steps].copy(), "future": p[steps:].copy()} for p in positions]
    draw = np.random.default_rng(0)

    def one_round(rows: np.ndarray) -> tuple[float, float]:
        past, future = tensors(rows)
        mine = cpu(lambda: train_step(ours, lambda: ours(past, None, future).loss, optimizers[0]))
        other = cpu(lambda: train_step(theirs, lambda: theirs(past, future), optimizers[1]))
        reading = cpu(lambda: tensors(rows))
        loading = cpu(lambda: next(iter(DataLoader([samples[i] for i in rows], BATCH))))
        return other / mine, (other + loading) / (mine + reading)

    found = [one_round(draw.integers(0, len(windows), BATCH)) for _ in range(rounds)]
    same, whole = (statistics.median(ratios) for ratios in zip(*found, strict=True))
    return same, whole


def cpu(work: Callable[[], object]) -> float:
    """Seconds of CPU time of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def seconds_of_a_frame(rounds: int) -> float:
    """CPU seconds to forecast 1,000 agents, 64 wide, 2 + 2 layers, 20 modes."""
    model = VanillaForMultimodalTrajectoryPrediction(VanillaTracksConfig()).eval()
    past = np.random.default_rng(0).normal(0, 0.4, (1000, 8, 2)).cumsum(1)
    mask = np.ones((1000, 8), bool)
    return statistics.median(cpu(lambda: predict(model, past, mask)) for _ in range(rounds))


READ = """
import sys, time
import numpy as np
import pyarrow
from pathlib import Path
from hf_vanilla.tracks.formats import TrackSource, read_tracks

def peak_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024

before, start = peak_mib(), time.process_time()
read_tracks(sys.argv[1], TrackSource(frame_seconds=0.4))
print(time.process_time() - start, peak_mib() - before)
"""


def reading_of_rows(rows: int) -> str:
    """Time and memory of a new process to read a Parquet file of so many rows."""
    agent, frame = np.divmod(np.arange(rows), 100)
    xy = np.random.default_rng(0).normal(0, 0.4, (2, rows)).cumsum(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tracks.parquet"
        columns = {"frame": frame, "agent": agent, "x": xy[0], "y": xy[1]}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        command = [sys.executable, "-c", READ, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, more = (float(part) for part in done.stdout.split())
        size = path.stat().st_size / 2**20
    return (
        f"{rows:,} rows: {seconds:.1f} CPU s, file {size:.0f} MiB, {more / size:.2f} times as much "
        "memory at the peak"
    )


def benchmark(options: BenchmarkOptions) -> str:
    """All figures, a line each."""
    torch.set_num_threads(1)
    lines = []
    if options.rows:
        lines.append(reading_of_rows(options.rows))
    windows = cut_windows(built_in_tracks("walkers", agents=600, seed=0), observed=8, predicted=12)
    same, whole = training_ratios(windows, options.rounds)
    lines.append(f"training, identical batches: {same:.2f} x torch.nn.Transformer")
    lines.append(f"training, with a loader per sample: {whole:.2f} x")
    lines.append(f"1,000 agents, 20 modes: {seconds_of_a_frame(options.rounds):.3f} CPU s a frame")
    if options.folder is not None:

        def read() -> None:
            for name in FIRST_VALIDATION_FRAME:
                table = read_tracks(Path(options.folder or "") / f"{name}.txt")
                cut_windows(table, observed=8, predicted=12)

        lines.append(f"reading eight files with windows: {cpu(read):.2f} CPU s")
    return "\n".join(lines)


if __name__ == "__main__":
    print(run(benchmark, BenchmarkOptions))
