"""Forecast the agents of a track file, from the command line."""

import logging
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from hf_vanilla.families import entry_of
from hf_vanilla.files import check_output_file, whole_file
from hf_vanilla.options import option, progress_bar

from .forecaster import ForecasterOptions, check_rate, load_forecaster, predict
from .layout import Surroundings, fixed_draws, rollout_arguments
from .table import TrackTable
from .windows import groups_of_rows, pasts_of_rows, rows_of_groups

logger = logging.getLogger(__name__)

ENDINGS = (".csv", ".parquet")


@dataclass(frozen=True, kw_only=True)
class ForecastOptions(ForecasterOptions):  # the files' options, flat on the command line
    """Forecast every agent of a track file: rows of agent, step, mode, x, y, probability."""

    input: str = option(text="file or folder of tracks")
    output: str | None = option(None, "file to write, .csv or .parquet; default: stdout as CSV")
    at: str = option(
        "last", "last: from each agent's last row; all: from every row", choices=("last", "all")
    )
    predicted_steps: int | None = option(
        None,
        "steps to write; more than in training: only with a rollout; default: as in training",
        at_least=1,
    )
    least_observed: int = option(
        2, "agents with fewer observed steps are left out; others have theirs masked", at_least=1
    )
    batch_size: int = option(1024, "agents at a time", at_least=1)
    overwrite: bool = option(default=False, text="replace an existing output")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output is not None and Path(self.output).suffix.lower() not in ENDINGS:
            raise ValueError(f"output={self.output!r}: end it with {' or '.join(ENDINGS)}")


def forecast_file(options: ForecastOptions) -> None:
    """Forecast the agents of a file and write a table.

    Raises:
        ValueError: the tracks do not match the model or the options.
        OSError: a file is missing, or the output exists and `overwrite` is off.
    """
    if options.output is not None:
        check_output_file(options.output, overwrite=options.overwrite)
    table = options.read(options.input)
    model = load_forecaster(
        options.model,
        device=options.device,
        step_seconds=table.step_seconds,
        unit=table.unit,
        predicted_steps=options.predicted_steps or 12,
    )
    check_rate(table, model.config, options.input)
    steps = options.predicted_steps or model.config.predicted_steps
    longer = steps if steps > model.config.predicted_steps else None
    tables = forecasts(
        model,
        table,
        at=options.at,
        least_observed=options.least_observed,
        batch_size=options.batch_size,
        **rollout_arguments(model, samples_at_once=options.samples_at_once, predicted_steps=longer),
    )
    cut = (part.filter(pyarrow.compute.less_equal(part["step"], steps)) for part in tables)
    with fixed_draws():
        _write(cut, options)


def forecasts(
    model: Any,
    table: TrackTable,
    *,
    at: str = "last",
    least_observed: int = 2,
    batch_size: int = 1024,
    **arguments: int,
) -> Iterator[pyarrow.Table]:
    """Futures as tables with columns scene, frame, agent, step, mode, x, y, probability.

    Agents come in the order of their first appearance, frames in theirs; a joint forecaster's
    tables are sorted by scene and frame. Step 1 is the first after `frame`; mode 0 is the most
    probable. A joint forecaster also reads all other agents of a frame; mode k of all agents of a
    frame belongs together.

    Args:
        model: a forecaster in evaluation mode.
        table: the observed tracks; no future is needed.
        at: "last": from each agent's last row; "all": from every row.
        least_observed: agents with fewer of the last T steps are left out.
        batch_size: agents at a time.
        **arguments: of the model's calls, such as `samples_at_once`.
    """
    is_last = np.append(np.diff(table.agent) != 0, True)
    rows = np.flatnonzero(is_last) if at == "last" else np.arange(len(table))
    if at == "all":
        rows = rows[np.lexsort((table.agent, table.frame, table.scene))]
    left_out = 0
    whole_scenes = "others" in entry_of(model.config).reads
    with progress_bar(text="Forecasting", unit="rows", total=len(rows)) as bar:
        for selected, others in _row_batches(table, rows, batch_size, whole_scenes=whole_scenes):
            together = np.concatenate((selected, others))
            past, mask = pasts_of_rows(table, together, model.config.observed_steps)
            is_enough = mask.sum(1) >= least_observed
            shown = selected[is_enough[: len(selected)]]
            left_out += len(selected) - len(shown)
            if len(shown):
                read, seen, known = together[is_enough], past[is_enough], mask[is_enough]
                beside = Surroundings.of_rows(model.config, table, read)
                forecast = predict(model, seen, known, beside, **arguments)
                yield _table(table, shown, *(part[: len(shown)] for part in forecast))
            bar.update(len(selected))
    if left_out:
        logger.warning(
            "%s of %s rows have fewer than %d observed steps and no forecast",
            *(f"{left_out:,}", f"{len(rows):,}", least_observed),
        )


def _row_batches(
    table: TrackTable, rows: np.ndarray, size: int, *, whole_scenes: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows to forecast and, for whole scenes, the others of their scenes and frames."""
    if not whole_scenes:
        for first in range(0, len(rows), size):
            yield rows[first : first + size], rows[:0]
        return
    every = groups_of_rows(table, np.arange(len(table)))
    groups, wanted = rows_of_groups(every), np.unique(every[rows])
    is_wanted = np.zeros(len(table), bool)
    is_wanted[rows] = True
    sizes = np.cumsum([len(groups[number]) for number in wanted])
    for part in np.split(wanted, np.flatnonzero(np.diff((sizes - 1) // size)) + 1):
        members = np.concatenate([groups[number] for number in part])
        yield members[is_wanted[members]], members[~is_wanted[members]]


def _table(
    table: TrackTable, rows: np.ndarray, tracks: np.ndarray, probabilities: np.ndarray
) -> pyarrow.Table:
    agents, modes, steps, _ = tracks.shape
    rows = np.repeat(rows, modes * steps)
    return pyarrow.table(
        {
            "scene": np.array(table.scene_names, dtype=object)[table.scene[rows]],
            "frame": table.frame[rows],
            "agent": pyarrow.array(table.agent_names[table.agent[rows]].tolist()),
            "step": np.tile(np.arange(1, steps + 1), agents * modes),
            "mode": np.tile(np.repeat(np.arange(modes), steps), agents),
            "x": tracks[..., 0].reshape(-1),
            "y": tracks[..., 1].reshape(-1),
            "probability": np.repeat(probabilities.reshape(-1), steps),
        }
    )


def _write(tables: Iterator[pyarrow.Table], options: ForecastOptions) -> None:
    first = next(tables, None)
    if first is None:
        raise ValueError(
            f"{options.input}: no agent has {options.least_observed} observed steps: lower "
            "--least_observed"
        )
    is_parquet = options.output is not None and options.output.lower().endswith(".parquet")
    target = nullcontext(None) if options.output is None else whole_file(Path(options.output))
    with target as path:
        sink: Any = pyarrow.PythonFile(sys.stdout.buffer, mode="w") if path is None else str(path)
        kind = pyarrow.parquet.ParquetWriter if is_parquet else pyarrow.csv.CSVWriter
        with kind(sink, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table.cast(first.schema))
