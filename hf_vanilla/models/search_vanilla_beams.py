# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The hypotheses of a beam search (6.1), and one step with them: expand, choose, finish.

Shapes: B sentences at the start, b of them still active, n beams, c candidates of a sentence in a
step, P prompt, L longest target, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from .generation_vanilla import filling_ids, penalty_of

LOWEST = -1.0e9  # transformers' score of a hypothesis that does not exist


@dataclass(kw_only=True)
class BeamState:
    """The hypotheses of the sentences that are still searched; a tensor has a row per sentence.

    A hypothesis is two lists: its ids, and for each generated token the beam that the token
    continued; -1 where there is none.
    """

    prompt: int  # P
    length: int  # tokens of an active hypothesis
    sentences: Tensor  # (b,) int64, row of the sentence in the batch
    active: Tensor  # (b, n, 2, L) int64, ids and beams
    active_scores: Tensor  # (b, n) summed log-probabilities
    finished: Tensor  # (b, n, 2, L) int64, ids and beams
    finished_scores: Tensor  # (b, n) log-probabilities over the length penalty
    is_finished: Tensor  # (b, n) bool, whether a finished hypothesis exists
    may_improve: Tensor  # (b, 1) bool, whether an active beam can still get a better score

    def rows(self, rows: Tensor) -> "BeamState":
        """The state of the sentences `rows`, in that order."""
        tensors: dict[str, Any] = {
            name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **tensors)


@dataclass(kw_only=True)
class Candidates:
    """The best continuations of each sentence in one step, best first."""

    scores: Tensor  # (b, c) summed log-probabilities
    parents: Tensor  # (b, c) int64, the beam that each continues
    sequences: Tensor  # (b, c, 2, L) int64, ids and beams


def initial_state(prompts: Tensor, config: GenerationConfig) -> BeamState:
    """The state at the prompt: only the first beam of a sentence has a score, since all are equal.

    Args:
        prompts: `(B, n, P)` int64.
        config: settings of this call.
    """
    rows, beams, prompt = prompts.shape
    end_ids, filling = filling_ids(config)
    if not end_ids:
        filling = -1
    elif filling == 0:  # transformers' beam search treats a padding token 0 as missing
        filling = end_ids[0]
    active = prompts.new_full((rows, beams, 2, config.max_length), filling)
    active[:, :, 0, :prompt] = prompts
    active[:, :, 1] = -1
    lowest = torch.full((rows, beams), LOWEST, dtype=torch.float, device=prompts.device)
    active_scores = lowest.clone()
    active_scores[:, 0] = 0.0
    return BeamState(
        prompt=prompt,
        length=prompt,
        sentences=torch.arange(rows, device=prompts.device),
        active=active,
        active_scores=active_scores,
        finished=active,
        finished_scores=lowest,
        is_finished=torch.zeros_like(lowest, dtype=torch.bool),
        may_improve=torch.ones((rows, 1), dtype=torch.bool, device=prompts.device),
    )


def best_candidates(
    state: BeamState, log_probs: Tensor, count: int, *, may_overwrite: bool = False
) -> Candidates:
    """The best continuations of each sentence, over all its beams.

    Args:
        state: before the step.
        log_probs: `(b * n, V)` of the next token.
        count: c.
        may_overwrite: whether `log_probs` may change; a new array of its size is slow on a CPU.
    """
    beams, vocabulary = state.active.shape[1], log_probs.shape[1]
    log_probs, scores = log_probs.view(-1, beams, vocabulary), state.active_scores.unsqueeze(-1)
    sums = log_probs.add_(scores) if may_overwrite else log_probs + scores
    # over all beams at once: among equal scores, topk chooses by position
    scores, index = sums.flatten(1).topk(count)
    parents, tokens = index // vocabulary, index % vocabulary
    sequences = of_beams(state.active, parents)
    sequences[:, :, :, state.length] = torch.stack((tokens, parents), dim=2)
    return Candidates(scores=scores, parents=parents, sequences=sequences)


