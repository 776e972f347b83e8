"""A shuffle by arithmetic: every place once, every order as likely as any other."""

from collections import Counter
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla.data.shuffling import shuffled_places


def shuffle(size, key, *, group=0):
    places = np.arange(size)
    return shuffled_places(places, np.full(size, size), np.full(size, group), key).tolist()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(size=st.integers(1, 300), key=st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_every_place_is_taken_once(size, key):
    assert sorted(shuffle(size, key)) == list(range(size))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_order_comes_up_equally_often(size):
    orders = Counter(tuple(shuffle(size, (7, epoch))) for epoch in range(200 * factorial(size)))
    assert len(orders) == factorial(size)
    # 200 expected of each: five standard deviations of a fair draw are 70
    assert all(130 < count < 270 for count in orders.values())


def test_neighbours_do_not_stay_neighbours():
    steps = np.concatenate([np.diff(shuffle(1009, (0, epoch))) for epoch in range(100)])
    assert (np.abs(steps) == 1).mean() == pytest.approx(2 / 1009, rel=0.3)


def test_groups_of_one_size_and_keys_differ():
    orders = [shuffle(97, (0, 1)), shuffle(97, (0, 2)), shuffle(97, (0, 1), group=5)]
    assert all(orders[i] != orders[j] for i in range(3) for j in range(i))


def test_some_places_of_several_groups_go_where_they_go_when_all_are_asked():
    alone = [shuffle(5, (3,), group=2), shuffle(1, (3,), group=3), shuffle(700, (3,), group=4)]
    places, sizes, groups = zip((4, 5, 2), (0, 1, 3), (1, 5, 2), (699, 700, 4), strict=True)
    found = shuffled_places(np.array(places), np.array(sizes), np.array(groups), (3,))
    assert found.tolist() == [alone[0][4], 0, alone[0][1], alone[2][699]]


def test_a_huge_group_costs_no_more_than_the_places_asked_for():
    size = 2**52
    places = np.array([0, 1, size - 1])
    found = shuffled_places(places, np.full(3, size), np.zeros(3, dtype=int), (1,))
    assert len(set(found.tolist())) == 3
    assert all(0 <= place < size for place in found.tolist())
