"""Split a corpus into shards, each translated completely or not at all, so that runs resume.

A shard is done when its output file exists, because files are written under a temporary name and
renamed. `manifest.json` lists the shards and the settings of the run.
"""

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice, tee
from pathlib import Path
from typing import Any

from hf_vanilla.data.lines import opened
from hf_vanilla.files import PARTIAL, whole_file, write_text

from .decoding import Progress
from .text_translator import TextTranslator
from .translator import Translator

MANIFEST = "manifest.json"
FAILED = ".failed"  # no .txt, so that *.txt are the translations
EARLIER_FAILED = ".failed.txt"  # its name in folders of earlier versions
PARQUET = ".parquet"
TRANSLATION = "translation"
SCORE = "translation_score"
# texts to their translations, or to their n-best lists
Search = Callable[[Iterable[str]], Iterator[Any]]
NOT_SHOWN = ("inputs", "model_files", "ensemble_files", "terminology")  # settings of many values


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of one input file, and the name of its translation.

    Attributes:
        source: the input file.
        output: name of the translation in the output folder.
        begin: first byte of the part; in a Parquet file, its row group.
        first_line: line number of its first line in the input file, from 1.
        lines: number of lines.
        column: column of a Parquet file to translate; None for text.
    """

    source: str
    output: str
    begin: int
    first_line: int
    lines: int
    column: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All shards of a corpus, and their state.

    Attributes:
        shards: in the order of the corpus.
        done: shards that earlier runs finished.
        begun: shards that earlier runs began and did not finish.
    """

    shards: list[Shard]
    done: list[Shard]
    begun: list[Shard]

    @property
    def left(self) -> list[Shard]:
        """Shards to translate."""
        done = set(self.done)
        return [shard for shard in self.shards if shard not in done]


def plan_shards(
    inputs: Sequence[str],
    output: Path,
    *,
    lines_per_shard: int,
    column: str,
    settings: dict[str, Any],
) -> Plan:
    """Split a corpus into shards, or read the shards and the state of an earlier run.

    A shard of plain text has `lines_per_shard` lines. A `.gz` file is one shard, because it cannot
    be read from the middle. A row group of a Parquet file is one shard.

    Args:
        inputs: files, or folders of files; `.parquet`, `.gz`, and any other is plain UTF-8 text.
        output: folder of the translations.
        lines_per_shard: lines of plain text per shard.
        column: column of Parquet files to translate.
        settings: everything else that changes the output, by name. With `n_best`, shards of text
            are tables (`.tsv`).

    Raises:
        ValueError: an earlier run wrote to this output with other inputs or settings, or a column
            is missing.
        OSError: an input does not exist, or the output has other files and no manifest.
    """
    files = _input_files(inputs)
    facts = {
        **settings,
        "lines_per_shard": lines_per_shard,
        "column": column,
        "inputs": {str(path): file_facts(path) for path in files},
    }
    output.mkdir(parents=True, exist_ok=True)
    manifest = output / MANIFEST
    if not manifest.is_file():
        if any(path.suffix != PARTIAL for path in output.iterdir()):
            raise FileExistsError(f"{output} has files but no {MANIFEST}: choose another output")
        shards = list(_split(files, lines_per_shard, column, is_n_best="n_best" in settings))
        content = {"facts": facts, "shards": [asdict(shard) for shard in shards]}
        write_text(manifest, json.dumps(content, indent=1))
    else:
        shards = _shards_of(manifest, facts)
    present = {path.name for path in output.iterdir()}
    begun = {name.rsplit("~", 1)[0] for name in present if name.endswith(PARTIAL)}
    return Plan(
        shards=shards,
        done=[shard for shard in shards if shard.output in present],
        begun=[s for s in shards if s.output in begun and s.output not in present],
    )


