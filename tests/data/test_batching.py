"""Rows to batches: nothing lost, little padded, and the order known for all time."""

from itertools import islice

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hf_vanilla.data import batching
from hf_vanilla.data.batching import (
    LeftOut,
    LengthLimits,
    PairCollator,
    StepSampler,
    TokenBatchSampler,
    batch_bounds,
    encode_pairs,
    padded,
)

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
    bounds, tallest, count = [0], 0, 0
    for place, length in enumerate(longest):
        tallest, count = max(tallest, length), count + 1
        if tallest * count > budget:
            bounds.append(place)
            tallest, count = length, 1
    return [*bounds, len(longest)] if longest else bounds


@EXAMPLES
@given(longest=st.lists(st.integers(1, BUDGET)), extra=st.integers(0, 90))
def test_bounds_are_those_of_the_slow_and_obvious_loop(longest, extra):
    assert batch_bounds(longest, BUDGET + extra).tolist() == slow_bounds(longest, BUDGET + extra)


@EXAMPLES
@given(longest=st.lists(st.integers(1, BUDGET)), extra=st.integers(0, 90))
def test_bounds_of_sorted_sentences_are_those_of_the_loop_too(longest, extra):
    for ordered in (sorted(longest), sorted(longest, reverse=True)):
        bounds = batch_bounds(ordered, BUDGET + extra).tolist()
        assert bounds == slow_bounds(ordered, BUDGET + extra)


def test_bounds_by_hand():
    # 3 x 5 fills 15, then 2 x 7, then 1 x 11
    assert batch_bounds([5, 5, 5, 5, 7, 11], 15).tolist() == [0, 3, 5, 6]


def test_a_sentence_above_the_budget_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"tokens_per_batch=12 .* longest sentence \(13 tokens\)"):
        batch_bounds([5, 13, 7], 12)
    with pytest.raises(ValueError, match="lower max_length"):
        sampler_of([(3, 5), (13, 2)], budget=12)


def test_no_sentence_is_refused():
    with pytest.raises(ValueError, match="no sentences to batch"):
        TokenBatchSampler([], [], tokens_per_batch=11)


# --- epochs ------------------------------------------------------------------------------------


@EXAMPLES
@given(lengths=LENGTHS, seed=st.integers(0, 99), epoch=st.integers(0, 9))
def test_each_sentence_is_in_exactly_one_batch_of_an_epoch(lengths, seed, epoch):
    batches = sampler_of(lengths, seed=seed).batches(epoch)
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))


@EXAMPLES
@given(lengths=LENGTHS, epoch=st.integers(0, 9))
def test_no_batch_exceeds_the_budget_padding_included(lengths, epoch):
    for batch in sampler_of(lengths).batches(epoch):
        assert len(batch) * max(max(lengths[place]) for place in batch) <= BUDGET


@EXAMPLES
@given(lengths=LENGTHS)
def test_every_epoch_has_the_same_number_of_batches(lengths):
    sampler = sampler_of(lengths)
    assert {len(sampler.batches(epoch)) for epoch in range(5)} == {len(sampler)}


def test_the_order_depends_on_seed_and_epoch_alone():
    lengths = list(zip(*natural_lengths(499), strict=True))
    once, again = (sampler_of(lengths, budget=211, seed=7) for _ in range(2))
    once.batches(4)  # what was asked before does not matter
    assert list(once.batches(2)) == list(again.batches(2))
    torch.manual_seed(1)
    np.random.seed(1)
    assert list(once.batches(2)) == list(again.batches(2))


def test_epochs_and_seeds_differ_in_order_and_in_company():
    lengths = [(5, 7)] * 101
    orders = [
        list(sampler_of(lengths, seed=seed).batches(epoch))
        for seed, epoch in [(0, 0), (0, 1), (1, 0)]
    ]
    for i, first in enumerate(orders):
        for second in orders[:i]:
            assert first != second
            companies = [{frozenset(batch) for batch in order} for order in (first, second)]
            assert companies[0] != companies[1]


def test_a_place_of_a_late_epoch_is_found_without_the_places_before_it():
    lengths = list(zip(*natural_lengths(499), strict=True))
    sampler = sampler_of(lengths, budget=211)
    assert sampler.batch(10**9, 7) == sampler.batches(10**9)[7]
    assert list(sampler.batches(3)[5:29:4]) == list(sampler.batches(3))[5:29:4]


