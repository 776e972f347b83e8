"""The model card, filled by the run, and the way to the Hub."""

import re
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from huggingface_hub import (
    EvalResult,
    ModelCard,
    ModelCardData,
    create_branch,
    create_repo,
    upload_file,
)

from hf_vanilla.models.saving_vanilla import code_beside_weights
from hf_vanilla.translation.evaluation import Scores
from hf_vanilla.translation.translator import load_translator

CARD_FILE = "model_card.md"


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a run knows about its model.

    Attributes:
        model_name: shown as the title.
        corpus: what it was trained on.
        languages: codes such as `("en", "de")`, source first; empty where unknown.
        license: of the trained weights; None where nobody said.
        parameters: count.
        recipe: what the run was told, as YAML text.
        command: what takes it.
        training: one sentence: steps, tokens, time, device.
        scores: on the validation set; None where it was not translated.
        validation_nll: nats per target token on the validation set; None where there is none.
        base_model: Hub id of the model it started from; None where it has none.
        summary: names and values of the run's figures, for a table.
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


def summary_table(summary: dict[str, str]) -> str:
    """Names and values as a table of Markdown; empty where there is nothing to tell."""
    if not summary:
        return ""
    rows = [f"| {name} | {value} |" for name, value in summary.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Push a model folder to the Hub, with its filled card."""

    model: str = field(metadata={"help": "folder written by training or save_pretrained"})
    repo_id: str = field(metadata={"help": "where to push it: USER/NAME"})
    private: bool = field(default=False, metadata={"help": "make a new repository private"})
    revision: str | None = field(
        default=None, metadata={"help": "branch to push to, made if it is new; else the main one"}
    )
    with_code: bool = field(
        default=False,
        metadata={"help": "push the model's code too, for those who load it without hf_vanilla"},
    )


def card_template() -> Template:
    """The text of `model_card.md`."""
    path = Path(__file__).resolve().with_name(CARD_FILE)
    return Template(path.read_text(encoding="utf-8"))


def model_card(facts: CardFacts) -> ModelCard:
    """The filled card, with the metadata that the Hub reads."""
    results = None
    if facts.scores is not None:
        results = [
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
    data = ModelCardData(
        model_name=facts.model_name,
        language=list(facts.languages) or None,
        license=facts.license,
        library_name="transformers",
        base_model=facts.base_model,
        pipeline_tag="translation",
        tags=["hf-vanilla", "transformer", "attention-is-all-you-need"],
        metrics=["sacrebleu", "chrf"] if results else None,
        eval_results=results,
    )
    nll = facts.validation_nll
    body = card_template().substitute(
        model_name=facts.model_name,
        corpus=facts.corpus,
        languages=" to ".join(facts.languages) or "not stated",
        parameters=f"{facts.parameters:,}",
        recipe=facts.recipe.strip(),
        command=facts.command,
        training="\n\n".join(filter(None, (facts.training, summary_table(facts.summary)))),
        scores="not measured" if facts.scores is None else str(facts.scores),
        validation_nll="not measured" if nll is None else f"{nll:.4f}",
    )
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}")


def told_languages(name: str) -> tuple[str, ...]:
    """Source and target language by a card of ours; nothing where it does not say.

    Args:
        name: model folder or Hub id.
    """
    card = Path(name) / "README.md"
    try:
        text = ModelCard.load(card if Path(name).is_dir() else name).text
    except (OSError, ValueError):  # there is none, or no network, or its head is no YAML
        return ()
    told = re.search(r"^- Translates: (\S+) to (\S+)$", text, re.MULTILINE)
    return told.groups() if told else ()


def push_folder(options: PushOptions) -> str:
    """Push model, tokenizer, generation config and card of a folder; returns the address.

    Raises:
        ValueError: the folder holds no model.
        OSError: the Hub refuses.
    """
    if not Path(options.model).is_dir():
        raise FileNotFoundError(f"{options.model}: no such folder; give one that training wrote")
    model, tokenizer = load_translator(options.model)
    try:
        # a name without an owner means the user's own
        repo_id = create_repo(options.repo_id, private=options.private, exist_ok=True).repo_id
        if options.revision is not None:
            create_branch(repo_id, branch=options.revision, exist_ok=True)
    except Exception as error:  # network, login and server fail each in a class of their own
        raise OSError(
            f"cannot push to {options.repo_id}: {error}; is there a network, and are you logged in "
            "(hf auth login)?"
        ) from None
    card = Path(options.model) / "README.md"
    if card.is_file():  # first, since transformers would otherwise write a nearly empty one
        push_card(ModelCard.load(card), repo_id, revision=options.revision)
    target = {"private": options.private, "revision": options.revision}
    with code_beside_weights(model, tokenizer) if options.with_code else nullcontext():
        tokenizer.push_to_hub(repo_id, **target)
        return str(model.push_to_hub(repo_id, **target))


def push_card(card: ModelCard, repo_id: str, *, revision: str | None = None) -> None:
    """Push a card, which from then on loads the model from this repository."""
    text = str(card).replace("THIS_MODEL", repo_id)
    upload_file(
        path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id=repo_id, revision=revision
    )
