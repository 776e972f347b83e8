"""Model cards: one template for all families, and how a card changes when it is pushed."""

import importlib.metadata
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, hf_hub_download
from packaging.requirements import Requirement

from hf_vanilla.families import DEFAULT_TASK, load_part, task_entry, task_of_type
from hf_vanilla.files import write_text
from hf_vanilla.loading import model_folder

CARD_FILE = "README.md"  # in a model folder and on the Hub
ALIGNMENT_FILE = "alignment.json"  # the attention head that aligns words, by `hf-vanilla align`
TEMPLATE = Path(__file__).resolve().with_name("model_card.md")
PLACEHOLDER = "THIS_MODEL"  # name of the repository, until the card is pushed to one
SHOWN_CLASSES = 100
REGISTERS = "import hf_vanilla  # registers the model with the Auto classes\n"
WITH_CODE = """\
The code of the model is in this repository. It needs `{requirement}`; hf_vanilla itself need not be
installed.

"""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a model card says; unknown facts are left out, or called unknown.

    The module `card` of a family has those of all its models, which a finished run completes.

    Attributes:
        about: what the model is: the beginning of the first sentence.
        use: Python that loads the model `THIS_MODEL`; its first line is `REGISTERS`.
        notes: more about its use, as Markdown.
        limits: what it cannot do.
        tags: for the Hub's search.
        pipeline_tag: task on the Hub; None: it has none for this task.
        title: name of the model.
        dataset: what it was trained on.
        languages: codes such as `("en", "de")`, source first; empty: unknown; None: no translator.
        classes: names of its labels.
        license: of the trained weights.
        base_model: Hub id of the model that training started from.
        parameters: count.
        training: steps, time and device in a sentence, perhaps more; empty: not trained here.
        summary: names and values of the run's measures, for a table.
        recipe: options of the run, as YAML text.
        scores: on the validation data, as Markdown.
        metrics: scores for the Hub: a name of its list -> value and name for readers.
    """

    about: str
    use: str
    notes: str = ""
    limits: str = ""
    tags: tuple[str, ...] = ()
    pipeline_tag: str | None = None
    title: str = ""
    dataset: str = ""
    languages: tuple[str, ...] | None = None
    classes: Sequence[str] = ()
    license: str | None = None
    base_model: str | None = None
    parameters: int = 0
    training: str = ""
    summary: Mapping[str, str] = field(default_factory=dict)
    recipe: str = ""
    scores: str = "not measured"
    metrics: Mapping[str, tuple[float, str | None]] = field(default_factory=dict)


def model_card(facts: CardFacts) -> ModelCard:
    """The filled card, with the metadata that the Hub reads."""
    results = [
        EvalResult(
            task_type=str(facts.pipeline_tag),
            dataset_type="custom",
            dataset_name=f"{facts.dataset}, validation",
            dataset_split="validation",
            metric_type=metric,
            metric_value=value,
            metric_name=name,
        )
        for metric, (value, name) in facts.metrics.items()
    ]
    data = ModelCardData(
        model_name=facts.title,
        language=list(facts.languages or ()) or None,
        license=facts.license,
        library_name="transformers",
        base_model=facts.base_model,
        pipeline_tag=facts.pipeline_tag,
        tags=["hf-vanilla", *facts.tags],
        metrics=list(facts.metrics) or None,
        eval_results=results or None,
    )
    recipe = without_folders(yaml.safe_load(facts.recipe) or {})
    text = yaml.safe_dump(recipe, sort_keys=False).strip()
    shown = {**vars(facts), "recipe": text, "shown_classes": SHOWN_CLASSES}
    return ModelCard.from_template(data, template_path=str(TEMPLATE), **shown)


def bare_card(name: str, model_type: str) -> ModelCard:
    """A card for a model of which nothing but name and type is known."""
    # another type is that of a translation model, such as Marian
    entry = task_entry(task_of_type(model_type) or DEFAULT_TASK)
    return model_card(replace(load_part(entry.card), title=name))


def pushed_card(card: ModelCard, repo_id: str, *, with_code: bool) -> ModelCard:
    """A card as it is pushed: its example loads the model from this repository.

    Args:
        card: of the model folder.
        repo_id: where it is pushed to.
        with_code: whether the repository holds the model's code; the example then loads that code
            and names the versions of transformers that it works with.
    """
    text = str(card)
    before, example, after = text.partition(f"```python\n{REGISTERS}")
    if with_code and example:
        loading, end, after = after.partition("```")
        loading = loading.replace(f'"{PLACEHOLDER}")', f'"{PLACEHOLDER}", trust_remote_code=True)')
        needs = WITH_CODE.format(requirement=_transformers_requirement())
        text = f"{before}{needs}```python\n{loading}{end}{after}"
    return ModelCard(text.replace(PLACEHOLDER, repo_id))


def _transformers_requirement() -> str:
    """The versions of transformers that this package needs, such as `transformers>=5.20,<5.25`."""
    try:
        lines = importlib.metadata.requires("hf-vanilla") or []
    except importlib.metadata.PackageNotFoundError:  # run from a folder, without an installation
        lines = []
    for line in lines:
        requirement = Requirement(line)
        if requirement.name == "transformers" and requirement.marker is None:
            bounds = sorted((str(bound) for bound in requirement.specifier), reverse=True)
            return f"transformers{','.join(bounds)}"
    return "transformers"


def without_folders(value: Any) -> Any:
    """Options in which every absolute path is cut to its last part.

    A card is public; the folders of the machine that trained the model are not.
    """
    if isinstance(value, dict):
        return {name: without_folders(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    return public_name(value) if isinstance(value, str) else value


def public_name(path: str) -> str:
    """The last part of an absolute path; anything else as it is."""
    is_absolute = Path(path).is_absolute() or path.startswith("~")
    return Path(path).name if is_absolute else path


def hub_id(name: str) -> str | None:
    """A name that is no local path."""
    return None if Path(model_folder(name)).exists() else name


def languages_of(name: str) -> tuple[str, ...]:
    """Source and target language by a card of ours; empty where it does not state them.

    Args:
        name: model folder or Hub id.
    """
    return _stated(name, r"^- Translates: (\S+) to (\S+)$")


def license_of(name: str) -> str | None:
    """The licence that the card of a model states, if any.

    Args:
        name: model folder or Hub id.
    """
    return next(iter(_stated(name, r"^license: (\S+)$")), None)


def _stated(name: str, pattern: str) -> tuple[str, ...]:
    """The groups of the first line of a model's card that fits; empty: none does."""
    if (card := file_of(name, CARD_FILE)) is None:
        return ()
    text = card.read_text(encoding="utf-8", errors="replace")
    stated = re.search(pattern, text, re.MULTILINE)
    return stated.groups() if stated else ()


