"""Texts: sentences split and joined, terms that must appear, alignments beside translations."""

import gzip
import json
import logging
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from hf_vanilla import train_tokenizer
from hf_vanilla.data.corpus import number_words
from hf_vanilla.text.alignments import Aligner, AlignmentHead, pharaoh, saved_head
from hf_vanilla.text.corpus_translation import CorpusOptions, translate_corpus
from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.file_translation import TranslateOptions, translate_file
from hf_vanilla.text.loading import demo_model
from hf_vanilla.text.terminology import Terminology, phrase_of, read_terminology
from hf_vanilla.text.text_translator import Piece, SentenceSplitter, TextTranslator, joined
from hf_vanilla.text.translator import Translator


@pytest.fixture(scope="module")
def translator():
    return Translator(demo_model())


@pytest.fixture
def files(tmp_path):
    """Options of a command that reads `lines` and writes a file."""

    def write(lines, **options):
        (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        paths = {"input": str(tmp_path / "in"), "output": str(tmp_path / "out")}
        return TranslateOptions(**paths, overwrite=True, **options)

    return write


# --- terms --------------------------------------------------------------------------------------


def test_each_translation_has_the_phrases_asked_for(translator):
    chance = random.Random(2)
    words = ["Haus", "drei", "zwei Häuser", "X-7", "und so"]
    sentences = [number_words(chance.randrange(1000))["source"] for _ in range(60)]
    constraints = [chance.sample(words, chance.randrange(4)) for _ in sentences]
    plain = list(translator.translate(sentences))
    found = list(translator.translate(sentences, constraints=constraints))
    assert translator.failed == []
    for text, before, phrases in zip(found, plain, constraints, strict=True):
        for phrase in phrases:
            at = text.index(phrase)
            assert at == 0 or text[at - 1] == " "
        assert phrases or text == before


def test_a_phrase_has_the_tokens_of_the_start_and_those_behind_a_word():
    tokenizer = train_tokenizer(["Zwei Männer und zwei Männer"] * 9, vocab_size=290)
    phrase = phrase_of(tokenizer, " Zwei Männer ")
    assert list(phrase.at_start) == tokenizer("Zwei Männer").input_ids[:-1]
    assert list(phrase.at_start) != list(phrase.ids)
    for text, is_there in (("Zwei Männer", True), ("und Zwei Männer", True), ("undZwei", False)):
        assert phrase.is_in(tokenizer(text).input_ids) == is_there


def test_a_space_joins_translations_where_the_source_writes_none():
    chinese = [Piece("你好。", ""), Piece("再见。", "")]
    assert joined(chinese, ["Hello.", "Bye."]) == "Hello. Bye."
    assert joined(chinese, ["こんにちは。", "Bye."]) == "こんにちは。Bye."
    english = [Piece("Hello.", "\t"), Piece("Bye.", "")]
    assert joined(english, ["你好。", "再见。"]) == "你好。\t再见。"


def test_who_asks_for_what_is_there_gets_the_translation_as_it_is(translator):
    sentences = [number_words(number)["source"] for number in range(21, 900, 40)]
    plain = list(translator.translate(sentences))
    for phrases in ([[text[:5]] for text in plain], [[text] for text in plain]):
        assert list(translator.translate(sentences, constraints=phrases)) == plain


def test_terms_of_a_file_are_found_in_the_sentences(translator, tmp_path, files):
    (tmp_path / "terms").write_text("two\tzwo\n\ntwenty-two\tzwei und zwanzig\n", encoding="utf-8")
    lines = ["two", "Two", "twenty-two", "one", "twofold"]
    options = files(lines, terminology=str(tmp_path / "terms"))
    found = translate_file(options).read_text(encoding="utf-8").splitlines()
    assert ["zwo" in text for text in found] == [True, True, False, False, False]
    assert "zwei und zwanzig" in found[2]
    assert found[3:] == list(translator.translate(lines[3:]))


def test_terms_overlap_by_the_longest():
    terms = Terminology([("house", "Haus"), ("white house", "Weißes Haus"), ("c++", "C++")])
    assert terms.targets("the white house and houses") == ["Weißes Haus"]
    assert terms.targets("House, house; c++!") == ["Haus", "C++"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("two zwei\n", "line 1: 'two zwei"),
        ("two\tzwei\nthree\t\n", "line 2"),
        ("two\tzwei\ntwo\tzwo\n", "'two' has two translations, 'zwei' and 'zwo'"),
        ("\n", "no terms"),
    ],
)
def test_bad_files_of_terms_are_refused(tmp_path, content, message):
    (tmp_path / "terms").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_terminology(tmp_path / "terms")


