# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Greedy and beam search (6.1): transformers' own, word for word and score for score.

What differs is that a sentence whose result is settled leaves the batch, and that the decoder is
read through `decoding_vanilla`.

Shapes: B sentences at the start, b of them still open, n beams, L longest target, V vocabulary.
"""

import copy
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import (
    GenerateBeamEncoderDecoderOutput,
    GenerateEncoderDecoderOutput,
    GenerationMixin,
)

from .generation_vanilla import SourceLengthCriteria, SourceLengthEnd
from .search_vanilla_decoder import SearchedDecoder

LOWEST = -1.0e9  # transformers' score of what is not there


@dataclass(kw_only=True)
class Beams:
    """The hypotheses of the open sentences; each field has a row per sentence."""

    place: Tensor  # (b,) where the sentence stood in the batch
    running: Tensor  # (b, n, L) ids
    running_scores: Tensor  # (b, n) summed log probabilities
    running_origins: Tensor  # (b, n, L - prompt) int32, the row each word was said in; -1: none
    finished: Tensor  # (b, n, L) ids
    finished_scores: Tensor  # (b, n) over the length penalty
    finished_origins: Tensor  # (b, n, L - prompt)
    is_finished: Tensor  # (b, n) bool
    may_improve: Tensor  # (b, 1) bool: a running beam can still overtake a finished one

    @classmethod
    def at_start(cls, prompts: Tensor, longest: int, filling: int) -> "Beams":
        """One beam of each sentence counts at first, so that not all say the same.

        Args:
            prompts: `(B, n, P)` ids.
            longest: L.
            filling: id behind the last word.
        """
        rows, beams, prompt = prompts.shape
        device = prompts.device
        running = prompts.new_full((rows, beams, longest), filling)
        running[:, :, :prompt] = prompts
        scores = torch.full((rows, beams), LOWEST, dtype=torch.float, device=device)
        running_scores = scores.clone()
        running_scores[:, 0] = 0.0
        origins = running.new_full((rows, beams, longest - prompt), -1, dtype=torch.int32)
        return cls(
            place=torch.arange(rows, device=device),
            running=running,
            running_scores=running_scores,
            running_origins=origins,
            finished=running.clone(),
            finished_scores=scores,
            finished_origins=origins.clone(),
            is_finished=torch.zeros((rows, beams), dtype=torch.bool, device=device),
            may_improve=torch.ones((rows, 1), dtype=torch.bool, device=device),
        )

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences, in this order."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[rows])

    def write_into(self, other: "Beams") -> None:
        """Put the finished hypotheses where their sentences stood."""
        for name in ("finished", "finished_scores", "finished_origins"):
            getattr(other, name)[self.place] = getattr(self, name)


@dataclass(frozen=True, kw_only=True)
class Search:
    """What `generate()` hands to a search.

    Args:
        mixin: the model, which has the formulas of transformers' own search.
        config: generation config of this call.
        processors: logits processors.
        criteria: stopping criteria.
        is_unseen: nobody looks at a step: finished sentences may leave, and arrays be reused.
        streamer: hears each word of a greedy search.
    """

    mixin: GenerationMixin
    config: GenerationConfig
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    is_unseen: bool
    streamer: Any = None


def beam_search(search: Search, decoder: SearchedDecoder, input_ids: Tensor) -> Any:
    """Beam search from the prompts `(B * n, P)`, each the same in all beams of a sentence."""
    prompts = input_ids.view(-1, search.config.num_beams, input_ids.shape[1])
    state = BeamSearch(search, prompts.shape[-1])
    beams = Beams.at_start(prompts, search.config.max_length, state.filling)
    results = copy.copy(beams)
    logits = decoder.read_prompt(prompts[:, 0])
    while True:
        parents, may_go_on = state.advance(beams, logits)
        # the one moment of a step at which a GPU must have caught up
        *is_open, may_go_on = torch.cat((state.is_open(beams), may_go_on.view(1))).tolist()
        decoder.follow(parents)
        if not may_go_on or not any(is_open):
            break
        if search.is_unseen and not all(is_open):
            rows = torch.tensor(filled_up(is_open), device=input_ids.device)
            beams.write_into(results)
            for each in (beams, decoder, *sentence_limits(search)):
                each.keep(rows)
        logits = decoder.read(beams.running[:, :, state.length - 1])
    beams.write_into(results)
    return state.output(results, decoder)


def greedy_search(search: Search, decoder: SearchedDecoder, input_ids: Tensor) -> Any:
    """Always the likeliest word, from the prompts `(B, P)`."""
    state = GreedySearch(search, input_ids)
    logits = decoder.read_prompt(input_ids)
    while True:
        is_open = state.advance(logits)
        if not any(is_open):
            break
        if search.is_unseen and state.has_end and not all(is_open):
            rows = torch.tensor(filled_up(is_open), device=input_ids.device)
            for each in (state, decoder, *sentence_limits(search)):
                each.keep(rows)
        logits = decoder.read(state.sequences[:, -1:])
    return state.output(decoder)


def kept_records(config: GenerationConfig) -> tuple[Any, Any]:
    """Where the scores and the logits of each step go; None: nowhere."""
    is_kept = config.return_dict_in_generate
    names = ("output_scores", "output_logits")
    scores, logits = (() if is_kept and getattr(config, name) else None for name in names)
    return scores, logits


def sentence_limits(search: Search) -> list[Any]:
    """The processors and criteria that know something of each sentence, and follow who leaves."""
    rules = (*search.processors, *search.criteria)
    return [rule for rule in rules if isinstance(rule, SourceLengthCriteria | SourceLengthEnd)]


def filled_up(is_open: list[bool]) -> list[int]:
    """Rows of the open sentences, in their place or, from behind, in that of one that leaves."""
    remaining = sum(is_open)
    behind = [row for row in range(remaining, len(is_open)) if is_open[row]]
    return [row if is_open[row] else behind.pop() for row in range(remaining)]


class GreedySearch:
    """The steps of one greedy search.

    Args:
        search: its rules.
        input_ids: `(B, P)` prompts.
    """

    def __init__(self, search: Search, input_ids: Tensor) -> None:
        self.search = search
        self.sequences = input_ids
        self.place = torch.arange(len(input_ids), device=input_ids.device)
        self.is_open = torch.ones_like(self.place, dtype=torch.bool)
        # without an end token, transformers lets a finished sentence speak on
        self.has_end = any(hasattr(criterion, "eos_token_id") for criterion in search.criteria)
        self.filling: Any = search.config._pad_token_tensor
        self.results: Tensor | None = None  # of all B sentences, once some have left
        self.scores, self.logits = kept_records(search.config)

    def advance(self, logits: Tensor) -> list[bool]:
        """Say one more word in each sentence, by logits `(b, V)`; which of them are open still."""
        # processors may write into them
        logits = logits.to(torch.float32, copy=not self.search.is_unseen)
        scores = self.search.processors(self.sequences, logits)
        if self.scores is not None:
            self.scores += (scores,)
        if self.logits is not None:
            self.logits += (logits,)
        words = scores.argmax(dim=-1)
        if self.has_end:
            words = torch.where(self.is_open, words, self.filling)
        self.sequences = torch.cat((self.sequences, words.unsqueeze(1)), dim=1)
        self.is_open = self.is_open & ~self.search.criteria(self.sequences, self.scores)
        if self.search.streamer is not None:
            self.search.streamer.put(words.cpu())
        return self.is_open.tolist()  # the one moment of a step at which a GPU must have caught up

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences, in this order; the others have their result."""
        self._write_results()
        self.place, self.is_open = self.place[rows], self.is_open[rows]
        self.sequences = self.sequences[rows]

    def _write_results(self) -> Tensor:
        rows, length = self.sequences.shape
        if self.results is None:
            shape = (rows, self.search.config.max_length)
            self.results = self.sequences.new_empty(shape).copy_(self.filling.expand(shape))
        self.results[self.place, :length] = self.sequences
        return self.results[:, :length]

    def output(self, decoder: SearchedDecoder) -> Any:
        """What `generate()` returns."""
        if self.search.streamer is not None:
            self.search.streamer.end()
        if self.results is not None:
            return self._write_results()
        if not self.search.config.return_dict_in_generate:
            return self.sequences
        return GenerateEncoderDecoderOutput(
            sequences=self.sequences,
            scores=self.scores,
            logits=self.logits,
            past_key_values=decoder.all_keys_and_values(),
        )


