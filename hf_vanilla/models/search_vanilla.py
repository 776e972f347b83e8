# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Greedy and beam search (6.1) with the results of transformers' own, tokens and scores.

Two things differ. Finished sentences are dropped from the batch, and the beams of a sentence share
one row of the KV cache. `generate()` calls `beam_search` and `greedy_search` by `custom_generate=`.

Shapes: B sentences at the start, b of them still active, n beams, c candidates of a sentence in a
step, P prompt, L longest target, V vocabulary.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import logits_process, stopping_criteria
from transformers.generation.utils import (
    GenerateBeamEncoderDecoderOutput,
    GenerateEncoderDecoderOutput,
)

from .generation_vanilla import SourceLengthCriteria, SourceLengthEnd, filling_ids, penalty_of
from .pretrained_vanilla import VanillaPreTrainedModel
from .search_vanilla_decoder import EnsembleDecoder, OutputBuffer, SearchDecoder

# Each treats every hypothesis by itself, so sentences may leave the batch and be reordered; what
# one stores per sentence, `_select_sentences` selects. With any other rule, all sentences stay.
ROWWISE_PROCESSORS = (
    SourceLengthEnd,
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.SequenceBiasLogitsProcessor,
    logits_process.NoBadWordsLogitsProcessor,
    logits_process.ForcedBOSTokenLogitsProcessor,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.ExponentialDecayLengthPenalty,
    logits_process.LogitNormalization,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
    logits_process.SuppressTokensLogitsProcessor,
)
ROWWISE_CRITERIA = (
    SourceLengthCriteria,
    stopping_criteria.MaxLengthCriteria,
    stopping_criteria.MaxTimeCriteria,
    stopping_criteria.EosTokenCriteria,
)
LOWEST = -1.0e9  # transformers' score of a hypothesis that does not exist
# attribute of a processor; as a tensor, it has a number for each row of the batch
PER_ROW = "prompt_ignore_length"


def is_rowwise(
    config: GenerationConfig, processors: LogitsProcessorList, criteria: StoppingCriteriaList
) -> bool:
    """Whether only ids are returned, and every rule treats each hypothesis by itself.

    Then finished sentences may be dropped, and a step may overwrite the arrays of the last one.
    """
    rules = (*processors, *criteria)
    return (
        not config.return_dict_in_generate
        and all(type(rule) in ROWWISE_PROCESSORS + ROWWISE_CRITERIA for rule in rules)
        and not any(isinstance(getattr(rule, PER_ROW, None), Tensor) for rule in rules)
    )


def rows_to_keep(is_active: list[bool]) -> list[int]:
    """Rows of the b active sentences; finished ones among the first b are replaced from the end."""
    count = sum(is_active)
    later = [row for row in range(count, len(is_active)) if is_active[row]]
    return [row if is_active[row] else later.pop() for row in range(count)]


NAN_CAUSE = "a weight is NaN or infinite, as after a training that diverged"


def refuse_nan(has_nan: bool, step: int) -> None:
    """Raise where the best scores of a step, counted from 1, hold NaN.

    Raises:
        ValueError: they do.
    """
    if has_nan:
        raise ValueError(
            f"logits are NaN at step {step} of the search: {NAN_CAUSE}, or a logits processor "
            "returned NaN"
        )


def is_dead_end(logits: Tensor, config: GenerationConfig) -> bool:
    """Whether NaN among the scores of a step only says that the rules forbid every token.

    `renormalize_logits` then makes NaN of good logits, and transformers' search goes on with it.

    Args:
        logits: `(b * n, V)` of the model.
        config: settings of this call.
    """
    return bool(config.renormalize_logits) and not logits.log_softmax(dim=-1).isnan().any()


def search_decoder(
    model: VanillaPreTrainedModel, inputs: dict[str, Any], beams: int, *, has_buffer: bool
) -> SearchDecoder | EnsembleDecoder:
    """The decoder for what `generate()` hands to a search.

    Args:
        model: `VanillaForConditionalGeneration`.
        inputs: `encoder_outputs` and `attention_mask`, a row for each beam; `ensemble`, of
            `Ensemble.encode`, if any.
        beams: n.
        has_buffer: each step may overwrite the logits of the last one.
    """
    mask = inputs.get("attention_mask")
    decoder = SearchDecoder(
        model,
        inputs["encoder_outputs"].last_hidden_state[::beams],
        None if mask is None else mask[::beams],
        beams=beams,
        buffer=OutputBuffer() if has_buffer else None,
    )
    with_ensemble = inputs.get("ensemble")
    return decoder if with_ensemble is None else with_ensemble(decoder)


# --- greedy search -----------------------------------------------------------------------------