def test_constraints_that_do_not_fit_are_named_and_the_others_translated(translator, caplog):
    few = Translator(
        TorchEngine(translator.engine.model, translator.engine.tokenizer, max_new_tokens=9)
    )
    found = list(few.translate(["two", "three"], constraints=[["ein sehr langes Haus"], []]))
    assert found == ["", "drei"]
    assert few.failed == [1]
    assert "the constraints 'ein sehr langes Haus' have" in caplog.text


@pytest.mark.parametrize("lists", [[], [["zwei"]], [["zwei"], [], [], ["drei"]]], ids=len)
def test_constraints_of_more_or_fewer_sentences_are_refused(translator, lists):
    sentences, count = ["two", "nine", "ten"], len(lists)
    with pytest.raises(ValueError, match=f"constraints for {count} sentences, but there are 3"):
        translator.translate(sentences, constraints=lists)
    found = translator.translate(iter(sentences), constraints=iter(lists))
    with pytest.raises(ValueError, match=r"the 3 sentences there are|but there are more"):
        list(found)


@pytest.mark.parametrize(
    ("phrases", "message"),
    [
        (["zwei", "  "], "the constraint '  ' is blank"),
        ([3], "the constraint 3 is no text"),
        (None, "constraints=None: give a list"),
    ],
)
def test_what_is_no_phrase_is_refused_before_anything_is_translated(translator, phrases, message):
    with pytest.raises(ValueError, match=message):
        translator.translate(["two", "three"], constraints=[[], phrases])


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"do_sample": True}, "do_sample"),
        ({"use_cache": False}, "use_cache"),
        ({"output_attentions": True}, "output_attentions"),
    ],
)
def test_constraints_and_settings_that_exclude_them_are_refused_at_once(
    translator, changes, option
):
    engine = TorchEngine(translator.engine.model, translator.engine.tokenizer, **changes)
    with pytest.raises(ValueError, match=rf"terminology need beam search.*leave out .*{option}"):
        Translator(engine).translate(["two", "three"], constraints=[["zwo"], []])
    with pytest.raises(ValueError, match=option):
        TextTranslator(Translator(engine), terminology=Terminology([("two", "zwo")]))


def test_constraints_need_beams_and_lists(translator):
    greedy = Translator(
        TorchEngine(translator.engine.model, translator.engine.tokenizer, num_beams=1)
    )
    with pytest.raises(ValueError, match="constraints and terminology, but num_beams=1: add --num"):
        greedy.translate(["two"], constraints=[["x"]])
    with pytest.raises(ValueError, match="num_beams=1"):
        TextTranslator(greedy, terminology=Terminology([("a", "b")]))
    with pytest.raises(ValueError, match="constraints='zwei': give a list"):
        translator.translate(["two"], constraints=["zwei"])
    with pytest.raises(ValueError, match="a constraint is blank"):
        phrase_of(translator.engine.tokenizer, " ")


# --- sentences ----------------------------------------------------------------------------------

TEXT = "  Dr. Smith has forty-two.  Is it so? Yes!\n\nNext  one."


def test_pieces_and_separators_are_the_text():
    pieces = SentenceSplitter("en").split(TEXT)
    assert [piece.text for piece in pieces] == [
        "Dr. Smith has forty-two.",
        "Is it so?",
        "Yes!",
        "Next  one.",
    ]
    assert "".join(piece.text + piece.separator for piece in pieces) == TEXT.lstrip()
    lines = SentenceSplitter("en").split("- One.\n  - Two.\n")
    assert [(piece.text, piece.separator) for piece in lines] == [
        ("- One.", "\n  "),
        ("- Two.", "\n"),
    ]
    for blank in ("", "  "):
        assert [piece.text for piece in SentenceSplitter("en").split(blank)] == [""]


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2028", "\x85"])
def test_white_space_beyond_ascii_before_a_full_stop_is_kept(space):
    text = f"Vitamin B{space}. It works."
    pieces = SentenceSplitter("en").split(text)
    assert "".join(piece.text + piece.separator for piece in pieces) == text
    assert pieces[-1].text == "It works."


