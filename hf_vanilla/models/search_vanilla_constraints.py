# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Beam search whose translations contain given phrases: vectorised dynamic beam allocation.

The beams of a sentence are divided among the numbers of phrase tokens that its hypotheses have
generated (Post and Vilar 2018), with tensor operations only (Hu et al. 2019). Which part of a
phrase a hypothesis ends with is found as Knuth, Morris and Pratt do, so phrases may overlap.

Shapes: B sentences at the start, b of them still active, n beams, c candidates of a sentence in a
step, m of them before the choice, N phrases, W tokens of a phrase, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import GenerationConfig

from .generation_vanilla import filling_ids
from .search_vanilla_beams import LOWEST, BeamState, Candidates, can_improve, finish

IMPOSSIBLE = LOWEST / 2  # scores below belong to no hypothesis
LISTED = 5  # phrases in a message


@dataclass(frozen=True)
class Phrase:
    """Token ids that a translation must contain, one after the other.

    Attributes:
        ids: with the tokens of a space in front, if the tokenizer writes one.
        first: so many of them are given at the start of a translation, where no space is.
        text: for messages.
    """

    ids: Sequence[int]
    first: int = 0
    text: str = ""

    def __str__(self) -> str:
        return repr(self.text) if self.text else str(list(self.ids))


@dataclass(frozen=True)
class Constraints:
    """The phrases of each sentence of a batch, for `generate(constraints=...)`.

    Attributes:
        phrases: one list per sentence, in which each phrase counts once; empty where nothing is
            asked.
    """

    phrases: Sequence[Sequence[Phrase]]

    def search(self, settings: GenerationConfig, limits: Tensor | None) -> "ConstrainedSearch":
        """What `beam_search` does in place of its usual steps.

        Args:
            settings: of the call.
            limits: `(B,)` most tokens of each sentence, prompt included; None: `max_length` of the
                call of the search.

        Raises:
            ValueError: there are fewer than two beams, or a phrase is empty.
        """
        if (settings.num_beams or 1) < 2:
            raise ValueError("constraints need a beam search of 2 or more beams: raise num_beams")
        if any(not phrase.ids for of_one in self.phrases for phrase in of_one):
            raise ValueError("a phrase of the constraints has no tokens: remove it")
        return ConstrainedSearch([outermost(of_one) for of_one in self.phrases], limits)


def constrained(
    search: Callable,
    constraints: Constraints | None,
    settings: GenerationConfig,
    limits: Tensor | None,
) -> Callable:
    """A search under constraints; the search itself where no sentence has any.

    Args:
        search: `beam_search`.
        constraints: of the call.
        settings: of the call.
        limits: as in `Constraints.search`.
    """
    if constraints is None or not any(constraints.phrases):
        return search
    return partial(search, constraints=constraints.search(settings, limits))


def outermost(phrases: Sequence[Phrase]) -> list[Phrase]:
    """The phrases without repeated ones and without those inside another one."""
    found: list[Phrase] = []
    for phrase in sorted(phrases, key=lambda one: -len(one.ids)):
        if not any(_contains(other.ids, phrase.ids) for other in found):
            found.append(phrase)
    return found


def may_overlap(phrases: Sequence[Phrase]) -> bool:
    """Whether the end of a phrase can be the beginning of another one."""
    return any(
        list(one.ids[len(one.ids) - width :]) == list(other.ids[:width])
        for one in phrases
        for other in phrases
        if one is not other
        for width in range(1, min(len(one.ids), len(other.ids)))
    )


def _contains(ids: Sequence[int], part: Sequence[int]) -> bool:
    width = len(part)
    return any(list(ids[i : i + width]) == list(part) for i in range(len(ids) - width + 1))


