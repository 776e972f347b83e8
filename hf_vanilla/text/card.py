"""The model card: filled from the facts of a run, with the metadata that the Hub reads."""

import importlib.metadata
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, hf_hub_download
from packaging.requirements import Requirement

from hf_vanilla.files import write_text

from .alignments import ALIGNMENT_FILE
from .evaluation import Scores

CARD_FILE = "README.md"  # in a model folder and on the Hub
TEMPLATE = Path(__file__).resolve().with_name("model_card.md")
PLACEHOLDER = "THIS_MODEL"  # name of the repository, until the card is pushed to one
TAGS = ("hf-vanilla", "transformer", "attention-is-all-you-need")

USAGE = """\
```python
import hf_vanilla  # registers the model with the Auto classes
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
batch = tokenizer(["A sentence."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```"""
USAGE_WITH_CODE = """\
The code of the model is in this repository. It needs `{requirement}`; hf_vanilla itself need not be
installed.

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("{name}", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)
batch = tokenizer(["A sentence."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```"""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a model card says: the same for a run of a recipe and for one of the Trainer.

    Attributes:
        model_name: shown as the title.
        corpus: what the model was trained on.
        languages: codes such as `("en", "de")`, source first; empty where unknown.
        license: of the trained weights; None where unknown.
        parameters: count.
        recipe: options of the run, as YAML text.
        command: the command that takes these options.
        training: one sentence: steps, tokens, time, device.
        scores: on the validation set; None where it was not translated.
        validation_nll: nats per target token on the validation set; None where there is none.
        base_model: Hub id of the model that training started from; None where it has none.
        summary: names and values of the run's measures, for a table.
    """

    model_name: str
    corpus: str
    languages: tuple[str, ...]
    license: str | None
    parameters: int
    recipe: str
    command: str
    training: str
    scores: Scores | None
    validation_nll: float | None
    base_model: str | None = None
    summary: dict[str, str] = field(default_factory=dict)


def model_card(facts: CardFacts) -> ModelCard:
    """The filled card, with the metadata that the Hub reads."""
    results = _results(facts)
    data = ModelCardData(
        model_name=facts.model_name,
        language=list(facts.languages) or None,
        license=facts.license,
        library_name="transformers",
        base_model=facts.base_model,
        pipeline_tag="translation",
        tags=list(TAGS),
        metrics=["sacrebleu", "chrf"] if results else None,
        eval_results=results or None,
    )
    nll = facts.validation_nll
    return ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        model_name=facts.model_name,
        corpus=facts.corpus,
        languages=" to ".join(facts.languages) or "not stated",
        parameters=f"{facts.parameters:,}",
        usage=USAGE.format(name=PLACEHOLDER),
        recipe=without_folders(facts.recipe).strip(),
        command=facts.command,
        training="\n\n".join(filter(None, (facts.training, summary_table(facts.summary)))),
        scores="not measured" if facts.scores is None else str(facts.scores),
        validation_nll="not measured" if nll is None else f"{nll:.4f}",
    )


def bare_card(name: str) -> ModelCard:
    """A card for a model of which nothing but its name is known."""
    data = ModelCardData(library_name="transformers", pipeline_tag="translation", tags=list(TAGS))
    usage = USAGE.format(name=PLACEHOLDER)
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n# {name}\n\n## Use\n\n{usage}\n")


def pushed_card(card: ModelCard, repo_id: str, *, with_code: bool) -> ModelCard:
    """A card as it is pushed: its example loads the model from this repository.

    Args:
        card: of the model folder.
        repo_id: where it is pushed to.
        with_code: whether the repository holds the model's code; the example then loads that code
            and names the versions of transformers that it works with.
    """
    text = str(card)
    if with_code:
        usage = USAGE_WITH_CODE.format(name=PLACEHOLDER, requirement=_transformers_requirement())
        text = text.replace(USAGE.format(name=PLACEHOLDER), usage)
    return ModelCard(text.replace(PLACEHOLDER, repo_id))


def carry_over(source: str, folder: Path, *, change: str | None = None) -> None:
    """Write card and alignment head of a model beside weights that were made from it.

    Args:
        source: model folder or Hub id; what it does not have is not written.
        folder: of the new weights.
        change: what was done to the weights, a sentence for the card. The scores of the card are
            then those of `source`: the card says so, and loses those that the Hub shows as this
            model's. None: the model was converted, with the same outputs.
    """
    if (head := _file_of(source, ALIGNMENT_FILE)) is not None:
        shutil.copyfile(head, folder / ALIGNMENT_FILE)
    if (card := _file_of(source, CARD_FILE)) is None:
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


def _file_of(name: str, file: str) -> Path | None:
    """A file of a model folder or Hub id; None where there is none, or no network."""
    if Path(name).exists():
        path = Path(name) / file
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(name, file))
    except (OSError, ValueError):  # ValueError: the name cannot be a Hub id
        return None


def _transformers_requirement() -> str:
    """The versions of transformers that this package needs, such as `transformers>=5.20,<5.24`."""
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


def _results(facts: CardFacts) -> list[EvalResult]:
    """The scores as the Hub reads them, each with its signature."""
    if facts.scores is None:
        return []
    return [
        EvalResult(
            task_type="translation",
            dataset_type="custom",
            dataset_name=f"{facts.corpus}, validation",
            dataset_split="validation",
            metric_type=kind,
            metric_value=round(value, 2),
            metric_name=f"{name} ({signature})",
        )
        for kind, name, value, signature in (
            ("sacrebleu", "BLEU", facts.scores.bleu, facts.scores.bleu_signature),
            ("chrf", "chrF", facts.scores.chrf, facts.scores.chrf_signature),
        )
    ]


def summary_table(summary: dict[str, str]) -> str:
    """Names and values as a table of Markdown; empty where there are none."""
    if not summary:
        return ""
    rows = [f"| {name} | {value} |" for name, value in summary.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def without_folders(recipe: str) -> str:
    """Options as YAML in which every absolute path is cut to its last part.

    A card is public; the folders of the machine that trained the model are not.
    """
    return yaml.safe_dump(_cut(yaml.safe_load(recipe) or {}), sort_keys=False)


def _cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cut(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner) for inner in value]
    return public_name(value) if isinstance(value, str) else value


def public_name(path: str) -> str:
    """The last part of an absolute path; anything else as it is."""
    is_absolute = Path(path).is_absolute() or path.startswith("~")
    return Path(path).name if is_absolute else path


def hub_id(name: str) -> str | None:
    """A name that is no local path."""
    return None if Path(name).exists() else name


def languages_of(name: str) -> tuple[str, ...]:
    """Source and target language by a card of ours; empty where it does not state them.

    Args:
        name: model folder or Hub id.
    """
    if (card := _file_of(name, CARD_FILE)) is None:
        return ()
    text = card.read_text(encoding="utf-8", errors="replace")
    stated = re.search(r"^- Translates: (\S+) to (\S+)$", text, re.MULTILINE)
    return stated.groups() if stated else ()