def test_closing_tags_belong_to_the_sentence_before():
    pieces = SentenceSplitter("en").split("<b>One.</b> <i>Two. <q>Three.</q></i>")
    assert [(piece.text, piece.separator) for piece in pieces] == [
        ("<b>One.</b>", " "),
        ("<i>Two.", " "),
        ("<q>Three.</q></i>", ""),
    ]


def test_failures_are_those_of_the_last_texts(translator):
    texts = TextTranslator(translator, keep_markup=True)
    list(texts.translate(["two", "\ud83d"]))
    assert texts.failed == [2]
    assert list(texts.translate([])) == texts.failed == []


def test_a_term_with_a_sign_of_html_is_found_in_html(translator):
    known = Terminology([("two", "F&E")])
    texts = TextTranslator(translator, keep_markup=True, terminology=known)
    assert "F&amp;E" in next(texts.translate(["two &amp; four"]))
    assert texts.failed == []


def test_a_text_is_translated_sentence_by_sentence(translator):
    texts = [TEXT, "", "two", "One. Two."]
    found = list(TextTranslator(translator, split_sentences="en").translate(texts))
    for text, translation in zip(texts, found, strict=True):
        pieces = SentenceSplitter("en").split(text)
        alone = list(translator.translate([piece.text for piece in pieces]))
        separators = [piece.separator for piece in pieces[:-1]] + [""]
        assert translation == "".join(a + b for a, b in zip(alone, separators, strict=True))


def test_a_failed_sentence_names_the_line_of_its_text(translator, caplog):
    texts = TextTranslator(translator, split_sentences="en", keep_markup=True)
    found = list(texts.translate(["One. Two.", None, "two \ud800. One."], first_line=5))
    assert texts.failed == [6, 7]
    assert found[1:] == ["", ""]
    assert "line 7 cannot be translated" in caplog.text


@pytest.mark.parametrize("language", ["English", "e", ""])
def test_a_language_is_a_code(language):
    with pytest.raises(ValueError, match="give a language such as en"):
        SentenceSplitter(language)


def test_everything_together_in_files_and_shards(translator, tmp_path, files):
    (tmp_path / "terms").write_text("two\tzwo\n", encoding="utf-8")
    asked = {"split_sentences": "en", "keep_markup": True, "terminology": str(tmp_path / "terms")}
    lines = ["<b>Two</b> {x}. Three.", "", "four"]
    written = translate_file(files(lines, **asked)).read_text(encoding="utf-8").splitlines()
    assert "{x}" in written[0]
    assert "<b>" in written[0]
    assert "zwo" in written[0]
    assert written[1:] == ["", *translator.translate(["four"])]
    paths = {"input": [str(tmp_path / "in")], "output": str(tmp_path / "shards")}
    translate_corpus(CorpusOptions(model=demo_model(), **paths, **asked))
    (shard,) = (tmp_path / "shards").glob("*.txt")
    assert shard.read_text(encoding="utf-8").splitlines() == written
    (tmp_path / "terms").write_text("two\tzwei\n", encoding="utf-8")
    with pytest.raises(ValueError, match="shards with other terminology: use the same again"):
        translate_corpus(CorpusOptions(model=demo_model(), **paths, **asked))


def test_a_corpus_takes_terms_that_are_compressed_or_come_through_a_pipe(tmp_path):
    (tmp_path / "in").write_text("two\n", encoding="utf-8")
    packed, pipe = tmp_path / "terms.gz", tmp_path / "pipe"
    packed.write_bytes(gzip.compress(b"two\tzwo\nnine\tneune\n"))
    os.mkfifo(pipe)
    paths = {"input": [str(tmp_path / "in")], "output": str(tmp_path / "out")}
    options = {"model": demo_model(), **paths}

    def run(terms):
        return translate_corpus(CorpusOptions(**options, terminology=str(terms)))

    with ThreadPoolExecutor(1) as writer:
        writer.submit(pipe.write_text, "nine\tneune\ntwo\tzwo\n", encoding="utf-8")
        assert run(pipe).done_before == 0
    assert run(packed).done_before == 1  # the same terms
    (shard,) = (tmp_path / "out").glob("*.txt")
    assert "zwo" in shard.read_text(encoding="utf-8")
    packed.write_bytes(gzip.compress(b"two zwo\n"))
    with pytest.raises(ValueError, match=r"terms\.gz, line 1: 'two zwo"):
        run(packed)


