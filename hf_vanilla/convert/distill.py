"""A student from a teacher in one command: a plan over other commands (Kim and Rush 2016).

Each stage is a command of this package, which is shown, or writes files that the next one reads.
Its folder stays, and the same command goes on where a stopped one was.
"""

import copy
import json
import logging
import shlex
import shutil
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from hf_vanilla.data.bleu import Scores
from hf_vanilla.data.lines import check_text_file, read_lines, read_pairs
from hf_vanilla.file_values import read_yaml
from hf_vanilla.files import whole_folder, write_text
from hf_vanilla.hub.card import ALIGNMENT_FILE, carry_over
from hf_vanilla.loading import check_section, model_folder, read_settings
from hf_vanilla.options import Options, option, parse_options
from hf_vanilla.text.corpus_translation import CorpusOptions, translate_corpus
from hf_vanilla.text.evaluation import EvaluateOptions, evaluate_files
from hf_vanilla.text.shards import MANIFEST, cell
from hf_vanilla.text.translator import Translator
from hf_vanilla.training.recipe import Recipe, recipe_file, recipe_of
from hf_vanilla.training.run import train

from .checkpoint_files import load_encoder_decoder
from .export import QuantizeOptions, quantize_folder
from .onnx.files import quiet

logger = logging.getLogger(__name__)

BEAMS = 4  # of teacher and students, where they are compared
CANDIDATES = 5  # translations of a line, of which the reference chooses one
BATCH_SIZES, ROUNDS = (1, 16, 64), 3
LONGEST_RATIO, EXTRA = 3, 20  # characters of the longer side per character of the shorter one
LOWEST_SHARE = 0.05  # of the translations, by score per token: dropped
WRITTEN = ("train.source", "train.target", "student.yaml", "report.md")  # in the output folder
CARD_TITLE = "\n## Beside its teacher\n"
# data of the student's recipe in place of which it gets its teacher's translations
REPLACED = ("train_source", "train_target", "dataset", "dataset_config", "prepared")
LAYERS = ("encoder_layers", "decoder_layers")


@dataclass(frozen=True, kw_only=True)
class DistillOptions(Options):
    """Train a student on its teacher's translations, quantize it, and compare both."""

    teacher: str = option(
        text="model folder or Hub id; or a file of ready translations, one for each line of source"
    )
    source: str = option(text="file of source sentences, plain or .gz")
    target: str | None = option(
        None,
        f"file of references: of {CANDIDATES} translations the most similar one is used, and the "
        "references are trained on too",
    )
    student: str = option(text="recipe of the student, with validation files; see student_6_2")
    output: str = option(text="folder of all stages; the same command continues a stopped run")

    @property
    def has_model(self) -> bool:
        """Whether the teacher is a model, not a file of its translations."""
        return not Path(self.teacher).is_file()


def distill(options: DistillOptions) -> str:
    """Run all stages; returns the table of teacher and student.

    Raises:
        ValueError: the student does not fit the teacher, an earlier run in the folder had another
            teacher or other text, or no translation is left.
        OSError: a file or model cannot be read, or the folder cannot be written.
    """
    output = Path(options.output)
    recipe = _student_recipe(options, output)
    _check_output(options, output)
    _check_files(options, recipe)
    start = output / "start"
    candidates = CANDIDATES if options.has_model and options.target else 1
    if options.has_model:
        model, tokenizer = load_encoder_decoder(options.teacher)
        kept = _initial_layers(options.teacher, model, recipe, start)
        line = ["--model", options.teacher, "--input", options.source]
        line += ["--output", str(output / "translations"), "--accept_failures", "True"]
        line += ["--num_beams", str(max(BEAMS, candidates)), "--n_best", str(candidates)]
        translate_corpus(_shown("translate-corpus", line, CorpusOptions))
    _write_pairs(options, output, candidates)
    if options.has_model and not start.exists():
        write_layers(start, options.teacher, model, tokenizer, kept)
    file = output / "student.yaml"
    if options.has_model:
        recipe = replace(recipe, train=replace(recipe.train, initial_model=str(start)))
    write_text(file, recipe.to_yaml())
    logger.info("hf-vanilla train --recipe %s", shlex.quote(str(file)))
    student = train(recipe)
    quantized = output / "student_int8"
    shutil.rmtree(quantized, ignore_errors=True)  # of fewer steps, or with other decoding
    line = ["--model", str(student), "--output", str(quantized)]
    quantize_folder(_shown("quantize", line, QuantizeOptions))
    models = [*([options.teacher] if options.has_model else []), str(student), str(quantized)]
    table = _comparison(models, recipe)
    write_text(output / "report.md", table)
    card = student / "README.md"
    text = card.read_text(encoding="utf-8").partition(CARD_TITLE)[0]
    write_text(card, f"{text.rstrip()}\n{CARD_TITLE}\n{table}")
    return table


