"""Readers of track files: each is a function of a path that returns its rows in their order."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from hf_vanilla.data.lines import opened, read_lines
from hf_vanilla.file_values import checked

from .road_maps import with_map
from .table import Rows, TrackTable, join_tables, resample, table_of_rows

# between frame numbers that follow each other, of formats that do not state it
FRAME_SECONDS = {"eth_ucy": 0.04, "argoverse2": 0.1}
AGENTFORMER_COLUMNS = (17, 18)  # the last one of nuScenes is its mask of agents to forecast


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns of a CSV or Parquet file; the last two may be missing.

    Attributes:
        frame: whole numbers.
        agent: text or numbers.
        x: in the unit of the data.
        y: likewise.
        scene: where a file holds several scenes.
        kind: such as pedestrian.
    """

    frame: str = "frame"
    agent: str = "agent"
    x: str = "x"
    y: str = "y"
    scene: str | None = None
    kind: str | None = None


ARGOVERSE_COLUMNS = Columns(
    frame="timestep",
    agent="track_id",
    x="position_x",
    y="position_y",
    scene="scenario_id",
    kind="object_type",
)


def read_columns(text: str) -> Columns:
    """Names of columns from a text such as `frame=timestep,x=east`.

    Raises:
        ValueError: it has another form, or a key that there is not.
    """
    known = vars(Columns())
    pairs = [part.strip().partition("=") for part in text.split(",")] if text.strip() else []
    for key, _, name in pairs:
        if key not in known or not name:
            raise ValueError(
                f"columns={text!r}: give KEY=COLUMN of {', '.join(known)}, such as x=east"
            )
    columns = Columns(**{key: name for key, _, name in pairs})
    names = [name for name in vars(columns).values() if name is not None]
    if len({*names}) < len(names) or len({key for key, _, _ in pairs}) < len(pairs):
        keys = ", ".join(key for key, name in vars(columns).items() if name is not None)
        raise ValueError(
            f"columns={text!r}: {keys} are read from {', '.join(names)}: give each a column of its "
            "own, once"
        )
    return columns


@dataclass(frozen=True, kw_only=True)
class TrackSource:
    """How to read track files.

    Attributes:
        format: a name of `FORMATS`; None: by the file.
        columns: names of the columns of a CSV or Parquet file.
        frame_seconds: time between two frame numbers that follow each other; None where the format
            or the file states it.
        step_seconds: wanted time of a step; None: as in the file.
        homography: `(3, 3)` from pixels to the plane, applied to (x, y, 1); None: x and y are in
            the plane.
        unit: of the positions.
    """

    format: str | None = None
    columns: Columns = field(default_factory=Columns)
    frame_seconds: float | None = None
    step_seconds: float | None = None
    homography: np.ndarray | None = None
    unit: str = "m"


def read_tracks(path: str | Path, source: TrackSource = TrackSource()) -> TrackTable:
    """All scenes of a file, or of the files in a folder sorted by name.

    Where two files of a folder have scenes of one name, names begin with the file's path in it.

    Raises:
        ValueError: a file is not of the format, or a value is impossible; the message names file,
            line, value and remedy.
        OSError: a file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        known = (".txt", ".csv", ".parquet", ".ndjson")
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in known)
        if not files:
            raise FileNotFoundError(f"{path} has no file that ends with {', '.join(known)}")
        tables = [read_tracks(file, source) for file in files]
        joined = join_tables(tables)
        if len({*joined.scene_names}) == len(joined.scene_names):
            return joined
        within = [file.relative_to(path).with_suffix("") for file in files]
        names = [
            (file if name == file.name else file / name).as_posix()
            for file, table in zip(within, tables, strict=True)
            for name in table.scene_names
        ]
        return replace(joined, scene_names=tuple(names))
    if source.format is not None and source.format not in FORMATS:
        raise ValueError(f"format={source.format!r}: choose one of {', '.join(FORMATS)}")
    try:
        name = source.format or format_of(path)
        table = _scenes_of_file(path, name, source)
    except (ValueError, TypeError, KeyError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, ValueError) and str(path) in reason:
            raise
        raise ValueError(f"{path} cannot be read as tracks: {reason}") from None
    if name == "argoverse2":
        table = with_map(table, path)
    return resample(table, source.step_seconds)


def _scenes_of_file(path: Path, name: str, source: TrackSource) -> TrackTable:
    if name != "table" and replace(source.columns, scene=None, kind=None) != Columns():
        raise ValueError(
            f"{path} is read as {name}, whose columns have no other names: leave out --columns, "
            "or give --format table"
        )
    rows = FORMATS[name](path, source.columns)
    if source.homography is not None:
        rows = replace(rows, positions=on_plane(rows.positions, source.homography))
    frame_seconds = source.frame_seconds
    if frame_seconds is None:
        frame_seconds = FRAME_SECONDS.get(name)
    scene = _plain(path).stem
    return table_of_rows(rows, name=scene, frame_seconds=frame_seconds, unit=source.unit)


def _plain(path: Path) -> Path:
    """The name of a file without the ending `.gz`."""
    return path.with_suffix("") if path.suffix == ".gz" else path


def format_of(path: Path) -> str:
    """The format of a file by its ending, its first line or its columns.

    Raises:
        ValueError: it is none of `FORMATS`.
        OSError: the file cannot be read.
    """
    ending = _plain(path).suffix.lower()
    if ending == ".parquet":
        names = pyarrow.parquet.read_schema(path).names
        return "argoverse2" if {*vars(ARGOVERSE_COLUMNS).values()} <= {*names} else "table"
    if ending == ".csv":
        return "table"
    if ending == ".ndjson":
        return "trajnet"
    if ending == ".txt":
        is_wide = len(next(read_lines(path), "").split()) in AGENTFORMER_COLUMNS
        return "agentformer" if is_wide else "eth_ucy"
    raise ValueError(
        f"{path}: end its name with .csv, .parquet, .ndjson or .txt, or give --format, one of "
        f"{', '.join(FORMATS)}"
    )


# --- formats; only a table has columns of other names --------------------------------------------


def read_eth_ucy(path: Path, _: Columns) -> Rows:
    """Text of ETH and UCY: frame, person, x, y in metres; frames are 0.04 s apart."""
    frame, agent, x, y = _numbers(path, _text_rows(path, (4,)), (0, 1, 2, 3))
    return Rows(source=str(path), frame=frame, agent=_whole(agent), positions=np.stack((x, y), 1))


def read_agentformer(path: Path, _: Columns) -> Rows:
    """AgentFormer's columns: frame, id, kind; from the 11th width, height, length, x, z, y."""
    rows = _text_rows(path, AGENTFORMER_COLUMNS)
    frame, agent, width, length, x, y = _numbers(path, rows, (0, 1, 10, 12, 13, 15))
    kind = np.array([row[2] for row in rows], dtype=object)
    # of nuScenes a vehicle, of Argoverse 2 what stands at a building site
    kind[kind == "Construction"] = "Construction_vehicle"
    return Rows(
        source=str(path),
        frame=frame,
        agent=_whole(agent),
        positions=np.stack((x, y), 1),
        columns={"kind": kind, "size": np.stack((length, width), 1)},
    )