# --- alignments ---------------------------------------------------------------------------------

NUMBERS = ["two hundred", "", "forty-two thousand one"]


def test_alignments_stand_beside_translations(translator, files):
    texts = list(translator.translate(NUMBERS))
    engine = translator.engine
    for head in (saved_head(demo_model()), AlignmentHead(layer=0, head=1)):
        aligner = Aligner(engine.model, engine.tokenizer, head)
        links = aligner.align(list(zip(NUMBERS, texts, strict=True)))
        chosen = {} if head.head is None else {"alignment_head": "0:1"}
        written = translate_file(files(NUMBERS, alignments=True, **chosen))
        expected = [f"{t}\t{pharaoh(one)}" for t, one in zip(texts, links, strict=True)]
        assert written.read_text(encoding="utf-8").splitlines() == expected
        written = translate_file(files(NUMBERS, alignments=True, format="jsonl", **chosen))
        records = [json.loads(line) for line in written.read_text("utf-8").splitlines()]
        assert [record["target"] for record in records] == [text.split() for text in texts]
        assert [record["alignment"] for record in records] == [
            [list(link) for link in one] for one in links
        ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_model_of_packed_weights_aligns_and_keeps_its_attention(dtype, caplog):
    own = Translator(demo_model(), dtype=dtype)
    with caplog.at_level(logging.INFO):
        ((_, links),) = own.translate_aligned(["three hundred two"])
    assert "sdpa attention returns no weights: alignments are computed by eager" in caplog.text
    assert [target for _, target in links] == [0]
    assert own.engine.model.config._attn_implementation == "sdpa"


def test_an_engine_without_attention_is_refused(translator):
    class Other:
        tokenizer = translator.engine.tokenizer

    with pytest.raises(ValueError, match="which this engine does not return: use --engine torch"):
        Translator(Other()).translate_aligned(["two"])
    with pytest.raises(ValueError, match="use --engine torch"):
        TextTranslator(Translator(Other()), keep_markup=True)
    with pytest.raises(ValueError, match="constraints and terminology need --engine torch"):
        Translator(Other()).translate(["two"], constraints=[["a"]])


def test_options_that_do_not_go_together_are_refused():
    cases = [
        ({"alignment_head": "1"}, "alignment_head='1' needs --alignments"),
        ({"alignments": True, "alignment_head": "a"}, "give LAYER or LAYER:HEAD"),
        ({"alignments": True, "n_best": 2}, "n_best or alignments, not both"),
        ({"alignments": True, "keep_markup": True}, "alignments is of single sentences"),
        ({"n_best": 2, "terminology": "x"}, "n_best is of single sentences"),
        ({"format": "jsonl"}, "format='jsonl' needs --n_best or --alignments"),
        (
            {"ensemble_average": "log_probabilities"},
            "ensemble_average='log_probabilities' needs a second --model",
        ),
    ]
    for changes, message in cases:
        with pytest.raises(ValueError, match=message):
            TranslateOptions(model="m", **changes)


# --- everything off -----------------------------------------------------------------------------


def test_with_everything_off_400_translations_are_those_of_generate(translator):
    chance = random.Random(1)
    sentences = [number_words(chance.randrange(2000))["source"] for _ in range(400)]
    found = list(translator.translate(sentences))
    model, tokenizer = translator.engine.model, translator.engine.tokenizer
    order = sorted(range(400), key=lambda i: len(sentences[i]))
    for first in range(0, 400, 100):
        rows = order[first : first + 100]
        batch = tokenizer([sentences[i] for i in rows], return_tensors="pt", padding=True)
        ids = model.generate(**batch)
        texts = tokenizer.batch_decode(ids[:, 1:], skip_special_tokens=True)
        assert texts == [found[i] for i in rows]
