"""The model card of an image classifier."""

from hf_vanilla.hub.card import PLACEHOLDER, REGISTERS, CardFacts

CARD = CardFacts(
    about="A Vision Transformer (Dosovitskiy et al., 2021)",
    use=f"""{REGISTERS}\
from transformers import pipeline

classify = pipeline("image-classification", model="{PLACEHOLDER}")
print(classify("image.png"))""",
    tags=("vision-transformer", "image-classification"),
    pipeline_tag="image-classification",
)
