"""Model cards: what the cards of all families share, and how a card changes when it is pushed."""

import importlib.metadata
import re
import shutil
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData, hf_hub_download
from packaging.requirements import Requirement

from hf_vanilla.files import write_text

CARD_FILE = "README.md"  # in a model folder and on the Hub
ALIGNMENT_FILE = "alignment.json"  # the attention head that aligns words, by `hf-vanilla align`
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
