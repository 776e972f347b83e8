"""A recipe: task, data, model, training and decoding of one run, in one YAML file.

Numbers of three kinds go to three places: what shapes the model to its config, how to decode to
`GenerationConfig`, and how to train to `TrainRecipe` (options of every task) and to the data
options of the task.
"""

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from transformers import GenerationConfig
from transformers.utils.logging import get_logger

from hf_vanilla.families import (
    DEFAULT_TASK,
    TASKS,
    Measure,
    TaskEntry,
    load_part,
    task_entry,
    task_measures,
    task_of_option,
    validation_measures,
)
from hf_vanilla.file_values import check_names, is_finite_number, read_yaml, shown, yaml_value
from hf_vanilla.loading import initial_config, read_settings, task_or_default
from hf_vanilla.options import (
    Options,
    UsageError,
    given_options,
    made_options,
    merged,
    noted,
    option,
    parsed_values,
    pop_option,
    pop_section,
    typed_values,
)
from hf_vanilla.plots.curves import RECIPE_FILE

from .options import Adam, TrainRecipe

logger = get_logger(__name__)

# options of earlier versions by their names of today
RENAMED = {f"adam_{name}": f"adam.{name}" for name in ("beta1", "beta2", "epsilon")}
# options of earlier versions, and one of Trainer: what replaces each, and its values without
# effect, which are dropped
RETIRED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "streaming": ("use hf-vanilla prepare --streaming true, and give prepared", (False,)),
    "window_pairs": ("leave it out: it was of streaming", (100_000,)),
    **{
        # without an old scene_column, a table was one scene
        f"{name}_column": (f"give columns {name}=NAME", () if name == "scene" else (name,))
        for name in ("frame", "agent", "x", "y", "scene")
    },
    "comet": ("score the translations with unbabel-comet's own command", ()),
    "resume_from_checkpoint": ("the same command resumes a stopped run", (False,)),
}
SECTIONS = ("model", "decoding")
# sections whose entries override those of the same section one by one
MERGED = (*SECTIONS, *noted(TrainRecipe, "is_section"))
AUTO = "auto"  # in place of a recipe's name
RECIPE_HELP = (
    "The other options override those of the recipe. Its sections are set by --model.KEY VALUE "
    "(fields of the model's config) and --decoding.KEY VALUE (generation config). This help shows "
    "the options of the chosen task."
)
EXAMPLES = (
    "hf-vanilla train --recipe numbers",
    "hf-vanilla train --recipe multi30k_tiny --train_source train.en --train_target train.de",
    "hf-vanilla train --task image_classification --dataset photos",
)


