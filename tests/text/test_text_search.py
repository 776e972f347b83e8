"""What visitors write into the fields of the search: numbers."""

import pytest

from hf_vanilla.text.page_search import LENGTHS, SAMPLING, Search, filled_in


def test_settings_of_sampling_that_are_no_numbers_in_range_are_refused():
    cases = [
        ("temperature", "0", "The temperature is '0': give a number from 0.01 to 10"),
        ("temperature", "-1", "The temperature is '-1': give a number"),
        ("temperature", "nan", "The temperature is 'nan': give a number"),
        ("temperature", "inf", "The temperature is 'inf': give a number"),
        ("temperature", "warm", "The temperature is 'warm': give a number"),
        ("top_k", "0", "The top-k is '0': give a whole number from 1"),
        ("top_k", "2.5", "The top-k is '2.5': give a whole number"),
        ("top_p", "1.1", "The top-p is '1.1': give a number from 0.01 to 1"),
        ("seed", "-1", "The seed is '-1': give a whole number from 0 to 4294967295"),
        ("seed", "4294967296", "The seed is '4294967296'"),
        ("seed", "9" * 5000, "The seed is '9999"),
    ]
    for name, text, problem in cases:
        with pytest.raises(ValueError, match=problem) as caught:
            filled_in(SAMPLING, {name: text})
        assert len(str(caught.value)) < 120


def test_blank_settings_of_sampling_are_not_given():
    assert filled_in(SAMPLING, {"temperature": " ", "seed": "3"}) == {"seed": 3}
    fields = {"temperature": "0.5", "top_k": "4", "top_p": "0.25", "seed": "0"}
    numbers = {"temperature": 0.5, "top_k": 4, "top_p": 0.25, "seed": 0}
    assert filled_in(SAMPLING, fields) == numbers


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"min_new_tokens": "0"}, "The minimum length is '0': give a whole number from 1 to 512"),
        ({"max_new_tokens": "513"}, "The maximum length is '513': give a whole number"),
        ({"min_new_tokens": "9", "max_new_tokens": "5"}, "9 tokens is above the maximum of 5"),
    ],
)
def test_lengths_out_of_range_are_refused(texts, problem):
    with pytest.raises(ValueError, match=problem):
        Search(2, lengths=filled_in(LENGTHS, texts))
