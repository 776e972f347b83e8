"""Rows to batches: each sentence once, little padding, an order that depends on seed and epoch."""

import tracemalloc
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hf_vanilla.data.batching import (
    EMPTY_ROW,
    PairCollator,
    TokenBatchSampler,
    batch_bounds,
    bucket_widths,
    filled_up,
    padded_with_mask,
)
from hf_vanilla.text.encoding import LengthLimits, encode_pairs

BUDGET = 37
LENGTHS = st.lists(st.tuples(st.integers(1, BUDGET), st.integers(1, BUDGET)), min_size=1)
EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True)


def sampler_of(lengths, *, budget=BUDGET, seed=0):
    source, target = zip(*lengths, strict=True)
    return TokenBatchSampler(source, target, tokens_per_batch=budget, seed=seed)


def natural_lengths(count):
    """Lengths as text has them: lognormal, the target near the source."""
    draw = np.random.default_rng(3)
    source = np.clip(np.round(draw.lognormal(3.0, 0.55, count)), 2, 120)
    target = np.clip(np.round(source * draw.normal(1.05, 0.18, count)), 2, 120)
    return source.astype(int), target.astype(int)


# --- bounds ------------------------------------------------------------------------------------


def slow_bounds(longest, budget):
    """One sentence after the other; a new batch where the padded size would exceed the budget."""
    bounds, widest, count = [0], 0, 0
    for index, length in enumerate(longest):
        widest, count = max(widest, length), count + 1
        if widest * count > budget:
            bounds.append(index)
            widest, count = length, 1
    return [*bounds, len(longest)] if longest else bounds


@EXAMPLES
@given(longest=st.lists(st.integers(1, BUDGET)), extra=st.integers(0, 90))
def test_bounds_equal_those_of_a_slow_loop_in_any_order(longest, extra):
    assert batch_bounds(longest, BUDGET + extra).tolist() == slow_bounds(longest, BUDGET + extra)


@EXAMPLES
@given(longest=st.lists(st.integers(1, BUDGET)), extra=st.integers(0, 90))
def test_bounds_equal_those_of_a_slow_loop_for_sorted_sentences(longest, extra):
    for ordered in (sorted(longest), sorted(longest, reverse=True)):
        bounds = batch_bounds(ordered, BUDGET + extra).tolist()
        assert bounds == slow_bounds(ordered, BUDGET + extra)


def test_bounds_by_hand():
    # 3 x 5 fills 15, then 2 x 7, then 1 x 11
    assert batch_bounds([5, 5, 5, 5, 7, 11], 15).tolist() == [0, 3, 5, 6]


def test_a_sentence_longer_than_the_budget_is_an_error_with_both_numbers():
    with pytest.raises(ValueError, match=r"tokens_per_batch=12 .* longest sentence \(13 tokens\)"):
        batch_bounds([5, 13, 7], 12)
    with pytest.raises(ValueError, match="lower max_length"):
        sampler_of([(3, 5), (13, 2)], budget=12)


def test_no_sentences_are_an_error():
    with pytest.raises(ValueError, match="no sentences to batch"):
        TokenBatchSampler([], [], tokens_per_batch=11)


# --- epochs ------------------------------------------------------------------------------------


@EXAMPLES
@given(lengths=LENGTHS, seed=st.integers(0, 99), epoch=st.integers(0, 9))
def test_each_sentence_is_in_exactly_one_batch_of_an_epoch(lengths, seed, epoch):
    batches = sampler_of(lengths, seed=seed).batches(epoch)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))


@EXAMPLES
@given(lengths=LENGTHS, epoch=st.integers(0, 9))
def test_no_batch_exceeds_the_budget_with_padding(lengths, epoch):
    for batch in sampler_of(lengths).batches(epoch):
        assert len(batch) * max(max(lengths[row]) for row in batch) <= BUDGET


@EXAMPLES
@given(lengths=LENGTHS)
def test_every_epoch_has_the_same_number_of_batches(lengths):
    sampler = sampler_of(lengths)
    assert {len(sampler.batches(epoch)) for epoch in range(5)} == {len(sampler)}


def test_the_order_is_a_function_of_seed_and_epoch():
    lengths = list(zip(*natural_lengths(499), strict=True))
    once, again = (sampler_of(lengths, budget=211, seed=7) for _ in range(2))
    once.batch(4, 0)  # reading another epoch first changes nothing
    assert list(once.batches(2)) == list(again.batches(2))
    torch.manual_seed(1)
    np.random.seed(1)
    assert list(once.batches(2)) == list(again.batches(2))


