"""Sets read while training: every pair once an epoch, and back at any step without a difference."""

import json
from itertools import count

import pytest
import small_run
import torch
from datasets import Dataset, IterableDataset

from hf_vanilla.text.data import load_corpus
from hf_vanilla.text.encoding import LengthLimits
from hf_vanilla.text.streaming import StreamedBatches
from hf_vanilla.training.run import train

PAIRS = [{"source": a, "target": b} for a, b in small_run.digit_pairs()]
WINDOW, BUDGET = 23, 60


def streamed(tokenizer, *, rows=PAIRS, shards=3, limits=None, **changes):
    stream = Dataset.from_list(rows).to_iterable_dataset(num_shards=shards)
    options = {"tokens_per_batch": BUDGET, "window_pairs": WINDOW, "seed": 5, **changes}
    return StreamedBatches(stream, tokenizer, limits or LengthLimits(40), **options)


def taken(batches, count, *, first=0, stride=1):
    return [batches[first + i * stride].to_pydict() for i in range(count)]


def epoch_length(tokenizer):
    """Number of the second epoch's first batch."""
    batches = streamed(tokenizer)
    return next(number for number in count() if batches.state_dict(number)["epoch"])


@pytest.fixture(scope="module")
def tokenizer(trained):
    return trained[1]


def test_every_epoch_has_every_pair_once_in_another_order(tokenizer):
    length = epoch_length(tokenizer)
    batches = taken(streamed(tokenizer), 2 * length)
    expected = sorted(tokenizer(pair["target"]).input_ids for pair in PAIRS)
    epochs = batches[:length], batches[length:]
    for epoch in epochs:
        assert sorted(row for batch in epoch for row in batch["labels"]) == expected
    assert epochs[0] != epochs[1]


def test_batches_keep_the_budget_and_hold_sentences_of_like_length(tokenizer):
    batches = taken(streamed(tokenizer, window_pairs=len(PAIRS)), 30)
    for batch in batches:
        longest = max(len(row) for side in batch.values() for row in side)
        assert longest * len(batch["labels"]) <= BUDGET
    spread = [max(map(len, b["labels"])) - min(map(len, b["labels"])) for b in batches]
    assert sum(spread) / len(spread) < 4  # sentences have 3 to 20 tokens


