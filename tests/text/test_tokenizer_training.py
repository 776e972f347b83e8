"""Training a tokenizer on files; `test_tokenization_vanilla.py` tests how it encodes."""

import gzip
import random

import pytest
from conftest import SENTENCES
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from hf_vanilla import VanillaTokenizer, train_tokenizer
from hf_vanilla.text import tokenizer_training
from hf_vanilla.text.tokenizer_training import TrainTokenizerOptions, train_tokenizer_on_files


@pytest.fixture
def options(tmp_path):
    (tmp_path / "a.de").write_text("".join(s + "\n" for s in SENTENCES[::2]), encoding="utf-8")
    english = "".join(s + "\n" for s in SENTENCES[1::2]).encode()
    (tmp_path / "a.en").write_bytes(english)
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(english))

    def with_changes(files=("a.de", "a.en"), **changes):
        default = {"output": str(tmp_path / "tokenizer"), "vocab_size": 283, "model_max_length": 61}
        paths = [str(tmp_path / name) for name in files]
        return TrainTokenizerOptions(files=paths, **{**default, **changes})

    return with_changes


@pytest.mark.parametrize("english", ["a.en", "a.en.gz"])
def test_files_give_the_vocabulary_of_their_sentences(options, english):
    folder = train_tokenizer_on_files(options(("a.de", english)))
    loaded = AutoTokenizer.from_pretrained(folder)
    assert isinstance(loaded, VanillaTokenizer)
    ordered = (*SENTENCES[::2], *SENTENCES[1::2])
    assert loaded.get_vocab() == train_tokenizer(ordered, vocab_size=283).get_vocab()
    assert loaded.model_max_length == 61


def test_an_existing_output_is_an_error_and_kept(options, tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "mine").write_text("x")
    with pytest.raises(FileExistsError, match="tokenizer exists and is not an empty folder"):
        train_tokenizer_on_files(options())
    assert [path.name for path in (tmp_path / "tokenizer").iterdir()] == ["mine"]


def test_a_byte_that_is_not_utf8_is_an_error_and_leaves_no_output(options, tmp_path):
    (tmp_path / "a.en").write_bytes(b"good\nb\xe4d\n")
    with pytest.raises(ValueError, match=r"a\.en, line 2: byte 2 is not UTF-8"):
        train_tokenizer_on_files(options())
    assert not (tmp_path / "tokenizer").exists()


def test_a_missing_file_is_an_error(options):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train_tokenizer_on_files(options(("a.de", "nowhere")))


def test_long_words_are_cut_before_training(monkeypatch):
    seen = []
    learn = Tokenizer.train_from_iterator

    def record(backend, sentences, trainer):
        seen.extend(sentences)
        learn(backend, seen, trainer)

    monkeypatch.setattr(tokenizer_training.Tokenizer, "train_from_iterator", record)
    text = "ein " + "x" * 2_003 + " am See"
    tokenizer = train_tokenizer(["ein Haus", text], vocab_size=283)
    assert seen == ["ein Haus", "ein " + "x" * 1_000, "x" * 1_000, "xxx am See"]
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_a_word_of_160000_characters_does_not_stall_training():
    word = "".join(random.Random(3).choices("abcdefghij", k=160_000))
    assert len(train_tokenizer([word, "ein Haus"], vocab_size=8_000)) <= 8_000


def test_empty_files_are_an_error(options, tmp_path):
    (tmp_path / "a.de").write_text("\n \n")
    with pytest.raises(ValueError, match="every sentence is empty"):
        train_tokenizer_on_files(options(("a.de",)))


def test_one_text_is_not_read_letter_by_letter():
    with pytest.raises(ValueError, match="'ein Haus' is one text: give a list of sentences"):
        train_tokenizer("ein Haus", vocab_size=300)


def test_a_vocabulary_too_small_is_an_error(options):
    with pytest.raises(ValueError, match="vocab_size=200: give at least 258"):
        train_tokenizer_on_files(options(vocab_size=200))