def greedy_search(
    model: VanillaPreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    streamer: Any = None,
    **inputs: Any,
) -> Any:
    """Take the most probable token in each step.

    Args:
        model: `VanillaForConditionalGeneration`.
        input_ids: `(B, P)` int64 prompts.
        logits_processor: applied to the logits.
        stopping_criteria: which hypotheses end.
        generation_config: settings of this call.
        streamer: gets the tokens of each step.
        **inputs: `encoder_outputs`, `attention_mask`.

    Returns:
        `(B, L)` int64, or transformers' output class with `return_dict_in_generate`.
    """
    config = generation_config
    is_unobserved = streamer is None and is_rowwise(config, logits_processor, stopping_criteria)
    decoder = search_decoder(model, inputs, 1, has_buffer=is_unobserved)
    # transformers continues a finished sentence if there is no end token
    has_end = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    can_drop = is_unobserved and has_end
    _, filling = filling_ids(config)
    scores, logits = _records(config)
    sequences, results = input_ids, None
    sentences = torch.arange(len(input_ids), device=input_ids.device)
    is_active = torch.ones_like(sentences, dtype=torch.bool)
    step_logits = decoder.read_prompt(input_ids)
    while True:
        # a processor may write to its input, and a record keeps it
        step_logits = step_logits.to(torch.float32, copy=not is_unobserved)
        step_scores = logits_processor(sequences, step_logits)
        scores, logits = _recorded(scores, step_scores), _recorded(logits, step_logits)
        tokens = step_scores.argmax(dim=-1)
        best = step_scores.gather(1, tokens.unsqueeze(1))  # NaN if a score is NaN
        if has_end:
            tokens = torch.where(is_active, tokens, filling)
        sequences = torch.cat((sequences, tokens.unsqueeze(1)), dim=1)
        is_active = is_active & ~stopping_criteria(sequences, scores)
        if streamer is not None:
            streamer.put(tokens.cpu())
        # the only point of a step that waits for a GPU
        *active, has_nan = torch.cat((is_active, best.isnan().any().view(1))).tolist()
        has_nan = has_nan and not is_dead_end(step_logits, config)
        refuse_nan(has_nan, step=sequences.shape[1] - input_ids.shape[1])
        if not any(active):
            break
        if can_drop and not all(active):
            results = _with_rows(results, sequences, sentences, config.max_length, filling)
            rows = torch.tensor(rows_to_keep(active), device=input_ids.device)
            sentences, is_active, sequences = sentences[rows], is_active[rows], sequences[rows]
            _select_sentences(rows, decoder, *logits_processor, *stopping_criteria)
        step_logits = decoder.read(sequences[:, -1:])
    if streamer is not None:
        streamer.end()
    if results is not None:
        results = _with_rows(results, sequences, sentences, config.max_length, filling)
        sequences = results[:, : sequences.shape[1]]
    return _greedy_output(sequences, config, decoder, scores, logits)


def _greedy_output(
    sequences: Tensor, config: GenerationConfig, decoder: Any, scores: Any, logits: Any
) -> Any:
    """What `generate()` returns, from the sequences of all B sentences."""
    if not config.return_dict_in_generate:
        return sequences
    return GenerateEncoderDecoderOutput(
        sequences=sequences,
        scores=scores,
        logits=logits,
        past_key_values=decoder.past_key_values(),
    )


def _with_rows(
    results: Tensor | None, sequences: Tensor, sentences: Tensor, longest: int, filling: int
) -> Tensor:
    """The results of all sentences, `(B, L)`, with those of the rows that are still here."""
    if results is None:
        results = sequences.new_full((len(sequences), longest), filling)
    results[sentences, : sequences.shape[1]] = sequences
    return results


def _select_sentences(rows: Tensor, decoder: SearchDecoder | EnsembleDecoder, *rules: Any) -> None:
    """Keep sentences `rows` wherever something is stored per sentence."""
    decoder.select(rows)
    for rule in rules:
        if isinstance(rule, SourceLengthCriteria | SourceLengthEnd):
            rule.select(rows)


def _records(config: GenerationConfig) -> tuple[Any, Any]:
    """Empty tuples for the scores and the logits of each step; None: the call wants none."""
    has_records = config.return_dict_in_generate
    names = ("output_scores", "output_logits")
    scores, logits = (() if has_records and getattr(config, name) else None for name in names)
    return scores, logits


def _recorded(record: Any, step: Tensor) -> Any:
    return None if record is None else (*record, step)


# --- the hypotheses of a beam search (6.1), and one step with them -------------------------------


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


def candidate_count(config: GenerationConfig) -> int:
    """Candidates per sentence: n remain active even if every beam produces every end token."""
    end_ids, _ = filling_ids(config)
    return max(2, 1 + len(end_ids)) * config.num_beams


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


def is_searched(state: BeamState, config: GenerationConfig) -> Tensor:
    """Which sentences can still get another result, `(b,)` bool; once False, it stays False."""
    may_improve = state.may_improve.squeeze(1)
    if config.early_stopping is True:
        return may_improve & ~state.is_finished.all(dim=1)
    return may_improve


