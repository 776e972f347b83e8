# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Beam search whose translations contain given phrases: vectorised dynamic beam allocation.

The beams of a sentence are divided among the numbers of phrase tokens that its hypotheses have
generated (Post and Vilar 2018), with tensor operations only (Hu et al. 2019). Which part of a
phrase a hypothesis ends with is found as Knuth, Morris and Pratt do, so phrases may overlap.

A phrase has two forms, as tokenizers write the space into a word: its tokens anywhere, and its
tokens at the start of a translation. The second begins with `START`, which every translation begins
with and which is generated nowhere else. A phrase is there as soon as one of its forms is.

Shapes: B sentences at the start, b of them still active, n beams, c candidates of a sentence in a
step, m of them before the choice, N phrases, F = 2 N their forms, W tokens of a form, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor
from transformers import GenerationConfig

from .generation_vanilla import filling_ids
from .search_vanilla_beams import LOWEST, BeamState, Candidates, can_improve, finish, of_beams

IMPOSSIBLE = LOWEST / 2  # scores below belong to no hypothesis
START = -1  # in place of a token id: the start of a translation
NEVER = 1 << 30  # tokens that a form needs which cannot be there any more
LISTED = 5  # phrases in a message


@dataclass(frozen=True)
class Phrase:
    """Token ids that a translation must contain, one after the other.

    Attributes:
        ids: as they follow other words, with the space in front if the tokenizer writes one.
        at_start: as they begin a translation, where no space is; empty: the same ids.
        text: for messages, and to find the phrase in a translation that has other tokens for it.
    """

    ids: Sequence[int]
    at_start: Sequence[int] = ()
    text: str = ""

    @property
    def forms(self) -> tuple[list[int], list[int]]:
        """What must be in the ids of a translation after `START`: one of these two."""
        return list(self.ids), [START, *(self.at_start or self.ids)]

    def is_in(self, ids: Sequence[int]) -> bool:
        """Whether generated ids have the phrase."""
        return any(_contains([START, *ids], form) for form in self.forms)

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
            ValueError: there are fewer than two beams, or a phrase is empty or has an end token.
        """
        if (settings.num_beams or 1) < 2:
            raise ValueError("constraints need a beam search of 2 or more beams: raise num_beams")
        ends, _ = filling_ids(settings)
        for phrase in (phrase for of_one in self.phrases for phrase in of_one):
            if not phrase.ids:
                raise ValueError("a phrase of the constraints has no tokens: remove it")
            if not {*phrase.ids, *phrase.at_start}.isdisjoint(ends):
                raise ValueError(f"the constraint {phrase} has an end token: remove it")
        return ConstrainedSearch([outermost(of_one) for of_one in self.phrases], limits)


def outermost(phrases: Sequence[Phrase]) -> list[Phrase]:
    """The phrases without repeated ones and without those inside another one."""
    found: list[Phrase] = []
    for phrase in sorted(phrases, key=lambda one: -sum(map(len, one.forms))):
        if not any(_is_inside(phrase, other) for other in found):
            found.append(phrase)
    return found


def may_overlap(phrases: Sequence[Phrase]) -> bool:
    """Whether a form of a phrase can share tokens with one of another phrase."""
    return any(
        _contains(one, other)
        or any(one[-width:] == other[:width] for width in range(1, min(len(one), len(other))))
        for phrase, further in permutations(phrases, 2)
        for one in phrase.forms
        for other in further.forms
    )


def _is_inside(phrase: Phrase, other: Phrase) -> bool:
    """Whether a phrase is there wherever the other one is."""
    return all(any(_contains(ids, form) for form in phrase.forms) for ids in other.forms)


def _contains(ids: list[int], part: list[int]) -> bool:
    width = len(part)
    return any(ids[i : i + width] == part for i in range(len(ids) - width + 1))


def transitions(ids: Sequence[int]) -> list[list[int]]:
    """How much of a phrase is seen after one more token of it (Knuth, Morris, Pratt 1977).

    Returns:
        `[seen][i]`: the first tokens of the phrase that end a text, where `seen` of them ended it
        before and token `ids[i]` follows.
    """

    def seen_after(seen: int, token: int) -> int:
        text, lengths = [*ids[:seen], token], range(seen + 1, -1, -1)
        return next(n for n in lengths if list(ids[:n]) == text[len(text) - n :])

    return [[seen_after(seen, token) for token in ids] for seen in range(len(ids))]


@dataclass
class ConstrainedSearch:
    """The steps of a beam search under constraints, and how far each hypothesis is.

    Attributes:
        phrases: of each sentence.
        given_limits: as `limits` of `Constraints.search`.
    """

    phrases: Sequence[Sequence[Phrase]]
    given_limits: Tensor | None

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
                f"{len(self.phrases)} lists of constraints for {sentences} sentences: give one each"
            )
        device = state.active.device
        limits = self.given_limits
        limits = torch.full((sentences,), longest) if limits is None else limits
        self.limits: Tensor = limits.to(device)
        self.last = int(config.forced_eos_token_id is not None)  # it takes the last token
        self._refuse_long(self.limits.tolist(), state.prompt)
        count = max((len(of_one) for of_one in self.phrases), default=0)
        forms = [[form for phrase in of_one for form in phrase.forms] for of_one in self.phrases]
        width = max((len(form) for of_one in forms for form in of_one), default=1)
        self.ids = torch.full((sentences, 2 * count, width), START)  # (b, F, W)
        self.next = torch.zeros((sentences, 2 * count, width, width), dtype=torch.long)
        self.lengths = torch.zeros((sentences, 2 * count), dtype=torch.long)
        for row, of_one in enumerate(forms):
            for number, form in enumerate(of_one):
                size = len(form)
                self.lengths[row, number] = size
                self.ids[row, number, :size] = torch.tensor(form)
                self.next[row, number, :size, :size] = torch.tensor(transitions(form))
        seen = ((self.ids[:, :, 0] == START) & (self.lengths > 0)).long()
        self.overlaps = torch.tensor([[may_overlap(one)] for one in self.phrases], device=device)
        self.ids, self.next = self.ids.to(device), self.next.to(device)
        self.lengths = self.lengths.to(device)
        # (b, n, F): how many first tokens of each form end a hypothesis; all of them: for good
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
        seen = self._seen_after(parents, tokens)  # (b, m, F)
        missing = self._missing(seen)
        # after this token
        room = (self.limits.unsqueeze(1) - self.last - (state.length + 1)).clamp(min=0)
        is_repeated = torch.zeros_like(missing, dtype=torch.bool)
        is_repeated[:, 1:] = index[:, 1:] == index[:, :-1]
        # fewest tokens that are still needed: less in overlaps
        least = torch.where(self.overlaps, self._needed(seen).amax(dim=2), missing)
        is_lost = is_repeated | (least > room) | ~(scores > IMPOSSIBLE)
        selected = in_turn(missing, scores, is_lost)[:, :count]  # (b, c)
        scores = scores.masked_fill(is_lost, 2 * LOWEST).gather(1, selected)
        parents, tokens = parents.gather(1, selected), tokens.gather(1, selected)
        self.seen_by_candidates = torch.take_along_dim(seen, selected.unsqueeze(-1), dim=1)
        sequences = of_beams(state.active, parents)
        sequences[:, :, :, state.length] = torch.stack((tokens, parents), dim=2)
        return Candidates(scores=scores, parents=parents, sequences=sequences)

    def advance(
        self, state: BeamState, candidates: Candidates, is_end: Tensor, config: GenerationConfig
    ) -> Tensor:
        """As `search_vanilla.advance`; the first n in their order become active.

        Args:
            state: changed in place.
            candidates: of this step.
            is_end: `(b, c)` bool, whether a stopping criterion ends a candidate.
            config: settings of this call.
        """
        is_real = candidates.scores > IMPOSSIBLE
        is_whole = is_real & (self._missing(self.seen_by_candidates) == 0)
        finish(state, candidates, is_end & is_whole, config)
        is_active = is_real & ~is_end
        order = torch.arange(is_end.shape[1], device=is_end.device) + ~is_active * is_end.shape[1]
        best = order.topk(config.num_beams, largest=False).indices
        scores = candidates.scores.masked_fill(~is_active, LOWEST).gather(1, best)
        state.active_scores, by_score = scores.sort(dim=1, descending=True, stable=True)
        best = best.gather(1, by_score)
        state.active = of_beams(candidates.sequences, best)
        self.seen = torch.take_along_dim(self.seen_by_candidates, best.unsqueeze(-1), dim=1)
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
        beams = state.active.shape[1]
        for of_one, score in zip(self.phrases, state.finished_scores[:, 0].tolist(), strict=True):
            if score < IMPOSSIBLE:
                raise ValueError(
                    f"no translation found that contains {_listed(of_one)}: raise num_beams "
                    f"(now {beams}), the length limit, or drop a setting such as bad_words_ids"
                )

    def _refuse_long(self, limits: list[int], prompt: int) -> None:
        for of_one, limit in zip(self.phrases, limits, strict=True):
            saved = [len(phrase.ids) - len(phrase.at_start or phrase.ids) for phrase in of_one]
            needed = sum(len(phrase.ids) for phrase in of_one) - max([0, *saved])
            room = limit - prompt - self.last
            if needed > room and not may_overlap(of_one):
                raise ValueError(
                    f"the constraints {_listed(of_one)} have {needed} tokens, and a translation "
                    f"of this sentence at most {room}: raise max_new_tokens or ask for less"
                )

    def _needed(self, seen: Tensor) -> Tensor:
        """Tokens of each phrase that hypotheses `(b, m, F)` still need, `(b, m, N)`."""
        needed = self.lengths.unsqueeze(1) - seen
        is_over = seen[:, :, 1::2] == 0  # the start has gone by
        at_start = needed[:, :, 1::2].masked_fill(is_over, NEVER)
        return torch.minimum(needed[:, :, ::2], at_start)

    def _missing(self, seen: Tensor) -> Tensor:
        """Tokens that hypotheses `(b, m, F)` still need if phrases do not overlap from here on."""
        needed, whole = self._needed(seen), self.lengths[:, None, ::2]
        is_open = needed > 0
        return (whole * is_open).sum(dim=2) - ((whole - needed) * is_open).amax(dim=2)

    def _proposed(self, sums: Tensor, count: int) -> Tensor:
        """Sorted beam * V + token of all continuations that are considered, `(b, m)`."""
        beams, vocabulary = sums.shape[1:]
        first = torch.arange(beams, device=sums.device).view(1, -1, 1) * vocabulary
        best = sums.flatten(1).topk(count).indices
        of_beams = sums.argmax(dim=2, keepdim=True) + first
        step = self.seen.clamp(max=self.ids.shape[2] - 1).unsqueeze(-1)  # (b, n, F, 1)
        ids = self.ids.unsqueeze(1).expand(-1, beams, -1, -1).gather(3, step).squeeze(-1)
        is_open = (self.seen < self.lengths.unsqueeze(1)) & (ids != START)
        # a form that is there, or cannot be any more, proposes what the beam would take anyway
        of_phrases = torch.where(is_open, ids + first, of_beams)
        return torch.cat((best, of_beams.flatten(1), of_phrases.flatten(1)), dim=1).sort(1).values

    def _seen_after(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """How much of each form is seen, `(b, m, F)`, where beams `parents` take `tokens`."""
        width = self.ids.shape[2]
        seen = torch.take_along_dim(self.seen, parents.unsqueeze(-1), dim=1)
        is_token = tokens[:, :, None, None] == self.ids.unsqueeze(1)  # (b, m, F, W)
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
    order = scores.masked_fill(is_lost, float("-inf")).argsort(dim=1, descending=True, stable=True)
    groups = missing.masked_fill(is_lost, int(missing.max()) + 1).gather(1, order)
    # of each candidate, how many of its number are better
    rank = (groups.unsqueeze(2) == groups.unsqueeze(1)).tril(-1).sum(dim=2)
    rank = rank + missing.shape[1] * is_lost.gather(1, order)
    turns = (rank * (int(groups.max()) + 1) + groups).argsort(dim=1, stable=True)
    return order.gather(1, turns)


def _listed(phrases: Sequence[Phrase]) -> str:
    """Phrases for a message of one line: the first ones, by their beginnings."""
    texts = [str(one) for one in phrases[:LISTED]]
    shown = ", ".join(one if len(one) <= 40 else f"{one[:39]}…" for one in texts)
    return shown if len(phrases) <= LISTED else f"{shown} and {len(phrases) - LISTED} more"
