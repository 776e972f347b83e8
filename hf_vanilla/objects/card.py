"""The model card of an object detector."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard

from hf_vanilla.hub.card import PLACEHOLDER, REGISTERS, CardFacts, model_card

if TYPE_CHECKING:
    from .coco_scores import ObjectScores

CARD = CardFacts(
    about="DETR (Carion et al., 2020)",
    use=f"""{REGISTERS}\
from transformers import pipeline

detect = pipeline("object-detection", model="{PLACEHOLDER}")
print(detect("image.png"))""",
    tags=("detr", "object-detection"),
    pipeline_tag="object-detection",
)


def detection_card(*, scores: "ObjectScores | None", **facts: Any) -> ModelCard:
    """The card of a run.

    Args:
        scores: COCO's figures; None where not measured.
        **facts: of `CardFacts`.
    """
    if scores is not None:
        facts["scores"] = f"```\n{scores}\n```"
        facts["metrics"] = {"mean_average_precision": (round(scores.figures["AP"], 4), None)}
    return model_card(replace(CARD, **facts))