def transitions(ids: Sequence[int]) -> list[list[int]]:
    """How much of a phrase is seen after one more token of it (Knuth, Morris, Pratt 1977).

    Returns:
        `[seen][i]`: the first tokens of the phrase that end a text, where `seen` of them ended it
        before and token `ids[i]` follows.
    """
    table = []
    for seen in range(len(ids)):
        row = []
        for token in ids:
            text = [*ids[:seen], token]
            row.append(
                next(
                    length
                    for length in range(seen + 1, -1, -1)
                    if list(ids[:length]) == text[len(text) - length :]
                )
            )
        table.append(row)
    return table


class ConstrainedSearch:
    """The steps of a beam search under constraints, and how far each hypothesis is.

    Args:
        phrases: of each sentence.
        limits: as in `Constraints.search`.
    """

    def __init__(self, phrases: Sequence[Sequence[Phrase]], limits: Tensor | None) -> None:
        self.phrases, self.given_limits = phrases, limits

    def start(self, state: BeamState, config: GenerationConfig) -> None:
        """Prepare the phrases of all sentences.

        Args:
            state: at the prompt.
            config: settings of the call.

        Raises:
            ValueError: the phrases are of another number of sentences, or those of a sentence do
                not fit into its length.
        """
        sentences, beams, _, longest = state.active.shape
        if len(self.phrases) != sentences:
            raise ValueError(
                f"constraints of {len(self.phrases)} sentences, but {sentences} are translated: "
                "give a list for each sentence, empty where nothing is asked"
            )
        device = state.active.device
        given = (
            torch.full((sentences,), longest) if self.given_limits is None else self.given_limits
        )
        self.limits: Tensor = given.to(device)
        self.last = int(config.forced_eos_token_id is not None)  # it takes the last token
        self._refuse_long(self.limits.tolist(), state.prompt)
        count = max((len(of_one) for of_one in self.phrases), default=0)
        width = max((len(one.ids) for of_one in self.phrases for one in of_one), default=1)
        self.ids = torch.full((sentences, count, width), -1)  # (b, N, W)
        self.next = torch.zeros((sentences, count, width, width), dtype=torch.long)
        self.lengths = torch.zeros((sentences, count), dtype=torch.long)
        seen = torch.zeros((sentences, count), dtype=torch.long)
        for row, of_one in enumerate(self.phrases):
            for number, phrase in enumerate(of_one):
                size = len(phrase.ids)
                self.lengths[row, number], seen[row, number] = size, phrase.first
                self.ids[row, number, :size] = torch.tensor(phrase.ids)
                self.next[row, number, :size, :size] = torch.tensor(transitions(phrase.ids))
        self.overlaps = torch.tensor([[may_overlap(one)] for one in self.phrases], device=device)
        self.ids, self.next = self.ids.to(device), self.next.to(device)
        self.lengths = self.lengths.to(device)
        # (b, n, N): how many first tokens of each phrase end a hypothesis; all of them: for good
        self.seen = seen.to(device).unsqueeze(1).expand(-1, beams, -1)
        self.ends, _ = filling_ids(config)

    def select(self, rows: Tensor) -> None:
        """Keep sentences `rows`, in that order; `(b,)` int64."""
        for name in ("limits", "overlaps", "ids", "next", "lengths", "seen"):
            setattr(self, name, getattr(self, name)[rows])

    def candidates(self, state: BeamState, log_probs: Tensor, count: int) -> Candidates:
        """The continuations that are searched further, those of all phrase counts in turn.

        Beside the best continuations of the sentence, there are the best one of each beam and all
        that continue a phrase. An end token follows only where no phrase is missing.

        Args:
            state: before the step.
            log_probs: `(b * n, V)` of the next token.
            count: c.
        """
        beams, vocabulary = state.active.shape[1], log_probs.shape[1]
        log_probs = log_probs.view(-1, beams, vocabulary)
        is_missing = self._missing(self.seen) > 0  # (b, n)
        sums = log_probs + state.active_scores.unsqueeze(-1)
        for end in self.ends:
            sums[:, :, end].masked_fill_(is_missing, float("-inf"))
        index = self._proposed(sums, count)  # (b, m)
        scores = sums.flatten(1).gather(1, index)
        parents, tokens = index // vocabulary, index % vocabulary
        seen = self._seen_after(parents, tokens)  # (b, m, N)
        missing = self._missing(seen)
        # behind this token
        room = (self.limits.unsqueeze(1) - self.last - (state.length + 1)).clamp(min=0)
        is_repeated = torch.zeros_like(missing, dtype=torch.bool)
        is_repeated[:, 1:] = index[:, 1:] == index[:, :-1]
        is_lost = is_repeated | (self._least(seen, missing) > room) | (scores < IMPOSSIBLE)
        chosen = in_turn(missing, scores, is_lost)[:, :count]  # (b, c)
        scores = scores.masked_fill(is_lost, 2 * LOWEST).gather(1, chosen)
        parents, tokens = parents.gather(1, chosen), tokens.gather(1, chosen)
        self.chosen = seen.gather(1, chosen.unsqueeze(-1).expand(-1, -1, seen.shape[2]))
        sequences = state.active.gather(
            1, parents[:, :, None, None].expand(-1, -1, *state.active.shape[2:])
        )
        sequences[:, :, :, state.length] = torch.stack((tokens, parents), dim=2)
        return Candidates(scores=scores, parents=parents, sequences=sequences)

    def advance(
        self, state: BeamState, candidates: Candidates, is_end: Tensor, config: GenerationConfig
    ) -> Tensor:
        """As `search_vanilla_beams.advance`; the first n in their order become active.

        Args:
            state: changed in place.
            candidates: of this step.
            is_end: `(b, c)` bool, whether a stopping criterion ends a candidate.
            config: settings of this call.
        """
        is_real = candidates.scores > IMPOSSIBLE
        is_whole = is_real & (self._missing(self.chosen) == 0)
        finish(state, candidates, is_end & is_whole, config)
        is_active = is_real & ~is_end
        order = torch.arange(is_end.shape[1], device=is_end.device) + ~is_active * is_end.shape[1]
        best = order.topk(config.num_beams, largest=False).indices
        scores = candidates.scores.masked_fill(~is_active, LOWEST).gather(1, best)
        state.active_scores, by_score = scores.sort(dim=1, descending=True, stable=True)
        best = best.gather(1, by_score)
        state.active = candidates.sequences.gather(
            1, best[:, :, None, None].expand(-1, -1, *candidates.sequences.shape[2:])
        )
        self.seen = self.chosen.gather(1, best.unsqueeze(-1).expand(-1, -1, self.seen.shape[2]))
        state.length += 1
        has_active = (state.active_scores > IMPOSSIBLE).any(dim=1, keepdim=True)
        state.may_improve = state.may_improve & has_active & can_improve(state, config)
        return candidates.parents.gather(1, best)

    def check_results(self, state: BeamState) -> None:
        """Refuse a sentence without any translation.

        Args:
            state: of all B sentences, at the end.

        Raises:
            ValueError: there is one; its phrases are named.
        """
        for of_one, score in zip(self.phrases, state.finished_scores[:, 0].tolist(), strict=True):
            if score < IMPOSSIBLE:
                raise ValueError(
                    f"no translation contains {_listed(of_one)}: the length limit or another "
                    "setting of the search, such as bad_words_ids, excludes it"
                )

    def _refuse_long(self, limits: list[int], prompt: int) -> None:
        for of_one, limit in zip(self.phrases, limits, strict=True):
            given = max((phrase.first for phrase in of_one), default=0)
            needed = sum(len(phrase.ids) for phrase in of_one) - given
            room = limit - prompt - self.last
            if needed > room and not may_overlap(of_one):
                raise ValueError(
                    f"the constraints {_listed(of_one)} have {needed} tokens, and a translation "
                    f"of this sentence at most {room}: raise max_new_tokens or ask for less"
                )

    def _missing(self, seen: Tensor) -> Tensor:
        """Tokens that hypotheses `(b, m, N)` still need if phrases do not overlap from here on."""
        lengths = self.lengths.unsqueeze(1)
        is_open = seen < lengths
        return (lengths * is_open).sum(dim=2) - (seen * is_open).amax(dim=2)

    def _least(self, seen: Tensor, missing: Tensor) -> Tensor:
        """Fewest tokens that hypotheses `(b, m, N)` still need; less than `missing` in overlaps."""
        lengths = self.lengths.unsqueeze(1)
        longest = ((lengths - seen) * (seen < lengths)).amax(dim=2)
        return torch.where(self.overlaps, longest, missing)

    def _proposed(self, sums: Tensor, count: int) -> Tensor:
        """Sorted beam * V + token of all continuations that are considered, `(b, m)`."""
        beams, vocabulary = sums.shape[1:]
        first = torch.arange(beams, device=sums.device).view(1, -1, 1) * vocabulary
        best = sums.flatten(1).topk(count).indices
        of_beams = sums.argmax(dim=2, keepdim=True) + first
        step = self.seen.clamp(max=self.ids.shape[2] - 1).unsqueeze(-1)  # (b, n, N, 1)
        ids = self.ids.unsqueeze(1).expand(-1, beams, -1, -1).gather(3, step).squeeze(-1)
        is_open = self.seen < self.lengths.unsqueeze(1)
        # a phrase that is there already proposes what the beam would take anyway
        of_phrases = torch.where(is_open, ids + first, of_beams)
        return torch.cat((best, of_beams.flatten(1), of_phrases.flatten(1)), dim=1).sort(1).values

    def _seen_after(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """How much of each phrase is seen, `(b, m, N)`, where beams `parents` take `tokens`."""
        phrases, width = self.ids.shape[1:]
        seen = self.seen.gather(1, parents.unsqueeze(-1).expand(-1, -1, phrases))
        is_token = tokens[:, :, None, None] == self.ids.unsqueeze(1)  # (b, m, N, W)
        row = seen.clamp(max=width - 1)[:, :, :, None, None].expand(-1, -1, -1, 1, width)
        table = self.next.unsqueeze(1).expand(-1, seen.shape[1], -1, -1, -1)
        reached = (table.gather(3, row).squeeze(3) * is_token).amax(dim=3)
        return torch.where(seen < self.lengths.unsqueeze(1), reached, seen)


def in_turn(missing: Tensor, scores: Tensor, is_lost: Tensor) -> Tensor:
    """The order in which candidates get beams: the best of each number of missing tokens first.

    So every number has its share of the beams, and what one does not fill goes to the others.

    Args:
        missing: `(b, m)` int64.
        scores: `(b, m)`.
        is_lost: `(b, m)` bool, these come last.

    Returns:
        `(b, m)` int64.
    """
    by_score = scores.masked_fill(is_lost, float("-inf")).argsort(
        dim=1, descending=True, stable=True
    )
    groups = missing.masked_fill(is_lost, int(missing.max()) + 1)
    grouped, by_group = groups.gather(1, by_score).sort(dim=1, stable=True)
    order = by_score.gather(1, by_group)  # by group, then by score
    place = torch.arange(missing.shape[1], device=missing.device).expand_as(missing)
    is_first = torch.ones_like(is_lost)
    is_first[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
    rank = place - torch.where(is_first, place, 0).cummax(dim=1).values
    rank = torch.where(is_lost.gather(1, order), rank + missing.shape[1], rank)
    turns = (rank * (int(groups.max()) + 1) + grouped).argsort(dim=1, stable=True)
    return order.gather(1, turns)


def _listed(phrases: Sequence[Phrase]) -> str:
    """Phrases for a message of one line: the first ones, by their beginnings."""
    texts = [str(one) for one in phrases[:LISTED]]
    shown = ", ".join(one if len(one) <= 40 else f"{one[:39]}…" for one in texts)
    return shown if len(phrases) <= LISTED else f"{shown} and {len(phrases) - LISTED} more"
