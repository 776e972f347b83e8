"""The page of translation in headless Chromium: mouse, keyboard, touch; axe; layout shift."""

import json
import re
import threading

import pytest
from chromium import HOSTILE, PHONE, launched, needs_chromium, served, tab_of, violations

from hf_vanilla import train_tokenizer
from hf_vanilla.text.alignments import Aligner, aligned_words
from hf_vanilla.text.attentions import CROSS, DECODER, ENCODER, attentions, word_starts
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.n_best import best_translations
from hf_vanilla.text.page import TextPage
from hf_vanilla.text.page_service import Service
from hf_vanilla.text.translator import translate

expect = pytest.importorskip("playwright.sync_api").expect
expect.set_options(timeout=60_000)

pytestmark = [pytest.mark.slow, needs_chromium]

SENTENCE, HEBREW = "three one four", "שלום עולם"
VIEWS = ["map", "lines", "words", "heads", "tokens", "search", "compare", "layer"]


@pytest.fixture(scope="module")
def folder(trained_run, tmp_path_factory):
    model, tokenizer = load_translator(str(trained_run))
    tokenizer.model_max_length = 400  # room for long sentences
    folder = tmp_path_factory.mktemp("served")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def address(folder):
    with served(folder, models_folder="/") as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture
def visit(browser, address):
    """Opens the page for visitors; each is closed and checked at the end."""
    open_tabs = []

    def visit(path="", **context):
        open_tabs.append(tab_of(browser, address + path, **context))
        tab = open_tabs[-1].__enter__()
        tab.locator(".about:not(:empty)").wait_for()
        return tab

    yield visit
    for tab in open_tabs:
        tab.__exit__(None, None, None)


@pytest.fixture(scope="module")
def found(trained):
    return best_translations(*trained, SENTENCE, num_beams=trained[0].generation_config.num_beams)


@pytest.fixture(scope="module")
def seen(trained, found):
    return attentions(*trained, SENTENCE, translation=found[0].ids)


def ask(tab, text=SENTENCE):
    tab.get_by_label("Sentence", exact=True).fill(text)
    tab.get_by_role("button", name="Translate").click()
    tab.locator(".translator:not([aria-busy])").wait_for()


def asked(tab, text=SENTENCE):
    ask(tab, text)
    tab.locator(".panel svg").wait_for()
    return tab


def show(tab, view):
    tab.locator(f"#tab-{view}").click()


def said(tab, text):
    expect(tab.locator(".said")).to_contain_text(text)


def percent(weight):
    return f"{round(100 * round(255 * weight.item()) / 255)} %"


def drawn(tab):
    return tab.locator(".panel svg text").all_text_contents()


# --- by mouse ----------------------------------------------------------------------------------


def test_translate_and_read_a_weight_of_the_map(visit, found, seen):
    tab = asked(visit())
    column = tab.locator(".translator").bounding_box()
    assert (column["x"], column["width"]) == (160, 960)  # in the middle of 1,280 px
    expect(tab.locator(".translation")).to_have_text(found[0].text)
    assert [t for t in drawn(tab) if not t.isdigit()] == [*seen.source, *seen.target]
    tab.get_by_label("Head").select_option("1")
    cells = tab.locator(".panel [data-hover]")
    place = 2 * len(seen.source) + 1
    cells.nth(place).hover()
    weight = percent(seen.cross[0, 1, 2, 1])
    said(tab, f"{seen.target[2]}\u2069” gives “\u2068{seen.source[1]}\u2069” {weight} of its")
    assert "head 1" in tab.locator(".said").inner_text()


@pytest.mark.release
def test_the_map_has_a_bracket_for_each_word(visit, trained):
    text = "three onefour"
    tab = asked(visit(), text)
    seen = attentions(*trained, text)
    for width, side in (("width", seen.target), ("height", seen.source)):
        starts = word_starts(side)
        count = 0 if len(starts) == len(side) else len(starts)
        expect(tab.locator(f".panel rect[{width}='3']")).to_have_count(count)
    assert len(word_starts(seen.source)) < len(seen.source)


@pytest.mark.release
def test_kind_layer_and_head_change_the_map(visit, seen):
    tab = asked(visit())
    for kind, keys in ((ENCODER, seen.source), (DECODER, seen.read)):
        tab.get_by_label("Attention").select_option(kind)
        said(tab, f"{kind[1:]}, layer 0, mean of 2 heads")
        assert [t for t in drawn(tab) if not t.isdigit()][: len(keys)] == keys
    said(tab, "<start>\u2069” 100 %")  # all that the decoder has at its first step