def read_trajnet(path: Path, _: Columns) -> Rows:
    """TrajNet++ `.ndjson`: objects `track` with f, p, x, y; `scene` states the steps per second.

    Predictions in the same file are left out.
    """
    found: list[tuple[Any, ...]] = []
    rate = 0.0
    for line, text in enumerate(read_lines(path), start=1):
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
            given = float(entry.get("scene", {}).get("fps") or rate)
            if not 0 <= given < math.inf or rate not in (0, given):
                raise ValueError(f"fps={given:g}" + f" after fps={rate:g}" * (rate > 0))
            rate = given
            track = entry.get("track")
            if track is not None and track.get("prediction_number") is None:
                point = float(track["x"]), float(track["y"])
                person = checked(track["p"], (int, float, str), "p")
                found.append((line, float(track["f"]), person, *point))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}, line {line}: {text.strip()[:60]!r} is no object of TrajNet++ "
                f"({type(error).__name__}: {error}): give 'track' with f, p, x, y, and a "
                "positive fps"
            ) from None
    lines, frame, agent, x, y = map(np.array, zip(*found, strict=True) if found else [[]] * 5)
    return Rows(
        source=str(path),
        frame=frame,
        agent=agent,
        positions=np.stack((x, y), 1),
        lines=lines,
        step_seconds=1 / rate if rate else None,
    )


def read_table(path: Path, columns: Columns) -> Rows:
    """CSV with a header, or Parquet: columns named by `columns`."""
    wanted = {key: name for key, name in vars(columns).items() if name is not None}
    read = _columns(path, wanted)
    first_line = 1 if path.suffix.lower() == ".parquet" else 2  # after the header

    def number(key: str) -> np.ndarray:
        values = read(key).to_numpy()
        if not len(values):  # the column has no type then
            return np.zeros(0)
        if values.dtype.kind not in "iuf":
            row = _first_text(values)
            raise ValueError(
                f"{path}, line {row + first_line}: {wanted[key]} is {str(values[row])!r}, not a "
                "number: correct the file"
            )
        return values

    def named(key: str) -> np.ndarray:
        values = read(key)
        if values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy())[0])
            raise ValueError(f"{path}, line {row + first_line}: the {key} is missing: name it")
        return values.to_numpy()

    names = named("agent")
    positions = np.empty((len(names), 2))
    for column, key in enumerate(("x", "y")):
        positions[:, column] = number(key)
    return Rows(
        source=str(path),
        frame=number("frame"),
        agent=names,
        positions=positions,
        lines=range(first_line, first_line + len(names)),
        scene=named("scene") if "scene" in wanted else None,
        columns={"kind": read("kind").to_numpy()} if "kind" in wanted else {},
    )


FORMATS: dict[str, Callable[[Path, Columns], Rows]] = {
    "eth_ucy": read_eth_ucy,
    "table": read_table,
    "trajnet": read_trajnet,
    "agentformer": read_agentformer,
    # a scenario, Parquet, 10 steps per second, in metres; `read_tracks` adds the map beside it
    "argoverse2": lambda path, _: read_table(path, ARGOVERSE_COLUMNS),
}


