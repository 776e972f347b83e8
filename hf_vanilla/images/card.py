"""The model card of an image classifier."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from huggingface_hub import ModelCard

from hf_vanilla.hub.card import PLACEHOLDER, REGISTERS, CardFacts, model_card

CARD = CardFacts(
    about="A Vision Transformer (Dosovitskiy et al., 2021)",
    use=f"""{REGISTERS}\
from transformers import pipeline

classify = pipeline("image-classification", model="{PLACEHOLDER}")
print(classify("image.png"))""",
    tags=("vision-transformer", "image-classification"),
    pipeline_tag="image-classification",
)


def image_card(*, scores: Mapping[str, float] | None, **facts: Any) -> ModelCard:
    """The card of a run.

    Args:
        scores: `accuracy` and `top5_accuracy` in percent, and `nll`; None where not measured.
        **facts: of `CardFacts`.
    """
    if scores is not None:
        facts["scores"] = (
            f"accuracy {scores['accuracy']:.2f} %, among the first five "
            f"{scores['top5_accuracy']:.2f} %, {scores['nll']:.4f} nats per image"
        )
        facts["metrics"] = {"accuracy": (round(scores["accuracy"] / 100, 4), None)}
    return model_card(replace(CARD, **facts))
