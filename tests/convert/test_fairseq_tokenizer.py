"""Dictionaries and codes of fairseq: the ids of its own pipeline, and text again."""

import fairseq_by_hand as theirs
import pytest
import sacremoses

from hf_vanilla.convert.fairseq_tokenizer import (
    SPECIAL_TOKENS,
    bpe_pieces,
    build_tokenizer,
    read_codes,
    read_dictionary,
)

TOKENIZED = [theirs.moses(line, "en") for line in theirs.ENGLISH]
CODES = theirs.learned_codes(TOKENIZED)
WORDS = theirs.dictionary([theirs.cut_with(CODES)(line) for line in TOKENIZED])
SENTENCES = (*theirs.ENGLISH, *theirs.GERMAN, *theirs.AWKWARD, "", "   ")


@pytest.fixture
def codes(tmp_path):
    path = tmp_path / "bpecodes"
    path.write_text(CODES, encoding="utf-8")
    return path


def built(pieces, words=WORDS, target=None, **settings):
    settings = {"source_lang": "en", "target_lang": "de", "use_moses": True, **settings}
    return build_tokenizer(pieces, [words, target or words], **settings)


# --- dictionaries --------------------------------------------------------------------------------


def test_a_dictionary_starts_with_the_four_special_tokens(tmp_path):
    (tmp_path / "dict.en.txt").write_text("the 7\nhou@@ 5\n\u3000 2\n", encoding="utf-8")
    words = read_dictionary(tmp_path / "dict.en.txt")
    assert words == [*SPECIAL_TOKENS, "the", "hou@@", "\u3000"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 7\nhouse\n", "line 2: 'house' is not a token and its count"),
        ("the seven\n", "line 1: 'the seven' is not a token"),
        ("the 7\na 5\nthe 3\n", "line 3: 'the' occurs a second time"),
        ("<pad> 7\n", "line 1: '<pad>' occurs a second time"),
    ],
)
def test_an_invalid_line_of_a_dictionary_is_an_error(tmp_path, text, message):
    (tmp_path / "dict.en.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_dictionary(tmp_path / "dict.en.txt")


def test_pieces_at_the_end_of_a_word_are_marked():
    assert bpe_pieces([*SPECIAL_TOKENS, "the", "hou@@", "@@"]) == [
        *SPECIAL_TOKENS,
        "the</w>",
        "hou",
        "@@</w>",
    ]


# --- codes ---------------------------------------------------------------------------------------


def test_codes_of_subword_nmt_and_fastbpe_give_the_same_merges(tmp_path):
    (tmp_path / "a").write_text("#version: 0.2\nt h\nth e</w>\nt h\n")
    (tmp_path / "b").write_text("t h 9\nth e</w> 5\n")
    assert read_codes(tmp_path / "a") == read_codes(tmp_path / "b") == [("t", "h"), ("th", "e</w>")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#version: 0.1\nt h\n", "begins with '#version: 0.1': only version 0.2"),
        ("t h\n", "line 1: 't h' is not a merge"),
        ("#version: 0.2\nt h 3\n", "line 2: 't h 3' is not a merge"),
        ("t h 3\nt h e 3\n", "line 2: 't h e 3' is not a merge"),
        ("#version: 0.2\n", "has no merges: get the codes of the checkpoint again"),
        ("", "has no merges"),
    ],
)
def test_codes_of_another_format_are_an_error(tmp_path, text, message):
    (tmp_path / "codes").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_codes(tmp_path / "codes")


# --- BPE -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sentence", SENTENCES)
def test_ids_equal_those_of_moses_subword_nmt_and_the_dictionary(codes, sentence):
    line = theirs.cut_with(CODES)(theirs.moses(sentence, "en"))
    assert built(codes)(sentence).input_ids == theirs.ids_of(WORDS, line)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_fastbpe_codes_give_the_same_ids(tmp_path, codes, sentence):
    fast = tmp_path / "code"
    fast.write_text(theirs.as_fastbpe(CODES), encoding="utf-8")
    assert built(fast)(sentence).input_ids == built(codes)(sentence).input_ids


@pytest.mark.parametrize("sentence", SENTENCES)
def test_without_moses_words_are_split_at_spaces(codes, sentence):
    line = theirs.cut_with(CODES)(" ".join(sentence.split()))
    expected = theirs.ids_of(WORDS, line)
    assert built(codes, use_moses=False)(sentence).input_ids == expected


@pytest.mark.parametrize("sentence", SENTENCES)
def test_decoded_text_equals_that_of_fairseq(codes, sentence):
    tokenizer = built(codes)
    ids = tokenizer(sentence).input_ids
    words = theirs.joined(WORDS, ids).split()
    expected = sacremoses.MosesDetokenizer(lang="de").detokenize(words)
    assert tokenizer.batch_decode([[*ids, 1]], skip_special_tokens=True) == [expected]


