"""Forecast agents with ONNX Runtime; needs numpy and onnxruntime, nothing else.

python forecast.py [FRAMES_PER_STEP] < tracks.csv > futures.csv
forecast.Forecaster("FOLDER").predict(past, is_observed)  # A agents, M modes
tracks.csv: columns frame, agent, x, y; each future starts at the agent's last frame.
"""

import argparse
import csv
import json
import signal
import sys
from itertools import pairwise
from pathlib import Path
from statistics import mode as most_frequent

import numpy as np
from onnxruntime import InferenceSession


class Forecaster:
    """The model of a folder, which reads the last `observed_steps` steps of agents."""

    def __init__(self, folder: str | Path = Path(__file__).parent) -> None:
        self.observed_steps = json.loads(Path(folder, "config.json").read_bytes())["observed_steps"]
        self.session = InferenceSession(Path(folder) / "model.onnx")
        self.names = [each.name for each in self.session.get_inputs()]

    def predict(self, past: np.ndarray, is_observed: np.ndarray, lanes: tuple = ()) -> tuple:
        """Futures `(A, M, P, 2)`, probabilities `(A, M)`, falling; all agents are seen at the end.

        T steps: positions `(A, T, 2)`, bool `(A, T)`; L lanes: `(L, S, 2)`, bool, kinds `(L,)`.
        """
        lanes = lanes or (np.zeros((1, 2, 2)), np.zeros((1, 2), bool), np.zeros(1, int))  # masked
        is_scene = "agent_mask" in self.names
        origin = past[:, -1:].mean(0, keepdims=True) if is_scene else past[:, -1:]
        relative = np.where(is_observed[..., None], past - origin, 0).astype(np.float32)
        points = np.where(lanes[1][..., None], lanes[0] - origin[0], 0).astype(np.float32)
        values = [relative, is_observed, np.ones(len(past), bool), points, *lanes[1:]]
        inputs = dict(zip(self.names, (v[None] if is_scene else v for v in values), strict=False))
        tracks, logits = (each[0] if is_scene else each for each in self.session.run(None, inputs))
        order = np.argsort(-logits, axis=1, kind="stable")
        tracks = np.take_along_axis(tracks, order[..., None, None], 1) + origin[:, None]
        weights = np.exp(logits - logits.max(1, keepdims=True))
        return tracks, np.take_along_axis(weights / weights.sum(1, keepdims=True), order, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Read a table of tracks, write their futures.")
    parser.add_argument("stride", nargs="?", type=int, metavar="FRAMES_PER_STEP")
    stride = parser.parse_args().stride
    for stream, code in ((sys.stdin, "utf-8-sig"), (sys.stdout, "utf-8")):  # may begin with a BOM
        stream.reconfigure(encoding=code, newline="")  # type: ignore[union-attr]  # TextIOWrapper
    signal.signal(getattr(signal, "SIGPIPE", signal.SIGTERM), signal.SIG_DFL)  # if head closes it
    rows, write = csv.DictReader(sys.stdin), csv.writer(sys.stdout, lineterminator="\n").writerow
    try:
        model, seen = Forecaster(), dict[tuple[str, int], tuple[float, float]]()
        if missing := {"frame", "agent", "x", "y"}.difference(rows.fieldnames or ()):
            raise ValueError(f"no column {', '.join(sorted(missing))}; commas separate columns")
        for r in rows:
            if None in r:  # such as 1,5 in place of 1.5
                raise ValueError(f"{r.pop(None)}: beyond the columns; decimals have a point")
            if (row := (r["agent"], int(f"{float(r['frame']):.15g}"))) in seen:
                raise ValueError(f"agent {row[0]} is twice in frame {row[1]}: one scene at a time")
            seen[row] = (float(r["x"]), float(r["y"]))
        steps = [b - a for (x, a), (y, b) in pairwise(sorted(seen)) if x == y] or [1]
        stride = most_frequent(sorted(steps)) if stride is None else stride
        if stride < 1 or not seen or not (np.abs([*seen.values()]) < 1e12).all():
            raise ValueError("needed: 1 frame per step or more, finite positions below 1e12")
    except (TypeError, ValueError, csv.Error) as error:
        sys.exit(f"error: line {rows.line_num}: {type(error).__name__}: {error}")
    last = dict.fromkeys((agent for agent, _ in seen), 0) | dict(sorted(seen))  # frame of each
    for end in sorted({*last.values()}):
        agents = [a for a in last if (a, end) in seen]  # the others at this frame are read too
        frames = end + stride * np.arange(1 - model.observed_steps, 1)
        past = np.array([[seen.get((a, f), (np.nan, np.nan)) for f in frames] for a in agents])
        for a, modes, p in zip(agents, *model.predict(past, ~np.isnan(past[..., 0])), strict=True):
            for (mode, step), x in np.ndenumerate(modes[..., 0] if last[a] == end else ()):
                write((a, mode, step + 1, x, modes[mode, step, 1], p[mode]))