# --- pixels --------------------------------------------------------------------------------------


def read_homography(path: str | Path) -> np.ndarray:
    """The nine numbers of a text file as `(3, 3)`.

    Raises:
        ValueError: they are not nine numbers, or the matrix cannot be inverted.
        OSError: the file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8").replace(",", " ")
        matrix = np.array([float(part) for part in text.split()]).reshape(3, 3)
    except ValueError:
        raise ValueError(f"{path} is no homography: give three rows of three numbers") from None
    if not np.isfinite(matrix).all() or np.linalg.cond(matrix) > 1e12:
        raise ValueError(f"{path}: the homography cannot be inverted: give another matrix")
    return matrix


def on_plane(positions: np.ndarray, homography: np.ndarray) -> np.ndarray:
    """Positions `(..., 2)` after a homography `(3, 3)`, applied to (x, y, 1)."""
    ones = np.ones((*positions.shape[:-1], 1))
    mapped = np.concatenate((positions, ones), -1) @ homography.T
    return mapped[..., :2] / mapped[..., 2:]


# --- parts ---------------------------------------------------------------------------------------


def _text_rows(path: Path, counts: Sequence[int]) -> list[list[str]]:
    lines = [text.split() for text in read_lines(path)]
    while lines and not lines[-1]:
        lines.pop()
    for line, parts in enumerate(lines, start=1):
        if len(parts) not in counts:
            raise ValueError(
                f"{path}, line {line}: {len(parts)} columns instead of "
                f"{' or '.join(map(str, counts))}: give the file's format by --format"
            )
    return lines


def _numbers(path: Path, rows: Sequence[Sequence[str]], indices: Sequence[int]) -> list[np.ndarray]:
    columns = []
    for index in indices:
        texts = [row[index] for row in rows]
        try:
            columns.append(np.array(texts, dtype=np.float64))
        except ValueError:
            row = _first_text(texts)
            raise ValueError(
                f"{path}, line {row + 1}: {texts[row]!r} is not a number: correct the file"
            ) from None
    return columns


def _first_text(values: Iterable[Any]) -> int:
    """Index of the first value that is no number."""
    for row, value in enumerate(values):
        try:
            float(value)
        except (TypeError, ValueError):
            return row
    return 0


def _whole(numbers: np.ndarray) -> np.ndarray:
    """As int64 where all of them are whole numbers."""
    is_whole = np.isfinite(numbers).all() and (numbers == np.round(numbers)).all()
    return numbers.astype(np.int64) if is_whole else numbers


NAMES = ("agent", "scene", "kind")
CSV_SIGNS = "in CSV, commas separate columns, and decimals have a point"


def _columns(path: Path, wanted: dict[str, str]) -> Callable[[str], pyarrow.ChunkedArray]:
    """A function that reads one column; of Parquet only that one is then in memory."""
    try:
        if path.suffix.lower() == ".parquet":
            file = pyarrow.parquet.ParquetFile(path, pre_buffer=False)
            _check_columns(path, file.schema_arrow.names, wanted)
            for field in file.schema_arrow:
                if field.name in wanted.values() and pyarrow.types.is_nested(field.type):
                    raise ValueError(
                        f"{path}: the column {field.name} holds {field.type}: give one number or "
                        "name in each row"
                    )
            return lambda key: _decoded(file.read([wanted[key]], use_threads=False).column(0))
        texts = {wanted[key]: pyarrow.string() for key in NAMES if key in wanted}
        how = pyarrow.csv.ConvertOptions(strings_can_be_null=True, column_types=texts)
        with opened(path) as file:
            table = pyarrow.csv.read_csv(file, convert_options=how)
    except pyarrow.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        if "UTF8" in reason or "\0" in reason:  # of UTF-16
            raise ValueError(f"{path} has names that are not UTF-8: save it in UTF-8") from None
        raise ValueError(f"{path} is not a table with a header: {reason}; {CSV_SIGNS}") from None
    _check_columns(path, table.column_names, wanted)

    def column(key: str) -> pyarrow.ChunkedArray:
        values = table.column(wanted[key])
        if key in NAMES:
            # as numbers, unless that would change one, such as 007 or one of more than 64 bits
            with suppress(pyarrow.ArrowInvalid):
                numbers = values.cast(pyarrow.int64())
                return numbers if numbers.cast(values.type).equals(values) else values
        return values

    return column


def _decoded(values: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Values instead of indices, since pyarrow's `to_numpy` fills the gaps of indices."""
    is_coded = pyarrow.types.is_dictionary(values.type)
    return values.cast(values.type.value_type) if is_coded else values


def _check_columns(path: Path, names: list[str], wanted: dict[str, str]) -> None:
    for key, name in wanted.items():
        if name not in names:
            raise ValueError(
                f"{path} has no column {name!r}, only {str(names)[1:-1]}: rename one, or "
                f"name it by --columns {key}=NAME; {CSV_SIGNS}"
            )
        if names.count(name) > 1:
            raise ValueError(f"{path} has two columns {name!r}: rename one")
