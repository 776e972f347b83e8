"""Translate a corpus of any size: on one machine, or by Ray Data on many."""

import json
import logging
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tqdm import tqdm
from transformers import GenerationConfig

from hf_vanilla.loading import load_saved, model_folder
from hf_vanilla.options import install_hint, option

from .decoding_options import DecodingOptions
from .engines import check_n_best
from .shards import (
    MANIFEST,
    Plan,
    Shard,
    failed_lines,
    file_facts,
    plan_shards,
    remove_leftovers,
    translate_shard,
)
from .terminology import Terminology, read_terminology

logger = logging.getLogger(__name__)

# that change the translations, and are settings of a run only where they are given
GIVEN = ("dtype", "generation", "n_best", "split_sentences", "keep_markup")


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(DecodingOptions):
    """Translate any number of lines in shards; the same command continues a stopped run."""

    input: list[str] = option(
        text="files or folders: .parquet, .gz, or plain UTF-8 text, one sentence per line"
    )
    output: str = option(text="folder for the shards; on a cluster, one that all machines share")
    column: str = option("text", "column of Parquet files to translate")
    lines_per_shard: int = option(20_000, "lines of plain text per shard", at_least=1)
    n_best: int | None = option(
        None, "write this many pairs per line: source, translation, score", at_least=1
    )
    workers: int = option(1, "processes, of Ray Data; 1: this process, without Ray", at_least=1)
    address: str | None = option(None, "Ray cluster, such as ray://HOST:10001 or auto")
    threads_per_worker: int = option(1, "CPU threads of a Ray worker", at_least=1)
    gpus_per_worker: int = option(0, "GPUs of a Ray worker, 0 or 1", at_least=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_best is not None:
            if self.engine != "torch":
                raise ValueError(f"n_best={self.n_best} needs --engine torch")
            self.check_single_sentences("n_best")

    def check_search(self) -> None:
        """Refuse an n-best list that the search cannot give, before anything is written.

        Raises:
            ValueError: there are fewer beams than `n_best`, and no sampling.
        """
        if self.n_best is None:
            return
        try:
            saved = load_saved(GenerationConfig, self.model)
        except OSError:  # the model has none, or there is no model, which loading reports
            saved = GenerationConfig()
        check_n_best(self.n_best, saved, self.generate_kwargs)


@dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """Counts of a run.

    Attributes:
        output: folder of the shards; sorted by name, they are in the order of the corpus.
        shards: number of shards.
        lines: number of lines in the corpus.
        done_before: shards that earlier runs finished.
        redone: shards that an earlier run began and did not finish.
        failed: lines that could not be translated and are empty, those of earlier runs included.
    """

    output: str
    shards: int
    lines: int
    done_before: int
    redone: int
    failed: int

    def __str__(self) -> str:
        failed = f"; failed lines: {self.failed:,}, see *.failed" if self.failed else ""
        return (
            f"{self.output}: {self.lines:,} lines in {self.shards:,} shards, "
            f"{self.done_before:,} done before, {self.redone:,} redone{failed}"
        )


def translate_corpus(options: CorpusOptions) -> CorpusReport:
    """Translate files into a folder of shards, or continue an earlier run.

    Every line becomes exactly one line of exactly one shard, or with `n_best` so many rows of one
    shard, even if workers are killed: a shard gets its name when it is complete, and a complete
    shard is never translated again.

    Raises:
        ValueError: an earlier run wrote to this output with other inputs or settings; or, once all
            shards are done, lines could not be translated and `accept_failures` is off; or
            `n_best` is above the number of beams.
        OSError: an input does not exist, or a file cannot be read or written.
        ImportError: more than one worker, and Ray is not installed.
    """
    uses_ray = options.workers > 1 or options.address is not None
    if uses_ray:
        _import_ray()
    options.check_search()
    terms = None if options.terminology is None else read_terminology(options.terminology)
    output = Path(options.output).absolute()
    plan = plan_shards(
        options.input,
        output,
        lines_per_shard=options.lines_per_shard,
        column=options.column,
        settings=_settings(options, terms),
    )
    logger.info(
        "%d of %d shards are done; translating %d, of which an earlier run began %d",
        *map(len, (plan.done, plan.shards, plan.left, plan.begun)),
    )
    lines, is_hidden = sum(shard.lines for shard in plan.left), sys.stderr is None
    with tqdm(total=lines, unit="line", desc="Translating", smoothing=0, disable=is_hidden) as bar:
        try:
            if uses_ray and plan.left:
                _run_on_ray(options, terms, plan, output, bar)
            elif plan.left:
                translator, n_best = options.open_texts(terms=terms), options.n_best
                for shard in plan.left:
                    translate_shard(translator, shard, output, n_best=n_best, progress=bar.update)
        except BaseException:
            # where no shard was begun, the next run may differ
            if all(path.name == MANIFEST for path in output.iterdir()):
                (output / MANIFEST).unlink(missing_ok=True)
            raise
    remove_leftovers(plan, output)
    report = CorpusReport(
        output=options.output,
        shards=len(plan.shards),
        lines=sum(shard.lines for shard in plan.shards),
        done_before=len(plan.done),
        redone=len(plan.begun),
        failed=sum(len(failed_lines(shard, output)) for shard in plan.shards),
    )
    if report.failed and not options.accept_failures:
        raise ValueError(f"{report}; --accept_failures True accepts this")
    return report


class ShardWorker:
    """A Ray worker: loads the model once and translates one shard per call.

    Args:
        options: of the run.
        terms: those of its `terminology`.
        output: folder of the shards.
    """

    def __init__(self, options: CorpusOptions, terms: Terminology | None, output: str) -> None:
        torch.set_num_threads(options.threads_per_worker)
        self.translator = options.open_texts(terms=terms)
        self.output = Path(output)
        self.n_best = options.n_best

    def __call__(self, row: dict[str, str]) -> dict[str, int]:
        """Translate the shard of a row; returns its number of lines."""
        shard = Shard(**json.loads(row["shard"]))
        translate_shard(self.translator, shard, self.output, n_best=self.n_best)
        return {"lines": shard.lines}


def _settings(options: CorpusOptions, terms: Terminology | None) -> dict[str, Any]:
    """Settings that change the translations; batches, workers and threads do not."""
    settings = {
        "model": _full_name(options.model),
        "model_files": _model_files(options.model),
        "engine": options.engine,
        "num_beams": options.num_beams,
        **{name: value for name in GIVEN if (value := getattr(options, name))},
    }
    if options.seed is not None:
        settings["seed"] = options.seed
    if options.ensemble:
        names = [_full_name(name) for name in options.ensemble]
        settings["ensemble"] = {"models": names, "average": options.ensemble_average}
        settings["ensemble_files"] = [_model_files(name) for name in options.ensemble]
    if terms is not None:
        settings["terminology"] = terms.digest
    return settings


def _full_name(model: str) -> str:
    """The path of a model folder from the root; a Hub id as it is."""
    folder = Path(model_folder(model))
    return str(folder.absolute()) if folder.is_dir() else model


def _model_files(model: str) -> dict[str, list[int]]:
    """The facts of the files of a model folder that change its translations."""
    kinds = ("*.safetensors", "*.bin", "*.json")
    paths = sorted(path for kind in kinds for path in Path(model_folder(model)).glob(kind))
    return {path.name: file_facts(path) for path in paths}


def _run_on_ray(
    options: CorpusOptions, terms: Terminology | None, plan: Plan, output: Path, bar: tqdm
) -> None:
    """Ray Data distributes the shards, restarts killed workers and repeats their shards."""
    ray = _import_ray()
    cpus = options.workers * options.threads_per_worker
    starts_ray = not ray.is_initialized()
    if starts_ray:
        cluster = {"address": options.address} if options.address else {"num_cpus": cpus + 1}
        ray.init(include_dashboard=None if options.address else False, **cluster)
    try:
        rows = [{"shard": json.dumps(asdict(shard))} for shard in plan.left]
        # one block per shard: a killed worker costs one shard
        shards = ray.data.from_items(rows, override_num_blocks=len(rows))
        done = shards.map(
            ShardWorker,
            fn_constructor_args=(options, terms, str(output)),
            compute=ray.data.ActorPoolStrategy(size=min(options.workers, len(rows))),
            num_cpus=options.threads_per_worker,
            num_gpus=options.gpus_per_worker or None,
        )
        for row in done.iter_rows():
            bar.update(row["lines"])
    except ray.exceptions.RayError as error:
        # the text is a traceback, whose last line names the cause
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise OSError(f"a worker failed: {reason[0].strip()}") from error
    finally:
        if starts_ray:
            ray.shutdown()


def _import_ray() -> ModuleType:
    try:
        import ray
        import ray.data
    except ImportError:
        raise ImportError(f"workers need Ray: {install_hint('ray')}, or --workers 1") from None
    return ray