@dataclass(frozen=True, kw_only=True)
class RecipeChoice(Options):
    """Train a model by a recipe, or resume a run. The defaults train the paper's way."""

    _argument_group_name = "recipe"

    recipe: str | None = option(
        None,
        "YAML file of options, the name of a shipped recipe, such as numbers, or auto: settings by "
        "the number of sentence pairs",
    )
    task: str | None = option(
        None,
        f"one of {', '.join(TASKS)}; default: the recipe's, that of initial_model, or "
        f"{DEFAULT_TASK}",
    )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole recipe.

    Attributes:
        train: how to train.
        data: data options of the task, of the dataclass that its row in `TASKS` names.
        model: fields of the model's config that differ from its defaults.
        decoding: entries of the generation config that differ from the task's decoding.
        task: a name of `TASKS`.
    """

    train: TrainRecipe
    data: Any
    model: dict[str, Any]
    decoding: dict[str, Any]
    task: str = DEFAULT_TASK

    def __post_init__(self) -> None:
        entry = task_entry(self.task)
        _check_fields(self.model, self.task)
        for section, entries in self._sections.items():
            for name, value in entries.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{section}.{name}={value}: give a finite number")
        for name in entry.set_by_data:
            if name in self.model:
                raise ValueError(
                    f"model.{name}={self.model[name]!r}: it follows from the data or form: omit it"
                )
        if self.decoding and not entry.decoding:
            raise ValueError(f"decoding: task {self.task} does not decode; leave the section out")
        choices = list(validation_measures(self.task))
        if self.train.best_by is not None and self.train.best_by not in choices:
            raise ValueError(f"best_by={self.train.best_by!r}: choose one of {', '.join(choices)}")
        self.data.check_with(self.train)
        # with an initial model, the section is only part of a config, which preparing a run checks
        described = self.model if self.train.initial_model is None else {}
        self.generation_config(load_part(entry.config)(**described))

    @property
    def entry(self) -> TaskEntry:
        """The row of the recipe's task."""
        return task_entry(self.task)

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Every number of the log that is drawn or compared, by name."""
        return task_measures(self.task)

    @property
    def best_by(self) -> str:
        """The measure that compares validations: the recipe's, else the task's first."""
        return self.train.best_by or next(iter(validation_measures(self.task)))

    def config(self, **changes: Any) -> Any:
        """The model's config: that of the initial model, where there is one, with these fields.

        Args:
            **changes: fields that follow from the data, such as the size of the vocabulary.

        Raises:
            huggingface_hub.errors.StrictDataclassError: a value cannot be built.
            ValueError: the initial model is damaged, or of another task.
            OSError: there is no such model.
        """
        if self.train.initial_model is not None:
            return initial_config(self.train.initial_model, self.entry, self.model, changes)
        return load_part(self.entry.config)(**{**self.model, **changes})

    def generation_config(self, config: Any) -> GenerationConfig | None:
        """The task's decoding with this recipe's changes; None where the task does not decode.

        Raises:
            ValueError: an entry of `decoding` is unknown or a value impossible.
        """
        decoding = self.entry.decoding
        return load_part(decoding)(config, self.decoding) if decoding else None

    def changes_since(self, folder: Path, *, free: Collection[str]) -> str:
        """Options that differ from those of the run in a folder, in words; empty: none does.

        Args:
            folder: of the earlier run.
            free: names of options that may differ.

        Raises:
            ValueError: its recipe is damaged, or of an earlier version.
            OSError: its recipe cannot be read.
        """
        earlier = read_recipe(["--recipe", str(folder / RECIPE_FILE)])
        before, now = earlier._entries(free), self._entries(free)
        changed = sorted(n for n in before | now if before.get(n) != now.get(n))
        return ", ".join(f"{n} ({before.get(n)!r}, now {now.get(n)!r})" for n in changed)

    def _entries(self, free: Collection[str]) -> dict[str, Any]:
        """All options but `free`, those of a section as `SECTION.KEY`."""
        values = {"task": self.task, **asdict(self.train), **asdict(self.data), **self._sections}
        entries: dict[str, Any] = {}
        for name in values.keys() - free:
            if isinstance(values[name], dict):
                entries |= {f"{name}.{key}": entry for key, entry in values[name].items()}
            else:
                entries[name] = values[name]
        return entries

    @property
    def _sections(self) -> dict[str, dict[str, Any]]:
        return {"model": self.model, "decoding": self.decoding}

    def to_yaml(self) -> str:
        """This recipe as a file that `read_recipe` reads; defaults are left out."""
        changed: dict[str, Any] = {} if self.task == DEFAULT_TASK else {"task": self.task}
        for part in (self.train, self.data):
            defaults = asdict(type(part)())
            changed |= {k: v for k, v in asdict(part).items() if v != defaults[k]}
        sections = {name: section for name, section in self._sections.items() if section}
        return yaml.safe_dump({**changed, **sections}, sort_keys=False)


def _check_fields(model: dict[str, Any], task: str) -> None:
    """Refuse a field that the config of a task does not have, and name the tasks that have it."""
    known = load_part(task_entry(task).config)().to_dict()
    for field in [field for field in model if field not in known]:
        if tasks := [n for n, e in TASKS.items() if field in load_part(e.config)().to_dict()]:
            raise ValueError(
                f"model.{field} is of task {' or '.join(tasks)}, and this recipe's task is "
                f"{task}: give --task {tasks[0]}, or leave it out"
            )
    check_names("model", model, known)


def read_recipe(arguments: Sequence[str]) -> Recipe:
    """A recipe from `--recipe FILE`, or the name of a shipped one, and options that override it.

    `--max_steps 500` overrides a field of `TrainRecipe` or of the task's data options,
    `--model.d_model 256` one of the model, `--decoding.num_beams 5` one of decoding. Relative data
    paths are relative to the working directory.

    Raises:
        ValueError: a key is unknown or a value impossible; the message names the key.
        OSError: the recipe cannot be read.
    """
    arguments = list(arguments)
    chosen = {name: pop_option(arguments, f"--{name}") for name in ("recipe", "task")}
    return recipe_of(chosen, arguments)


def recipe_of(options: Mapping[str, Any], arguments: Sequence[str] = ()) -> Recipe:
    """A recipe from options as a file has them, and from a command line that overrides these.

    Args:
        options: by name. `recipe` names a file or a shipped recipe, which the others override; an
            entry of a section may be named `model.KEY`.
        arguments: as for `read_recipe`, without `--recipe` and `--task`.

    Raises:
        ValueError: a key is unknown or a value impossible; the message names the key.
        OSError: the recipe cannot be read.
    """
    options, rest = _translated(options), list(arguments)
    path = options.pop("recipe", None)
    is_auto = path == AUTO and not Path(path).is_file()
    file: dict[str, Any] = {}
    if path is not None and not is_auto:
        file = _translated(read_yaml(recipe_file(path, options.get("task"))))
    start = pop_option(list(rest), "--initial_model")
    if "" in (start, options.get("initial_model"), file.get("initial_model")):
        raise ValueError("initial_model is empty: give a folder or Hub id, or leave it out")
    start = start or options.get("initial_model") or file.get("initial_model")
    given_task, task_of_file = options.pop("task", None), file.pop("task", None)
    task = given_task or task_of_file or task_or_default(start)
    entry = task_entry(task)
    classes = (TrainRecipe, load_part(entry.data))
    names = [*SECTIONS, *(declared.name for kind in classes for declared in fields(kind))]
    sections = {name: pop_section(rest, name) for name in SECTIONS}
    for values in (options, file):
        drop_retired(values, rest)
    unknown = [name for name in [*file, *options, *given_options(rest)] if name not in names]
    _refuse_options_of_others(unknown, task, start)
    decoding = GenerationConfig().to_dict() if entry.decoding else ()
    known = {"model": load_part(entry.config)().to_dict(), "decoding": decoding}
    elsewhere = [f"{section}.{name}" for section in known for name in known[section]]
    elsewhere += [f"adam.{declared.name}" for declared in fields(Adam)]
    kinds = (RecipeChoice, *classes)
    given = parsed_values(kinds, rest, epilog=RECIPE_HELP, elsewhere=elsewhere)
    given = merged(_checked(options, names, elsewhere, classes), {**given, **sections}, MERGED)
    if is_auto:
        if not entry.auto:
            raise ValueError(f"recipe auto is of task {DEFAULT_TASK}, not of {task}: name a recipe")
        file = load_part(entry.auto)(given)
    values = _checked(file, names, elsewhere, classes)
    # data chosen beside a file replaces all options of the file that describe data
    if noted(classes[1], "chooses_data") & given.keys():
        of_data = {name for kind in classes for name in noted(kind, "of_data")}
        if left := sorted(values.keys() & of_data - given.keys()):
            logger.warning_once(f"the data given replace the recipe's; left out: {', '.join(left)}")
        values = {name: value for name, value in values.items() if name not in of_data}
    _lower_rate(values, given)
    values = merged(values, given, MERGED)
    train, data = (made_options(kind, values) for kind in classes)
    return Recipe(train=train, data=data, task=task, **{n: values[n] for n in SECTIONS})


def overridden(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a file with others that override them, in a section entry by entry.

    Raises:
        ValueError: recipe, task or a section has the wrong type.
    """
    values, changes = _translated(options), _translated(changes)
    both = [n for n in MERGED if type(values.get(n)) is type(changes.get(n)) is dict]
    return merged(values, changes, both)