def carry_over(source: str, folder: Path, *parts: Any, change: str | None = None) -> None:
    """Write a model that was made from another one, with the card and alignment head of that.

    Args:
        source: model folder or Hub id; what it does not have is not written.
        folder: of the new weights.
        *parts: model and processor to save there, if they are not there yet.
        change: what was done to the weights, a sentence for the card. The scores of the card are
            then those of `source`: the card says so, and loses those that the Hub shows as this
            model's. None: the model was converted, with the same outputs.
    """
    for part in parts:
        part.save_pretrained(folder)
    if (head := file_of(source, ALIGNMENT_FILE)) is not None:
        shutil.copyfile(head, folder / ALIGNMENT_FILE)
    if (card := file_of(source, CARD_FILE)) is None:
        return
    text = card.read_text(encoding="utf-8", errors="replace")
    metadata = found[0] if (found := re.match(r"---\n.*?\n---\n", text, re.DOTALL)) else ""
    body = text.removeprefix(metadata)
    if change is None:
        change = f"Converted from {public_name(source)} to hf_vanilla."
    else:
        change += " Scores on this card are those of the model before."
        metadata = re.sub(r"(?m)^model-index:\n(?:(?: |- ).*\n)*", "", metadata)
    title = found[0] if (found := re.match(r"\s*# .*\n", body)) else ""
    rest = body.removeprefix(title).lstrip("\n")
    write_text(folder / CARD_FILE, f"{metadata}{title}\n{change}\n\n{rest}")


def file_of(name: str, file: str) -> Path | None:
    """A file of a model folder or Hub id; None where there is none, or no network."""
    name = model_folder(name)
    if Path(name).exists():
        path = Path(name) / file
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(name, file))
    except (OSError, ValueError):  # ValueError: the name cannot be a Hub id
        return None