def test_epochs_and_seeds_change_the_order_and_the_content_of_batches():
    lengths = [(5, 7)] * 101
    orders = [
        list(sampler_of(lengths, seed=seed).batches(epoch))
        for seed, epoch in [(0, 0), (0, 1), (1, 0)]
    ]
    for i, first in enumerate(orders):
        for second in orders[:i]:
            assert first != second
            contents = [{frozenset(batch) for batch in order} for order in (first, second)]
            assert contents[0] != contents[1]


def test_a_batch_of_a_late_epoch_needs_no_earlier_epoch():
    lengths = list(zip(*natural_lengths(499), strict=True))
    sampler = sampler_of(lengths, budget=211)
    assert sampler.batch(10**9, 7) == sampler.batches(10**9)[7]
    assert sampler[3 * len(sampler) + 5] == sampler.batches(3)[5]


@EXAMPLES
@given(lengths=LENGTHS, multiple=st.integers(1, 5))
def test_the_number_of_batches_is_a_multiple_on_request(lengths, multiple):
    source, target = zip(*(lengths * 5 + [(1, 1)] * 9), strict=True)
    sampler = TokenBatchSampler(source, target, tokens_per_batch=BUDGET, multiple_of=multiple)
    assert len(sampler) % multiple == 0
    rows = [row for batch in sampler for row in batch]
    assert sorted(rows) == list(range(len(source)))
    assert all(sampler)  # no batch is empty


def test_fewer_sentences_than_processes_are_an_error():
    with pytest.raises(ValueError, match="2 sentences are too few for 3 batches, a multiple of 3"):
        TokenBatchSampler([5, 7], [5, 7], tokens_per_batch=11, multiple_of=3)


def test_padding_share_by_hand():
    # batches by target: sources 3 5 5 padded to 15, then 2 7 padded to 14; targets 5 5 5 and 7 7
    source, target = [5, 3, 5, 7, 2], [5, 5, 5, 7, 7]
    sampler = TokenBatchSampler(source, target, tokens_per_batch=15)
    assert [len(batch) for batch in sorted(sampler, key=len)] == [2, 3]
    assert sampler.source_padding == pytest.approx(1 - 22 / 29)
    assert sampler.target_padding == 0


def test_padding_share_equals_the_padding_in_the_batches():
    source, target = natural_lengths(4_999)
    sampler = TokenBatchSampler(source, target, tokens_per_batch=2048)
    for lengths, share in ((source, sampler.source_padding), (target, sampler.target_padding)):
        padded_tokens = sum(len(batch) * lengths[batch].max() for batch in sampler.batches(3))
        assert share == pytest.approx(1 - lengths.sum() / padded_tokens)


def test_a_sampler_holds_at_most_nine_bytes_per_sentence_after_several_epochs():
    source, target = natural_lengths(100_003)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    sampler = TokenBatchSampler(source, target, tokens_per_batch=25_000)
    for epoch in (5, 6, 7):
        sampler.batch(epoch, 17)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held < 9 * len(source)


def test_every_order_of_equal_sentences_is_equally_likely():
    sampler = sampler_of([(5, 7)] * 4, budget=28)
    orders = Counter(tuple(sampler.batch(epoch, 0)) for epoch in range(200 * 24))
    assert len(orders) == 24
    # 200 of each are expected; 70 is five standard deviations of fair draws
    assert all(130 < count < 270 for count in orders.values())


def test_every_order_of_batches_is_equally_likely():
    sampler = sampler_of([(3, 3), (5, 5), (7, 7)], budget=7)
    orders = Counter(tuple(row for (row,) in sampler.batches(epoch)) for epoch in range(200 * 6))
    assert len(orders) == 6
    assert all(130 < count < 270 for count in orders.values())


def test_the_order_of_an_epoch_never_changes_between_versions():
    """Runs resume in the middle of an epoch, perhaps under another version of numpy or of ours."""
    sampler = sampler_of([(5, 7)] * 11, budget=21, seed=3)
    assert list(sampler.batches(2)) == [[2, 6, 8], [7, 0, 1], [4, 10, 9], [3, 5]]


def test_iteration_gives_the_chosen_epoch():
    sampler = sampler_of([(n, n) for n in range(1, 30)])
    assert list(sampler) == [*sampler.batches(0)]
    sampler.set_epoch(3)
    assert list(sampler) == [*sampler.batches(3)]


def test_batches_of_natural_lengths_have_less_than_10_percent_padding():
    source, target = natural_lengths(29_009)
    batches = TokenBatchSampler(source, target, tokens_per_batch=4096).batches(0)
    tokens = source.sum() + target.sum()
    padded_tokens = sum(len(b) * (source[b].max() + target[b].max()) for b in batches)
    assert 1 - tokens / padded_tokens < 0.10


def test_batches_of_natural_lengths_are_nearly_full():
    source, target = natural_lengths(29_009)
    sampler = TokenBatchSampler(source, target, tokens_per_batch=4096)
    least = np.maximum(source, target).sum() / 4096
    assert len(sampler) < 1.15 * least