@EXAMPLES
@given(lengths=LENGTHS, multiple=st.integers(1, 5))
def test_processes_get_the_same_number_of_batches_when_asked_for(lengths, multiple):
    source, target = zip(*(lengths * 5 + [(1, 1)] * 9), strict=True)
    sampler = TokenBatchSampler(source, target, tokens_per_batch=BUDGET, multiple_of=multiple)
    assert len(sampler) % multiple == 0
    places = [place for batch in sampler for place in batch]
    assert sorted(places) == list(range(len(source)))
    assert all(sampler)  # none is empty


def test_fewer_sentences_than_processes_are_refused():
    with pytest.raises(ValueError, match="2 sentences are too few for 3 batches, which 3"):
        TokenBatchSampler([5, 7], [5, 7], tokens_per_batch=11, multiple_of=3)


def test_the_share_of_padding_by_hand():
    # batches by target: sources 3 5 5 padded to 15, then 2 7 padded to 14; targets 5 5 5 and 7 7
    source, target = [5, 3, 5, 7, 2], [5, 5, 5, 7, 7]
    sampler = TokenBatchSampler(source, target, tokens_per_batch=15)
    assert [len(batch) for batch in sorted(sampler, key=len)] == [2, 3]
    assert sampler.source_padding == pytest.approx(1 - 22 / 29)
    assert sampler.target_padding == 0
    told = "2 batches; padding 24.1% of source and 0.0% of target tokens"
    assert sampler.describe() == told


def test_the_share_of_padding_is_what_the_batches_hold():
    source, target = natural_lengths(4_999)
    sampler = TokenBatchSampler(source, target, tokens_per_batch=2048)
    for lengths, share in ((source, sampler.source_padding), (target, sampler.target_padding)):
        full = sum(len(batch) * lengths[batch].max() for batch in sampler.batches(3))
        assert share == pytest.approx(1 - lengths.sum() / full)


def test_an_epoch_of_millions_is_held_in_four_bytes_a_sentence():
    source, target = natural_lengths(1_000_003)
    sampler = TokenBatchSampler(source, target, tokens_per_batch=25_000)
    held = [value for value in vars(sampler).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in held) < 4.3 * len(source)
    assert len(sampler.batch(5, 17)) > 0


def test_iterating_runs_through_the_chosen_epoch():
    sampler = sampler_of([(n, n) for n in range(1, 30)])
    assert list(sampler) == [*sampler.batches(0)]
    sampler.set_epoch(3)
    assert list(sampler) == [*sampler.batches(3)]


def test_batches_of_natural_text_hold_less_than_a_tenth_of_padding():
    source, target = natural_lengths(29_009)
    places = TokenBatchSampler(source, target, tokens_per_batch=4096).batches(0)
    real = source.sum() + target.sum()
    full = sum(len(b) * (source[b].max() + target[b].max()) for b in map(np.array, places))
    assert 1 - real / full < 0.10


def test_batches_of_natural_text_are_nearly_full():
    source, target = natural_lengths(29_009)
    sampler = TokenBatchSampler(source, target, tokens_per_batch=4096)
    least = np.maximum(source, target).sum() / 4096
    assert len(sampler) < 1.15 * least


# --- steps -------------------------------------------------------------------------------------


def stream(sampler, count, **options):
    return list(islice(StepSampler(sampler, **options), count))


@pytest.fixture
def nine_batches():
    """Nine batches per epoch, so that steps of 4 cross every epoch's border."""
    sampler = sampler_of([(19, 3 + n % 7) for n in range(9)], budget=23)
    assert len(sampler) == 9
    return sampler


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_step_holds_the_same_batches_whatever_the_number_of_processes(nine_batches, processes):
    alone = stream(nine_batches, 28, per_step=4)
    passes = 4 // processes
    ranks = [
        stream(nine_batches, 7 * passes, per_step=4, rank=rank, processes=processes)
        for rank in range(processes)
    ]
    for step in range(7):
        together = [b for rank in ranks for b in rank[step * passes : (step + 1) * passes]]
        assert sorted(together) == sorted(alone[step * 4 : (step + 1) * 4])


def test_batch_i_of_a_step_is_the_batch_of_place_i_on_any_process(nine_batches):
    alone = stream(nine_batches, 12, per_step=4)
    for rank in range(2):
        assert stream(nine_batches, 6, per_step=4, rank=rank, processes=2) == alone[rank::2]


