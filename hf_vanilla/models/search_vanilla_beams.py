# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The hypotheses of a beam search (6.1), and one step with them: expand, choose, finish.

Shapes: B sentences at the start, b of them still active, n beams, c candidates of a sentence in a
step, P prompt, L longest target, V vocabulary.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from transformers import GenerationConfig

from .generation_vanilla import filling_ids, length_penalty, penalty_form

LOWEST = -1.0e9  # transformers' score of a hypothesis that does not exist


@dataclass(kw_only=True)
class BeamState:
    """The hypotheses of the sentences that are still searched; each field has a row per sentence.

    `beam_indices` are transformers': for each generated token the row, of all B * n, that the
    hypothesis continued; -1 behind its end.
    """

    sentences: Tensor  # (b,) int64, row of the sentence in the batch
    active: Tensor  # (b, n, L) int64 ids
    active_scores: Tensor  # (b, n) summed log-probabilities
    active_beam_indices: Tensor  # (b, n, L - P) int32
    finished: Tensor  # (b, n, L) int64 ids
    finished_scores: Tensor  # (b, n) log-probabilities over the length penalty
    finished_beam_indices: Tensor  # (b, n, L - P) int32
    is_finished: Tensor  # (b, n) bool, whether a finished hypothesis exists
    may_improve: Tensor  # (b, 1) bool, whether an active beam can still get a better score

    def rows(self, rows: Tensor) -> "BeamState":
        """The state of the sentences `rows`, in that order."""
        return BeamState(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(kw_only=True)
class Candidates:
    """The best continuations of each sentence in one step, best first."""

    scores: Tensor  # (b, c) summed log-probabilities
    parents: Tensor  # (b, c) int64, the beam that each continues
    sequences: Tensor  # (b, c, L) int64 ids
    beam_indices: Tensor  # (b, c, L - P) int32
    is_end: Tensor  # (b, c) bool, whether a stopping criterion ends it


def initial_state(prompts: Tensor, config: GenerationConfig) -> BeamState:
    """Only the first beam of each sentence counts, since all begin with the same prompt.

    Args:
        prompts: `(B, n, P)` int64.
        config: settings of this call.
    """
    rows, beams, prompt = prompts.shape
    end_ids, filling = filling_ids(config)
    if not end_ids:
        filling = -1
    elif filling == 0:  # transformers' beam search takes a padding token 0 for none
        filling = end_ids[0]
    active = prompts.new_full((rows, beams, config.max_length), filling)
    active[:, :, :prompt] = prompts
    lowest = torch.full((rows, beams), LOWEST, dtype=torch.float, device=prompts.device)
    active_scores = lowest.clone()
    active_scores[:, 0] = 0.0
    indices = active.new_full((rows, beams, config.max_length - prompt), -1, dtype=torch.int32)
    return BeamState(
        sentences=torch.arange(rows, device=prompts.device),
        active=active,
        active_scores=active_scores,
        active_beam_indices=indices,
        finished=active,
        finished_scores=lowest,
        finished_beam_indices=indices,
        is_finished=torch.zeros_like(lowest, dtype=torch.bool),
        may_improve=torch.ones((rows, 1), dtype=torch.bool, device=prompts.device),
    )


def best_candidates(
    state: BeamState, log_probs: Tensor, length: int, config: GenerationConfig
) -> Candidates:
    """The best continuations of each sentence, over all its beams; `is_end` is not known yet.

    Args:
        state: before the step.
        log_probs: `(b * n, V)` of the next token; the sums may be written into it.
        length: tokens of an active hypothesis.
        config: settings of this call.
    """
    beams, vocabulary = config.num_beams, log_probs.shape[-1]
    end_ids, _ = filling_ids(config)
    # enough candidates that n can go on even if each beam ends in every possible way
    count = max(2, 1 + len(end_ids)) * beams
    sums = log_probs.view(-1, beams, vocabulary) + state.active_scores.unsqueeze(-1)
    # over all beams at once: among equal scores, topk chooses by position
    scores, index = sums.flatten(1).topk(count)
    parents = index // vocabulary
    sequences = _of_beams(state.active, parents)
    sequences[:, :, length] = index % vocabulary
    beam_indices = _of_beams(state.active_beam_indices, parents)
    first_rows = beams * torch.arange(len(parents), device=parents.device).unsqueeze(1)
    generated = length - state.active.shape[2] + beam_indices.shape[2]
    beam_indices[:, :, generated] = (parents + first_rows).int()
    return Candidates(
        scores=scores,
        parents=parents,
        sequences=sequences,
        beam_indices=beam_indices,
        is_end=torch.zeros_like(parents, dtype=torch.bool),
    )


def advance(
    state: BeamState, candidates: Candidates, length: int, config: GenerationConfig
) -> Tensor:
    """Take the candidates into the state: those that end as finished, the best others as active.

    Args:
        state: changed in place.
        candidates: of this step.
        length: tokens of an active hypothesis before the step.
        config: settings of this call.

    Returns:
        The beam that each active beam continues, `(b, n)` int64.
    """
    finish(state, candidates, length, config)
    scores = candidates.scores + candidates.is_end.to(torch.float32) * LOWEST
    state.active_scores, best = torch.topk(scores, k=config.num_beams)
    state.active = _of_beams(candidates.sequences, best)
    state.active_beam_indices = _of_beams(candidates.beam_indices, best)
    state.may_improve = state.may_improve & can_improve(state, length + 1, config)
    return candidates.parents.gather(1, best)


def finish(state: BeamState, candidates: Candidates, length: int, config: GenerationConfig) -> None:
    """Put candidates that end among the finished hypotheses, where their score suffices.

    Args:
        state: changed in place.
        candidates: of this step.
        length: tokens of an active hypothesis before the step.
        config: settings of this call.
    """
    is_top = torch.arange(candidates.is_end.shape[1], device=candidates.is_end.device)
    is_end = candidates.is_end & (is_top < config.num_beams)
    is_closed = ~state.may_improve
    if config.early_stopping is True:
        is_closed = is_closed | state.is_finished.all(dim=1, keepdim=True)
    prompt = state.active.shape[2] - state.active_beam_indices.shape[2]
    scores = candidates.scores / _penalty(length + 1 - prompt, config)
    scores = scores + is_closed.to(torch.float32) * LOWEST + (~is_end).to(torch.float32) * LOWEST
    merged = torch.cat((state.finished_scores, scores), dim=1)
    state.finished_scores, best = torch.topk(merged, k=config.num_beams)
    is_same = torch.arange(config.num_beams, device=best.device).eq(best)
    if best.device.type == "cpu" and is_same.all():
        return  # as in most steps; a GPU would have to wait for the answer
    state.finished = _of_beams(torch.cat((state.finished, candidates.sequences), dim=1), best)
    beam_indices = torch.cat((state.finished_beam_indices, candidates.beam_indices), dim=1)
    state.finished_beam_indices = _of_beams(beam_indices, best)
    state.is_finished = torch.cat((state.is_finished, is_end), dim=1).gather(1, best)


def can_improve(state: BeamState, length: int, config: GenerationConfig) -> Tensor:
    """Whether the best active beam can still get a better score than a finished one, `(b, 1)` bool.

    With `early_stopping="never"` and a positive alpha, the bound is the penalty of the longest
    hypothesis, as in the paper; otherwise transformers takes the present length.

    Args:
        state: after the step.
        length: tokens of an active hypothesis after the step.
        config: settings of this call.
    """
    longest = state.active.shape[2]
    prompt = longest - state.active_beam_indices.shape[2]
    is_bound = config.early_stopping == "never" and config.length_penalty > 0.0
    penalty = _penalty((longest if is_bound else length) - prompt, config)
    best = state.active_scores[:, :1] / penalty
    worst = torch.where(state.is_finished, state.finished_scores.amin(dim=1, keepdim=True), LOWEST)
    return (best > worst).any(dim=1, keepdim=True)


def is_searched(state: BeamState, config: GenerationConfig) -> Tensor:
    """Which sentences can still get another result, `(b,)` bool; once False, it stays False."""
    may_improve = state.may_improve.squeeze(1)
    if config.early_stopping is True:
        return may_improve & ~state.is_finished.all(dim=1)
    return may_improve


def goes_on(state: BeamState, candidates: Candidates, config: GenerationConfig) -> Tensor:
    """Whether another step follows, bool without dimensions.

    As in transformers' search, the three conditions are of the batch. If one sentence could only
    get worse results and another has all its hypotheses, steps follow that change no result.
    """
    has_room = ~candidates.is_end.all() & state.may_improve.any()
    if config.early_stopping is True:
        return has_room & ~state.is_finished.all()
    return has_room


def with_finished(results: BeamState | None, state: BeamState) -> BeamState:
    """The results of all sentences, with the finished hypotheses of those still in `state`."""
    if results is None:
        return state
    for name in ("finished", "finished_scores", "finished_beam_indices"):
        getattr(results, name)[state.sentences] = getattr(state, name)
    return results


def _penalty(length: int, config: GenerationConfig) -> float:
    return length_penalty(length, config.length_penalty, penalty_form(config))


def _of_beams(tensor: Tensor, index: Tensor) -> Tensor:
    """Of each sentence the hypotheses `index` `(b, m)` of `(b, n, L)`: `(b, m, L)`."""
    return tensor.gather(1, index.unsqueeze(-1).expand(-1, -1, tensor.shape[-1]))
