"""Mixtures: shares, stages, tags and noise, and what a wrong entry says."""

from collections import Counter

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from hf_vanilla import train_tokenizer
from hf_vanilla.data.batching import TokenBatchSampler
from hf_vanilla.text.mixture import (
    MixtureCorpus,
    MixtureOrder,
    SourceNoise,
    add_tags,
    check_stages,
    check_tags,
    noisy_text,
    read_mixture,
)

SIZES = (7, 11, 5)


def corpus(**changes):
    return MixtureCorpus(**{"source": "a.en", "target": "a.de", **changes})


def order_of(corpora, *, per_step=3, max_steps=400, seed=2):
    sizes = SIZES[: len(corpora)]
    # one sentence is a batch: every number is one row
    samplers = [
        TokenBatchSampler([4] * size, [4] * size, tokens_per_batch=4, seed=seed) for size in sizes
    ]
    firsts = np.cumsum([0, *sizes])[:-1].tolist()
    run = {"per_step": per_step, "max_steps": max_steps, "seed": seed}
    return MixtureOrder(corpora, samplers, firsts, **run)


def test_each_corpus_has_its_share_and_goes_through_its_epochs():
    order = order_of([corpus(weight=1), corpus(weight=2.5), corpus(weight=0.5)])
    rows = [order[number] for number in range(1200)]
    assert all(len(row) == 1 for row in rows)
    bounds = np.cumsum([0, *SIZES])
    found = np.searchsorted(bounds, [row[0] for row in rows], side="right") - 1
    # shares 1/4, 5/8, 1/8 in every stretch, not only on average
    for first in range(0, 1200, 100):
        counts = Counter(found[first : first + 100].tolist())
        assert [counts[0], counts[1], counts[2]] == pytest.approx([25, 62.5, 12.5], abs=4)
    for number, size in enumerate(SIZES):
        own = [row[0] for row, part in zip(rows, found, strict=True) if part == number]
        for first in range(0, len(own) - size, size):
            epoch = range(bounds[number], bounds[number + 1])
            assert sorted(own[first : first + size]) == list(epoch)


def test_any_micro_batch_can_be_read_first():
    corpora = [corpus(weight=3), corpus(first_step=9)]
    order, fresh = order_of(corpora), order_of(corpora)
    rows = [order[number] for number in range(90)]
    assert fresh[70] == rows[70]
    assert fresh[3] == rows[3]
    far = 3 * 65_536 + 5  # beyond the blocks in which corpora are counted
    assert fresh[far] == order_of(corpora)[far]
    assert [order_of(corpora, seed=5)[n] for n in range(90)] != rows


def test_a_stage_uses_its_corpora_alone():
    corpora = [corpus(last_step=10), corpus(first_step=5), corpus(first_step=21)]
    order = order_of(corpora, per_step=3, max_steps=30)
    used = [set(order.corpora_of(np.arange(3 * s - 3, 3 * s)).tolist()) for s in range(1, 31)]
    assert set.union(*used[:4]) == {0}
    assert set.union(*used[4:10]) == {0, 1}
    assert set.union(*used[10:20]) == {1}
    assert set.union(*used[20:]) == {1, 2}


def test_a_wrong_entry_is_named():
    cases = [
        ({"weight": 0}, r"mixture\.1\.weight=0: give a positive number"),
        ({"weight": -1.5}, "weight=-1.5: give a positive number"),
        ({"weight": float("nan")}, "weight=nan: give a finite number"),
        ({"weight": "much"}, "weight is 'much': give a number"),
        ({"first_step": 0}, "first_step=0: give a positive number"),
        ({"first_step": 1.5}, "first_step is 1.5: give a whole number"),
        ({"first_step": 5, "last_step": 4}, "last_step=4: give a step from first_step=5"),
        ({"casing_noise": 1}, r"casing_noise=1: give a number in \[0, 1\)"),
        ({"typo_noise": -0.1}, r"typo_noise=-0.1: give a number in \[0, 1\)"),
        ({"tag": "two words"}, "tag='two words': give a word"),
        ({"tag": ""}, "tag='': give a word"),
        ({"wieght": 2}, r"mixture\.1: unknown key 'wieght'; did you mean 'weight'"),
        ({"target": None}, r"mixture\.1\.target is missing: file of their translations"),
    ]
    for entry, message in cases:
        with pytest.raises(ValueError, match=message):
            read_mixture([{"source": "a.en", "target": "a.de", **entry}])