def test_memory_holds_one_window(tokenizer, monkeypatch):
    sizes, encode = [], StreamedBatches._encode

    def noting(self, rows, following):
        sizes.append(len(rows))
        return encode(self, rows, following)

    monkeypatch.setattr(StreamedBatches, "_encode", noting)
    taken(streamed(tokenizer), 1)
    assert sizes == [WINDOW]  # nothing was read beyond what was needed


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_the_batches_that_one_would_see(tokenizer, processes):
    alone = taken(streamed(tokenizer), 30)
    for rank in range(processes):
        share = taken(streamed(tokenizer), 30 // processes, first=rank, stride=processes)
        assert share == alone[rank::processes]


@pytest.mark.parametrize("after", [1, 7, 16, 17, 18, 40])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_reading_that_goes_on_sees_what_an_undisturbed_one_would(tokenizer, after, shards):
    whole = taken(streamed(tokenizer, shards=shards), after + 30)
    stopped = streamed(tokenizer, shards=shards)
    taken(stopped, after)
    state = json.loads(json.dumps(stopped.state_dict(after)))
    resumed = streamed(tokenizer, shards=shards)
    resumed.load_state_dict(state, after)
    assert taken(resumed, 30, first=after) == whole[after:]
    (_, used) = state["divisions"][-1]
    assert used < WINDOW  # nothing in front of the window is read again


def test_a_saved_position_names_its_window_of_all_epochs(tokenizer):
    batches = streamed(tokenizer)
    length, windows = epoch_length(tokenizer), -(-len(PAIRS) // WINDOW)
    states = [batches.state_dict(number) for number in (0, length - 1, length, 2 * length)]
    assert [state["window"] for state in states] == [0, windows - 1, windows, 2 * windows]


@pytest.mark.parametrize("budget", [40, 90])
@pytest.mark.parametrize("after", [1, 7, 16, 17, 18, 30])
def test_a_reading_resumed_twice_with_other_budgets_has_every_pair_of_an_epoch_once(
    tokenizer, after, budget
):
    """As with other numbers of processes: the second resumption is in the same window."""
    seen, state = [], None
    for tokens, count_of in ((BUDGET, after), (budget, 2), (BUDGET + 5, 1), (budget, 40)):
        batches = streamed(tokenizer, tokens_per_batch=tokens)
        if state is not None:
            batches.load_state_dict(json.loads(json.dumps(state)), 100)
        first = 0 if state is None else 100
        for batch in taken(batches, count_of, first=first):
            seen += batch["labels"]
        state = batches.state_dict(first + count_of)
    expected = sorted(tokenizer(pair["target"]).input_ids for pair in PAIRS)
    epochs = len(seen) // len(PAIRS)
    assert epochs >= 2
    for epoch in range(epochs):
        assert sorted(seen[epoch * len(PAIRS) :][: len(PAIRS)]) == expected


def test_a_generator_can_be_gone_on_with_too(tokenizer):
    def of_generator():
        stream = IterableDataset.from_generator(lambda: iter(PAIRS))
        options = {"tokens_per_batch": BUDGET, "window_pairs": WINDOW}
        return StreamedBatches(stream, tokenizer, LengthLimits(40), **options)

    stopped, resumed = of_generator(), of_generator()
    whole = taken(of_generator(), 33)
    taken(stopped, 21)
    resumed.load_state_dict(stopped.state_dict(21), 21)
    assert taken(resumed, 12, first=21) == whole[21:]


def test_a_place_that_is_over_is_refused(tokenizer):
    batches = streamed(tokenizer)
    taken(batches, 30)
    with pytest.raises(ValueError, match="batch 0 lies before the current window, which starts"):
        taken(batches, 1)


def test_pairs_beyond_the_limits_are_left_out_and_told_at_the_end_of_an_epoch(tokenizer, caplog):
    odd = [{"source": "", "target": "eins"}, {"source": "one " * 40, "target": "eins"}]
    odd += [{"source": "one", "target": "sieben " * 9}]
    rows = odd + PAIRS[:5] + [{"source": " ", "target": " "}] * (2 * WINDOW)  # a window of nothing
    batches = streamed(tokenizer, rows=rows, limits=LengthLimits(40, max_length_ratio=3.0))
    with caplog.at_level("INFO", logger="hf_vanilla"):
        found = taken(batches, 12)
    ids = sorted(tokenizer(pair["target"]).input_ids for pair in PAIRS[:5])
    seen = [row for batch in found for row in batch["labels"]]
    assert all(row in ids for row in seen)
    told = "47 with an empty side, 1 longer than 40 tokens, 1 beyond a length ratio of 3.0"
    assert f"epoch 0 of the stream: dropped: {told}" in caplog.text
    assert f"epoch 1 of the stream: dropped: {told}" in caplog.text


def test_dropped_pairs_are_counted_once_after_resuming_in_the_middle_of_a_window(tokenizer, caplog):
    rows = [{"source": "", "target": "eins"}, *PAIRS]
    stopped, resumed = streamed(tokenizer, rows=rows), streamed(tokenizer, rows=rows)
    taken(stopped, 2)
    resumed.load_state_dict(stopped.state_dict(2), 2)
    with caplog.at_level("INFO", logger="hf_vanilla"):
        taken(resumed, 40, first=2)
    assert "epoch 0 of the stream: dropped: 1 with an empty side" in caplog.text


def test_an_epoch_without_a_pair_is_refused_with_the_reasons(tokenizer):
    with pytest.raises(ValueError, match="whole epoch of the stream: 3 with an empty side"):
        taken(streamed(tokenizer, rows=[{"source": "", "target": "x"}] * 3), 1)


def test_a_budget_smaller_than_a_sentence_is_refused(tokenizer):
    with pytest.raises(ValueError, match="tokens_per_batch=39 is smaller than max_length=40"):
        streamed(tokenizer, tokens_per_batch=39)


# --- training ----------------------------------------------------------------------------------

STREAMED = {"streaming": True, "window_pairs": 17, "max_steps": 11, "tokens_per_batch": 120}


def test_a_streamed_run_that_was_interrupted_ends_at_the_very_same_weights(
    corpus_files, tmp_path, monkeypatch
):
    whole = train(small_run.recipe(tmp_path / "whole", corpus_files, **STREAMED))
    recipe = small_run.recipe(tmp_path / "run", corpus_files, **STREAMED)
    with monkeypatch.context() as patch:
        small_run.interrupt(patch, after=7)
        with pytest.raises(KeyboardInterrupt):
            train(recipe)
    first, second = small_run.weights(whole), small_run.weights(train(recipe))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("form", ["columns", "translation"])
def test_a_set_is_streamed_from_its_folder_with_its_held_out_part(
    corpus_files, tmp_path, monkeypatch, form
):
    rows = [{"en": pair["source"], "de": pair["target"]} for pair in PAIRS]
    if form == "translation":
        rows = [{"translation": row} for row in rows]
    for split, part in (("train", rows[:61]), ("validation", rows[61:])):
        Dataset.from_list(part).to_parquet(tmp_path / "set" / f"{split}.parquet")
    told = {"dataset": str(tmp_path / "set"), "source_column": "en", "target_column": "de"}
    recipe = small_run.recipe(tmp_path / "run", told, **STREAMED)
    corpus = load_corpus(recipe.data)
    assert list(corpus["train"]) == PAIRS[:61]
    assert corpus["validation"].to_list() == PAIRS[61:]
    wrong = small_run.recipe(tmp_path / "run", {**told, "target_column": "fr"}, **STREAMED)
    with pytest.raises(ValueError, match="no column fr: choose among"):
        load_corpus(wrong.data)
