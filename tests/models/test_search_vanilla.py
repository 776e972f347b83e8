"""Who stays, who leaves, and where the rows go; what is found: `test_fast_search_vanilla.py`."""

import pytest
import torch

from hf_vanilla.models.search_vanilla import Beams, filled_up

CASES = {
    "all stay": ([True, True, True], [0, 1, 2]),
    "the last leaves": ([True, True, False], [0, 1]),
    "the first leaves": ([False, True, True], [2, 1]),
    "one stays": ([False, False, True, False], [2]),
    "holes are filled from behind": ([False, True, False, True, True], [4, 1, 3]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rest_stays_in_place_and_fills_the_holes_from_behind(name):
    is_open, rows = CASES[name]
    assert filled_up(is_open) == rows


def test_one_beam_of_each_sentence_counts_at_first():
    beams = Beams.at_start(torch.full((2, 3, 1), 7), longest=5, filling=1)
    assert beams.running.tolist() == [[[7, 1, 1, 1, 1]] * 3] * 2
    assert (beams.running_scores == 0).tolist() == [[True, False, False]] * 2
    assert beams.running_origins.shape == (2, 3, 4)


def test_results_are_written_where_their_sentences_stood():
    results = Beams.at_start(torch.zeros(4, 2, 1, dtype=torch.long), longest=3, filling=1)
    beams = Beams.at_start(torch.zeros(4, 2, 1, dtype=torch.long), longest=3, filling=1)
    beams.keep(torch.tensor([3, 1]))
    beams.finished = torch.tensor([[[0, 5, 5]] * 2, [[0, 6, 6]] * 2])
    beams.write_into(results)
    assert results.finished[:, 0].tolist() == [[0, 1, 1], [0, 6, 6], [0, 1, 1], [0, 5, 5]]
