"""Markup and placeholders: by hand, and 2,000 random lines with the demo model."""

import random
import re
import time
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest

from hf_vanilla.data.corpus import number_words
from hf_vanilla.text.loading import demo_model
from hf_vanilla.text.markup import ITEM, NUMBER, TAG_NAME, parts, take_out
from hf_vanilla.text.markup_placement import put_back
from hf_vanilla.text.terminology import Terminology
from hf_vanilla.text.text_translator import TextTranslator, with_markup
from hf_vanilla.text.translator import Translator


def links_of(*sources):
    """Links of a translation whose words have these source words."""
    return [(source, target) for target, source in enumerate(sources)]


def test_what_is_taken_out_of_a_source():
    cases = [
        ("Click <b>here</b>, now", "Click here, now"),
        ("<p>Hello</p>", "Hello"),
        ("a <br/> b", "a b"),
        ("a<br/>b", "a b"),
        ("wo<b>r</b>d", "word"),
        ("see https://a.b/c?d=1. Or me@x.org!", "see. Or!"),
        ("{count} files, {{ name }} and ${x} %s %(n)d", "files, and"),
        ("1 < 2 > 0, 50% sure", "1 < 2 > 0, 50% sure"),
        ("go <!-- not\nthis --> on", "go on"),
        ("in https://a.b/c_(d).", "in."),
        ("(in https://a.b/c), then", "(in), then"),
        ("https://a.b/{id}/{{x}} is it, (www.a.b/(c)?d)", "is it, ()"),
        ("<a href='x'><i>one</i> two</a>", "one two"),
        ("<img alt=\"a > b\" src='c>' />Open", "Open"),
        ('<a href="x>Open "this"</a>', 'Open "this"'),  # a quote that is not closed
        ("""<a x='<i>hi</i>' y="<b">this</a>""", "this"),
    ]
    for text, plain in cases:
        assert take_out(text).plain == plain


def test_character_references_of_html_are_translated_as_what_they_stand_for():
    markup = take_out("Q&amp;A &lt;1&gt; <a href='?x=1&amp;y=2'>it&#39;s</a>", is_html=True)
    assert markup.plain == "Q&A <1> it's"
    text = put_back(markup, "F&A <1> ist", links_of(0, 1, 2, 3, 4, 5, 6))
    assert text == "F&amp;A &lt;1&gt; <a href='?x=1&amp;y=2'>ist</a>"
    for source, written in [
        ("R&amp;D < <b>x</b>", "R&amp;D &lt; <b>y</b>"),
        ("R&D < <b>x</b>", "R&D < <b>y</b>"),
        ("R&D; < <b>x</b>", "R&D; < <b>y</b>"),  # a semicolon, but no reference
    ]:
        markup = take_out(source)
        assert markup.plain.replace(";", "") == "R&D < x"
        translation, links = markup.plain[:-1] + "y", links_of(*range(len(parts(markup.plain))))
        assert put_back(markup, translation, links) == written


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("a", 0),
        (" ", 0),
        ("a@", 0),
        ("<!--", 0),
        ('<a"="', 0),
        ("<a='", 0),
        ("<b>", 66_666),
        ("<b></i>", 57_142),
        ("w {x} ", 33_333),
    ],
)
def test_a_text_of_200000_characters_is_read_once(part, count):
    # in quadratic time, these take minutes
    text = "w" + part * (200_000 // len(part)) + "w"
    markup = take_out(text)
    assert len(markup.root.children) == count
    assert ITEM.sub("", text).split() == markup.plain.split()


def test_a_text_without_words_stays_whatever_the_model_writes():
    texts = ["&nbsp;", " <br> &#160;", "  ", "{x}"]
    aligner = SimpleNamespace(align=lambda pairs, **_: [[] for _ in pairs])
    sources = [take_out(text) for text in texts]
    found = with_markup(aligner, sources, ["anything"] * 4, [[]] * 4)
    assert found == ["&nbsp;", "<br> &#160;", "", "{x}"]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("%s-me@x.org a", "a"),
        ("%(n)sme@x.org a", "a"),
        ("a <!-- b --> c <!-- d", "a c <!-- d"),
    ],
)
def test_an_address_begins_behind_a_variable_and_a_comment_has_an_end(text, plain):
    assert take_out(text).plain == plain


