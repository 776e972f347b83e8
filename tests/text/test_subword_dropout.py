"""BPE-dropout: the segmentations of the library's own dropout, repeatable by seed."""

import pickle
from collections import Counter

import pytest
import small_run
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hf_vanilla.data.batching import TokenBatchSampler
from hf_vanilla.models.tokenization_vanilla import VanillaFairseqTokenizer
from hf_vanilla.text import data, regularization
from hf_vanilla.text.regularization import DropoutOrder, SubwordDropout
from hf_vanilla.training.run import train

TEXTS = ["the little house stands by the big lake", "das kleine Haus", "the house"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def dropout_of(tokenizer, **changes):
    return SubwordDropout(tokenizer, **{"rate": 0.3, "seed": 3, "max_length": 90, **changes})


def test_without_dropout_the_ids_are_the_tokenizers(tiny_tokenizer):
    dropout = dropout_of(tiny_tokenizer, rate=0.0)
    assert dropout(TEXTS, generator()) == tiny_tokenizer(TEXTS).input_ids


def test_the_text_stays_and_its_segmentation_changes(tiny_tokenizer):
    ids = dropout_of(tiny_tokenizer)(TEXTS, generator())
    assert tiny_tokenizer.batch_decode(ids, skip_special_tokens=True) == TEXTS
    assert ids != tiny_tokenizer(TEXTS).input_ids
    assert all(row[-1] == tiny_tokenizer.eos_token_id for row in ids)


def test_what_is_drawn_depends_on_both_seeds_alone(tiny_tokenizer):
    dropout = dropout_of(tiny_tokenizer)
    first = dropout(TEXTS, generator(5))
    dropout(TEXTS, generator(6))  # an earlier batch changes nothing
    assert dropout(TEXTS, generator(5)) == first
    assert dropout_of(tiny_tokenizer)(TEXTS, generator(5)) == first
    assert dropout(TEXTS, generator(6)) != first
    assert dropout_of(tiny_tokenizer, seed=4)(TEXTS, generator(5)) != first


def test_a_worker_process_that_is_spawned_draws_the_same(tiny_tokenizer):
    dropout = dropout_of(tiny_tokenizer)
    first = dropout(TEXTS, generator(5))
    assert pickle.loads(pickle.dumps(dropout))(TEXTS, generator(5)) == first


@pytest.mark.parametrize("suffix", ["", "</w>"])
def test_segmentations_are_as_frequent_as_those_of_the_library(suffix):
    backend = Tokenizer(models.BPE(end_of_word_suffix=suffix))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.BPEDecoder(suffix=suffix)
    trainer = trainers.BpeTrainer(vocab_size=40, end_of_word_suffix=suffix, show_progress=False)
    backend.train_from_iterator(["abcab abc bcab cabc"] * 5, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    count, seeds = 64, range(40)
    found = Counter()
    for seed in seeds:
        dropout = dropout_of(tokenizer, seed=seed)
        found.update(map(tuple, dropout(["abcab"] * count, generator(seed))))
    backend.model.dropout = 0.3
    theirs = Counter(tuple(backend.encode("abcab").ids) for _ in range(count * len(seeds)))
    assert len(theirs) > 3
    for ids in theirs.keys() | found.keys():
        # of 2,560 draws; the standard deviation of a share is at most 0.01
        assert abs(found[ids] - theirs[ids]) / (count * len(seeds)) < 0.06, ids


def test_a_text_that_would_be_too_long_keeps_its_tokens(tiny_tokenizer):
    usual = tiny_tokenizer(TEXTS).input_ids
    found = dropout_of(tiny_tokenizer, rate=0.9, max_length=len(usual[1]))(TEXTS, generator())
    assert found[1] == usual[1]


def test_a_tokenizer_that_is_no_bpe_is_refused():
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(ValueError, match="bpe_dropout needs a fast BPE tokenizer"):
        dropout_of(PreTrainedTokenizerFast(tokenizer_object=backend))


@pytest.mark.parametrize("target", [None, ["<unk>", "b", "a"]], ids=["joint", "separate"])
def test_a_tokenizer_with_dictionaries_of_fairseq_is_refused_before_the_corpus_is_encoded(
    target, corpus_files, tmp_path, monkeypatch
):
    pieces = {"<unk>": 0, "a": 1, "b": 2, "ab": 3}
    backend = Tokenizer(models.BPE(vocab=pieces, merges=[("a", "b")], unk_token="<unk>"))
    tokenizer = VanillaFairseqTokenizer(
        tokenizer_object=backend, source_vocab_size=3, target_pieces=target, unk_token="<unk>"
    )
    message = "cannot use the dictionaries of a tokenizer converted from fairseq or FSMT: set it to"
    with pytest.raises(ValueError, match=message):
        dropout_of(tokenizer)
    monkeypatch.setattr(data, "load_saved", lambda *_: tokenizer)
    monkeypatch.setattr(data, "encode_pairs", None)
    recipe = small_run.recipe(tmp_path, corpus_files, tokenizer="theirs", bpe_dropout=0.1)
    with pytest.raises(ValueError, match=message):
        train(recipe)


def test_batches_are_formed_by_the_lengths_after_the_dropout(tiny_tokenizer, monkeypatch):
    monkeypatch.setattr(regularization, "POOLED", 40)
    words = [
        "the",
        "little",
        "house",
        "stands",
        "by",
        "the",
        "big",
        "lake",
        "and",
        "a",
        "small",
        "boat",
    ]
    texts = [" ".join(words[i % 5 : i % 5 + 1 + i % 7]) + f" {i}" for i in range(900)]
    text = Dataset.from_dict({"source": texts, "target": texts[::-1]})
    sides = (tiny_tokenizer(side).input_ids for side in (texts, texts[::-1]))
    lengths = [[len(ids) for ids in side] for side in sides]
    sampler = TokenBatchSampler(*lengths, tokens_per_batch=160, seed=3)
    count = len(sampler)
    assert count > 40  # several pools
    dropout = dropout_of(tiny_tokenizer)
    order = DropoutOrder(sampler, text, dropout, seed=3)
    epoch = [order[number] for number in range(count)]

    def padding(batches):
        sizes = [[len(row["labels"]) for row in batch] for batch in batches]
        return 1 - sum(map(sum, sizes)) / sum(len(batch) * max(batch) for batch in sizes)

    plain = [dropout(text[sampler.batch(0, i)]["target"], generator(i)) for i in range(count)]
    assert padding(epoch) < padding([[{"labels": ids} for ids in batch] for batch in plain]) / 2
    read = [row["labels"] for batch in epoch for row in batch]
    assert sorted(tiny_tokenizer.batch_decode(read, skip_special_tokens=True)) == sorted(texts)
    # any micro-batch is the same whatever was read before
    anew = DropoutOrder(sampler, text, dropout_of(tiny_tokenizer), seed=3)
    assert anew[count - 1] == epoch[-1]
    assert anew[0] == epoch[0]
    assert anew[count] != epoch[0]


def test_micro_batches_of_few_pairs_are_divided_too():
    # longer pairs need more micro-batches of the smallest budget than there are
    lengths = [8 + 7 * row % 22 for row in range(40)]
    text = Dataset.from_dict({side: ["a" * n for n in lengths] for side in ("source", "target")})
    sampler = TokenBatchSampler(lengths, lengths, tokens_per_batch=44)
    order = DropoutOrder(sampler, text, lambda texts, _: [[5] * len(t) for t in texts], seed=3)
    assert 20 < len(sampler) < 40
    assert sum(len(order[number]) for number in range(len(sampler))) == 40