def test_epochs_follow_each_other_without_loss(nine_batches):
    batches = stream(nine_batches, 27, per_step=4)
    for epoch in range(3):
        assert batches[9 * epoch : 9 * epoch + 9] == list(nine_batches.batches(epoch))


@pytest.mark.parametrize("first_step", [1, 2, 5, 9])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_later_first_step_goes_on_where_the_earlier_ones_ended(
    nine_batches, first_step, processes
):
    passes = 4 // processes
    options = {"per_step": 4, "rank": processes - 1, "processes": processes}
    whole = stream(nine_batches, 12 * passes, **options)
    rest = stream(nine_batches, 3 * passes, first_step=first_step, **options)
    assert rest == whole[first_step * passes : (first_step + 3) * passes]


def test_a_step_may_be_longer_than_an_epoch():
    sampler = sampler_of([(3, 5)])
    assert stream(sampler, 5, per_step=4, first_step=2) == [[0]] * 5


def test_a_step_that_processes_cannot_share_is_refused(nine_batches):
    with pytest.raises(ValueError, match="per_step=5 is not a multiple of 2 processes"):
        StepSampler(nine_batches, per_step=5, processes=2)


# --- encoding ----------------------------------------------------------------------------------


PAIRS = {
    "source": ["ein Haus", "", "das kleine Haus", "am See", "x" * 47],
    "target": ["a house", "a lake", "the little house", "", "the big lake"],
}


@pytest.fixture(scope="module")
def encoded(tiny_tokenizer):
    return encode_pairs(Dataset.from_dict(PAIRS), tiny_tokenizer, LengthLimits(41))


def test_empty_and_overlong_pairs_are_counted_out(encoded):
    assert (encoded.left_out, len(encoded.rows)) == (LeftOut(blank=2, too_long=1), 2)


def test_a_pair_both_empty_and_overlong_is_counted_once(tiny_tokenizer):
    pairs = Dataset.from_dict({"source": ["", "See"], "target": ["x" * 47, "lake"]})
    rows = encode_pairs(pairs, tiny_tokenizer, LengthLimits(41))
    assert (rows.left_out, len(rows.rows)) == (LeftOut(blank=1), 1)


def test_a_pair_of_exactly_the_permitted_length_stays(tiny_tokenizer):
    pairs = Dataset.from_dict({"source": ["q" * 40, "q" * 41], "target": ["house", "house"]})
    rows = encode_pairs(pairs, tiny_tokenizer, LengthLimits(41))
    assert rows.source_lengths.tolist() == [41]
    assert rows.left_out == LeftOut(too_long=1)


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (0, 9, 1),  # a side without text
        (42, 0, 1),
        (42, 41, 2),
        (41, 42, 2),
        (7, 10, 0),  # 9 / 6, the end of sentence left out
        (10, 7, 0),
        (7, 11, 3),  # 10 / 6
        (11, 7, 3),
        (2, 2, 0),
        (2, 3, 3),
    ],
)
def test_why_a_pair_is_left_out_by_hand(source, target, reason):
    limits = LengthLimits(41, max_length_ratio=1.5)
    assert limits.reasons(np.array([source]), np.array([target])).tolist() == [reason]
    unlimited = LengthLimits(41).reasons(np.array([source]), np.array([target]))
    assert unlimited.tolist() == [reason if reason < 3 else 0]


def test_pairs_beyond_a_ratio_are_counted_out_and_told(tiny_tokenizer):
    limits = LengthLimits(41, max_length_ratio=3.0)
    pairs = {"source": ["q" * 9, "q" * 10, ""], "target": ["zzz", "zzz", "z"]}
    encoded = encode_pairs(Dataset.from_dict(pairs), tiny_tokenizer, limits)
    assert encoded.source_lengths.tolist() == [10]
    assert [len(row["input_ids"]) for row in encoded.rows] == [10]
    told = encoded.left_out.describe(limits)
    assert told == ("1 with an empty side, 0 longer than 41 tokens, 1 beyond a length ratio of 3.0")


def test_counts_of_parts_add_up():
    assert LeftOut(1, 2, 3) + LeftOut(5, 7, 11) == LeftOut(6, 9, 14)