def _student_recipe(options: DistillOptions, output: Path) -> Recipe:
    """The recipe of the student with the pairs that it will learn from."""
    mixture: list[dict[str, Any]] = [
        {"source": str(output / "train.source"), "target": str(output / "train.target")}
    ]
    if options.target:  # as in the recipe student_6_2
        mixture[0]["weight"] = 2
        mixture.append({"source": options.source, "target": options.target})
    changes = {**dict.fromkeys(REPLACED), "mixture": mixture, "output_dir": str(output / "student")}
    if options.has_model:
        changes["initial_model"] = options.teacher
    return recipe_of({**read_yaml(recipe_file(options.student)), **changes})


def _shown(name: str, arguments: Sequence[str], options_class: type) -> Any:
    """Options of a command, which is logged as one can type it."""
    logger.info("hf-vanilla %s %s", name, shlex.join(arguments))
    return parse_options(options_class, arguments)


def _check_files(options: DistillOptions, recipe: Recipe) -> None:
    """Refuse what the last stages would refuse, before the first one."""
    data = recipe.data
    if recipe.task != "translation" or data.validation_source is None:
        raise ValueError(
            f"--student {options.student}: give a recipe of translation with validation_source and "
            "validation_target, on which teacher and student are compared"
        )
    if not options.has_model and recipe.train.initial_model is not None:
        raise ValueError(
            f"--student {options.student} starts from initial_model={recipe.train.initial_model!r}:"
            f" give its teacher's folder in place of {options.teacher}, or another recipe"
        )
    others = [options.target, None if options.has_model else options.teacher]
    for path in (options.source, data.validation_source, data.validation_target):
        check_text_file(path)
    if next(read_lines(options.source), None) is None:
        raise ValueError(f"{options.source} is empty: give sentences to translate")
    for other in filter(None, others):
        for _ in read_pairs(options.source, other):  # lines correspond
            pass


def _check_output(options: DistillOptions, output: Path) -> None:
    """Refuse a folder with input in it, or of a run that began with `target` and now has none."""
    written = [(output / name).resolve() for name in WRITTEN]
    for path in filter(None, (options.student, options.source, options.target, options.teacher)):
        if Path(path).resolve() in written:
            raise ValueError(f"{path} would be overwritten: choose another output than {output}")
    manifest = output / "translations" / MANIFEST
    if not (options.has_model and manifest.is_file()):
        return
    had = json.loads(manifest.read_text(encoding="utf-8"))["facts"].get("n_best") == CANDIDATES
    if had != (options.target is not None):
        begun, remedy = ("with", "give it") if had else ("without", "leave it out")
        raise ValueError(
            f"{output} was begun {begun} --target: {remedy} again, or choose another output"
        )


# --- layers -------------------------------------------------------------------------------------


def _initial_layers(
    name: str, teacher: PreTrainedModel, recipe: Recipe, start: Path
) -> dict[str, list[int]]:
    """Which layers of the teacher the student begins with, by `LAYERS`: first, last, evenly.

    Raises:
        ValueError: the student is deeper than its teacher, of other sizes, or the folder `start`
            has other layers.
    """
    section = {key: value for key, value in recipe.model.items() if key not in LAYERS}
    check_section(name, teacher.config, section)
    kept, made = {}, read_settings(start) if start.exists() else recipe.model
    for side in LAYERS:
        there = getattr(teacher.config, side)
        wanted = recipe.model.get(side, there)
        if not 1 <= wanted <= there:
            raise ValueError(
                f"the student has {side}={wanted} and its teacher {name} {there}: it begins with "
                f"layers of its teacher; set 1 to {there}"
            )
        if made.get(side, there) != wanted:
            raise ValueError(
                f"{start} was made for a student with {side}={made.get(side)}, and this one has "
                f"{wanted}: choose another output"
            )
        kept[side] = [round(i * (there - 1) / max(wanted - 1, 1)) for i in range(wanted)]
    return kept


def write_layers(
    output: Path, name: str, model: PreTrainedModel, tokenizer: Any, layers: dict[str, list[int]]
) -> None:
    """Write a model of some layers of another, as a start; its card has licence and languages.

    Args:
        output: its folder.
        name: folder or Hub id of `model`, whose card is used.
        model: in float32; its layers are replaced.
        tokenizer: of both.
        layers: numbers of the layers by `LAYERS`; one may be there twice.

    Raises:
        OSError: the folder exists, or cannot be written.
    """
    for side, numbers in layers.items():
        stack = getattr(model.model, side.removesuffix("_layers"))
        stack.layers = type(stack.layers)(
            copy.deepcopy(stack.layers[number]) if number in numbers[:i] else stack.layers[number]
            for i, number in enumerate(numbers)
        )
        setattr(model.config, side, len(numbers))
    with whole_folder(output) as folder:
        shown = "; ".join(f"{side}: {layers[side]}" for side in LAYERS)
        change = f"Its layers are those of another model: {shown}."
        carry_over(name, folder, model, tokenizer, change=change)
        (folder / ALIGNMENT_FILE).unlink(missing_ok=True)  # it may name another layer


