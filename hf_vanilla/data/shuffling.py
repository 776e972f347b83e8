"""An order that looks random and is never written down: place to place, by arithmetic alone."""

import numpy as np

ROUNDS = 8
# odd numbers of splitmix64 and of its finisher: multiplying spreads low bits upwards
SPREAD, FIRST, SECOND = (
    np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def shuffled_places(
    places: np.ndarray, sizes: np.ndarray, groups: np.ndarray, key: tuple[int, ...]
) -> np.ndarray:
    """Where each place of a group goes when the group is shuffled.

    A bijection of `[0, size)` for every group and key, computed place by place: a Feistel network
    over the next power of four, walked again from every place outside. So an epoch of a hundred
    million sentences needs neither memory nor time to be shuffled, and any part of it is found at
    once.

    Args:
        places: `(L,)` integers, each in `[0, size)` of its group.
        sizes: `(L,)` integers, of the group of each place, at most 2**52.
        groups: `(L,)` integers, which group; groups of one size are shuffled unlike each other.
        key: of the shuffle, such as seed and epoch; none below 0.

    Returns:
        `(L,)` int64, each in `[0, size)`.
    """
    keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64)
    salt = groups.astype(np.uint64) * SPREAD
    half = ((np.frexp(np.maximum(sizes - 1, 0))[1] + 1) // 2).astype(np.uint64)
    sizes, found = sizes.astype(np.uint64), places.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        found[outside] = _network(found[outside], half[outside], salt[outside], keys)
        outside = outside[found[outside] >= sizes[outside]]
    return found.astype(np.int64)


def _network(
    places: np.ndarray, half: np.ndarray, salt: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """A bijection of `[0, 4**half)`; all arguments uint64."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = places >> half, places & mask
    for key in keys:
        mixed = (right * SPREAD) ^ salt ^ key
        mixed = (mixed ^ (mixed >> np.uint64(30))) * FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * SECOND
        left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & mask)
    return (left << half) | right
