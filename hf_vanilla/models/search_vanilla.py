# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Greedy and beam search (6.1) with the results of transformers' own, tokens and scores.

Two things differ. Finished sentences are dropped from the batch, and the beams of a sentence share
one row of the KV cache. `generate()` calls `beam_search` and `greedy_search` by `custom_generate=`.

Shapes: B sentences at the start, b of them still active, n beams, c candidates of a sentence in a
step, P prompt, L longest target, V vocabulary.
"""

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

from .generation_vanilla import (
    RESULTS_ALONE,
    SourceLengthCriteria,
    SourceLengthEnd,
    filling_ids,
)
from .pretrained_vanilla import CACHE_NAME, VanillaPreTrainedModel
from .search_vanilla_beams import (
    BeamState,
    advance,
    best_candidates,
    initial_state,
    what_goes_on,
    with_finished,
)
from .search_vanilla_decoder import SearchDecoder

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


def is_rowwise(
    config: GenerationConfig, processors: LogitsProcessorList, criteria: StoppingCriteriaList
) -> bool:
    """Whether no step is recorded, and every rule treats each hypothesis by itself.

    Then finished sentences may be dropped, and a step may overwrite the scores of the last one.
    """
    rules = (*processors, *criteria)
    # as a tensor, this attribute of a processor has a number for each row of the batch
    lengths = (getattr(rule, "prompt_ignore_length", None) for rule in rules)
    return (
        not _has_records(config)
        and all(type(rule) in ROWWISE_PROCESSORS + ROWWISE_CRITERIA for rule in rules)
        and not any(isinstance(length, Tensor) for length in lengths)
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
            f"logits are NaN at step {step}: {NAN_CAUSE}, or a logits processor returned NaN"
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
    model: VanillaPreTrainedModel, inputs: dict[str, Any], beams: int
) -> SearchDecoder:
    """The decoder for what `generate()` hands to a search.

    Args:
        model: `VanillaForConditionalGeneration`.
        inputs: `encoder_outputs` and `attention_mask`, a row for each beam; `ensemble`, of
            `Ensemble.encode`, if any.
        beams: n.
    """
    mask, encoded = inputs.get("attention_mask"), inputs["encoder_outputs"]
    if beams > 1:  # transformers repeated them in this object, which lives as long as the search
        encoded.last_hidden_state = encoded.last_hidden_state[::beams].clone()
        mask = None if mask is None else mask[::beams]
    kind = inputs.get("ensemble", SearchDecoder)
    return kind(model, encoded.last_hidden_state, mask, beams=beams)


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
    decoder = search_decoder(model, inputs, beams=1)
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
        step = sequences.shape[1] - input_ids.shape[1]
        refuse_nan(has_nan and not is_dead_end(step_logits, config), step)
        if not any(active):
            break
        if can_drop and decoder.drops(active):
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
    fields = {"sequences": sequences, "scores": scores, "logits": logits}
    return _output(GenerateEncoderDecoderOutput, fields, config, decoder)


def _with_rows(
    results: Tensor | None, sequences: Tensor, sentences: Tensor, longest: int, filling: int
) -> Tensor:
    """The results of all sentences, `(B, L)`, with those of the rows that are still here."""
    if results is None:
        results = sequences.new_full((len(sequences), longest), filling)
    results[sentences, : sequences.shape[1]] = sequences
    return results


def _select_sentences(rows: Tensor, *parts: Any) -> None:
    """Keep sentences `rows` wherever something is stored per sentence."""
    for part in parts:
        if hasattr(part, "select"):
            part.select(rows)


def _has_records(config: GenerationConfig) -> bool:
    """Whether the call wants more than the results and their scores."""
    wants_results = config.output_scores == RESULTS_ALONE and not config.output_logits
    return bool(config.return_dict_in_generate) and not wants_results


def _records(config: GenerationConfig) -> tuple[Any, Any]:
    """Empty tuples for the scores and the logits of each step; None: the call wants none."""
    has_records = _has_records(config)
    names = ("output_scores", "output_logits")
    scores, logits = (() if has_records and getattr(config, name) else None for name in names)
    return scores, logits


def _recorded(record: Any, step: Tensor) -> Any:
    return None if record is None else (*record, step)


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
    decoder = search_decoder(model, inputs, config.num_beams)
    prompts = input_ids.view(-1, config.num_beams, input_ids.shape[1])
    state, results = initial_state(prompts, config), None
    # of a sentence in a step: n remain active even if every beam produces every end token
    count = max(2, 1 + len(filling_ids(config)[0])) * config.num_beams
    expand: Any = partial(best_candidates, may_overwrite=can_drop)
    move: Any = advance
    constrained = inputs.get("constraints")
    if constrained is not None:
        constrained.start(state, config)
        expand, move = constrained.candidates, constrained.advance
    scores, logits = _records(config)
    out: Tensor | None = None
    step_logits = decoder.read_prompt(prompts[:, 0])
    while True:
        step_logits = step_logits.to(torch.float32)
        if can_drop:  # a new array costs a CPU as much time as the numbers in it
            out = torch.empty_like(step_logits) if out is None else out[: len(step_logits)]
        log_probs = torch.log_softmax(step_logits, dim=-1, out=out)
        log_probs = logits_processor(_ids(state.active, state.length), log_probs)
        scores, logits = _recorded(scores, log_probs), _recorded(logits, step_logits)
        candidates = expand(state, log_probs, count)
        ids = _ids(candidates.sequences, state.length + 1)
        is_end = stopping_criteria(ids, scores).view(-1, count)
        parents = move(state, candidates, is_end, config)
        # the only point of a step that waits for a GPU
        is_nan = candidates.scores.isnan().any()
        flags = (*what_goes_on(state, is_end, config), is_nan)
        *active, has_next, has_nan = torch.hstack(flags).tolist()
        step = state.length - state.prompt
        refuse_nan(has_nan and not is_dead_end(step_logits, config), step)
        decoder.reorder(parents)
        if not has_next or (can_drop and not any(active)):
            break
        if can_drop and decoder.drops(active):
            results = with_finished(results, state)
            rows = torch.tensor(rows_to_keep(active), device=input_ids.device)
            state = state.rows(rows)
            _select_sentences(rows, decoder, constrained, *logits_processor, *stopping_criteria)
        del step_logits, log_probs  # before the next step makes its own
        step_logits = decoder.read(state.active[:, :, 0, state.length - 1])
    found = with_finished(results, state)
    if constrained is not None:
        constrained.check_results(found)
    fields = {**_beam_results(found, config), "scores": scores, "logits": logits}
    return _output(GenerateBeamEncoderDecoderOutput, fields, config, decoder)


def _ids(hypotheses: Tensor, length: int) -> Tensor:
    """The first ids of hypotheses `(b, m, 2, L)`, `(b * m, length)`."""
    return hypotheses[:, :, 0, :length].flatten(0, 1)


def _output(kind: Any, fields: dict[str, Any], config: GenerationConfig, decoder: Any) -> Any:
    """What `generate()` returns: the sequences, or all fields in the class `kind`."""
    if not config.return_dict_in_generate:
        return fields["sequences"]
    # without records, sentences may have left the batch
    cache = decoder.past_key_values() if _has_records(config) else None
    return kind(**fields, **{CACHE_NAME: cache})


def _beam_results(state: BeamState, config: GenerationConfig) -> dict[str, Any]:
    """Sequences, scores and beams of the finished hypotheses of all B sentences."""
    returned = config.num_return_sequences
    parents = state.finished[:, :returned, 1, state.prompt :]
    is_generated = parents >= 0
    generated = int(is_generated.sum(dim=2).max())
    # transformers counts the beams of all sentences: B * n rows
    first_rows = config.num_beams * torch.arange(len(parents), device=parents.device)
    beam_indices = torch.where(is_generated, parents + first_rows.view(-1, 1, 1), -1).int()
    finished_scores = state.finished_scores[:, :returned].flatten(0, 1)
    return {
        "sequences": _ids(state.finished[:, :returned], state.prompt + generated),
        "sequences_scores": finished_scores if config.output_scores else None,
        "beam_indices": beam_indices[:, :, :generated].flatten(0, 1),
    }