# --- text ---------------------------------------------------------------------------------------


def _write_pairs(options: DistillOptions, output: Path, candidates: int) -> None:
    """Write what is left of the translations: `train.source` and `train.target`."""
    rows = list(_best_translations(options, output / "translations", candidates))
    scores = sorted(score for *_, score in rows) or [0.0]
    lowest = scores[int(len(scores) * LOWEST_SHARE)]
    pairs, dropped = [], Counter[str]()
    for source, target, score in rows:
        short, long = sorted((len(source), len(target)))
        if not source.strip() or not target.strip():
            dropped["empty"] += 1
        elif long > LONGEST_RATIO * short + EXTRA:
            dropped["unequal lengths"] += 1
        elif score < lowest:
            dropped["low score"] += 1
        else:
            pairs.append((source, target))
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) or "none"
    logger.info("pairs for the student: %s; dropped: %s", f"{len(pairs):,}", reasons)
    if not pairs:
        raise ValueError(f"no translation of {options.teacher} is left to train on: {reasons}")
    output.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate(("train.source", "train.target")):
        write_text(output / name, "".join(f"{pair[side]}\n" for pair in pairs))


def _best_translations(
    options: DistillOptions, folder: Path, candidates: int
) -> Iterator[tuple[str, str, float]]:
    """Source, translation and score per token of each line; without scores, 0."""
    if not options.has_model:
        for pair in read_pairs(options.source, options.teacher):
            yield pair["source"], pair["target"], 0.0
        return
    rows = deque(
        (source, target, float(score))
        for shard in sorted(folder.glob("*.tsv"))
        for source, target, score in (line.split("\t") for line in read_lines(shard))
    )
    if options.target is None:
        yield from rows
        return
    from sacrebleu.metrics import CHRF

    chrf = CHRF()
    for pair in read_pairs(options.source, options.target):
        source = cell(pair["source"])
        some: list[tuple[float, tuple[str, str, float]]] = []
        # a line that is blank or has failed has no rows
        while rows and rows[0][0] == source and len(some) < candidates:
            some.append((chrf.sentence_score(rows[0][1], [pair["target"]]).score, rows.popleft()))
        if some:
            yield max(some, key=lambda scored: scored[0])[1]
    if rows:
        raise ValueError(f"{folder}: the translations of {rows[0][0]!r:.60} are of another line")


# --- student ------------------------------------------------------------------------------------


def _comparison(models: Sequence[str], recipe: Recipe) -> str:
    """A Markdown table: size, scores and speed of the models, with equal beams."""
    source, reference = recipe.data.validation_source, recipe.data.validation_target
    scores: list[Scores] = []
    for name in models:
        line = ["--model", name, "--source", source, "--reference", reference]
        line += ["--num_beams", str(BEAMS)]
        scores.append(evaluate_files(_shown("evaluate", line, EvaluateOptions)))
    translators = [Translator(name, num_beams=BEAMS) for name in models]
    sources = list(read_lines(source))
    with quiet():  # `evaluate` has warned of the same lines
        speeds = [times_as_fast(translators, sources, size, ROUNDS) for size in BATCH_SIZES]
    sizes = " | ".join(f"times as fast, batch {size}" for size in BATCH_SIZES)
    rows = [f"| model | MB | BLEU | chrF | chrF of the first | {sizes} |", "|---" * 8 + "|"]
    for number, (name, score) in enumerate(zip(models, scores, strict=True)):
        files = Path(model_folder(name)).glob("*.safetensors")
        size = sum(file.stat().st_size for file in files) / 1e6  # 0: a Hub id
        times = " | ".join(f"{speed[number]:.2f}" for speed in speeds)
        rows.append(
            f"| {name} | {f'{size:.1f}' if size else '-'} | {score.bleu:.2f} | {score.chrf:.2f} | "
            f"{score.chrf / max(scores[0].chrf, 1e-9):.1%} | {times} |"
        )
    return "\n".join([*rows, "", f"{BEAMS} beams; {scores[0].bleu_signature}", ""])


def times_as_fast(
    translators: Sequence[Translator], sources: Sequence[str], size: int, rounds: int
) -> list[float]:
    """How many times as fast as the first translator each one is: the median over rounds.

    In each round, all translate the same batch. Processor time includes tokenization, but not
    loading.

    Args:
        translators: the first is what the others are compared with.
        sources: sentences; where there are too few, they are read again.
        size: sentences of a batch.
        rounds: batches.
    """
    ratios: list[list[float]] = []
    texts = [sources[number % len(sources)] for number in range(size * rounds)]
    for translator in translators:
        list(translator.translate(texts[:size]))
    for number in range(rounds):
        batch, times = texts[number * size : (number + 1) * size], []
        for translator in translators:
            began = time.process_time()
            list(translator.translate(batch))
            times.append(time.process_time() - began)
        ratios.append([times[0] / spent for spent in times])
    return [statistics.median(of_one) for of_one in zip(*ratios, strict=True)]