@pytest.mark.release
def test_a_head_of_the_grid_opens_the_map(visit):
    tab = asked(visit())
    show(tab, "heads")
    said(tab, "1 layers of 2 heads")
    tab.locator(".panel [data-click]").nth(1).click()
    expect(tab.locator("#tab-map")).to_have_attribute("aria-selected", "true")
    said(tab, "layer 0, head 1")


@pytest.mark.release
def test_tokens_have_probabilities_and_the_chosen_one_is_marked(visit, seen):
    tab = asked(visit())
    show(tab, "tokens")
    shown = drawn(tab)
    bars = [text for text in shown if re.fullmatch(r"\d+\.\d %", text)]
    percents = [float(text.removesuffix(" %")) for text in bars]
    expected = [100 * seen.log_probs[t, i].exp().item() for t, i in enumerate(seen.target_ids)]
    assert percents == pytest.approx(expected, abs=0.06)
    assert sum(text.startswith("✓ ") for text in shown) == len(seen.target)
    tab.locator(".panel [data-hover]").nth(1).hover()
    said(tab, f"“\u2068{seen.target[1]}\u2069” had a probability of")


@pytest.mark.release
def test_another_hypothesis_is_shown_and_compared(visit, found):
    tab = asked(visit())
    tab.get_by_label("Translation").select_option("1")
    expect(tab.locator(".translation")).to_have_text(found[1].text)
    tab.get_by_label("Compare with").select_option("2")
    show(tab, "compare")
    said(tab, found[2].text)
    scores = [text for text in drawn(tab) if text.startswith("score")]
    assert [text.split()[1].rstrip(",") for text in scores] == [
        f"{found[n].score:.3f}" for n in (1, 2)
    ]


@pytest.mark.release
def test_words_are_linked_and_the_word_of_the_chosen_token_is_named(visit, trained, found, seen):
    tab = asked(visit())
    (links,) = Aligner(*trained).align([(SENTENCE, found[0].text)])
    sources, targets = SENTENCE.split(), found[0].text.split()
    show(tab, "words")
    assert drawn(tab) == ["sentence", "translation", *sources, *targets]
    assert tab.locator(".panel svg path").count() == len(links)
    tab.locator(".panel").focus()
    for source, target in sorted(links, key=lambda link: link[1]):
        said(
            tab,
            f"“\u2068{targets[target]}\u2069” is aligned with “\u2068{sources[source]}\u2069”: "
            "cross-attention of layer 0, the mean of 2 heads, when the word is written.",
        )
        tab.keyboard.press("ArrowDown")
    show(tab, "map")  # the same token
    token = seen.target[aligned_words(seen, trained[1], SENTENCE).starts[-1]]
    said(tab, f"“\u2068{token}\u2069” attends to")
    tab.get_by_label("Max. tokens").fill("1")
    tab.get_by_label("Min. tokens").fill("1")
    tab.get_by_label("Min. tokens").press("Enter")
    show(tab, "words")
    said(tab, "is aligned with")


@pytest.mark.release
def test_sampling_follows_its_fields_and_the_link(visit, found):
    tab = asked(visit())
    tab.locator("select.search").select_option("sampling")
    tab.get_by_label("Temperature").fill("5")
    tab.get_by_label("Seed").fill("3")
    tab.get_by_label("Samples").select_option("3")
    options = tab.get_by_label("Translation").locator("option")
    expect(options).to_have_count(3)
    tab.locator(".translator:not([aria-busy])").wait_for()
    drawn_texts = options.all_text_contents()
    assert found[0].text not in drawn_texts[2]
    show(tab, "search")
    said(tab, "No search was made")
    assert violations(tab) == []
    again = visit("#" + tab.url.split("#")[1])
    said(again, "No search was made")
    assert again.get_by_label("Translation").locator("option").all_text_contents() == drawn_texts
    assert again.get_by_label("Temperature").input_value() == "5"

    again.get_by_label("Temperature").fill("warm")
    again.get_by_label("Temperature").press("Enter")
    expect(again.get_by_role("alert")).to_contain_text("The temperature is 'warm': give a number")
    assert again.get_by_label("Sentence", exact=True).input_value() == SENTENCE
    tab.locator("select.search").select_option("beams")
    said(tab, "Step 1 of")
    expect(tab.locator(".translation")).to_have_text(found[0].text)
    assert tab.evaluate("window.shifts") == []


