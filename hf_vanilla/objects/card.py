"""The model card of an object detector."""

from hf_vanilla.hub.card import PLACEHOLDER, REGISTERS, CardFacts

CARD = CardFacts(
    about="DETR (Carion et al., 2020)",
    use=f"""{REGISTERS}\
from transformers import pipeline

detect = pipeline("object-detection", model="{PLACEHOLDER}")
print(detect("image.png"))""",
    tags=("detr", "object-detection"),
    pipeline_tag="object-detection",
)
