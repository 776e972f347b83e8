"""The record of a search: equal to the search itself, and to scores computed anew."""

from itertools import pairwise

import pytest
import torch

from hf_vanilla.models.generation_vanilla import length_penalty
from hf_vanilla.models.search_vanilla_constraints import Constraints
from hf_vanilla.text.attentions import attentions
from hf_vanilla.text.n_best import FINISHED, KEPT, PRUNED, STOPPED, SearchRecord, best_translations
from hf_vanilla.text.terminology import phrase_of

SENTENCE = "three one four"
END = {1}


@pytest.fixture(params=[1, 2, 3, 5])
def searched(trained, request):
    """Number of beams, n-best list and steps."""
    record = SearchRecord(request.param)
    found = best_translations(*trained, SENTENCE, num_beams=request.param, record=record)
    return request.param, found, record.steps([h.ids for h in found], END)


def test_a_recorded_search_finds_what_an_unrecorded_one_finds(trained, searched):
    beams, found, _ = searched
    assert found == best_translations(*trained, SENTENCE, num_beams=beams)


def test_finished_candidates_of_the_n_best_list_have_its_scores(trained, searched):
    _, found, steps = searched
    alpha = trained[0].generation_config.length_penalty
    ranked = {c.rank: c for step in steps for c in step if c.status == FINISHED and c.rank >= 0}
    for rank, hypothesis in enumerate(found):
        assert list(ranked[rank].ids) == hypothesis.ids
        score = ranked[rank].log_prob / length_penalty(len(hypothesis.ids), alpha, "gnmt")
        assert score == pytest.approx(hypothesis.score, abs=1e-4)


def test_the_score_of_each_candidate_is_its_log_probability_in_one_forward_pass(trained, searched):
    _, _, steps = searched
    for candidate in (c for step in steps[:3] for c in step[:4]):
        seen = attentions(*trained, SENTENCE, translation=list(candidate.ids))
        rows = torch.arange(len(candidate.ids))
        expected = seen.log_probs[rows, torch.tensor(candidate.ids)].sum().item()
        assert candidate.log_prob == pytest.approx(expected, abs=2e-3)


def test_a_step_continues_kept_candidates_and_no_others(searched):
    beams, _, steps = searched
    for before, step in pairwise(steps):
        for candidate in step:
            parent = before[candidate.parent]
            assert candidate.ids[:-1] == parent.ids
            assert parent.status == KEPT
        assert sum(c.status == KEPT for c in before) <= beams
    assert {c.parent for c in steps[0]} == {-1}
    assert {c.status for c in steps[-1]} <= {FINISHED, STOPPED, PRUNED}
    for step in steps:
        scores = [c.log_prob for c in step]
        assert scores == sorted(scores, reverse=True)
        ended = [c for c in step if c.ids[-1] in END]
        assert all(c.status in (FINISHED, PRUNED) for c in ended)


def test_a_hypothesis_that_reaches_the_limit_is_finished(trained):
    record = SearchRecord(2)
    found = best_translations(
        *trained, SENTENCE, num_beams=2, record=record, max_new_tokens=2, min_new_tokens=2
    )
    steps = record.steps([h.ids for h in found], END)
    assert len(steps) == 2
    assert [c.rank for c in steps[-1] if c.status == FINISHED] == [0, 1]


def test_a_search_under_constraints_is_recorded(trained):
    record = SearchRecord(3)
    asked = Constraints([[phrase_of(trained[1], "neun"), phrase_of(trained[1], "acht")]])
    found = best_translations(*trained, SENTENCE, num_beams=3, record=record, constraints=asked)
    steps = record.steps([h.ids for h in found], END)
    for before, step in pairwise(steps):
        assert all(c.ids[:-1] == before[c.parent].ids for c in step)
        assert {before[c.parent].status for c in step} == {KEPT}
    ranked = {c.rank: c for step in steps for c in step if c.rank >= 0}
    assert [list(ranked[rank].ids) for rank in range(len(found))] == [h.ids for h in found]


def test_the_search_of_transformers_is_recorded_too(trained):
    """`output_attentions` makes `generate()` run transformers' search."""
    steps = []
    for settings in ({}, {"output_attentions": True}):
        record = SearchRecord(3)
        found = best_translations(*trained, SENTENCE, num_beams=3, record=record, **settings)
        steps.append(record.steps([h.ids for h in found], END))
    for ours, theirs in zip(*steps, strict=True):
        assert [(c.ids, c.status, c.rank) for c in ours] == [
            (c.ids, c.status, c.rank) for c in theirs
        ]
