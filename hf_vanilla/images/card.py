"""The model card of an image classifier."""

from collections.abc import Mapping, Sequence

from huggingface_hub import EvalResult, ModelCard, ModelCardData

TAGS = ("hf-vanilla", "vision-transformer", "image-classification")
CARD = """\
---
{metadata}
---

# {name}

A Vision Transformer (Dosovitskiy et al., 2021) trained with hf_vanilla on {dataset}: {parameters}
parameters, {count} classes.

## Use

```python
import hf_vanilla  # registers the model with the Auto classes
from transformers import pipeline

classify = pipeline("image-classification", model="{name}")
print(classify("image.png"))
```

## Scores on the validation images

{scores}

## Training

{training}

{summary}

The options, for `{command}`:

```yaml
{recipe}
```

## Classes

{classes}
"""
SHOWN_CLASSES = 100


def image_card(  # noqa: PLR0913 - one argument for each line of the card
    *,
    name: str,
    license: str | None,
    dataset: str,
    label_names: Sequence[str],
    parameters: int,
    recipe: str,
    command: str,
    training: str,
    scores: Mapping[str, float] | None,
    summary: Mapping[str, str],
) -> ModelCard:
    """The filled card, with the metadata that the Hub reads.

    Args:
        name: shown as the title.
        license: of the weights; None where unknown.
        dataset: what the model was trained on.
        label_names: its classes.
        parameters: count.
        recipe: options of the run, as YAML text.
        command: that takes them.
        training: one sentence: steps, images, time, device.
        scores: `accuracy` and perhaps `top5_accuracy` in percent, and `nll`; None where not
            measured.
        summary: names and values of the run's measures.
    """
    data = ModelCardData(
        model_name=name,
        license=license,
        library_name="transformers",
        pipeline_tag="image-classification",
        tags=list(TAGS),
        metrics=["accuracy"] if scores else None,
        eval_results=[
            EvalResult(
                task_type="image-classification",
                dataset_type=dataset,
                dataset_name=dataset,
                metric_type="accuracy",
                metric_value=round(scores["accuracy"] / 100, 4),
            )
        ]
        if scores
        else None,
    )
    told = "not measured"
    if scores:
        parts = [f"accuracy {scores['accuracy']:.2f} %"]
        if "top5_accuracy" in scores:
            parts.append(f"among the first five {scores['top5_accuracy']:.2f} %")
        told = ", ".join([*parts, f"{scores['nll']:.4f} nats per image"])
    more = len(label_names) - SHOWN_CLASSES
    table = "\n".join(f"| {key} | {value} |" for key, value in summary.items())
    return ModelCard(
        CARD.format(
            metadata=data.to_yaml(),
            name=name,
            dataset=dataset,
            parameters=f"{parameters:,}",
            count=len(label_names),
            scores=told,
            training=training,
            summary=f"| measure | value |\n|---|---|\n{table}" if table else "",
            recipe=recipe.strip(),
            command=command,
            classes=", ".join(label_names[:SHOWN_CLASSES])
            + (f" and {more} more" if more > 0 else ""),
        )
    )