def test_where_items_go_by_hand():
    cases = [
        # the words change places, and so do their tags
        ("<b>red</b> <i>house</i>", "maison rouge", (1, 0), "<i>maison</i> <b>rouge</b>"),
        # a pair around words that are apart takes one run of its own, of its length
        ("<b>not</b> <i>go</i>", "ne va pas", (0, 1, 0), "<b>ne</b> <i>va</i> pas"),
        ("<b>not</b> go", "ne va pas", (0, 1, 0), "<b>ne</b> va pas"),
        # pairs that would cross stay nested
        ("<b>a b</b> <i>c d</i>", "A C B D", (0, 2, 1, 3), "<b>A</b> C B <i>D</i>"),
        ("<p><b>a</b> b</p> c", "C B A", (2, 1, 0), "C <p>B <b>A</b></p>"),
        ("See {x} now.", "Siehe jetzt.", (0, 1, 2), "Siehe {x} jetzt."),
        ("See {x}.", "Siehe.", (0, 1), "Siehe {x}."),
        ("{x}", "", (), "{x}"),
        # nothing before is aligned: in front of the next word
        ("{x} houses", "Häuser", (0,), "{x} Häuser"),
        ("to {x} go", "gehen", (1,), "{x} gehen"),
        ("to go {x}", "gehen", (1,), "gehen {x}"),
        # no aligned words inside: the words of the same text, or at the same share of the length
        (
            "The <code>Val</code> function",
            "Die Funktion Val",
            (0, 0, 0),
            "Die Funktion <code>Val</code>",
        ),
        (
            "the <b>very</b> large house",
            "das sehr große Haus",
            (0, 0, 2, 3),
            "das <b>sehr</b> große Haus",
        ),
        # signs at an end as in the source, a capital first where it has one
        ("<b>Note:</b> Click", "Hinweis: Klicken", (0, 2, 2), "<b>Hinweis:</b> Klicken"),
        ("<b>File</b>, too", "Datei, auch", (0, 0, 2), "<b>Datei</b>, auch"),
        (
            "The <b>Bar</b> opens",
            "In der Leiste öffnet",
            (2, 1, 1, 2),
            "In der <b>Leiste</b> öffnet",
        ),
        ("a<br/>b", "A B", (0, 1), "A <br/> B"),
        ("(https://a.b) x", "y ( z", (2, 0, 2), "y (https://a.b z"),
        # a sign would be read as a part of a URL
        ("https://a.b - x", "- y", (0, 1), "https://a.b - y"),
        ("https://a.b, x", ", y", (0, 1), "https://a.b, y"),
        ("say <q>yes</q>, then", "sag ja, dann", (0, 1, 2, 3), "sag <q>ja</q>, dann"),
        # tags that are not closed, or closed twice
        ("<b>one two", "eins zwei", (0, 1), "<b>eins zwei"),
        ("one</b> two", "eins zwei", (0, 1), "eins</b> zwei"),
        # a word in two pairs belongs to the first
        ("<b>two</b><i>hundred four</i>", "A B C", (0, 1, 0), "<b>A </b><i>B</i> C"),
        ("<p><b>two</b></p><i>ty</i>", "A", (0,), "<p><b>A</b></p><i></i>"),
    ]
    for text, translation, sources, expected in cases:
        assert put_back(take_out(text), translation, links_of(*sources)) == expected


def test_numbers_are_kept_by_hand():
    cases = [
        ("3 dogs", "3 Hunde", (0, 1), "3 Hunde"),
        ("3 dogs", "drei Hunde", (0, 1), "3 Hunde"),
        ("3 dogs", "Hunde", (1,), "3 Hunde"),
        ("in 1998 it", "in 19 98 es", (0, 1, 1, 2), "in 1998 es"),
        ("2.5 or 3", "3 oder 2,5", (2, 1, 0), "3 oder 2.5"),
        ("2 and 2", "2 und zwei", (0, 1, 2), "2 und 2"),
        ("7 men", "7 7 Männer", (0, 0, 1), "7 Männer"),
        # the number of another word stays
        ("7 of seven", "7 von 7", (0, 1, 2), "7 von 7"),
        # no sign is written over, and no number gets digits of another one
        ("It costs 5.", "Es kostet.", (0, 1, 2), "Es kostet 5."),
        ("costs 1,000 3", "Haus. Es", (1, 2, 2), "1,000. 3"),
        ("1,000 men", "Haus,5", (0, 1, 1), "1,000, 5"),
        ("men 3 5", "Haus eine,fünf", (0, 1, 1, 2), "Haus 3, 5"),
    ]
    for text, translation, sources, expected in cases:
        assert put_back(take_out(text), translation, links_of(*sources)) == expected