# --- collating ---------------------------------------------------------------------------------


PAIRS = {"source": ["ein Haus", "das kleine Haus"], "target": ["a house", "the little house"]}


@pytest.fixture(scope="module")
def encoded(tiny_tokenizer):
    return encode_pairs(Dataset.from_dict(PAIRS), tiny_tokenizer, LengthLimits(41))


def test_padding_by_hand():
    rows = [{"input_ids": [5, 6, 1], "labels": [7, 1]}, {"input_ids": [8, 1], "labels": [9, 3, 1]}]
    batch = PairCollator(pad_token_id=4)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 1], [8, 1, 4]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 1, -100], [9, 3, 1]]
    assert {ids.dtype for ids in batch.values()} == {torch.int64}


def test_a_pad_token_inside_a_sentence_is_not_masked():
    batch = PairCollator(pad_token_id=0)([{"input_ids": [5, 0, 1], "labels": [1]}])
    assert batch["attention_mask"].tolist() == [[1, 1, 1]]


def test_an_arrow_table_gives_the_same_batch_as_its_rows(encoded):
    numbers = [1, 0, 1]
    by_rows = PairCollator(3)([encoded.rows[number] for number in numbers])
    table = encoded.rows.with_format("arrow")[numbers]
    for found in (PairCollator(3)(table), PairCollator(3)([table])):
        assert found.keys() == by_rows.keys()
        for name, expected in by_rows.items():
            torch.testing.assert_close(found[name], expected, rtol=0, atol=0)


def test_padded_accepts_arrays_and_lists():
    ids, mask = padded_with_mask([np.array([2, 3]), [5]], 7)
    assert (ids.tolist(), mask.tolist()) == ([[2, 3], [5, 7]], [[1, 1], [1, 0]])


def test_a_dataloader_takes_sampler_rows_and_collator(encoded):
    sampler = TokenBatchSampler(encoded.source_lengths, encoded.target_lengths, tokens_per_batch=60)
    options = {"collate_fn": PairCollator(0)}
    batches = list(DataLoader(encoded.rows, batch_sampler=sampler, **options))
    assert sum(len(batch["labels"]) for batch in batches) == 2
    tables = encoded.rows.with_format("arrow")
    faster = list(DataLoader(tables, sampler=sampler, batch_size=None, **options))
    assert [b["labels"].tolist() for b in faster] == [b["labels"].tolist() for b in batches]
    assert all(set(batch) == {"input_ids", "attention_mask", "labels"} for batch in batches)


# --- few shapes ----------------------------------------------------------------------------------


@EXAMPLES
@given(longest=st.lists(st.integers(1, 9), min_size=1), buckets=st.integers(2, 5))
def test_bucket_widths_pad_no_more_than_any_other_widths(longest, buckets):
    def tokens(widths):
        return sum(min(width for width in widths if width >= length) for length in longest)

    lengths = sorted(set(longest))
    others = combinations(lengths[:-1], min(buckets, len(lengths)) - 1)
    least = min(tokens((*other, lengths[-1])) for other in others)
    found = bucket_widths(np.array(longest), buckets)
    assert len(found) <= buckets
    assert tokens(found) == least


def test_an_epoch_in_buckets_has_each_sentence_once_and_few_shapes():
    source, target = natural_lengths(3000)
    widths = bucket_widths(np.maximum(source, target), 12)
    sampler = TokenBatchSampler(source, target, tokens_per_batch=700, widths=widths)
    seen, shapes, positions = Counter(), set(), 0
    for batch in sampler.batches(epoch=2):
        rows = [row for row in batch if row != EMPTY_ROW]
        pairs = [{"input_ids": [7] * source[row], "labels": [7] * target[row]} for row in rows]
        filled = filled_up(PairCollator(0)(pairs), len(batch), widths, 0)
        assert filled["input_ids"].shape == filled["labels"].shape
        assert filled["input_ids"].numel() <= 700
        assert (filled["labels"] >= 0).sum() == target[rows].sum()
        seen.update(rows)
        shapes.add(tuple(filled["labels"].shape))
        positions += filled["labels"].numel()
    assert seen == Counter(range(3000))
    assert len(shapes) <= 12
    assert sampler.target_padding == pytest.approx(1 - target.sum() / positions)


def test_rows_that_fill_a_batch_up_have_no_label_and_one_real_token():
    rows = [{"input_ids": [5, 1], "labels": [6, 2, 1]}]
    filled = filled_up(PairCollator(0)(rows), 2, (3, 4), 0)
    assert filled["input_ids"].tolist() == [[5, 1, 0], [0, 0, 0]]
    assert filled["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert filled["labels"].tolist() == [[6, 2, 1], [-100, -100, -100]]