def test_lowercasing_happens_after_moses(codes):
    line = theirs.cut_with(CODES)(theirs.moses("Mr. Smith LIKES it", "en").lower())
    tokenizer = built(codes, do_lower_case=True)
    assert tokenizer("Mr. Smith LIKES it").input_ids == theirs.ids_of(WORDS, line)


def test_a_piece_outside_the_dictionary_is_unknown(codes):
    short = [*SPECIAL_TOKENS, "the", "l@@"]
    line = theirs.cut_with(CODES)(TOKENIZED[0])
    ids = built(codes, words=short)(theirs.ENGLISH[0]).input_ids
    assert ids == theirs.ids_of(short, line)
    assert set(ids) == {2, 3, 4}


def test_each_side_uses_its_own_dictionary(codes):
    target = [*SPECIAL_TOKENS, *reversed(WORDS[4:])]
    tokenizer = built(codes, target=target, use_moses=False)
    line = theirs.cut_with(CODES)("the big lake")
    batch = tokenizer("the big lake", text_target="the big lake")
    assert batch.input_ids == theirs.ids_of(WORDS, line)
    assert batch.labels == theirs.ids_of(target, line)
    assert tokenizer.decode(batch.labels, skip_special_tokens=True) == "the big lake"


# --- SentencePiece -------------------------------------------------------------------------------


@pytest.fixture(params=["bpe", "unigram"])
def spiece(request, tmp_path):
    """A model, its file, and a dictionary of what it cuts English into, in fairseq's order."""
    path = tmp_path / "sentencepiece.bpe.model"
    model = theirs.sentencepiece_model(path, request.param)
    return model, path, theirs.dictionary(spm_line(model, line) for line in theirs.ENGLISH)


def spm_line(model, sentence):
    return " ".join(model.encode(sentence, out_type=str))


@pytest.mark.parametrize("sentence", SENTENCES)
def test_sentencepiece_ids_equal_those_of_its_library_and_the_dictionary(spiece, sentence):
    model, path, words = spiece
    tokenizer = built(path, words, use_moses=False)
    sentence = sentence.replace("</s> <unk>", "")  # Unigram takes them for one unknown piece each
    ids = tokenizer(sentence).input_ids
    assert ids == theirs.ids_of(words, spm_line(model, sentence))
    if 3 not in ids:
        back = tokenizer.batch_decode([ids], skip_special_tokens=True)
        assert back == ["".join(words[i] for i in ids[:-1]).replace("▁", " ").strip()]


def test_only_spaces_are_cut_from_the_ends_where_the_model_does_not_normalize(tmp_path):
    theirs.sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(theirs.ENGLISH),
        model_prefix=str(tmp_path / "a"),
        minloglevel=2,
        normalization_rule_name="identity",
        **{"vocab_size": 60, "hard_vocab_limit": False},
    )
    path = tmp_path / "a.model"
    model = theirs.sentencepiece.SentencePieceProcessor(model_file=str(path))
    words = theirs.dictionary(spm_line(model, line) for line in theirs.ENGLISH)
    tokenizer = built(path, words, use_moses=False)
    for sentence in ("\u3000the lake", "the lake\u00a0", "\tthe  lake ", "\n the \n lake \n"):
        pieces = model.encode(sentence, out_type=str)
        known = [words.index(piece) if piece in words else 3 for piece in pieces]
        assert tokenizer(sentence).input_ids == [*known, 2]


def test_a_special_token_typed_in_a_text_is_text(spiece):
    _, path, words = spiece
    ids = built(path, words, use_moses=False)("a </s> <pad> <s>").input_ids
    assert set(ids[:-1]).isdisjoint({0, 1, 2})
    assert ids[-1] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"user_defined_symbols": ["<sep>"]}, r"user-defined pieces \(<sep>\)"),
        ({"model_type": "char"}, "neither BPE nor Unigram"),
        ({"treat_whitespace_as_suffix": True}, "its pieces end in spaces"),
    ],
)
def test_a_sentencepiece_model_that_cannot_be_converted_is_an_error(tmp_path, options, message):
    theirs.sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(theirs.ENGLISH),
        model_prefix=str(tmp_path / "a"),
        minloglevel=2,
        **{"vocab_size": 60, "hard_vocab_limit": False, **options},
    )
    with pytest.raises(ValueError, match=f"cannot be converted exactly: .*{message}"):
        built(tmp_path / "a.model")


def test_another_file_is_no_sentencepiece_model(tmp_path):
    (tmp_path / "a.model").write_bytes(b"\xff\xff nothing of the kind")
    with pytest.raises(ValueError, match="is incomplete or no SentencePiece model"):
        built(tmp_path / "a.model")
