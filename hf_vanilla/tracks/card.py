"""The model card of a trajectory forecaster."""

from typing import TYPE_CHECKING

from huggingface_hub import ModelCard, ModelCardData

if TYPE_CHECKING:
    from hf_vanilla.training.task import RunFacts

TAGS = ("hf-vanilla", "trajectory-prediction", "time-series-forecasting")
USE = """\
## Use

```python
import hf_vanilla  # registers the model with the Auto classes
from transformers import AutoModelForTimeSeriesPrediction

model = AutoModelForTimeSeriesPrediction.from_pretrained("{name}")
```

`hf-vanilla forecast --model {name} --input FILE` reads a table of positions.
"""
CARD = """\
---
{metadata}
---

# {name}

A trajectory forecaster trained with hf_vanilla on {dataset}: {parameters} parameters. It maps
observed positions of an agent to future positions.

{use}

## Scores

{scores}

## Training

{data}

{steps:,} steps, {seconds:.1f} minutes, {processes} processes on {device}.

{summary}

The options of `{command}`:

```yaml
{recipe}
```
"""


def track_card(
    facts: "RunFacts",
    *,
    license: str | None,
    dataset: str,
    data: str,
    scores: str | None,
    command: str = "hf-vanilla train --recipe FILE",
) -> ModelCard:
    """The filled card, with the metadata that the Hub reads.

    Args:
        facts: of the finished run.
        license: of the weights; None where unknown.
        dataset: what the model was trained on.
        data: the training data in one line.
        scores: lines of scores with their protocol; None where not measured.
        command: that the options of the run are for.
    """
    metadata = ModelCardData(
        model_name=facts.model_name, license=license, library_name="transformers", tags=list(TAGS)
    )
    lines = "\n".join(f"| {key} | {value} |" for key, value in facts.summary.items())
    shown = "not measured" if scores is None else "\n".join(f"- {s}" for s in scores.splitlines())
    return ModelCard(
        CARD.format(
            metadata=metadata.to_yaml(),
            name=facts.model_name,
            use=USE.format(name=facts.model_name),
            dataset=dataset,
            parameters=f"{facts.parameters:,}",
            scores=shown,
            data=data,
            steps=facts.steps,
            seconds=facts.seconds / 60,
            processes=facts.processes,
            device=facts.device,
            summary=f"| measure | value |\n|---|---|\n{lines}" if lines else "",
            recipe=facts.recipe.strip(),
            command=command,
        )
    )


def converted_track_card(name: str, change: str) -> ModelCard:
    """The card of a forecaster whose training is not known.

    Args:
        name: shown as the title.
        change: what was converted, a sentence.
    """
    metadata = ModelCardData(library_name="transformers", tags=list(TAGS)).to_yaml()
    use = USE.format(name=name)
    return ModelCard(f"---\n{metadata}\n---\n\n# {name}\n\n{change}\n\n{use}")
