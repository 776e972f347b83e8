"""The n-best list of one sentence: translations with the scores of the search (6.1)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.data.batching import padded
from hf_vanilla.models.generation_vanilla import length_penalty, merged_settings, penalty_form
from hf_vanilla.models.pipeline_vanilla import lengths_until_end
from hf_vanilla.models.search_vanilla_constraints import IMPOSSIBLE

from .forced_decoding import log_probs_of_pairs
from .search_record import SearchRecord


@dataclass(frozen=True)
class Hypothesis:
    """One finished hypothesis of a search.

    Attributes:
        text: without special tokens.
        ids: token ids without the start token; the last is the end token, unless the hypothesis
            reached the length limit.
        score: log-probability in nats divided by the length penalty; at most 0, higher is better.
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
    record: SearchRecord | None = None,
    **generate_kwargs: Any,
) -> list[Hypothesis]:
    """Search with `num_beams` beams and return that many hypotheses, best first.

    Everything else follows the model's generation config, without sampling.

    Args:
        model: an encoder-decoder in evaluation mode.
        tokenizer: its tokenizer.
        sentence: source text.
        num_beams: 1 is greedy search.
        record: takes down the steps of the search.
        **generate_kwargs: other arguments of `generate()`. Under `constraints` there may be fewer
            hypotheses.
    """
    if record is not None:
        generate_kwargs |= {
            "logits_processor": record.processors,
            "stopping_criteria": record.criteria,
        }
    inputs = tokenizer(sentence, return_tensors="pt", verbose=False).to(model.device)
    found = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        do_sample=False,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        return_dict_in_generate=True,
        output_scores=True,
        **generate_kwargs,
    )
    settings = _settings(model, generate_kwargs)
    rows = _rows_until_end(found.sequences, settings)
    if found.get("sequences_scores") is None:  # greedy search computes no score
        logits = torch.stack(found.scores)[:, 0]  # (T, V)
        chosen = found.sequences[0, 1:, None]
        total = logits.log_softmax(dim=-1).gather(1, chosen).sum().item()
        scores = [total / _penalty(len(rows[0]), settings)]
    else:
        scores = found.sequences_scores.tolist()
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    hypotheses = [Hypothesis(*values) for values in zip(texts, rows, scores, strict=True)]
    return [one for one in hypotheses if one.score > IMPOSSIBLE]


@torch.inference_mode()
def n_best_of_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[list[int]],
    n: int,
    **generate_kwargs: Any,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence of a batch, by beam search or sampling.

    Sampled hypotheses have the score of the model itself, without temperature and the like, and
    are sorted by it; some may be equal.

    Args:
        model: an encoder-decoder in evaluation mode.
        tokenizer: its tokenizer.
        rows: input ids of each sentence.
        n: hypotheses per sentence; at most the number of beams, unless they are sampled. There are
            fewer where the settings leave no more.
        **generate_kwargs: changes to the model's generation config.
    """
    input_ids = padded(rows, tokenizer.pad_token_id)
    lengths = torch.tensor([len(row) for row in rows])
    attention_mask = (torch.arange(input_ids.shape[1]) < lengths.unsqueeze(1)).long()
    returned = {"num_return_sequences": n, "return_dict_in_generate": True, "output_scores": True}
    found = model.generate(
        input_ids=input_ids.to(model.device),
        attention_mask=attention_mask.to(model.device),
        **{**generate_kwargs, **returned},
    )
    settings = _settings(model, generate_kwargs)
    ids = _rows_until_end(found.sequences, settings)
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    scores = found.get("sequences_scores")
    if scores is None:
        pairs = [(rows[i // n], row) for i, row in enumerate(ids)]
        values = _model_scores(model, pairs, settings)
    else:
        values = scores.tolist()
    hypotheses = [Hypothesis(*one) for one in zip(texts, ids, values, strict=True)]
    lists = [hypotheses[i : i + n] for i in range(0, len(hypotheses), n)]
    lists = [[found for found in one if found.score > IMPOSSIBLE] for one in lists]
    return [sorted(one, key=lambda found: -found.score) for one in lists]


def _settings(model: PreTrainedModel, changes: dict[str, Any]) -> GenerationConfig:
    """The model's generation config with the changes of a call."""
    given = changes.get("generation_config")
    return merged_settings(model.generation_config, given, changes)[0]


def _penalty(length: int, settings: GenerationConfig) -> float:
    alpha = 1.0 if settings.length_penalty is None else settings.length_penalty
    return length_penalty(length, alpha, penalty_form(settings))


def _model_scores(
    model: PreTrainedModel,
    pairs: list[tuple[list[int], list[int]]],
    settings: GenerationConfig,
) -> list[float]:
    """Log-probability of each target in nats, divided by the length penalty."""
    return [
        math.fsum(values) / _penalty(len(values), settings)
        for values in log_probs_of_pairs(model, pairs)
    ]


def _rows_until_end(sequences: Tensor, settings: GenerationConfig) -> list[list[int]]:
    """Token ids of each sequence, without the start token, up to its end token."""
    lengths = lengths_until_end(
        sequences,
        prompt_length=1,
        end_ids=settings.eos_token_id,
        pad_token_id=settings.pad_token_id,
    )
    pairs = zip(sequences.tolist(), lengths.tolist(), strict=True)
    return [row[1:length] for row, length in pairs]