class BeamSearch:
    """The steps of one beam search, by the formulas of transformers' own.

    Args:
        search: its rules.
        prompt: tokens before the first new word.
    """

    def __init__(self, search: Search, prompt: int) -> None:
        self.search = search
        self.config = search.config
        self.prompt = prompt
        self.length = prompt
        self.beams = search.config.num_beams
        pad: Any = search.config._pad_token_tensor
        ends: Any = search.config._eos_token_tensor
        # transformers takes a padding token 0 for none
        self.filling = -1 if ends is None else int(pad or ends[0])
        # as many as are needed if each beam and each end token should meet
        self.candidates = max(2, 1 + (0 if ends is None else len(ends))) * self.beams
        self.scores, self.logits = kept_records(search.config)
        self.log_probs: Tensor | None = None  # of the last step, to be overwritten

    def advance(self, beams: Beams, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Say one more word in each beam.

        Args:
            beams: changed in place.
            logits: `(b * n, V)`.

        Returns:
            The beam that each running beam goes on from, `(b, n)` int64, and whether any
            candidate of any sentence may go on, a bool scalar.
        """
        scores, parents, words = self._candidates(beams, logits)
        sequences = _of_beams(beams.running, parents)
        sequences[:, :, self.length] = words
        origins = _of_beams(beams.running_origins, parents)
        first_rows = self.beams * torch.arange(len(parents), device=parents.device)
        origins[:, :, self.length - self.prompt] = (parents + first_rows.unsqueeze(1)).int()
        is_end = self.search.criteria(sequences[:, :, : self.length + 1].flatten(0, 1), self.scores)
        is_end = is_end.view(len(sequences), self.candidates)
        # a GPU would have to catch up to tell
        if is_end.device.type != "cpu" or is_end.any():
            self._finish(beams, sequences, scores, origins, is_end)
        open_scores = scores + is_end.to(torch.float32) * LOWEST
        beams.running_scores, best = torch.topk(open_scores, k=self.beams)
        beams.running = _of_beams(sequences, best)
        beams.running_origins = _of_beams(origins, best)
        self.length += 1
        self._bound(beams)
        return parents.gather(1, best), ~is_end.all()

    def _candidates(self, beams: Beams, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Score, beam and word of the likeliest continuations of each sentence, each `(b, 2n)`."""
        logits = logits.to(torch.float32)
        out = None
        if self.search.is_unseen:
            if self.log_probs is None:
                self.log_probs = torch.empty_like(logits)
            out = self.log_probs[: len(logits)]
        log_probs = torch.log_softmax(logits, dim=-1, out=out)
        log_probs = self.search.processors(
            beams.running[:, :, : self.length].flatten(0, 1), log_probs
        )
        if self.logits is not None:
            self.logits += (logits,)
        if self.scores is not None:
            self.scores += (log_probs,)
        words = log_probs.shape[-1]
        # over all beams at once, since among equals topk picks by place
        sums = log_probs.view(-1, self.beams, words)
        running = beams.running_scores.unsqueeze(-1)
        sums = sums.add_(running) if self.search.is_unseen else sums + running
        scores, index = sums.flatten(1).topk(self.candidates)
        return scores, index // words, index % words

    def _finish(
        self, beams: Beams, sequences: Tensor, scores: Tensor, origins: Tensor, is_end: Tensor
    ) -> None:
        is_top = torch.arange(self.candidates, device=scores.device) < self.beams
        finished = self.search.mixin._update_finished_beams(
            sequences=beams.finished,
            topk_running_sequences=sequences,
            beam_scores=beams.finished_scores,
            topk_log_probs=scores,
            beam_indices=beams.finished_origins,
            topk_running_beam_indices=origins,
            is_early_stop_heuristic_unsatisfied=beams.may_improve,
            is_sent_finished=beams.is_finished,
            next_token_hits_stopping_criteria=is_end,
            top_num_beam_mask=is_top,
            num_beams=self.beams,
            cur_len=self.length,
            decoder_prompt_len=self.prompt,
            length_penalty=self.config.length_penalty,
            early_stopping=self.config.early_stopping,
        )
        beams.finished, beams.finished_scores, beams.finished_origins, beams.is_finished = finished

    def _bound(self, beams: Beams) -> None:
        beams.may_improve = self.search.mixin._check_early_stop_heuristic(
            is_early_stop_heuristic_unsatisfied=beams.may_improve,
            running_beam_scores=beams.running_scores,
            beam_scores=beams.finished_scores,
            is_sent_finished=beams.is_finished,
            cur_len=self.length,
            max_length=self.config.max_length,
            decoder_prompt_len=self.prompt,
            early_stopping=self.config.early_stopping,
            length_penalty=self.config.length_penalty,
        )

    def is_open(self, beams: Beams) -> Tensor:
        """Which sentences may still get another result, `(b,)` bool; a closed one stays closed."""
        may_improve = beams.may_improve.squeeze(1)
        if self.config.early_stopping is True:
            return may_improve & ~beams.is_finished.all(dim=1)
        return may_improve

    def output(self, beams: Beams, decoder: SearchedDecoder) -> Any:
        """What `generate()` returns, from the finished hypotheses of all B sentences."""
        returned = self.config.num_return_sequences
        sequences = beams.finished[:, :returned].flatten(0, 1)
        origins = beams.finished_origins[:, :returned].flatten(0, 1)
        longest = int((origins >= 0).sum(dim=1).max())
        sequences = sequences[:, : self.prompt + longest]
        if not self.config.return_dict_in_generate:
            return sequences
        scores = beams.finished_scores[:, :returned].flatten(0, 1)
        return GenerateBeamEncoderDecoderOutput(
            sequences=sequences,
            sequences_scores=scores if self.config.output_scores else None,
            scores=self.scores,
            logits=self.logits,
            beam_indices=origins[:, :longest],
            past_key_values=decoder.all_keys_and_values(),
        )


def _of_beams(tensor: Tensor, index: Tensor) -> Tensor:
    """Per sentence the beams `index` `(b, m)` of `(b, n, L)`: `(b, m, L)`."""
    return tensor.gather(1, index.unsqueeze(-1).expand(-1, -1, tensor.shape[-1]))