def advance(
    state: BeamState, candidates: Candidates, is_end: Tensor, config: GenerationConfig
) -> Tensor:
    """Update the state: candidates that end become finished, the best others become active.

    Args:
        state: changed in place.
        candidates: of this step.
        is_end: `(b, c)` bool, whether a stopping criterion ends a candidate.
        config: settings of this call.

    Returns:
        The beam that each active beam continues, `(b, n)` int64.
    """
    finish(state, candidates, is_end, config)
    scores = candidates.scores.add(is_end, alpha=LOWEST)
    state.active_scores, best = scores.topk(config.num_beams)
    state.active = of_beams(candidates.sequences, best)
    state.length += 1
    state.may_improve = state.may_improve & can_improve(state, config)
    return candidates.parents.gather(1, best)


def finish(
    state: BeamState, candidates: Candidates, is_end: Tensor, config: GenerationConfig
) -> None:
    """Put candidates that end among the finished hypotheses, where their score suffices.

    Args:
        state: changed in place.
        candidates: of this step.
        is_end: `(b, c)` bool, whether a stopping criterion ends a candidate.
        config: settings of this call.
    """
    # a candidate after the best n may not finish
    is_end = is_end & (torch.arange(is_end.shape[1], device=is_end.device) < config.num_beams)
    # nothing changes in most steps, unless NaN is among the scores; a GPU would have to wait
    if is_end.device.type == "cpu" and not (is_end | candidates.scores.isnan()).any():
        return
    is_closed = ~state.may_improve
    if config.early_stopping is True:
        is_closed = is_closed | state.is_finished.all(dim=1, keepdim=True)
    scores = candidates.scores / penalty_of(state.length + 1 - state.prompt, config)
    scores = scores.add(is_closed, alpha=LOWEST).add(~is_end, alpha=LOWEST)
    merged = torch.cat((state.finished_scores, scores), dim=1)
    state.finished_scores, best = merged.topk(config.num_beams)
    state.finished = of_beams(torch.cat((state.finished, candidates.sequences), dim=1), best)
    state.is_finished = torch.cat((state.is_finished, is_end), dim=1).gather(1, best)


def can_improve(state: BeamState, config: GenerationConfig) -> Tensor:
    """Whether the best active beam can still get a better score than a finished one, `(b, 1)` bool.

    With `early_stopping="never"` and a positive alpha, the bound is the penalty of the longest
    hypothesis, as in the paper; otherwise transformers takes the present length.

    Args:
        state: after the step.
        config: settings of this call.
    """
    is_bound = config.early_stopping == "never" and config.length_penalty > 0.0
    last = state.active.shape[3] if is_bound else state.length
    penalty = penalty_of(last - state.prompt, config)
    best = state.active_scores[:, :1] / penalty
    worst = torch.where(state.is_finished, state.finished_scores.amin(dim=1, keepdim=True), LOWEST)
    return (best > worst).any(dim=1, keepdim=True)


def what_goes_on(
    state: BeamState, is_end: Tensor, config: GenerationConfig
) -> tuple[Tensor, Tensor]:
    """Which sentences can still get another result, and whether another step follows.

    As in transformers' search, each condition of a step is that of the whole batch. So steps that
    change no result may follow: one sentence cannot improve, another has all hypotheses.

    Args:
        state: after the step.
        is_end: `(b, c)` bool, whether a stopping criterion ends a candidate.
        config: settings of this call.

    Returns:
        `(b,)` bool, where False stays False; bool without dimensions.
    """
    may_improve = state.may_improve.squeeze(1)
    has_room = ~is_end.all() & may_improve.any()
    if config.early_stopping is True:
        is_full = state.is_finished.all(dim=1)
        return may_improve & ~is_full, has_room & ~is_full.all()
    return may_improve, has_room


def with_finished(results: BeamState | None, state: BeamState) -> BeamState:
    """The results of all sentences, with the finished hypotheses of those still in `state`."""
    if results is None:
        return state
    results.finished[state.sentences] = state.finished
    results.finished_scores[state.sentences] = state.finished_scores
    return results


def of_beams(tensor: Tensor, index: Tensor) -> Tensor:
    """Of each sentence the hypotheses `index` `(b, m)` of `(b, n, 2, L)`: `(b, m, 2, L)`."""
    return tensor.gather(1, index[:, :, None, None].expand(-1, -1, *tensor.shape[2:]))
