"""The model card of a trajectory forecaster."""

from dataclasses import replace
from typing import Any

from huggingface_hub import ModelCard

from hf_vanilla.hub.card import PLACEHOLDER, REGISTERS, CardFacts, model_card

CARD = CardFacts(
    about="A forecaster of trajectories, from observed to future positions of an agent",
    use=f"""{REGISTERS}\
from transformers import AutoModelForTimeSeriesPrediction

model = AutoModelForTimeSeriesPrediction.from_pretrained("{PLACEHOLDER}")""",
    notes=f"`hf-vanilla forecast --model {PLACEHOLDER} --input FILE` reads a table of positions.",
    tags=("trajectory-prediction", "time-series-forecasting"),
)


def track_card(*, scores: Any, **facts: Any) -> ModelCard:
    """The card of a run.

    Args:
        scores: `TrackScores` with their protocol; None where not measured.
        **facts: of `CardFacts`.
    """
    if scores is not None:
        facts["scores"] = "\n".join(f"- {line}" for line in str(scores).splitlines())
    return model_card(replace(CARD, **facts))