@pytest.mark.release
def test_lengths_limit_the_translation_and_are_in_the_link(visit, trained):
    limits = {"min_new_tokens": 9, "max_new_tokens": 12}
    expected = best_translations(*trained, SENTENCE, num_beams=3, **limits)[0].text
    tab = asked(visit())
    tab.get_by_label("Max. tokens").fill("12")
    tab.get_by_label("Min. tokens").fill("9")
    tab.get_by_label("Min. tokens").press("Enter")
    expect(tab.locator(".translation")).to_have_text(expected)
    assert violations(tab) == []
    again = visit("#" + tab.url.split("#")[1])
    expect(again.locator(".translation")).to_have_text(expected)
    assert again.get_by_label("Min. tokens").input_value() == "9"
    again.get_by_label("Max. tokens").fill("8")
    again.get_by_label("Max. tokens").press("Enter")
    expect(again.get_by_role("alert")).to_contain_text("9 tokens is above the maximum of 8")
    assert tab.evaluate("window.shifts") == []


@pytest.mark.release
def test_two_models_are_compared(visit, deep):
    tab = asked(visit())
    tab.get_by_label("Second model").fill(deep)
    tab.get_by_role("button", name="Compare", exact=True).click()
    said(tab, "Bars are the probabilities")
    assert any(text.startswith(deep[:20]) for text in drawn(tab))


@pytest.mark.release
def test_a_layer_shows_its_vectors_with_formulas(visit, seen):
    tab = asked(visit())
    show(tab, "layer")
    said(tab, "its query meets the keys")
    shown = drawn(tab)
    assert "softmax(q · k / √d_k) (3.2.1)" in shown
    assert sum(text.endswith("numbers") for text in shown) == 10
    tab.get_by_role("button", name="Next").click()
    said(tab, f"“\u2068{seen.target[1]}\u2069” in head 0")


@pytest.mark.release
def test_downloads_are_complete_files(visit, found):
    tab = asked(visit())
    contents = {}
    for kind in ("PNG", "SVG", "JSON"):
        with tab.expect_download() as download:
            tab.get_by_role("button", name=kind).click()
        contents[kind] = download.value.path().read_bytes()
        assert download.value.suggested_filename == f"hf_vanilla_map.{kind.lower()}"
    assert contents["PNG"].startswith(b"\x89PNG")
    assert contents["SVG"].startswith(b"<svg")
    assert b"data-" not in contents["SVG"]
    answer = json.loads(contents["JSON"])
    assert [h["text"] for h in answer["hypotheses"]] == [h.text for h in found]
    assert answer["attention"]["kinds"][CROSS]["weights"]


# --- by keyboard, by touch, right to left -------------------------------------------------------


@pytest.mark.release
def test_the_page_works_by_keyboard(visit, seen, trained_run, found):
    tab = visit()
    tab.get_by_label("Sentence", exact=True).focus()
    tab.keyboard.type(SENTENCE)
    tab.keyboard.press("Enter")
    tab.locator(".panel svg").wait_for()
    for _ in range(12):
        tab.keyboard.press("Tab")
        if tab.locator("#tab-map:focus").count():
            break
    tab.keyboard.press("ArrowRight")
    expect(tab.locator("#tab-lines")).to_be_focused()
    tab.keyboard.press("Tab")
    expect(tab.locator(".panel")).to_be_focused()
    tab.keyboard.press("ArrowDown")
    said(tab, f"“\u2068{seen.target[1]}\u2069” attends to")
    tab.keyboard.press("End")
    said(tab, "“\u2068</s>\u2069” attends to")

    show(tab, "search")
    tab.locator(".panel").focus()
    asked_for = {"text": SENTENCE, "beams": len(found)}
    steps = TextPage(str(trained_run)).translate(asked_for)["steps"]
    for step, nodes in enumerate(steps):
        said(tab, f"Step {step + 1} of {len(steps)}")
        for node in nodes:
            words = {"pruned": "pruned", "kept": "kept", "stopped": "ends here"}
            said(tab, words.get(node["status"], f"score \N{MINUS SIGN}{-node['score']:.2f}"))
            tab.keyboard.press("ArrowDown")
        tab.keyboard.press("ArrowRight")
    assert len(drawn(tab)) == len(steps) + 2 * sum(len(nodes) for nodes in steps)
    tab.keyboard.press("Home")
    said(tab, "Step 1 of")

    show(tab, "heads")
    tab.locator(".panel").focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    said(tab, "head 1")


