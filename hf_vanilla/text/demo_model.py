"""The small model that comes with the package: English number words to German ones.

`scripts/build_demo_model.py` trains it by the recipe `numbers` and writes its files.
"""

import json
from pathlib import Path

FILES = Path(__file__).with_name("demo_model_files")
NOTE = (
    "it knows English number words and German ones; a few numbers of one word, such as one and "
    "four, come out wrong"
)
FACTS = "facts.json"  # what it was made from, and its score


def demo_model() -> str:
    """The folder of the model, for `from_pretrained` and every `--model` option.

    Examples:
        >>> from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
        >>> import hf_vanilla
        >>> model = AutoModelForSeq2SeqLM.from_pretrained(hf_vanilla.demo_model())
        >>> tokenizer = AutoTokenizer.from_pretrained(hf_vanilla.demo_model())
        >>> batch = tokenizer(["forty-two"], return_tensors="pt")
        >>> tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
        ['zweiundvierzig']
    """
    return str(FILES)


def demo_model_facts() -> dict[str, str | float]:
    """`recipe_sha256` of the recipe's file, and `exact_match`, % of 1,000 unseen numbers."""
    return json.loads((FILES / FACTS).read_text(encoding="utf-8"))
