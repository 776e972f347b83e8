"""The n best translations of one sentence, with the scores that the search ranks them by (6.1)."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.models.generation_vanilla import length_penalty, penalty_form


@dataclass(frozen=True)
class Hypothesis:
    """One translation that a search found.

    Attributes:
        text: without special tokens.
        ids: without the start token; the last is the end token, unless the limit came first.
        score: log-probability in nats over the length penalty; at most 0, and the higher the
            better.
    """

    text: str
    ids: list[int]
    score: float


@torch.inference_mode()
def best_translations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    *,
    num_beams: int,
) -> list[Hypothesis]:
    """Search with `num_beams` beams and return as many hypotheses, best first.

    All else is as the model decodes by itself, without sampling.

    Args:
        model: an encoder-decoder in evaluation mode.
        tokenizer: its tokenizer.
        sentence: source text.
        num_beams: 1 is greedy search.
    """
    inputs = tokenizer(sentence, return_tensors="pt", verbose=False).to(model.device)
    found = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        do_sample=False,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        return_dict_in_generate=True,
        output_scores=True,
    )
    rows = [_until_end(row, model) for row in found.sequences[:, 1:].tolist()]
    if found.get("sequences_scores") is None:  # greedy search ranks nothing
        logits = torch.stack(found.scores)[:, 0]  # (T, V)
        chosen = found.sequences[0, 1:, None]
        total = logits.log_softmax(dim=-1).gather(1, chosen).sum().item()
        settings = model.generation_config
        penalty = length_penalty(len(rows[0]), settings.length_penalty, penalty_form(settings))
        scores = [total / penalty]
    else:
        scores = found.sequences_scores.tolist()
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return [Hypothesis(*of_one) for of_one in zip(texts, rows, scores, strict=True)]


def _until_end(row: list[int], model: PreTrainedModel) -> list[int]:
    """Without the padding behind the end token."""
    end = model.generation_config.eos_token_id
    ends = set(end) if isinstance(end, list) else {end}
    last = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
    return row[: last + 1]