def test_deeply_nested_pairs_take_no_longer_than_their_words():
    markup = take_out("<i>a " * 200 + "a " * 200 + "</i>" * 200)
    started = time.process_time()
    text = put_back(markup, " ".join("b" * 400), links_of(*range(400)))
    assert time.process_time() - started < 8  # 10 in plain Python
    assert [text.count(part) for part in ("<i>", "b", "</i>")] == [200, 400, 200]


@pytest.mark.parametrize("translation", ["", " "])
def test_an_empty_translation_has_the_items_and_numbers(translation):
    assert put_back(take_out("{x} <b>a</b> 7."), translation, []) == "{x} <b></b> 7"


def numbers(text):
    words = [text[first:last] for first, last in parts(text)]
    return Counter(word for word in words if NUMBER.fullmatch(word))


def test_every_number_of_random_links_is_in_the_translation():
    chance = random.Random(7)
    kinds = ["a ", "b", ", ", ",", ".", "- ", "(", "3 ", "1,000", "7", ".5", "2a"]
    for _ in range(3000):
        source, translation = (
            "".join(chance.choices(kinds, k=chance.randrange(1, 12))) for _ in range(2)
        )
        links = [(chance.randrange(len(parts(source))), t) for t in range(len(parts(translation)))]
        text = put_back(take_out(source), translation, links)
        assert not numbers(source) - numbers(text)
        assert numbers(source) or text.split() == translation.split()


def test_the_phrase_of_a_term_is_one_word_by_hand():
    def kept(text, translation, sources, **terms):
        plain = take_out(text)
        found = Terminology(terms.items()).find(plain.plain)
        return put_back(plain, translation, links_of(*sources), found)

    # the number of another word is not written over the phrase, and items are not put into it
    assert kept("big 3", "A B C", (0, 1, 1), big="A B") == "A B 3"
    assert kept("big {x} 3", "A B C", (0, 0, 1), big="B C") == "A B C {x} 3"
    # tags enclose the phrase where they enclose the term
    assert kept("<b>big</b> one", "A B C", (1, 1, 1), big="B C") == "A <b>B C</b>"
    # a number in the term is not a missing one, and one in the phrase not that of another word
    assert kept("R 2 and 2", "zwei und 2", (1, 2, 3), **{"R 2": "zwei"}) == "zwei und 2"
    assert kept("two and 2", "2 und zwei", (0, 1, 2), two="2") == "2 und 2"
    # terms with one and the same phrase
    assert kept("a {x} b", "Z", (1,), a="Z", b="Z") == "Z {x}"
    # phrases that overlap
    assert kept("a {x} b {y}", "X Y Z", (0, 0, 0), a="X Y", b="Y Z") == "X Y Z {x} {y}"


def test_thousands_of_items_are_placed():
    nested = "<b>" * 3000 + "{}" + "</b>" * 3000
    assert put_back(take_out(nested.format("a")), "A", [(0, 0)]) == nested.format("A")
    text = "a {x} " * 3000  # of which the translation has the first
    assert put_back(take_out(text), "A", [(0, 0)]) == ("A" + " {x}" * 3000)


# --- 2,000 lines --------------------------------------------------------------------------------

POINTS = ("<br/>", "{name}", "{{ x }}", "https://a.org/b?c=1", "me@x.org", "%s", "<img src='i'/>")
TAGS = ("b", "i", "a", "span")


def marked(words, chance):
    """Words with nested tags and single items at random places."""
    if not words:
        return ""
    if len(words) > 1 and chance.random() < 0.5:
        cut = chance.randrange(1, len(words))
        return f"{marked(words[:cut], chance)} {marked(words[cut:], chance)}"
    text = " ".join(words)
    if len(words) > 1 and chance.random() < 0.3:
        text = marked(words, chance)
    if chance.random() < 0.4:
        name = chance.choice(TAGS)
        text = f"<{name}>{text}</{name}>"
    if chance.random() < 0.3:
        text = f"{text} {chance.choice(POINTS)}"
    return text


def is_nested(text):
    stack = []
    for tag in re.finditer(TAG_NAME, text):
        if tag[3]:
            continue
        if not tag[1]:
            stack.append(tag[2])
        elif not stack or stack.pop() != tag[2]:
            return False
    return not stack


def without_items(text):
    return "".join(ITEM.sub("", text).split())


