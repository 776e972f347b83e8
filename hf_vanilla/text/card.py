"""The card of a translation model: filled from the facts of a run."""

from dataclasses import dataclass, field

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_vanilla.data.bleu import Scores
from hf_vanilla.hub.card import PLACEHOLDER, TAGS, TEMPLATE, USAGE, summary_table, without_folders


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