@pytest.mark.release
def test_a_phone_shows_result_and_map_at_once_and_every_target_is_large_enough(visit, seen):
    tab = asked(visit(**PHONE))
    for part in (".translation", ".panel"):
        box = tab.locator(part).bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 844
    sizes = tab.locator(".translator :is(button, input, select):visible").evaluate_all(
        "all => all.map(e => [e.className || e.id, e.offsetWidth, e.offsetHeight])"
    )
    assert [size for size in sizes if size[1] < 44 or size[2] < 44] == []
    for view in VIEWS:
        tab.locator(f"#tab-{view}").tap()
        width = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
        assert tab.evaluate(width) <= 390
    tab.locator("#tab-lines").tap()
    tab.locator(".panel [data-click]").nth(1).tap()
    said(tab, f"“\u2068{seen.target[1]}\u2069” attends to")
    heights = tab.locator(".panel [data-click]").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect().height)"
    )
    assert min(heights) >= 44
    tab.get_by_role("button", name="Next").tap()
    said(tab, f"“\u2068{seen.target[2]}\u2069” attends to")
    tab.locator("#tab-search").tap()
    tab.get_by_role("button", name="Next").tap()
    said(tab, "Step 2 of")


@pytest.mark.release
def test_every_view_answers_to_arrow_keys_buttons_and_taps(visit):
    tab = asked(visit(**PHONE), "three one four six")
    panel = tab.locator(".panel")

    def changes(act):
        before = panel.inner_html()
        act()
        changed = "before => document.querySelector('.panel').innerHTML !== before"
        tab.wait_for_function(changed, arg=before)
        tab.locator(".translator:not([aria-busy])").wait_for()

    for view in VIEWS:
        tab.locator(f"#tab-{view}").tap()
        tab.locator(".panel svg").wait_for()
        tab.locator(".translator:not([aria-busy])").wait_for()
        panel.focus()
        tab.keyboard.press("Home")  # not at the end, where the view before left the token
        changes(lambda: tab.keyboard.press("ArrowDown"))
        changes(lambda: tab.get_by_role("button", name="Next").tap())
        places = tab.locator(".panel [data-click]")
        if places.count():
            changes(lambda: tab.locator(".panel [data-click]").first.tap())


@pytest.mark.release
def test_an_error_leaves_nothing_to_choose(visit):
    tab = asked(visit())
    expect(tab.get_by_label("Head")).to_be_enabled()
    ask(tab, "")
    for label in ("Translation", "Attention", "Layer", "Head", "Compare with"):
        expect(tab.get_by_label(label)).to_be_disabled()
        expect(tab.get_by_label(label).locator("option")).to_have_count(0)


@pytest.fixture
def deep(tiny_model, tmp_path):
    """A model of 2 + 5 layers and 3 + 2 heads that reads Hebrew."""
    tokenizer = train_tokenizer([HEBREW] * 2, vocab_size=300)
    tiny_model.resize_token_embeddings(len(tokenizer))
    tiny_model.generation_config.max_new_tokens = 4
    tiny_model.save_pretrained(tmp_path / "deep")
    tokenizer.save_pretrained(tmp_path / "deep")
    return str(tmp_path / "deep")


@pytest.mark.release
def test_another_model_and_text_from_right_to_left(visit, deep):
    tab = visit()
    tab.get_by_label("Model folder or Hub id").fill(deep)
    tab.get_by_role("button", name="Load").click()
    tab.get_by_text("2 + 5 layers, 3 + 2 heads").wait_for()
    asked(tab, HEBREW)
    said(tab, "layer 4, mean of 2 heads")
    tab.get_by_label("Attention").select_option(ENCODER)
    said(tab, "layer 1, mean of 3 heads")
    cells = tab.locator(".panel [data-hover]")
    assert cells.nth(0).bounding_box()["x"] > cells.nth(1).bounding_box()["x"]
    tab.locator(".panel").focus()
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("ArrowLeft")
    assert "y=1" in tab.url


# --- the address -------------------------------------------------------------------------------


@pytest.mark.release
def test_a_link_shows_the_same_view(visit):
    tab = asked(visit())
    tab.get_by_label("Head").select_option("1")
    show(tab, "search")
    tab.get_by_role("button", name="Next").click()
    said(tab, "Step 2 of")
    other = visit("#" + tab.url.split("#")[1])
    said(other, "Step 2 of")
    assert other.get_by_label("Head").input_value() == "1"
    assert other.url.split("#")[1] == tab.url.split("#")[1]