def test_the_work_can_be_shared_and_is_done_once(tmp_path, tiny_tokenizer, monkeypatch):
    Dataset.from_dict({name: texts * 3 for name, texts in PAIRS.items()}).save_to_disk(tmp_path)
    encoded = [
        encode_pairs(Dataset.load_from_disk(tmp_path), tiny_tokenizer, LengthLimits(41), workers=n)
        for n in (1, 2)
    ]
    assert encoded[0].rows.to_dict() == encoded[1].rows.to_dict()
    monkeypatch.setattr(batching, "encode_texts", lambda *_: pytest.fail("tokenized again"))
    tiny_tokenizer(["longer than one", "x"], padding=True, truncation=True)  # changes its state
    again = encode_pairs(Dataset.load_from_disk(tmp_path), tiny_tokenizer, LengthLimits(41))
    assert again.rows.to_dict() == encoded[0].rows.to_dict()
    assert again.source_lengths.tolist() == encoded[0].source_lengths.tolist()


def test_rows_keep_both_sides_of_their_pair(encoded, tiny_tokenizer):
    for row, place in zip(encoded.rows, (0, 2), strict=True):
        assert list(row["input_ids"]) == tiny_tokenizer(PAIRS["source"][place]).input_ids
        assert list(row["labels"]) == tiny_tokenizer(PAIRS["target"][place]).input_ids


def test_lengths_are_those_of_the_rows(encoded):
    assert encoded.source_lengths.tolist() == [len(row["input_ids"]) for row in encoded.rows]
    assert encoded.target_lengths.tolist() == [len(row["labels"]) for row in encoded.rows]


def test_special_tokens_typed_in_a_text_are_text(tiny_tokenizer):
    pairs = Dataset.from_dict({"source": ["</s> Haus"], "target": ["<pad>"]})
    row = encode_pairs(pairs, tiny_tokenizer, LengthLimits(41)).rows[0]
    assert list(row["input_ids"]).count(1) == 1
    assert 0 not in row["labels"]


def test_no_pair_left_is_refused_with_the_reasons(tiny_tokenizer):
    pairs = Dataset.from_dict({"source": ["", "x" * 47, ""], "target": ["a", "b", ""]})
    with pytest.raises(ValueError, match="of 3, 2 with an empty side, 1 longer than 41 tokens"):
        encode_pairs(pairs, tiny_tokenizer, LengthLimits(41))


# --- collating ---------------------------------------------------------------------------------


def test_rows_are_padded_on_the_right_as_drawn_here():
    rows = [{"input_ids": [5, 6, 1], "labels": [7, 1]}, {"input_ids": [8, 1], "labels": [9, 3, 1]}]
    batch = PairCollator(pad_token_id=4)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 1], [8, 1, 4]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 1, -100], [9, 3, 1]]
    assert {ids.dtype for ids in batch.values()} == {torch.int64}


def test_a_padding_token_inside_a_sentence_is_not_masked():
    batch = PairCollator(pad_token_id=0)([{"input_ids": [5, 0, 1], "labels": [1]}])
    assert batch["attention_mask"].tolist() == [[1, 1, 1]]


def test_a_table_is_padded_as_its_rows_are(encoded):
    numbers = [1, 0, 1]
    by_rows = PairCollator(3)([encoded.rows[number] for number in numbers])
    table = encoded.rows.with_format("arrow")[numbers]
    for found in (PairCollator(3)(table), PairCollator(3)([table])):
        assert found.keys() == by_rows.keys()
        for name, expected in by_rows.items():
            torch.testing.assert_close(found[name], expected, rtol=0, atol=0)


def test_padded_takes_arrays_and_lists():
    assert padded([np.array([2, 3]), [5]], 7).tolist() == [[2, 3], [5, 7]]


def test_sampler_rows_and_collator_work_together_in_a_loader(encoded):
    sampler = TokenBatchSampler(encoded.source_lengths, encoded.target_lengths, tokens_per_batch=60)
    options = {"collate_fn": PairCollator(0)}
    batches = list(DataLoader(encoded.rows, batch_sampler=sampler, **options))
    assert sum(len(batch["labels"]) for batch in batches) == 2
    tables = encoded.rows.with_format("arrow")
    faster = list(DataLoader(tables, sampler=sampler, batch_size=None, **options))
    assert [b["labels"].tolist() for b in faster] == [b["labels"].tolist() for b in batches]
    assert all(set(batch) == {"input_ids", "attention_mask", "labels"} for batch in batches)
