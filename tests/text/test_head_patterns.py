"""Patterns of heads, on weights made by hand."""

import pytest
import torch

from hf_vanilla.text.attentions import CROSS, DECODER, ENCODER
from hf_vanilla.text.page_answer import head_pattern

Q, K = 5, 7


def only(columns, keys=K):
    """Rows with all weight on one key each."""
    return torch.nn.functional.one_hot(torch.tensor(columns), keys).float()


def test_a_head_that_follows_one_pattern_has_its_name():
    cases = [
        ([0, 1, 2, 3, 4, 5, 6], ENCODER, "same token"),
        ([3, 0, 1, 2, 3, 4, 5], ENCODER, "previous token"),
        ([1, 2, 3, 4, 5, 6, 0], ENCODER, "next token"),
        ([6] * 7, ENCODER, "end token"),
        ([0, 1, 2, 3, 4, 5, 6], DECODER, "last token"),
        ([0, 0, 1, 2, 3, 4, 5], DECODER, "token before the last"),
        ([0] * 7, DECODER, "start token"),
        ([0, 2, 3, 4, 6], CROSS, "diagonal"),  # 5 queries over 7 keys: 0, 1.5, 3, 4.5, 6
        ([6] * 5, CROSS, "end token"),
        ([3, 3, 0, 1, 2], CROSS, "one token"),
    ]
    for columns, kind, name in cases:
        found = head_pattern(only(columns), kind)
        assert found["name"] == name
        assert found["entropy"] == 0
        if name != "one token":
            assert found["share"] == 1


def test_equal_weights_are_spread_and_have_the_entropy_of_their_number():
    found = head_pattern(torch.full((Q, 8), 1 / 8), CROSS)
    assert (found["name"], found["share"]) == ("spread", 0.125)
    assert found["entropy"] == pytest.approx(3)


def test_a_head_between_patterns_is_mixed():
    weights = (only([1, 1, 1, 1, 1]) + only([2, 2, 2, 0, 0])) / 2
    found = head_pattern(weights, CROSS)
    assert found["name"] == "mixed"
    assert found["entropy"] == pytest.approx(1)


def test_the_share_is_the_mean_over_the_queries_that_have_such_a_key():
    weights = 0.25 * only([0, 0, 0, 0, 0]) + 0.75 * only([5, 0, 1, 2, 3])
    found = head_pattern(weights, ENCODER)  # query 0 has no previous token, query 1's is key 0
    assert found["name"] == "previous token"
    assert found["share"] == pytest.approx((1 + 3 * 0.75) / 4)


def test_a_sentence_of_one_token_has_a_pattern():
    assert head_pattern(torch.ones(1, 1), DECODER)["share"] == 1