def file_facts(path: Path) -> list[int]:
    """Size in bytes and modification time in nanoseconds, to notice a changed file."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def translate_shard(
    translator: Translator | TextTranslator,
    shard: Shard,
    output: Path,
    *,
    n_best: int | None = None,
    progress: Progress = False,
) -> None:
    """Translate one shard into its file, unless that exists.

    With `n_best`, each hypothesis is a row with its source and its score; a line that is blank or
    fails has no row. Of Parquet, the row of the input is repeated.

    The line numbers of failures go to a second file beside it. Two workers may translate the same
    shard: each has its own temporary file, and the results are equal. `progress` is as for
    `Translator.translate`.

    Raises:
        ValueError: the input file changed since the shards were planned.
        OSError: the input cannot be read, or the disk is full.
    """
    finished = output / shard.output
    if finished.exists():
        return
    # every worker has its own temporary name; the file of a killed worker names its shard
    mark = f"{socket.gethostname()}-{os.getpid()}"
    options: dict[str, Any] = {"progress": progress, "first_line": shard.first_line}
    search: Search = partial(translator.translate, **options)
    if n_best is not None:
        assert isinstance(translator, Translator)  # CorpusOptions refuses the other
        search = partial(translator.n_best, n=n_best, **options)
    with whole_file(finished, mark=f"~{mark}") as unfinished:
        if shard.column is None:
            count = _write_text(shard, unfinished, search)
        else:
            count = _write_parquet(shard, unfinished, search, is_n_best=n_best is not None)
        if count != shard.lines:
            raise ValueError(
                f"{shard.source} has changed: {count} lines from line {shard.first_line} on, not "
                f"{shard.lines} as planned; choose another output"
            )
        if translator.failed:
            numbers = "".join(f"{line}\n" for line in translator.failed)
            write_text(output / (shard.output + FAILED), numbers)
        else:  # an earlier translation of this shard may have had some
            for name in (FAILED, EARLIER_FAILED):
                (output / (shard.output + name)).unlink(missing_ok=True)


def failed_lines(shard: Shard, output: Path) -> list[int]:
    """Line numbers, in the input file, of a finished shard that could not be translated."""
    for name in (FAILED, EARLIER_FAILED):
        path = output / (shard.output + name)
        if path.is_file():
            return [int(line) for line in path.read_text().split()]
    return []


def remove_leftovers(plan: Plan, output: Path) -> None:
    """Remove the temporary files of killed workers once every shard is done.

    Raises:
        ValueError: a shard is missing; the message names it.
    """
    missing = [shard.output for shard in plan.shards if not (output / shard.output).is_file()]
    if missing:
        raise ValueError(f"{output} lacks {', '.join(missing[:5])}: run the same command again")
    for path in output.glob(f"*{PARTIAL}"):
        path.unlink(missing_ok=True)


def _input_files(inputs: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for name in inputs:
        path = Path(name).absolute()
        if path.is_dir():
            files += sorted(p for p in path.iterdir() if p.is_file() and p.name[0] not in "._")
        elif path.is_file():
            files.append(path)
        elif path.exists():
            raise ValueError(f"{name} is not a regular file: shards are read by position")
        else:
            raise FileNotFoundError(f"{name}: no such file or folder")
    if not files:
        raise ValueError(f"no files in {', '.join(inputs) or 'no inputs'}: give text or Parquet")
    return files


def _shards_of(manifest: Path, facts: dict[str, Any]) -> list[Shard]:
    saved = json.loads(manifest.read_text(encoding="utf-8"))
    old, new = saved["facts"], json.loads(json.dumps(facts))
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if changed:
        named = ", ".join(one if one in NOT_SHOWN else f"{one}={old.get(one)!r}" for one in changed)
        raise ValueError(
            f"an earlier run wrote {manifest.parent} with other {named}: "
            "use the same again, or choose another output"
        )
    return [Shard(**shard) for shard in saved["shards"]]


def _split(
    files: list[Path], lines_per_shard: int, column: str, *, is_n_best: bool
) -> Iterator[Shard]:
    width, text_suffix = max(5, len(str(len(files)))), ".tsv" if is_n_best else ".txt"
    added = (TRANSLATION, SCORE) if is_n_best else (TRANSLATION,)
    for number, path in enumerate(files):
        is_table = path.suffix == PARQUET
        parts = _row_groups(path, column, added) if is_table else _text_parts(path, lines_per_shard)
        stem, first_line = path.name.split(".")[0], 1
        suffix = PARQUET if is_table else text_suffix
        for index, (begin, lines) in enumerate(parts):
            yield Shard(
                source=str(path),
                output=f"{number:0{width}d}-{stem}-{index:07d}{suffix}",
                begin=begin,
                first_line=first_line,
                lines=lines,
                column=column if is_table else None,
            )
            first_line += lines


def _text_parts(path: Path, lines_per_shard: int) -> list[tuple[int, int]]:
    """First byte and number of lines of each part of a text file."""
    if path.suffix == ".gz":
        with opened(path) as packed:
            return [(0, sum(1 for _ in packed))]
    parts: list[tuple[int, int]] = []
    with path.open("rb") as file:
        while True:
            begin = file.tell()
            lines = sum(1 for _ in islice(file, lines_per_shard))
            if not lines:
                return parts or [(0, 0)]  # an empty file has an empty translation
            parts.append((begin, lines))


def _row_groups(path: Path, column: str, added: Sequence[str]) -> list[tuple[int, int]]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    if column not in file.schema_arrow.names:
        names = ", ".join(file.schema_arrow.names)
        raise ValueError(f"{path} has no column {column!r}: choose --column among {names}")
    for name in added:
        if name in file.schema_arrow.names:
            raise ValueError(f"{path} has a column {name!r} already: rename it")
    groups = range(file.metadata.num_row_groups)
    return [(group, file.metadata.row_group(group).num_rows) for group in groups]


def _write_text(shard: Shard, path: Path, search: Search) -> int:
    """Write a translation per line, or a row per hypothesis: source, translation, score."""
    read, kept = tee(_lines(shard))
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for source, found in zip(kept, search(read), strict=True):
            if isinstance(found, str):
                # a line feed in a translation must not start a new line of the file
                file.write(found.replace("\n", " ") + "\n")
            else:
                for one in found:
                    file.write(f"{cell(source)}\t{cell(one.text)}\t{one.score:.4f}\n")
            file.flush()
            count += 1
    return count


def cell(text: str) -> str:
    """A text in a column of a table: without tabs and line ends."""
    return text.translate({ord(end): " " for end in "\t\r\n"})


def _lines(shard: Shard) -> Iterator[str]:
    """Lines of a shard; a byte that is not UTF-8 becomes a surrogate, so only its line fails."""
    path = Path(shard.source)
    with opened(path) as file:
        file.seek(shard.begin)
        lines: Iterable[bytes] = islice(file, shard.lines)
        for number, line in enumerate(lines, start=shard.first_line):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")
            yield text.rstrip("\r\n")


def _write_parquet(shard: Shard, path: Path, search: Search, *, is_n_best: bool) -> int:
    """Write the rows of the shard with all their columns and a column `translation`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.ParquetFile(shard.source).read_row_group(shard.begin)
    sentences = table.column(shard.column).to_pylist()
    texts, scores = list(search(sentences)), None
    if is_n_best:
        rows = [i for i, hypotheses in enumerate(texts) for _ in hypotheses]
        table = table.take(pa.array(rows, pa.int64()))
        scores = [one.score for hypotheses in texts for one in hypotheses]
        texts = [one.text for hypotheses in texts for one in hypotheses]
    table = table.append_column(TRANSLATION, pa.array(texts, pa.string()))
    if scores is not None:
        table = table.append_column(SCORE, pa.array(scores, pa.float64()))
    with path.open("wb") as file:
        pq.write_table(table, file)
    return len(sentences)
