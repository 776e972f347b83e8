"""The model card of an object detector."""

from collections.abc import Sequence

from huggingface_hub import EvalResult, ModelCard, ModelCardData

TAGS = ("hf-vanilla", "detr", "object-detection")
CARD = """\
---
{metadata}
---

# {name}

DETR (Carion et al., 2020) trained with hf_vanilla on {dataset}: {parameters} parameters, {count}
classes.

## Use

```python
import hf_vanilla  # registers the model with the Auto classes
from transformers import pipeline

detect = pipeline("object-detection", model="{name}")
print(detect("image.png"))
```

## Scores on the validation images

```
{scores}
```

## Training

{training} The recipe:

```yaml
{recipe}
```

## Classes

{classes}
"""
SHOWN_CLASSES = 100


def detection_card(  # noqa: PLR0913 - one argument for each line of the card
    *,
    name: str,
    license: str | None,
    dataset: str,
    label_names: Sequence[str],
    parameters: int,
    training: str,
    scores: str | None,
    ap: float | None,
    recipe: str,
) -> ModelCard:
    """The filled card, with the metadata that the Hub reads.

    Args:
        name: shown as the title.
        license: of the weights; None where unknown.
        dataset: what the model was trained on.
        label_names: its classes.
        parameters: count.
        training: one sentence: steps, images, time, device.
        scores: COCO's figures as text; None where not measured.
        ap: COCO AP, 0 to 1; None where not measured.
        recipe: options of the run, as YAML text.
    """
    results = None
    if ap is not None:
        results = [
            EvalResult(
                task_type="object-detection",
                dataset_type=dataset,
                dataset_name=dataset,
                metric_type="mean_average_precision",
                metric_value=round(ap, 4),
            )
        ]
    data = ModelCardData(
        model_name=name,
        license=license,
        library_name="transformers",
        pipeline_tag="object-detection",
        tags=list(TAGS),
        eval_results=results,
    )
    more = len(label_names) - SHOWN_CLASSES
    return ModelCard(
        CARD.format(
            metadata=data.to_yaml(),
            name=name,
            dataset=dataset,
            parameters=f"{parameters:,}",
            count=len(label_names),
            scores=scores or "not measured",
            training=training,
            recipe=recipe.strip(),
            classes=", ".join(label_names[:SHOWN_CLASSES])
            + (f" and {more} more" if more > 0 else ""),
        )
    )
