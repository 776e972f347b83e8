"""The n-best list of a sentence, with scores and steps of the search (6.1); given translations.

Shapes: B batch, S source, T target, V vocabulary; n beams, c candidates of a step, L tokens so far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.data.batching import padded_with_mask
from hf_vanilla.models.generation_vanilla import merged_settings, penalty_of, returned_scores
from hf_vanilla.models.pipeline_vanilla import lengths_until_end
from hf_vanilla.models.search_vanilla import NAN_CAUSE
from hf_vanilla.models.search_vanilla_constraints import IMPOSSIBLE

from .attentions import forced_outputs
from .decoding import batches_of_similar_length, generated

KEPT, FINISHED, PRUNED, STOPPED = "kept", "finished", "pruned", "stopped"
GREEDY_CANDIDATES = 5  # of a step of greedy search, which itself follows one
LOWEST = -1e8  # below it: a continuation of a hypothesis that does not exist


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


@dataclass(frozen=True)
class Candidate:
    """A hypothesis with one more token, as a step of the search considers it.

    Attributes:
        ids: token ids without the prompt; the last one is the new token.
        parent: index of the candidate of the step before that it continues; -1 in the first step.
        log_prob: of all its tokens, in nats.
        status: `"kept"`, one of the n hypotheses of the next step; `"finished"`; `"pruned"`, worse
            than n others; `"stopped"`, kept when the search ended.
        rank: of a finished one in the n-best list, from 0; -1 if it is not there.
    """

    ids: tuple[int, ...]
    parent: int
    log_prob: float
    status: str
    rank: int = -1


@dataclass
class SearchRecord:
    """Observes the search of one sentence; pass `hooks` to `generate()`, which change nothing.

    It serves our own search and transformers'. A search without a record does not run this code.

    Args:
        num_beams: n.
    """

    num_beams: int
    _active: list[tuple[list[list[int]], Tensor]] = field(default_factory=list)
    _candidates: list[list[list[int]]] = field(default_factory=list)

    @property
    def hooks(self) -> dict[str, list[Any]]:
        """Arguments of `generate()`."""
        return {"logits_processor": [self._note_scores], "stopping_criteria": [self._note_ids]}

    def _note_scores(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Note hypotheses `(n, L)` and scores `(n, V)`; greedy search brings logits."""
        noted = scores.log_softmax(dim=-1) if self.num_beams == 1 else scores.clone()
        self._active.append((input_ids.tolist(), noted))
        return scores

    def _note_ids(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        """Note candidates `(c, L + 1)`; none is stopped."""
        self._candidates.append(input_ids.tolist())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def steps(self, results: list[list[int]], end_ids: set[int]) -> list[list[Candidate]]:
        """The candidates of each step, best first.

        Args:
            results: the n-best list as token ids without prompt and padding, best first.
            end_ids: ids of end tokens.
        """
        ranks = {tuple(ids): rank for rank, ids in reversed(list(enumerate(results)))}
        steps: list[list[Candidate]] = []
        known: dict[tuple[int, ...], tuple[int, float]] = {(): (-1, 0.0)}
        for index, (active, scores) in enumerate(self._active):
            prompt = len(active[0]) - index
            rows = {tuple(ids[prompt:]): row for row, ids in reversed(list(enumerate(active)))}
            is_last = index == len(self._active) - 1
            step: list[Candidate] = []
            kept = 0
            candidates = [tuple(ids[prompt:]) for ids in self._candidates[index]]
            if self.num_beams == 1:
                (chosen,) = candidates
                best = scores[0].topk(min(GREEDY_CANDIDATES, scores.shape[1])).indices.tolist()
                others = ((*chosen[:-1], token) for token in best if token != chosen[-1])
                candidates = [chosen, *others][:GREEDY_CANDIDATES]
            for place, ids in enumerate(candidates):
                parent, before = known[ids[:-1]]
                log_prob = before + scores[rows[ids[:-1]], ids[-1]].item()
                if not log_prob > LOWEST:  # it continues no hypothesis, or a rule forbids it
                    continue
                is_end = ids[-1] in end_ids or (is_last and ids in ranks)
                status = PRUNED
                if is_end and place < self.num_beams:
                    status = FINISHED
                elif not is_end and kept < self.num_beams:
                    status, kept = STOPPED if is_last else KEPT, kept + 1
                rank = ranks.get(ids, -1) if status == FINISHED else -1
                step.append(Candidate(ids, parent, log_prob, status, rank))
            known = {c.ids: (place, c.log_prob) for place, c in enumerate(step)}
            steps.append(step)
        return steps


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
        generate_kwargs |= record.hooks
    generate_kwargs |= {"do_sample": False, "num_beams": num_beams}
    rows = [tokenizer(sentence, verbose=False).input_ids]
    if num_beams > 1:
        return n_best_of_rows(model, tokenizer, rows, num_beams, **generate_kwargs)[0]
    # greedy search computes no score
    returned = {"num_return_sequences": 1, "return_dict_in_generate": True, "output_scores": True}
    found = generated(model, tokenizer, rows, **generate_kwargs, **returned)
    settings, _ = merged_settings(model.generation_config, generate_kwargs)
    logits = torch.stack(found.scores)[:, 0]  # (T, V)
    total = logits.log_softmax(dim=-1).gather(1, found.sequences[0, 1:, None]).sum().item()
    rows = _rows_until_end(found.sequences, settings)
    hypotheses = _hypotheses(tokenizer, rows, [total / penalty_of(len(rows[0]), settings)])
    return [one for one in hypotheses if one.score > IMPOSSIBLE]


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
    settings, _ = merged_settings(model.generation_config, generate_kwargs)
    returned = {"num_return_sequences": n, **returned_scores(settings)}
    found = generated(model, tokenizer, rows, **{**generate_kwargs, **returned})
    ids = _rows_until_end(found.sequences, settings)
    scores = found.get("sequences_scores")
    if scores is None:
        pairs = [(rows[i // n], row) for i, row in enumerate(ids)]
        values = [
            math.fsum(log_probs) / penalty_of(len(log_probs), settings)
            for log_probs in log_probs_of_pairs(model, pairs)
        ]
    else:
        values = scores.tolist()
    hypotheses = _hypotheses(tokenizer, ids, values)
    lists = [hypotheses[i : i + n] for i in range(0, len(hypotheses), n)]
    lists = [[found for found in one if found.score > IMPOSSIBLE] for one in lists]
    return [sorted(one, key=lambda found: -found.score) for one in lists]


def _hypotheses(
    tokenizer: PreTrainedTokenizerBase, rows: list[list[int]], scores: list[float]
) -> list[Hypothesis]:
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return [Hypothesis(*values) for values in zip(texts, rows, scores, strict=True)]


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


@torch.inference_mode()
def log_probs_of_pairs(
    model: PreTrainedModel,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    tokens_per_batch: int = 4096,
) -> list[list[float]]:
    """Log-probability in nats of every target token, given the source and the tokens before it.

    Args:
        model: an encoder-decoder in evaluation mode.
        pairs: input ids and target ids of each pair; the targets have no start token.
        tokens_per_batch: upper limit of pairs times longest side.

    Returns:
        One list per pair, in the same order, with one number per target id.

    Raises:
        ValueError: a log-probability is NaN.
    """
    lengths = {i: max(map(len, pair)) for i, pair in enumerate(pairs)}
    found: list[list[float]] = [[] for _ in pairs]
    for batch in batches_of_similar_length(lengths, tokens_per_batch):
        sources, targets = zip(*(pairs[i] for i in batch), strict=True)
        logits = forced_outputs(model, sources, [row[:-1] for row in targets]).logits  # (B, T, V)
        ids, _ = padded_with_mask(targets, model.config.pad_token_id)
        chosen = ids.to(logits.device).unsqueeze(-1)
        log_probs = logits.float().log_softmax(dim=-1).gather(-1, chosen).squeeze(-1)  # (B, T)
        for i, row in zip(batch, log_probs.tolist(), strict=True):
            found[i] = row[: len(pairs[i][1])]
            if any(map(math.isnan, found[i])):
                raise ValueError(f"log-probabilities are NaN: {NAN_CAUSE}")
    return found
