"""Dropping finished sentences, and the state that a beam search begins with."""

import pytest
import torch
from transformers import GenerationConfig

from hf_vanilla.models.search_vanilla import rows_to_keep
from hf_vanilla.models.search_vanilla_beams import initial_state

CASES = {
    "all stay": ([True, True, True], [0, 1, 2]),
    "the last is dropped": ([True, True, False], [0, 1]),
    "the first is dropped": ([False, True, True], [2, 1]),
    "one stays": ([False, False, True, False], [2]),
    "gaps are filled from behind": ([False, True, False, True, True], [4, 1, 3]),
}


@pytest.mark.parametrize("name", CASES)
def test_active_rows_keep_their_position_and_fill_gaps_from_behind(name):
    is_active, rows = CASES[name]
    assert rows_to_keep(is_active) == rows


def test_only_the_first_beam_of_each_sentence_counts_at_the_start():
    config = GenerationConfig(max_length=5, eos_token_id=1, pad_token_id=1)
    state = initial_state(torch.full((2, 3, 1), 7), config)
    ids, beams = [7, 1, 1, 1, 1], [-1] * 5
    assert state.active.tolist() == [[[ids, beams]] * 3] * 2
    assert (state.active_scores == 0).tolist() == [[True, False, False]] * 2


@pytest.mark.parametrize(
    ("tokens", "filling"),
    [((0, 4), 4), ((3, 4), 3), ((None, [4, 2]), 4), ((3, None), -1)],
    ids=str,
)
def test_unused_positions_are_filled_as_in_transformers(tokens, filling):
    pad, end = tokens
    config = GenerationConfig(max_length=3, pad_token_id=pad, eos_token_id=end)
    state = initial_state(torch.full((1, 2, 1), 7), config)
    assert state.active[0, 0, 0].tolist() == [7, filling, filling]