def _refuse_options_of_others(names: Sequence[str], task: str, start: str | None) -> None:
    """Name the task that an option belongs to.

    Raises:
        UsageError: one of these options belongs to another task.
        OSError: so it does, and the model to start from is not found.
    """
    for name in names:
        if (other := task_of_option(name)) is not None:
            if start is not None:
                read_settings(start)  # of a model that is not there, its error says more
            raise UsageError(
                f"{name} is an option of task {other}, and this recipe's task is {task}"
            )


def _translated(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a file by the names of today, with the entries of each section in one dict.

    Raises:
        ValueError: recipe, task or a section has not its type.
    """
    values: dict[str, Any] = {}
    for name, value in options.items():
        section, dot, key = RENAMED.get(name, str(name)).partition(".")
        if dot and section in MERGED:
            entries = values.get(section) or {}
            check_names(section, entries, entries)  # that it holds keys and values
            values[section] = {**entries, key: value}
        elif name in values and isinstance(value, dict):
            values[name] = {**value, **values[name]}
        else:
            values[name] = value
    typed_values([RecipeChoice], values)
    return values


def _checked(
    values: Mapping[str, Any],
    names: Sequence[str],
    elsewhere: Sequence[str],
    classes: Sequence[type],
) -> dict[str, Any]:
    """Values of a file without those that are null, after a check of their names and types."""
    check_names("recipe", values, names, elsewhere=elsewhere)
    sections = {name: values[name] for name in SECTIONS if values.get(name) is not None}
    for name, section in sections.items():
        check_names(name, section, section)  # that it holds keys and values
    return {**typed_values(classes, values), **sections}


def read_training(arguments: Sequence[str]) -> Recipe:
    """`read_recipe` for the command `train`, which must name a recipe or data.

    Raises:
        UsageError: it names neither: the defaults would train the paper's base model for days.
        ValueError: as `read_recipe`.
        OSError: the recipe cannot be read.
    """
    recipe = read_recipe(arguments)
    if not given_options(arguments) & {"recipe", *noted(recipe.data, "chooses_data")}:
        raise UsageError("name a recipe or data, for example", EXAMPLES)
    return recipe


def _lower_rate(values: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Lower a file's peak rate where its warmup is shortened.

    The peak is multiplied by the same factor as the warmup, so the rate rises as steeply as in the
    file, and no step has a higher rate than there. Fewer steps alone need no change: they follow
    the first part of the same curve.
    """
    rate, before = values.get("learning_rate"), values.get("warmup_steps")
    warmup_steps = given.get("warmup_steps", 0)
    if rate is None or before is None or "learning_rate" in given:
        return
    if 0 < warmup_steps < before:
        factor = warmup_steps / before
        values["learning_rate"] = rate * factor
        rates = values.get("learning_rate_of")
        if rates and "learning_rate_of" not in given and all(map(is_finite_number, rates.values())):
            values["learning_rate_of"] = {name: own * factor for name, own in rates.items()}
        logger.warning_once(  # a sweep reads the recipe of each run several times
            f"learning_rate is {values['learning_rate']:.3g} instead of the recipe's {rate:.3g}, "
            f"since warmup_steps is {warmup_steps} instead of {before}; --learning_rate chooses "
            "another"
        )


# --- the files of the package, options of earlier versions ---------------------------------------


def drop_retired(values: dict[str, Any], arguments: list[str]) -> None:
    """Remove retired options from a file's values and a command line.

    Raises:
        ValueError: one has a value with an effect; the message says what replaces it.
    """
    for name, (instead, off) in RETIRED.items():
        written = [values.pop(name)] if name in values else []
        text = pop_option(arguments, f"--{name}")
        written += [] if text is None else [yaml_value(text)]
        for value in written:
            if value is not None and value not in off:
                raise ValueError(f"{name}={shown(value)}: there is no such option; {instead}")


def shipped_recipes() -> dict[str, Path]:
    """The recipes in the package by name: `numbers`, or `table3/base` in a subfolder."""
    folder = Path(__file__).resolve().parents[1] / "recipes"
    files = sorted(folder.rglob("*.yaml"), key=lambda file: (len(file.parts), file))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def recipe_file(name: str, task: str | None = None) -> Path:
    """The file of a recipe, by its path or its name.

    Args:
        name: or path.
        task: of the recipe where it is known, for the message.

    Raises:
        FileNotFoundError: there is neither.
    """
    shipped = shipped_recipes()
    if Path(name).is_file():
        return Path(name)
    if name not in shipped:
        known = [*shipped, AUTO] if task_entry(task or DEFAULT_TASK).auto else [*shipped]
        close = difflib.get_close_matches(name, {*known} - {name}, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
        raise FileNotFoundError(f"{name}: no such file, and no recipe of that name; {hint}")
    return shipped[name]