def test_of_700_lines_nothing_is_lost_doubled_or_torn():
    chance = random.Random(3)
    words = [number_words(chance.randrange(1000))["source"].split() for _ in range(700)]
    lines = [marked(of_one, chance) for of_one in words]
    translator = Translator(demo_model(), num_beams=1)
    plain = list(translator.translate(map(" ".join, words)))
    found = list(TextTranslator(translator, keep_markup=True).translate(lines))
    assert sum(bool(ITEM.search(line)) for line in lines) > 350
    for line, text, translation in zip(lines, found, plain, strict=True):
        assert Counter(ITEM.findall(text)) == Counter(ITEM.findall(line))
        assert is_nested(text)
        assert without_items(text) == without_items(translation)


def test_of_300_lines_whose_pairs_touch_inside_a_word_all_stay_nested():
    chance = random.Random(7)
    lines = []
    for _ in range(300):
        text, line = number_words(chance.randrange(1000, 10**6))["source"], ""
        cuts = sorted(chance.sample(range(1, len(text)), chance.randrange(1, 4)))
        for first, last in pairwise([0, *cuts, len(text)]):
            name = chance.choice("bispu")
            inside = f"<q>{text[first:last]}</q>" if chance.random() < 0.3 else text[first:last]
            line += chance.choice(["", "<a>"]) + f"<{name}>{inside}</{name}>"
        lines.append(line)
    found = TextTranslator(Translator(demo_model(), num_beams=1), keep_markup=True).translate(lines)
    for line, text in zip(lines, found, strict=True):
        assert is_nested(text.replace("<a>", "")), (line, text)


def test_of_200_lines_with_terms_every_phrase_and_every_item_is_kept():
    chance = random.Random(11)
    terms = {"forty-two": "zwei und vierzig", "nine": "eine 9", "22": "zwei und zwanzig"}
    words = ["forty-two", "nine", "22", "ten", "six", "12", "1,000", "twenty", ","]
    lines = [marked(chance.choices(words, k=chance.randrange(1, 6)), chance) for _ in range(200)]
    translator = Translator(demo_model(), num_beams=4)
    texts = TextTranslator(translator, keep_markup=True, terminology=Terminology(terms.items()))
    found = list(texts.translate(lines))
    assert texts.failed == []
    for line, text in zip(lines, found, strict=True):
        plain, without = take_out(line).plain, " ".join(ITEM.sub(" ", text).split())
        for source, target in terms.items():
            assert target in text or source not in plain.split()
        assert Counter(ITEM.findall(text)) == Counter(ITEM.findall(line))
        assert is_nested(text)
        asked = numbers(plain)
        asked.pop("22", None)
        assert not asked - numbers(without)
        assert "22" not in without or plain.split().count("22") > 1


def test_a_line_whose_phrase_is_lost_fails(monkeypatch, caplog):
    texts = TextTranslator(
        Translator(demo_model()), keep_markup=True, terminology=Terminology([("two", "zwo")])
    )
    plain = texts.translator.translate_all
    monkeypatch.setattr(
        texts.translator,
        "translate_all",
        lambda *given, **options: (
            one.replace("zwo", "zw\xf6") for one in plain(*given, **options)
        ),
    )
    assert list(texts.translate(["ten", "<b>two</b>"], first_line=3)) == ["zehn", ""]
    assert texts.failed == [4]
    assert "line 4 becomes empty: its translation lacks the terms 'zwo'" in caplog.text


def test_an_empty_translation_keeps_its_items_and_a_failed_one_has_none():
    texts = TextTranslator(Translator(demo_model()), keep_markup=True)
    assert list(texts.translate(["{x} 7.", "{y} two \ud800"])) == ["{x} 7", ""]
    assert texts.failed == [2]


def test_the_words_of_tags_of_random_links_are_in_the_translation():
    chance = random.Random(5)
    for _ in range(500):
        line = marked([f"w{n}" for n in range(chance.randrange(1, 9))], chance)
        markup = take_out(line)
        count = len(parts(markup.plain))
        translation = " ".join(f"t{n}" for n in range(chance.randrange(1, 9)))
        links = [(chance.randrange(count), t) for t in range(len(translation.split()))]
        text = put_back(markup, translation, links)
        assert Counter(ITEM.findall(text)) == Counter(ITEM.findall(line))
        assert is_nested(text)
        assert " ".join(ITEM.sub(" ", text).split()) == translation
