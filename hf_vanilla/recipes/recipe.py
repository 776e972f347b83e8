"""What a training run is told: data, model, training and decoding, in one YAML file.

Three kinds of number have three homes: what shapes the weights goes to `VanillaConfig`, how to
decode to `GenerationConfig`, and how to train to `TrainRecipe`.
"""

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from accelerate.utils import LoggerType
from transformers import GenerationConfig

from hf_vanilla.data.corpus import BUILT_IN_CORPUS
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.generation_vanilla import LENGTH_PENALTY_FORMS, paper_decoding
from hf_vanilla.options import (
    check_names,
    given_options,
    parse_options,
    pop_option,
    read_yaml,
    yaml_value,
)

from .schedules import SCHEDULES, check_schedule

RECIPE_HELP = (
    "Options override --recipe FILE, a YAML file of the same names, or the name of a recipe that "
    "came with the package, such as numbers. Its sections are set by "
    "--model.KEY VALUE (fields of VanillaConfig) and --decoding.KEY VALUE (generation config)."
)
SECTIONS = ("model", "decoding")
OPTIMIZERS = ("adam", "adamw")
PRECISIONS = ("no", "bf16", "fp16")
TRACKERS = tuple(str(kind) for kind in LoggerType if kind is not LoggerType.ALL)
# measures of a checkpoint, and what makes a value the better one
MEASURES: dict[str, Callable[[float], float]] = {"nll": float, "bleu": lambda bleu: -bleu}
PAIRED_FILES = (("train_source", "train_target"), ("validation_source", "validation_target"))


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """How to train. The defaults train the paper's way on the built-in corpus."""

    output_dir: str = _option("runs/train", "folder of the run: checkpoints, then the model")

    dataset: str | None = _option(None, f"'{BUILT_IN_CORPUS}' (built in), a Hub id, or a folder")
    dataset_config: str | None = _option(None, "configuration of the Hub set, such as de-en")
    source_column: str = _option("source", "column or language to translate from")
    target_column: str = _option("target", "column or language to translate to")
    train_source: str | None = _option(None, "file of source sentences, plain or .gz")
    train_target: str | None = _option(None, "file of their translations, line by line")
    validation_source: str | None = _option(None, "file of held-out source sentences")
    validation_target: str | None = _option(None, "file of their translations")
    source_language: str | None = _option(None, "code for the model card, such as en")
    target_language: str | None = _option(None, "code for the model card, such as de")
    model_license: str | None = _option(None, "licence of the weights, for the model card")
    tokenizer: str | None = _option(None, "folder or Hub id of a tokenizer; default: train one")
    max_length: int = _option(256, "tokens a side may have; longer pairs are counted out")
    max_length_ratio: float | None = _option(
        None, "tokens of the longer side per token of the shorter; beyond it counted out; none: any"
    )
    streaming: bool = _option(
        default=False, text="read and encode the text while training instead of before it"
    )
    window_pairs: int = _option(
        100_000, "pairs of a stream that are sorted by length and shuffled together"
    )
    preprocessing_workers: int = _option(1, "processes that tokenize the corpus, once")

    max_steps: int = _option(100_000, "optimizer steps")
    tokens_per_step: int = _option(25_000, "tokens of either side per optimizer step, padded")
    # as on the paper's 8 GPUs. A batch holds sentences of like length; a step of one batch only
    # would see one length at a time, and learns far worse than a step of several
    tokens_per_batch: int = _option(3_125, "tokens of either side per process and pass, padded")
    learning_rate: float | None = _option(
        None, "peak of the schedule; default: (d_model * warmup_steps) ** -0.5, as in the paper"
    )
    learning_rate_of: str | None = _option(
        None,
        "other peaks by the beginning of a weight's name: PREFIX=RATE, several by commas, such as "
        "backbone=1e-5; in a file, keys and values",
    )
    schedule: str = _option("inverse_sqrt", f"learning rate over the steps: {', '.join(SCHEDULES)}")
    warmup_steps: int = _option(4000, "optimizer steps to the peak")
    optimizer: str = _option("adam", f"one of {', '.join(OPTIMIZERS)}")
    weight_decay: float = _option(
        0.0, "decay of weight matrices per unit of learning rate; norms, biases, positions: none"
    )
    adam_beta1: float = _option(0.9, "decay of the first moment")
    adam_beta2: float = _option(0.98, "decay of the second moment")
    adam_epsilon: float = _option(1e-9, "added to the root of the second moment")
    max_grad_norm: float = _option(0.0, "gradients are scaled down to this norm; 0: never")
    average_checkpoints: int = _option(5, "last checkpoints whose mean is the final model")
    average_best: bool = _option(
        default=False, text="average the best checkpoints, by validation, instead of the last"
    )
    best_by: str = _option("nll", "what tells the better validation: nll or bleu")
    patience: int = _option(0, "end after so many validations without a better one; 0: never")
    seed: int = _option(0, "of weights, order and dropout")
    mixed_precision: str | None = _option(
        None, "no, bf16 or fp16; default: as accelerate is set, else bf16 on GPUs that have it"
    )
    compile: bool = _option(default=False, text="compile the model by torch.compile")
    gradient_checkpointing: bool = _option(
        default=False,
        text="compute the forward pass again for the backward: slower, less memory",
    )
    use_cpu: bool = _option(default=False, text="train on the CPU even where there is a GPU")

    bleu_tokenize: str = _option("13a", "sacreBLEU's tokenizer; none: text is tokenized already")
    eval_steps: int = _option(1000, "optimizer steps between validations")
    eval_sentences: int = _option(200, "validation sentences translated for BLEU; 0: none")
    save_steps: int = _option(1000, "optimizer steps between checkpoints")
    save_total_limit: int = _option(5, "checkpoints kept; at least average_checkpoints")
    logging_steps: int = _option(50, "optimizer steps between lines of the log")
    trackers: str | None = _option(
        None, "accelerate's trackers, by commas, or none; default: tensorboard where installed"
    )

    def __post_init__(self) -> None:
        for check in (
            self._check_data,
            self._check_counts,
            self._check_rates,
            self._check_names,
            self._check_best,
        ):
            check()

    def _check_data(self) -> None:
        for pair in (*PAIRED_FILES, ("source_language", "target_language")):
            given = [name for name in pair if getattr(self, name) is not None]
            if len(given) == 1:
                missing = (set(pair) - set(given)).pop()
                raise ValueError(f"{given[0]} is given, but not {missing}: give both or neither")
        if self.dataset is not None and self.train_source is not None:
            raise ValueError(
                f"dataset={self.dataset!r} and train_source={self.train_source!r}: give one of them"
            )
        if self.streaming and self.train_source is None and self.dataset in (None, BUILT_IN_CORPUS):
            raise ValueError(
                "streaming needs a dataset or train_source: it reads no built-in corpus"
            )
        if self.validation_source is not None and self.train_source is None:
            raise ValueError("validation files need train_source and train_target")

    def _check_counts(self) -> None:
        positive = (
            "max_length max_steps tokens_per_step tokens_per_batch warmup_steps "
            "average_checkpoints eval_steps save_steps save_total_limit logging_steps "
            "preprocessing_workers window_pairs"
        )
        for name in positive.split():
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give a positive number")
        if self.max_length_ratio is not None and self.max_length_ratio < 1:
            raise ValueError(
                f"max_length_ratio={self.max_length_ratio}: give 1 or more, such as 1.5"
            )
        for name in ("eval_sentences", "patience"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")
        if self.tokens_per_batch < self.max_length:
            raise ValueError(
                f"tokens_per_batch={self.tokens_per_batch} is smaller than max_length="
                f"{self.max_length}: a batch must hold one sentence"
            )
        if self.save_total_limit < self.average_checkpoints:
            raise ValueError(
                f"save_total_limit={self.save_total_limit} is smaller than average_checkpoints="
                f"{self.average_checkpoints}: keep as many as are averaged"
            )

    def _check_rates(self) -> None:
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give a rate in [0, 1)")
        if self.adam_epsilon <= 0:
            raise ValueError(f"adam_epsilon={self.adam_epsilon}: give a positive number")
        peaks = {"learning_rate": self.learning_rate}
        peaks |= {f"learning_rate_of {prefix}": rate for prefix, rate in self.rate_of.items()}
        for name, peak in peaks.items():
            if peak is not None and not 0 < peak < math.inf:
                raise ValueError(f"{name}={peak}: give a positive number")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay={self.weight_decay}: give 0 or more")
        check_schedule(self.schedule, warmup_steps=self.warmup_steps, max_steps=self.max_steps)
        if self.max_grad_norm < 0:
            raise ValueError(f"max_grad_norm={self.max_grad_norm}: give 0 or more")

    def _check_names(self) -> None:
        precision = "no" if self.mixed_precision is None else self.mixed_precision
        known = (
            ("mixed_precision", [precision], PRECISIONS),
            ("best_by", [self.best_by], tuple(MEASURES)),
            ("optimizer", [self.optimizer], OPTIMIZERS),
            ("trackers", self.tracker_names, TRACKERS),
        )
        for option, names, choices in known:
            for name in names:
                if name not in choices:
                    raise ValueError(f"{option}={name!r}: choose one of {', '.join(choices)}")

    def _check_best(self) -> None:
        is_used = self.average_best or self.patience
        if is_used and self.best_by == "bleu" and not self.eval_sentences:
            raise ValueError("best_by='bleu' needs translations: set eval_sentences")
        if is_used and self.train_source is not None and self.validation_source is None:
            raise ValueError("average_best and patience need validation files")
        if self.average_best and self.save_steps % self.eval_steps:
            raise ValueError(
                f"average_best needs each checkpoint validated: save_steps={self.save_steps} must "
                f"be a multiple of eval_steps={self.eval_steps}"
            )

    @property
    def tracker_names(self) -> tuple[str, ...]:
        """The trackers that `trackers` names."""
        names = [name.strip() for name in (self.trackers or "none").split(",")]
        return () if names == ["none"] else tuple(names)

    @property
    def rate_of(self) -> dict[str, float]:
        """The peaks that `learning_rate_of` names, by prefix.

        Raises:
            ValueError: it is not of the form PREFIX=RATE.
        """
        rates = {}
        for part in filter(None, (self.learning_rate_of or "").split(",")):
            prefix, _, rate = part.partition("=")
            try:
                rates[prefix.strip()] = float(rate)
            except ValueError:
                raise ValueError(
                    f"learning_rate_of={part!r}: give PREFIX=RATE, such as backbone=1e-5"
                ) from None
        return rates

    @property
    def train_files(self) -> tuple[str, str] | None:
        """The two files to train on, if the data are files."""
        files = self.train_source, self.train_target
        return None if files[0] is None or files[1] is None else (files[0], files[1])

    @property
    def validation_files(self) -> tuple[str, str] | None:
        """The two held-out files, if the data are files."""
        files = self.validation_source, self.validation_target
        return None if files[0] is None or files[1] is None else (files[0], files[1])


@dataclass(frozen=True)
class Recipe:
    """A whole recipe.

    Attributes:
        train: how to train.
        model: fields of `VanillaConfig` that differ from the paper's base model.
        decoding: entries of the generation config that differ from the paper's decoding.
    """

    train: TrainRecipe
    model: dict[str, Any]
    decoding: dict[str, Any]

    def __post_init__(self) -> None:
        check_names("model", self.model, VanillaConfig().to_dict())
        known = {**GenerationConfig().to_dict(), **paper_decoding(VanillaConfig()).to_dict()}
        check_names("decoding", self.decoding, known)
        form = self.decoding.get("length_penalty_form", LENGTH_PENALTY_FORMS[0])
        if form not in LENGTH_PENALTY_FORMS:
            names = ", ".join(LENGTH_PENALTY_FORMS)
            raise ValueError(f"decoding.length_penalty_form={form!r}: choose one of {names}")
        beams = self.decoding.get("num_beams", 1)
        if not isinstance(beams, int) or beams < 1:
            raise ValueError(f"decoding.num_beams={beams!r}: give a positive number")
        self.generation_config(self.config())

    def config(self, **changes: Any) -> VanillaConfig:
        """The model's config; `changes` are what only the data can tell.

        Raises:
            huggingface_hub.errors.StrictDataclassError: a value cannot be built.
        """
        return VanillaConfig(**{**self.model, **changes})

    def generation_config(self, config: VanillaConfig) -> GenerationConfig:
        """The paper's decoding with this recipe's changes."""
        paper = paper_decoding(config).to_diff_dict()
        if self.decoding.get("num_beams") == 1:  # transformers refuses to save them without a beam
            paper = {
                k: v for k, v in paper.items() if k not in ("early_stopping", "length_penalty")
            }
        return GenerationConfig(**{**paper, **self.decoding})

    def to_yaml(self) -> str:
        """This recipe as a file that `read_recipe` reads; defaults are left out."""
        defaults = asdict(TrainRecipe())
        train = {k: v for k, v in asdict(self.train).items() if v != defaults[k]}
        sections = {"model": self.model, "decoding": self.decoding}
        return yaml.safe_dump(
            {**train, **{k: v for k, v in sections.items() if v}}, sort_keys=False
        )


def read_recipe(arguments: Sequence[str]) -> Recipe:
    """A recipe from `--recipe FILE`, or the name of a shipped one, and options that override it.

    `--max_steps 500` overrides a field of `TrainRecipe`, `--model.d_model 256` one of the model,
    `--decoding.num_beams 5` one of decoding. Relative data paths are taken as they stand, from the
    working directory.

    Raises:
        ValueError: a key is unknown or a value impossible; the message names the key.
        OSError: the recipe cannot be read.
    """
    arguments = list(arguments)
    path = pop_option(arguments, "--recipe")
    values = {} if path is None else read_yaml(_recipe_file(path))
    sections: dict[str, dict[str, Any]] = {name: values.pop(name, None) or {} for name in SECTIONS}
    check_names("recipe", values, [f.name for f in fields(TrainRecipe)])
    for name in SECTIONS:
        for key in dict.fromkeys(a.split("=")[0] for a in arguments if a.startswith(f"--{name}.")):
            text = pop_option(arguments, key) or ""
            try:
                value = yaml_value(text)
            except ValueError:
                raise ValueError(f"{key}={text!r} is not a YAML value") from None
            sections[name][key.removeprefix(f"--{name}.")] = value
    _drop_replaced_data(values, arguments)
    if isinstance(values.get("trackers"), list):
        values["trackers"] = ",".join(map(str, values["trackers"])) or "none"
    if isinstance(values.get("learning_rate_of"), dict):
        rates = values["learning_rate_of"].items()
        values["learning_rate_of"] = ",".join(f"{prefix}={rate}" for prefix, rate in rates)
    # a recipe is a command line written down: one parser reads both, and the later value wins
    written = [f"--{key}={value}" for key, value in values.items() if value is not None]
    train = parse_options(
        TrainRecipe,
        [*written, *arguments],
        epilog=RECIPE_HELP,
        elsewhere=[f"model.{name}" for name in VanillaConfig().to_dict()]
        + [f"decoding.{name}" for name in GenerationConfig().to_dict()],
    )
    return Recipe(train=train, **sections)


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with the package by name, `numbers` or `table3/base` for two."""
    folder = Path(__file__).resolve().parent
    files = sorted(folder.rglob("*.yaml"), key=lambda file: (len(file.parts), file))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def _recipe_file(name: str) -> Path:
    shipped = shipped_recipes()
    if Path(name).is_file():
        return Path(name)
    if name not in shipped:
        close = difflib.get_close_matches(name, shipped, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(shipped)}"
        raise FileNotFoundError(f"{name}: no such file, and no recipe of that name; {hint}")
    return shipped[name]


def _drop_replaced_data(values: dict[str, Any], arguments: Sequence[str]) -> None:
    """Data chosen on the command line takes the place of the file's, whatever kind that was."""
    chosen = given_options(arguments)
    files = {name for pair in PAIRED_FILES for name in pair}
    hub = {"dataset", "dataset_config"}
    told = {"source_language", "target_language", "model_license"}  # of the data that is replaced
    if chosen & {"dataset", "train_source", "train_target"}:
        for name in (files | hub | told) - chosen:
            values.pop(name, None)