def goes_on(state: BeamState, is_end: Tensor, config: GenerationConfig) -> Tensor:
    """Whether another step follows, bool without dimensions.

    As in transformers' search, each of the three conditions is that of the whole batch. So steps
    that change no result may follow: one sentence cannot improve, another has all hypotheses.

    Args:
        state: after the step.
        is_end: `(b, c)` bool, whether a stopping criterion ends a candidate.
        config: settings of this call.
    """
    has_room = ~is_end.all() & state.may_improve.any()
    if config.early_stopping is True:
        return has_room & ~state.is_finished.all()
    return has_room


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


# --- beam search -------------------------------------------------------------------------------


def beam_search(
    model: VanillaPreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **inputs: Any,
) -> Any:
    """Keep the n best hypotheses of each sentence (6.1).

    Args:
        model: `VanillaForConditionalGeneration`.
        input_ids: `(B * n, P)` int64 prompts, the same for all beams of a sentence.
        logits_processor: applied to the log-probabilities.
        stopping_criteria: which hypotheses end.
        generation_config: settings of this call.
        **inputs: `encoder_outputs`, `attention_mask`; `constraints`, a `ConstrainedSearch`, if any.

    Returns:
        `(B * returned, L)` int64, or transformers' output class with `return_dict_in_generate`.
    """
    config = generation_config
    can_drop = is_rowwise(config, logits_processor, stopping_criteria)
    decoder = search_decoder(model, inputs, config.num_beams, has_buffer=can_drop)
    buffer = OutputBuffer() if can_drop else None
    prompts = input_ids.view(-1, config.num_beams, input_ids.shape[1])
    state, results = initial_state(prompts, config), None
    count = candidate_count(config)
    expand: Any = partial(best_candidates, may_overwrite=can_drop)
    move: Any = advance
    constrained = inputs.get("constraints")
    if constrained is not None:
        constrained.start(state, config)
        expand, move = constrained.candidates, constrained.advance
    scores, logits = _records(config)
    step_logits = decoder.read_prompt(prompts[:, 0])
    while True:
        step_logits = step_logits.to(torch.float32)
        out = None if buffer is None else buffer.like(tuple(step_logits.shape), step_logits)
        log_probs = torch.log_softmax(step_logits, dim=-1, out=out)
        log_probs = logits_processor(_ids(state.active, state.length), log_probs)
        scores, logits = _recorded(scores, log_probs), _recorded(logits, step_logits)
        candidates = expand(state, log_probs, count)
        is_end = stopping_criteria(_ids(candidates.sequences, state.length + 1), scores)
        is_end = is_end.view(-1, count)
        parents = move(state, candidates, is_end, config)
        # the only point of a step that waits for a GPU
        is_nan = candidates.scores.isnan().any()
        flags = (is_searched(state, config), goes_on(state, is_end, config), is_nan)
        *active, has_next, has_nan = torch.hstack(flags).tolist()
        has_nan = has_nan and not is_dead_end(step_logits, config)
        refuse_nan(has_nan, step=state.length - state.prompt)
        decoder.reorder(parents)
        if not has_next or (can_drop and not any(active)):
            break
        if can_drop and not all(active):
            results = with_finished(results, state)
            rows = torch.tensor(rows_to_keep(active), device=input_ids.device)
            state = state.rows(rows)
            _select_sentences(rows, decoder, *logits_processor, *stopping_criteria)
            if constrained is not None:
                constrained.select(rows)
        step_logits = decoder.read(state.active[:, :, 0, state.length - 1])
    found = with_finished(results, state)
    if constrained is not None:
        constrained.check_results(found)
    return _beam_output(found, config, decoder, scores, logits)


def _ids(hypotheses: Tensor, length: int) -> Tensor:
    """The first ids of hypotheses `(b, m, 2, L)`, `(b * m, length)`."""
    return hypotheses[:, :, 0, :length].flatten(0, 1)


def _beam_output(
    state: BeamState, config: GenerationConfig, decoder: Any, scores: Any, logits: Any
) -> Any:
    """What `generate()` returns, from the finished hypotheses of all B sentences."""
    returned = config.num_return_sequences
    parents = state.finished[:, :returned, 1, state.prompt :]
    is_generated = parents >= 0
    generated = int(is_generated.sum(dim=2).max())
    sequences = _ids(state.finished[:, :returned], state.prompt + generated)
    if not config.return_dict_in_generate:
        return sequences
    # transformers counts the beams of all sentences: B * n rows
    first_rows = config.num_beams * torch.arange(len(parents), device=parents.device)
    beam_indices = torch.where(is_generated, parents + first_rows.view(-1, 1, 1), -1).int()
    finished_scores = state.finished_scores[:, :returned].flatten(0, 1)
    return GenerateBeamEncoderDecoderOutput(
        sequences=sequences,
        sequences_scores=finished_scores if config.output_scores else None,
        scores=scores,
        logits=logits,
        beam_indices=beam_indices[:, :, :generated].flatten(0, 1),
        past_key_values=decoder.past_key_values(),
    )
