"""What visitors write into the fields of the search: numbers, phrases, terms."""

import pytest

from hf_vanilla.text.page_search import (
    Sampling,
    Search,
    lengths_of,
    phrases_of,
    sampling_of,
)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
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
    ],
)
def test_settings_of_sampling_that_are_no_numbers_in_range_are_refused(name, text, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        sampling_of({name: text})
    assert len(str(caught.value)) < 120


def test_blank_settings_of_sampling_have_their_defaults():
    assert sampling_of({"temperature": " ", "seed": "3"}) == Sampling(seed=3)
    fields = {"temperature": "0.5", "top_k": "4", "top_p": "0.25", "seed": "0"}
    assert sampling_of(fields) == Sampling(temperature=0.5, top_k=4, top_p=0.25, seed=0)


def test_sampling_with_phrases_is_refused():
    with pytest.raises(ValueError, match="Sampling takes no phrases: leave them out"):
        Search(2, ["neun"], Sampling())


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
        lengths_of(texts)


@pytest.mark.parametrize(
    ("text", "phrases", "terms"),
    [
        ("", [], []),
        (" ; ;", [], []),
        ("neun; acht sieben ;", ["neun", "acht sieben"], []),
        (
            "dog => Hund; neun;white house=>Weißes Haus",
            ["neun"],
            [("dog", "Hund"), ("white house", "Weißes Haus")],
        ),
        ("a = b; c > d", ["a = b", "c > d"], []),
    ],
)
def test_phrases_and_terms_are_told_apart_by_an_arrow(text, phrases, terms):
    assert phrases_of(text) == {"phrases": phrases, "terms": terms}


@pytest.mark.parametrize("text", ["=> Hund", "dog =>", "a => b => c", "dog => " + "x" * 300])
def test_what_is_no_term_is_refused(text):
    with pytest.raises(ValueError, match=r"is no term: write it as in dog => Hund") as caught:
        phrases_of(f"neun; {text}")
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        (Search(1, terms=[("two", "zwei")]), "Phrases need a search with 2 or more beams"),
        (Search(2, terms=[(str(n), "a") for n in range(101)]), "There are 101 terms; the limit is"),
        (Search(2, terms=[("two", "a"), ("two", "b")]), "the term 'two' has two translations"),
        (Search(2, ["x"], terms=[(f"w{n}", f"v{n}") for n in range(8)]), "There are 9 phrases"),
    ],
    ids=["beams", "terms", "twice", "phrases"],
)
def test_terms_that_no_search_can_have_are_refused(trained, search, problem):
    sentence = " ".join(f"w{n}" for n in range(8))
    with pytest.raises(ValueError, match=problem):
        search.constraints(*trained, sentence)


def test_sampling_with_terms_is_refused():
    with pytest.raises(ValueError, match="Sampling takes no phrases: leave them out"):
        Search(2, terms=[("two", "zwei")], sampling=Sampling())
