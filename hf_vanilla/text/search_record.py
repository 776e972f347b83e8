"""What a search did: the candidates of each step, with their scores (6.1).

The record is taken through `generate()`'s public hooks, a logits processor and a stopping criterion
that change nothing. It serves our own search and transformers'. A search without a record does not
run this code.

Shapes: n beams, c candidates of a step, L tokens so far, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

KEPT, FINISHED, PRUNED, STOPPED = "kept", "finished", "pruned", "stopped"
GREEDY_CANDIDATES = 5  # of a step of greedy search, which itself follows one
LOWEST = -1e8  # below it: a continuation of a hypothesis that does not exist


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
    """Observes the search of one sentence; pass `processors` and `criteria` to `generate()`.

    Args:
        num_beams: n.
    """

    num_beams: int
    _active: list[tuple[list[list[int]], Tensor]] = field(default_factory=list)
    _candidates: list[list[list[int]]] = field(default_factory=list)

    @property
    def processors(self) -> list[LogitsProcessor]:
        """For `logits_processor=`."""
        return [_Scores(self)]

    @property
    def criteria(self) -> list[StoppingCriteria]:
        """For `stopping_criteria=`."""
        return [_Candidates(self)]

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
            for place, ids in enumerate(self._of_step(index, prompt, scores)):
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

    def _of_step(self, index: int, prompt: int, scores: Tensor) -> list[tuple[int, ...]]:
        """Ids of the candidates of a step, best first."""
        candidates = [tuple(ids[prompt:]) for ids in self._candidates[index]]
        if self.num_beams > 1:
            return candidates
        before = candidates[0][:-1]
        best = scores[0].topk(min(GREEDY_CANDIDATES, scores.shape[1])).indices.tolist()
        others = [token for token in best if token != candidates[0][-1]]
        return [candidates[0], *((*before, token) for token in others)][:GREEDY_CANDIDATES]


class _Scores(LogitsProcessor):
    def __init__(self, record: SearchRecord) -> None:
        self.record = record

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Note hypotheses `(n, L)` and scores `(n, V)`; greedy search brings logits."""
        noted = scores.log_softmax(dim=-1) if self.record.num_beams == 1 else scores.clone()
        self.record._active.append((input_ids.tolist(), noted))
        return scores


class _Candidates(StoppingCriteria):
    def __init__(self, record: SearchRecord) -> None:
        self.record = record

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Note candidates `(c, L + 1)`; none is stopped."""
        self.record._candidates.append(input_ids.tolist())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
