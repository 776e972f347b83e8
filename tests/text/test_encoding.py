"""Text pairs to token ids: which pairs are dropped, and how they are counted and cached."""

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

from hf_vanilla.models.tokenization_vanilla import VanillaFairseqTokenizer
from hf_vanilla.text import encoding
from hf_vanilla.text.encoding import LengthLimits, encode_pairs

PAIRS = {
    "source": ["ein Haus", "", "das kleine Haus", "am See", "x" * 47],
    "target": ["a house", "a lake", "the little house", "", "the big lake"],
}


@pytest.fixture(scope="module")
def encoded(tiny_tokenizer):
    return encode_pairs(Dataset.from_dict(PAIRS), tiny_tokenizer, LengthLimits(41))


def test_empty_and_too_long_pairs_are_dropped_and_counted(encoded):
    assert encoded.dropped == "2 with an empty side, 1 longer than 41 tokens"
    assert len(encoded.rows) == 2


def test_a_pair_with_two_drop_reasons_is_counted_once(tiny_tokenizer):
    pairs = Dataset.from_dict({"source": ["", "See"], "target": ["x" * 47, "lake"]})
    rows = encode_pairs(pairs, tiny_tokenizer, LengthLimits(41))
    assert rows.dropped == "1 with an empty side, 0 longer than 41 tokens"
    assert len(rows.rows) == 1


def test_a_pair_of_exactly_max_length_is_kept(tiny_tokenizer):
    pairs = Dataset.from_dict({"source": ["q" * 40, "q" * 41], "target": ["house", "house"]})
    rows = encode_pairs(pairs, tiny_tokenizer, LengthLimits(41))
    assert rows.source_lengths.tolist() == [41]
    assert rows.dropped == "0 with an empty side, 1 longer than 41 tokens"


def test_drop_reasons_by_hand():
    cases = [
        (0, 9, 1),  # an empty side
        (42, 0, 1),
        (42, 41, 2),
        (41, 42, 2),
        (7, 10, 0),  # 9 / 6: </s> is not counted
        (10, 7, 0),
        (7, 11, 3),  # 10 / 6
        (11, 7, 3),
        (2, 2, 0),
        (2, 3, 3),
    ]
    for source, target, reason in cases:
        limits = LengthLimits(41, max_length_ratio=1.5)
        assert limits.drop_reasons(np.array([source]), np.array([target])).tolist() == [reason]
        unlimited = LengthLimits(41).drop_reasons(np.array([source]), np.array([target]))
        assert unlimited.tolist() == [reason if reason < 3 else 0]


def test_pairs_beyond_the_length_ratio_are_dropped_and_described(tiny_tokenizer):
    limits = LengthLimits(41, max_length_ratio=3.0)
    pairs = {"source": ["q" * 9, "q" * 10, ""], "target": ["zzz", "zzz", "z"]}
    encoded = encode_pairs(Dataset.from_dict(pairs), tiny_tokenizer, limits)
    assert encoded.source_lengths.tolist() == [10]
    assert [len(row["input_ids"]) for row in encoded.rows] == [10]
    expected = "1 with an empty side, 0 longer than 41 tokens, 1 beyond a length ratio of 3.0"
    assert encoded.dropped == expected


def test_workers_give_the_same_rows_and_the_cache_is_reused(tmp_path, tiny_tokenizer, monkeypatch):
    Dataset.from_dict({name: texts * 3 for name, texts in PAIRS.items()}).save_to_disk(tmp_path)
    encoded = [
        encode_pairs(Dataset.load_from_disk(tmp_path), tiny_tokenizer, LengthLimits(41), workers=n)
        for n in (1, 2)
    ]
    assert encoded[0].rows.to_dict() == encoded[1].rows.to_dict()
    monkeypatch.setattr(encoding, "encode_texts", lambda *_: pytest.fail("tokenized again"))
    tiny_tokenizer(["longer than one", "x"], padding=True, truncation=True)  # changes its state
    again = encode_pairs(Dataset.load_from_disk(tmp_path), tiny_tokenizer, LengthLimits(41))
    assert again.rows.to_dict() == encoded[0].rows.to_dict()
    assert again.source_lengths.tolist() == encoded[0].source_lengths.tolist()


def test_the_cache_tells_settings_of_a_converted_tokenizer_apart(tmp_path):
    Dataset.from_dict({"source": ["A b"], "target": ["b"]}).save_to_disk(tmp_path)
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "A": 6}
    found = []
    for settings in ({}, {"do_lower_case": True}, {"target_pieces": ["<s>", "<pad>", "b"]}):
        backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer = VanillaFairseqTokenizer(
            tokenizer_object=backend, source_vocab_size=7, unk_token="<unk>", **settings
        )
        pairs = encode_pairs(Dataset.load_from_disk(tmp_path), tokenizer, LengthLimits(9))
        found += [(row["input_ids"].tolist(), row["labels"].tolist()) for row in pairs.rows]
    assert found == [([6, 5], [5]), ([4, 5], [5]), ([6, 5], [2])]


def test_both_sides_of_a_row_belong_to_one_pair(encoded, tiny_tokenizer):
    for row, index in zip(encoded.rows, (0, 2), strict=True):
        assert list(row["input_ids"]) == tiny_tokenizer(PAIRS["source"][index]).input_ids
        assert list(row["labels"]) == tiny_tokenizer(PAIRS["target"][index]).input_ids


def test_lengths_equal_the_lengths_of_the_rows(encoded):
    assert encoded.source_lengths.tolist() == [len(row["input_ids"]) for row in encoded.rows]
    assert encoded.target_lengths.tolist() == [len(row["labels"]) for row in encoded.rows]


def test_special_tokens_typed_in_a_text_are_encoded_as_text(tiny_tokenizer):
    pairs = Dataset.from_dict({"source": ["</s> Haus"], "target": ["<pad>"]})
    row = encode_pairs(pairs, tiny_tokenizer, LengthLimits(41)).rows[0]
    assert list(row["input_ids"]).count(1) == 1
    assert 0 not in row["labels"]


def test_no_remaining_pair_is_an_error_with_the_drop_reasons(tiny_tokenizer):
    pairs = Dataset.from_dict({"source": ["", "x" * 47, ""], "target": ["a", "b", ""]})
    with pytest.raises(ValueError, match="of 3, 2 with an empty side, 1 longer than 41 tokens"):
        encode_pairs(pairs, tiny_tokenizer, LengthLimits(41))