def test_an_empty_mixture_is_refused():
    with pytest.raises(ValueError, match="give a list of corpora"):
        read_mixture([])


def test_a_stage_beyond_the_run_and_a_step_without_a_corpus_are_refused():
    with pytest.raises(
        ValueError, match=r"first_step=11 of a.en is after the last step, max_steps=10"
    ):
        check_stages([corpus(), corpus(first_step=11)], 10)
    with pytest.raises(ValueError, match="step 5 has no corpus"):
        check_stages([corpus(last_step=4), corpus(first_step=7)], 10)
    check_stages([corpus(last_step=4), corpus(first_step=5)], 10)


def test_a_tag_is_one_token_in_front_of_the_ids_of_the_text():
    tokenizer = train_tokenizer(["two men", "zwei Männer"], vocab_size=270)
    tagged = corpus(tag="<bt>")
    with pytest.raises(ValueError, match="tag='<bt>' is not in the vocabulary"):
        check_tags(tokenizer, [tagged])
    add_tags(tokenizer, [tagged, corpus(), corpus(tag="<bt>")])
    check_tags(tokenizer, [tagged])
    assert len(tokenizer) == 271
    ids = tokenizer("two men").input_ids
    assert tokenizer(tagged.tagged("two men")).input_ids == [270, *ids]
    assert tagged.tagged("  ") == "  "  # a pair without source is dropped, not trained on its tag


def test_a_tag_that_is_the_unknown_token_is_refused():
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "<bt>": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    check_tags(tokenizer, [corpus(tag="<bt>")])
    with pytest.raises(ValueError, match="tag='<ft>' is not in the vocabulary"):
        check_tags(tokenizer, [corpus(tag="<bt>"), corpus(tag="<ft>")])


def test_noise_follows_from_text_and_key():
    text = "Two men sit on a bench in the sun."
    rates = {"casing": 0.0, "typos": 0.1}
    found = [noisy_text(text, str(key), **rates) for key in range(300)]
    assert found == [noisy_text(text, str(key), **rates) for key in range(300)]
    assert len(set(found)) > 150
    # one error changes the length by at most 1, and half of them do not
    assert abs(np.mean([len(one) for one in found]) - len(text)) < 0.5
    letters = set(text)
    assert all(set(one) <= letters for one in found)
    assert noisy_text(text, "1", casing=0.0, typos=0.0) == text


def test_the_share_of_other_casing_is_its_rate():
    text, kinds = "Zwei Männer sitzen.", Counter()
    for key in range(3000):
        kinds[noisy_text(text, str(key), casing=0.3, typos=0.0)] += 1
    expected = {text, text.lower(), text.upper(), text.title()}
    assert set(kinds) == expected
    for changed in expected - {text}:
        assert kinds[changed] / 3000 == pytest.approx(0.1, abs=0.03)  # 5 standard deviations


def test_noise_spares_tags_other_corpora_and_the_limit():
    tokenizer = train_tokenizer(["two men", "zwei Männer"], vocab_size=270)
    corpora = [corpus(tag="<abc>", typo_noise=0.9), corpus()]
    add_tags(tokenizer, corpora)
    sources, rows = ["<abc> two men", "two men"], [0, 3]
    draw = torch.Generator().manual_seed(0)
    noise = SourceNoise(corpora, np.array([0, 3, 6]), tokenizer, max_length=30)
    first, second = noise(sources, rows, draw)
    assert first.startswith("<abc> ")
    assert first != sources[0]
    assert second == sources[1]
    repeated = noise(sources, rows, torch.Generator().manual_seed(0))
    assert repeated == [first, second]
    short = SourceNoise(corpora, np.array([0, 3, 6]), tokenizer, max_length=2)
    assert short(sources, rows, draw) == sources
