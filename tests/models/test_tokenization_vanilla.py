"""The byte-level BPE of both languages: nothing is lost, nothing typed is taken for an order."""

import json
import re

import pytest
from conftest import SENTENCES
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_vanilla import VanillaTokenizer, train_tokenizer

PAD, EOS = 0, 1
TRICKY = [
    "",
    " ",
    "  two  spaces  ",
    "a\tb\nc\r\n",
    "</s>",
    "<pad>",
    "before </s> after<pad>",
    "don ' t , stop !",
    "Ünïcödé 漢字 🙂 \u200b\ufeff\x00",
    "e\u0301 is not \u00e9",
]


# Unicode's property White_Space
WHITE_SPACE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


def normalized(text):
    return WHITE_SPACE.sub(" ", text).strip(" ")


def text_of(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True)


@pytest.fixture(scope="session")
def from_disk(tiny_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder), folder


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=st.text())
def test_any_text_decodes_back_to_itself_with_single_spaces(tiny_tokenizer, text):
    ids = tiny_tokenizer(text).input_ids
    assert text_of(tiny_tokenizer, ids) == normalized(text)
    assert tiny_tokenizer(f"\u3000\t{text}\n ").input_ids == ids
    assert ids[-1] == EOS
    assert not {PAD, EOS} & set(ids[:-1])


@pytest.mark.parametrize("text", TRICKY, ids=repr)
def test_tricky_text_decodes_back_to_itself_from_disk_too(tiny_tokenizer, from_disk, text):
    for tokenizer in (tiny_tokenizer, from_disk[0]):
        ids = tokenizer(text).input_ids
        assert text_of(tokenizer, ids) == normalized(text)
        assert ids.count(EOS) == 1
        assert ids[-1] == EOS
        assert PAD not in ids


def test_there_is_no_unknown_token(tiny_tokenizer):
    assert tiny_tokenizer.unk_token is None
    assert set(tiny_tokenizer.get_vocab().values()) == set(range(len(tiny_tokenizer)))
    foreign = tiny_tokenizer("漢").input_ids
    assert len(foreign) == 3 + 1  # three bytes, each with an entry of its own, and the end


def test_padding_is_zero_and_the_end_is_one(tiny_tokenizer):
    assert (tiny_tokenizer.pad_token, tiny_tokenizer.pad_token_id) == ("<pad>", PAD)
    assert (tiny_tokenizer.eos_token, tiny_tokenizer.eos_token_id) == ("</s>", EOS)


def test_words_of_both_languages_are_merged_into_pieces(tiny_tokenizer):
    assert len(tiny_tokenizer) <= 283
    assert len(tiny_tokenizer) > 258
    for sentence in SENTENCES:
        assert len(tiny_tokenizer(sentence).input_ids) < len(sentence.encode())


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_cut_sentence_still_ends(tiny_tokenizer, length):
    whole = tiny_tokenizer(SENTENCES[2]).input_ids
    cut = tiny_tokenizer(SENTENCES[2], truncation=True, max_length=length).input_ids
    assert cut == [*whole[: length - 1], EOS]


def test_a_sentence_is_cut_at_the_length_set_in_training(tiny_tokenizer, from_disk):
    text = "q" * 500
    assert len(tiny_tokenizer(text).input_ids) == 501
    for tokenizer in (tiny_tokenizer, from_disk[0]):
        cut = tokenizer(text, truncation=True).input_ids
        assert len(cut) == 61
        assert cut[-1] == EOS


def test_a_batch_is_padded_on_the_right_and_masked_there(tiny_tokenizer):
    rows = tiny_tokenizer(["See", "a house by the lake"], padding=True)
    assert set(rows) == {"input_ids", "attention_mask"}
    short, long = rows["input_ids"]
    words = short.index(EOS) + 1
    assert short[words:] == [PAD] * (len(long) - words)
    assert rows["attention_mask"] == [
        [1] * words + [0] * (len(long) - words),
        [1] * len(long),
    ]


def test_the_target_text_becomes_labels(tiny_tokenizer):
    row = tiny_tokenizer("ein Haus", text_target="a house")
    assert row["input_ids"] == tiny_tokenizer("ein Haus").input_ids
    assert row["labels"] == tiny_tokenizer("a house").input_ids


def test_a_batch_of_sentences_is_decoded_without_padding_and_end(tiny_tokenizer):
    rows = tiny_tokenizer(list(SENTENCES), padding=True).input_ids
    assert tiny_tokenizer.batch_decode(rows, skip_special_tokens=True) == list(SENTENCES)


def test_auto_tokenizer_loads_our_class_with_the_same_ids(tiny_tokenizer, from_disk):
    loaded, _ = from_disk
    assert isinstance(loaded, VanillaTokenizer)
    assert loaded.get_vocab() == tiny_tokenizer.get_vocab()
    assert loaded.model_input_names == ["input_ids", "attention_mask"]
    for text in (*SENTENCES, *TRICKY):
        assert loaded(text).input_ids == tiny_tokenizer(text).input_ids


WITHOUT_US = """
import json, sys
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
path, text = sys.argv[1], sys.argv[2]
plain = Tokenizer.from_file(path).encode(text).ids
fast = PreTrainedTokenizerFast(tokenizer_file=path)(text).input_ids
print(json.dumps([plain, fast]))
"""


@pytest.mark.slow
def test_tokenizer_json_alone_gives_the_same_ids_without_this_package(
    program_without_package, tiny_tokenizer, from_disk
):
    path, text = str(from_disk[1] / "tokenizer.json"), "das große Haus — 漢字"
    result = program_without_package("python", "-c", WITHOUT_US, path, text, check=True)
    expected = tiny_tokenizer(text).input_ids
    assert json.loads(result.stdout) == [expected, expected]


def test_two_trainings_give_the_same_tokenizer():
    first, second = (train_tokenizer(SENTENCES, vocab_size=283) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_sentences_may_come_from_a_generator(tiny_tokenizer):
    lazily = train_tokenizer((sentence for sentence in SENTENCES), vocab_size=283)
    assert lazily.get_vocab() == tiny_tokenizer.get_vocab()


def test_the_smallest_vocabulary_holds_the_special_tokens_and_all_bytes():
    tokenizer = train_tokenizer(SENTENCES, vocab_size=258)
    assert len(tokenizer) == 258
    assert len(tokenizer("漢字").input_ids) == 7


def test_a_vocabulary_without_room_for_all_bytes_is_refused_with_the_smallest():
    with pytest.raises(ValueError, match="vocab_size=257: give at least 258"):
        train_tokenizer(SENTENCES, vocab_size=257)


@pytest.mark.parametrize("sentences", [[], [""], ["", " \n", "\t"]], ids=repr)
def test_no_text_is_refused(sentences):
    with pytest.raises(ValueError, match="every sentence is empty"):
        train_tokenizer(sentences, vocab_size=283)