@pytest.mark.release
@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda state: re.sub("m=[^&]*", "m=other", state), "of another model"),
        (lambda state: state.replace("v=map", "v=sideways"), "damaged"),
        (lambda state: state.replace("l=0", "l=zero"), "damaged"),
        (lambda state: "%%%&&&", "damaged"),
        (lambda state: state.replace("l=0", "l=7"), "does not fit"),
        (lambda state: state.replace("c=0", "c=999"), "does not fit"),
    ],
)
def test_a_state_that_cannot_be_used_is_ignored_with_a_word(visit, folder, change, word):
    state = f"m={folder.rpartition('/')[2]}&s=two&b=2&v=map&k={CROSS}&l=0&d=mean&q=0&h=0&t=0&c=0"
    tab = visit("#" + change(state))
    expect(tab.get_by_role("alert")).to_contain_text(word)
    asked(tab)
    expect(tab.get_by_role("alert")).to_be_empty()


# --- bad input, several visitors ---------------------------------------------------------------


@pytest.mark.release
def test_html_in_a_text_and_a_model_name_is_text(visit):
    tab = asked(visit(), HOSTILE)
    tab.get_by_label("Attention").select_option(ENCODER)
    for view in VIEWS:
        show(tab, view)
    tab.locator(".translator:not([aria-busy])").wait_for()
    assert tab.locator(".panel :is(img, script, b)").count() == 0
    tab.get_by_label("Model folder or Hub id").fill(HOSTILE)
    tab.get_by_role("button", name="Load").click()
    expect(tab.get_by_role("alert")).to_contain_text("<img src=x onerror=")


@pytest.mark.release
@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "There is no text"), ("one " * 500, "the limit is"), ("x" * 20_000, "20,000 characters")],
    ids=["blank", "long", "huge"],
)
def test_a_refused_text_shows_a_message_and_the_next_text_works(visit, text, expected):
    tab = asked(visit())
    ask(tab, text)
    expect(tab.get_by_role("alert")).to_contain_text(expected)
    expect(tab.locator(".panel svg")).to_have_count(0)
    asked(tab, "two")
    expect(tab.get_by_role("alert")).to_be_empty()


@pytest.mark.release
def test_a_broken_model_shows_a_message_and_the_old_model_works(visit, tmp_path, folder):
    (tmp_path / "config.json").write_text("{")
    tab = asked(visit())
    for name, problem in ((str(tmp_path), "This model cannot be used"), (folder, "")):
        tab.get_by_label("Model folder or Hub id").fill(name)
        tab.get_by_role("button", name="Load").click()
        expect(tab.get_by_role("alert")).to_contain_text(problem)
    asked(tab)


@pytest.mark.release
def test_a_late_answer_to_a_view_leaves_a_newer_message(visit, monkeypatch):
    released, inside = threading.Event(), Service.inside

    def late(*arguments, **others):
        released.wait(60)
        return inside(*arguments, **others)

    monkeypatch.setattr(Service, "inside", late)
    tab = asked(visit())
    show(tab, "layer")
    tab.get_by_label("Sentence", exact=True).fill("")
    tab.get_by_role("button", name="Translate").click()
    with tab.expect_event("requestfinished"):
        released.set()
    tab.evaluate("new Promise(requestAnimationFrame)")
    expect(tab.get_by_role("alert")).to_contain_text("There is no text")


@pytest.mark.release
def test_two_visitors_at_once_see_their_own_results(visit, trained):
    sentences = ["three one four", "eight"]
    tabs = [visit(), visit()]
    for tab, sentence in zip(tabs, sentences, strict=True):
        tab.get_by_label("Sentence", exact=True).fill(sentence)
        tab.get_by_role("button", name="Translate").click()
    for tab, translation in zip(tabs, translate(*trained, sentences), strict=True):
        expect(tab.locator(".translation")).to_have_text(translation)
    show(tabs[0], "search")
    said(tabs[0], "Step 1 of")
    said(tabs[1], "Cross-attention")


# --- axe and layout shift -----------------------------------------------------------------------


@pytest.mark.release
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("context", [{}, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_and_nothing_moves_in_any_state(visit, scheme, context):
    tab = visit(color_scheme=scheme, **context)
    assert violations(tab) == []
    asked(tab)
    for view in VIEWS:
        show(tab, view)
        tab.locator(".translator:not([aria-busy])").wait_for()
        assert violations(tab) == [], view
    show(tab, "map")
    asked(tab, "three one four " * 20 + "x" * 60)
    assert violations(tab) == []
    ask(tab, "")
    expect(tab.get_by_role("alert")).to_contain_text("There is no text")
    assert violations(tab) == []
    assert tab.evaluate("window.shifts") == []


@pytest.mark.release
def test_nothing_moves_while_the_page_is_loaded_slowly(browser, address):
    with tab_of(browser, address, is_slow=True) as tab:
        tab.locator(".about:not(:empty)").wait_for()
        asked(tab)
        assert tab.evaluate("window.shifts") == []
