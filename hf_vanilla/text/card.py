"""The model card of a translation model."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard

from hf_vanilla.hub.card import PLACEHOLDER, REGISTERS, CardFacts, model_card

if TYPE_CHECKING:
    from hf_vanilla.data.bleu import Scores

CARD = CardFacts(
    about=(
        'The Transformer of ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762) (2017) '
        "with post-norm encoder and decoder"
    ),
    use=f"""{REGISTERS}\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("{PLACEHOLDER}")
tokenizer = AutoTokenizer.from_pretrained("{PLACEHOLDER}")
batch = tokenizer(["A sentence."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))""",
    notes="""\
`generate()` decodes with the settings in `generation_config.json`. The default of hf_vanilla is the
paper's: beam 4, length penalty `((5 + n) / 6) ** 0.6`, at most source length + 50 tokens.""",
    limits="""\
The model knows the kind of text that it was trained on and nothing else. It translates one sentence
at a time, invents translations for words that it has never seen, and repeats the biases of its
data. Check its output before anyone relies on it.""",
    tags=("transformer", "attention-is-all-you-need"),
    pipeline_tag="translation",
    languages=(),
)


def translation_card(
    *, scores: "Scores | None", validation_nll: float | None, **facts: Any
) -> ModelCard:
    """The card of a run.

    Args:
        scores: on the validation set; None where it was not translated.
        validation_nll: nats per target token on the validation set; None where there is none.
        **facts: of `CardFacts`.
    """
    nll, scored, metrics = "not measured", "not measured", {}
    if validation_nll is not None:
        nll = f"{validation_nll:.4f} nats per target token"
    if scores is not None:
        scored = str(scores)
        metrics = {
            "sacrebleu": (round(scores.bleu, 2), f"BLEU ({scores.bleu_signature})"),
            "chrf": (round(scores.chrf, 2), f"chrF ({scores.chrf_signature})"),
        }
    table = f"```\n{scored}\nnegative log-likelihood: {nll}\n```"
    return model_card(replace(CARD, scores=table, metrics=metrics, **facts))
