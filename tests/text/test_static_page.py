"""The page without a server, in headless Chromium: as one file from disk, and as a folder."""

import functools
import http.server
import json
import random
import threading

import pytest
from chromium import HOSTILE, PHONE, RECORD_SHIFTS, launched, needs_chromium, violations
from num2words import num2words
from tokenizers import AddedToken

from hf_vanilla import demo_model, translate
from hf_vanilla.text.loading import demo_model_facts, load_translator
from hf_vanilla.text.n_best import best_translations
from hf_vanilla.text.static_page import PageOptions, check_engine, write_page

expect = pytest.importorskip("playwright.sync_api").expect
expect.set_options(timeout=10_000)
SPOILED = "</script><img src=x onerror=\"window.broken='tag'\">"
VIEWS = ("overview", "map", "lines", "heads", "tokens", "search", "layer", "compare", "words")
DESK = {"viewport": {"width": 1280, "height": 800}}
PROJECTOR = {"viewport": {"width": 1920, "height": 1080}}
SENTENCE = "three one four"
# font sizes on the screen of all text that is seen; a picture is scaled
TEXT_SIZES = """() => [...document.querySelectorAll("body *")]
  .filter((e) => e.checkVisibility({ visibilityProperty: true }))
  .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
  .map((e) => {
    const svg = e.ownerSVGElement, scale = svg ? svg.clientWidth / svg.viewBox.baseVal.width : 1;
    return parseFloat(getComputedStyle(e).fontSize) * scale;
  })"""
# what shows the focus: a chip is an input with a label above it
FOCUS = """() => {
  const e = document.activeElement, shown = e.matches(".chips input") ? e.nextElementSibling : e;
  const { outlineStyle, outlineWidth } = getComputedStyle(shown);
  return [e === document.body ? "" : e.className || e.name, outlineStyle, parseFloat(outlineWidth)];
}"""
TARGETS = """() => [...document.querySelectorAll("button, input, select, summary, textarea")]
  .filter((e) => e.checkVisibility({ visibilityProperty: true }))
  .map((e) => [e.className || e.name, e.offsetWidth, e.offsetHeight])
  .filter(([, wide, high]) => wide < 24 || high < 24)"""


@pytest.fixture(scope="module")
def one_file(tmp_path_factory):
    output = tmp_path_factory.mktemp("page") / "numbers.html"
    return write_page(PageOptions(output=str(output), single_file=True, title=SPOILED))


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory, trained_run):
    """A page of two models from a static host; the first knows digits, the second numbers."""
    output = tmp_path_factory.mktemp("host") / "page"
    options = PageOptions(
        output=str(output), model=str(trained_run), compared=[demo_model()], sentence=SENTENCE
    )
    handler = functools.partial(QuietHandler, directory=write_page(options))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """The tests' output shows no requests."""


class Visit:
    """A page in a tab; at the end it has failed nowhere and asked for nothing elsewhere."""

    def __init__(self, browser, address, own, *, reduced_motion="reduce", **context):
        self.context = browser.new_context(reduced_motion=reduced_motion, **context)
        self.own, self.requests, self.failures = own, [], []
        self.tab = self.context.new_page()
        self.tab.add_init_script(RECORD_SHIFTS)
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("pageerror", lambda error: self.failures.append(str(error)))
        self.tab.on("console", lambda message: self.failures.append(message.text))
        self.tab.goto(address)
        self.tab.locator(".panel svg").wait_for(timeout=60_000)

    def show(self, view):
        self.tab.locator(f"#tab-{view}").click()
        self.tab.locator(f"body[data-view={view}] .panel svg").wait_for()
        expect(self.tab.locator(".panel")).not_to_contain_text("Computing")

    def ask(self, text):
        self.tab.get_by_label("Sentence", exact=True).first.fill(text)
        self.tab.get_by_role("button", name="Translate").click()

    def said(self, text):
        expect(self.tab.locator(".said")).to_contain_text(text)

    def close(self):
        broken = self.tab.evaluate("window.broken")
        self.context.close()
        assert (self.failures, broken) == ([], None)
        assert [one for one in self.requests if not one.startswith(self.own)] == []


@pytest.fixture
def visit(browser, address):
    visits = []

    def visit(**context):
        visits.append(Visit(browser, address, (address, "data:", "blob:"), **context))
        return visits[-1]

    yield visit
    for one in visits:
        one.close()


@pytest.mark.slow
@needs_chromium
def test_one_file_translates_from_disk_as_generate_does_and_asks_nobody(one_file, browser):
    assert one_file.stat().st_size < 3e6
    page = Visit(browser, one_file.as_uri(), (one_file.as_uri(), "blob:"))
    about = page.tab.locator(".about").inner_text()
    assert about == "Translates: English to German. Trained on: number words from 0 to 999,999"
    assert page.tab.locator("h1").inner_text() == SPOILED
    model, tokenizer = load_translator(demo_model(), dtype="float32")
    draw = random.Random(5)
    first = demo_model_facts("numbers")["examples"][0]
    sentences = [first, *(num2words(draw.randrange(10**6)) for _ in range(12))]
    script = """async (texts) => {
      const found = [];
      for (const text of texts) found.push(await hfVanilla.translate(text));
      return found.map(({ ids, score }) => ({ ids, score }));
    }"""
    for text, answer in zip(sentences, page.tab.evaluate(script, sentences), strict=True):
        [best, *_] = best_translations(model, tokenizer, text, num_beams=4)
        assert answer["ids"] == best.ids
        assert answer["score"] == pytest.approx(best.score, abs=1e-4)
    best = best_translations(model, tokenizer, sentences[0], num_beams=4)[0]
    assert page.tab.locator(".translation").inner_text() == best.text
    page.close()


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize(
    "context", [DESK, {**PHONE, "color_scheme": "dark"}], ids=["desk", "phone"]
)
def test_every_view_is_on_one_screen_accessible_and_does_not_move(visit, context):
    page = visit(**context)
    tab = page.tab
    width, height = context["viewport"].values()
    for view in VIEWS:
        page.show(view)
        assert violations(tab, part="body") == [], view
        assert tab.evaluate(TARGETS) == [], view
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, view
        for part in (".translation", ".panel", "fieldset.head"):
            box = tab.locator(part).bounding_box()
            assert box["y"] >= 0, (view, part)
            assert box["y"] + box["height"] <= height, (view, part)
        tab.locator(".panel").focus()
        tab.keyboard.press("Home")
        said = tab.locator(".said").inner_text()
        assert len(said) > 20, view
        tab.keyboard.press({"overview": "ArrowUp", "heads": "ArrowRight"}.get(view, "ArrowDown"))
        expect(tab.locator(".said")).not_to_have_text(said)
    if context is DESK:
        assert tab.evaluate("document.documentElement.scrollHeight") == height
    assert tab.evaluate("window.shifts") == []


@pytest.mark.slow
@needs_chromium
def test_the_focus_is_seen_wherever_the_keyboard_goes(visit):
    page = visit(**DESK)
    page.tab.get_by_text("How to search").click()
    seen = set()
    for _ in range(40):
        page.tab.keyboard.press("Tab")
        name, style, width = page.tab.evaluate(FOCUS)
        assert not name or (style == "solid" and width >= 2), name
        seen.add(name)
    assert {"panel", "play", "kind", "beams", "translate", "save", "present"} <= seen


@pytest.mark.slow
@needs_chromium
def test_a_projected_page_fills_the_window_with_text_of_20_pixels(visit):
    page = visit(**PROJECTOR)
    page.tab.get_by_role("button", name="Present").click()
    for view in VIEWS:
        page.show(view)
        assert min(page.tab.evaluate(TEXT_SIZES)) >= 19.9, view
        assert page.tab.locator(".panel").bounding_box()["width"] > 1800
        assert page.tab.evaluate("document.documentElement.scrollHeight") <= 1080, view
    page.tab.keyboard.press("Escape")
    expect(page.tab.get_by_role("button", name="Translate")).to_be_visible()


@pytest.mark.slow
@needs_chromium
def test_the_first_translation_plays_once_unless_the_system_asks_for_no_motion(visit):
    still = visit()
    expect(still.tab.locator(".play")).to_have_text("Play")
    still.tab.clock.install()
    for view, first in (
        ("layer", "x, the input"),
        ("search", "Step 1 of"),
        ("overview", "Box 1 of"),
    ):
        still.show(view)
        still.tab.get_by_role("button", name="Play").click()
        still.said(first)
        drawn = still.tab.locator(".panel text").count()
        still.tab.clock.run_for(20_000)
        expect(still.tab.locator(".play")).to_have_text("Play")
        assert still.tab.locator(".panel text").count() > drawn
    page = visit(reduced_motion="no-preference", **DESK)
    expect(page.tab.locator(".play")).to_have_text("Stop playing")
    expect(page.tab.locator(".later")).not_to_be_empty()
    expect(page.tab.locator(".play")).to_have_text("Play")
    expect(page.tab.locator(".later")).to_be_empty()
    assert page.tab.evaluate("window.shifts") == []


@pytest.mark.slow
@needs_chromium
def test_a_link_has_the_whole_state_and_what_is_damaged_in_it_is_said(visit, address):
    page = visit()
    page.show("map")
    page.tab.get_by_label("encoder").check()
    page.tab.locator("fieldset.head").get_by_label("1").check()
    page.tab.locator(".panel").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.tab.keyboard.press(key)
    said = page.tab.locator(".said").inner_text()
    link = page.tab.url
    assert "head 1" in said
    page.tab.goto("about:blank")
    page.tab.goto(link)
    page.said(said)
    damaged = {
        link.replace("q=1", "q=-1e3"): "A part of the link is damaged",
        link.replace("m=", "m=other-"): "made with another model, other-",
        f"{address}#k=cross": "The link is damaged",
    }
    for changed, problem in damaged.items():
        page.tab.goto("about:blank")
        page.tab.goto(changed)
        expect(page.tab.locator(".problem")).to_contain_text(problem)
    page.tab.goto("about:blank")
    page.tab.goto(link.replace("d=1", "d=99").replace("q=1", "q=999") + "&l=77")
    page.said("mean of")


@pytest.mark.slow
@needs_chromium
def test_a_sentence_typed_while_the_model_loads_is_translated(browser, one_file):
    tab = browser.new_page()
    tab.add_init_script("""const held = new Promise((go) => (globalThis.go = go));
      const post = Worker.prototype.postMessage;
      Worker.prototype.postMessage = function (...all) { held.then(() => post.apply(this, all)); };
    """)
    tab.goto(one_file.as_uri())
    source = tab.get_by_label("Sentence", exact=True).first
    source.fill("forty-two")
    source.press("Enter")
    tab.evaluate("go()")
    expect(tab.locator(".translation")).to_have_text("zweiundvierzig")
    assert source.input_value() == "forty-two"
    tab.close()


@pytest.mark.slow
@needs_chromium
def test_what_a_view_says_is_that_of_the_choice(visit):
    page = visit(**DESK)
    tab = page.tab
    status = tab.locator(".status")
    hypotheses = tab.locator(".hypothesis option").all_inner_texts()
    for index in (1, 0):
        tab.locator(".hypothesis").select_option(index=index)
        expect(status).to_contain_text(f"Score {hypotheses[index].split()[1]},")
    page.show("layer")
    assert tab.locator("fieldset.head").get_by_label("0", exact=True).is_checked()
    assert tab.locator("fieldset.head").get_by_label("mean").is_disabled()
    page.said("the step that writes")
    expect(tab.locator(".panel")).to_contain_text("LayerNorm(y + feed-forward)")
    keys = []
    for key in (2, 1):
        tab.locator(f"""[data-click='{{"key":{key}}}']""").click()
        name = tab.locator(".panel svg").get_by_text("k, the key of").text_content()
        keys.append(name.removeprefix("k, the key of "))
        page.said(f"q · k of {keys[-1]}")
    assert keys[0] != keys[1]
    tab.get_by_label("decoder").check()
    page.said("decoder self-attention")
    expect(tab.locator(".panel")).not_to_contain_text("feed-forward")  # cross-attention is between
    tab.get_by_label("encoder").check()
    page.said("encoder self-attention: “")
    page.show("map")
    assert tab.locator("fieldset.head").get_by_label("mean").is_checked()


@pytest.mark.slow
@needs_chromium
def test_two_sentences_and_two_models_are_compared(visit, trained):
    page = visit(**DESK)
    [expected] = translate(*trained, ["two five"])
    page.show("compare")
    page.tab.get_by_label("Compare with").select_option("asked")
    page.tab.locator(".otherText").fill("two five")
    page.tab.locator("button.compare").click()
    page.said(f"“\u2068{expected}\u2069”")
    page.tab.locator(".otherModel").select_option(index=1)
    page.tab.locator(".otherText").fill("forty-two")
    page.tab.locator("button.compare").click()
    page.said("“\u2068zweiundvierzig\u2069”")
    expect(page.tab.locator(".panel")).to_contain_text("zweiundvierzig")
    link = page.tab.url
    page.tab.goto("about:blank")
    page.tab.goto(link)
    page.said("“\u2068zweiundvierzig\u2069”")


@pytest.mark.slow
@needs_chromium
def test_downloads_are_complete_files(visit):
    page = visit()
    contents = {}
    for kind in ("PNG", "SVG", "JSON"):
        with page.tab.expect_download() as download:
            page.tab.get_by_role("button", name=kind).click()
        contents[kind] = download.value.path().read_bytes()
        assert download.value.suggested_filename == f"hf_vanilla_map.{kind.lower()}"
    assert contents["PNG"].startswith(b"\x89PNG")
    assert contents["SVG"].startswith(b"<svg")
    assert b"data-" not in contents["SVG"]
    assert json.loads(contents["JSON"])["sentence"] == SENTENCE


@pytest.mark.slow
@needs_chromium
def test_bad_input_is_one_clear_line_and_the_next_text_works(visit):
    page = visit(**DESK)
    problem = page.tab.locator(".problem")
    refused = {
        "": "There is no text",
        " \t \n ": "There is no text",
        "x" * 100_000: "The text has 100,000 characters; the limit is",
        "x" * 1_000: "The text has 1,0",
    }
    for text, message in refused.items():
        page.ask(text)
        expect(problem).to_contain_text(message)
        assert page.tab.locator(".panel svg").count() == 0
    for text in ("\0", "\ud800 one", "שלום", HOSTILE[:36], "<p>" * 9 + "one"):
        page.ask(text)
        expect(problem).to_be_empty()
        page.tab.locator(".panel svg").wait_for()
        for view in VIEWS[:-1]:
            page.show(view)
    page.tab.get_by_text("How to search").click()
    page.tab.get_by_label("Max. tokens").fill("many")
    page.tab.get_by_label("Max. tokens").press("Enter")
    expect(problem).to_contain_text("The maximum length is 'many': give a whole number")
    page.tab.get_by_label("Max. tokens").fill("2")
    page.ask(SENTENCE)
    expect(problem).to_be_empty()


@pytest.mark.slow
@needs_chromium
def test_a_long_search_can_be_stopped(browser, one_file):
    page = Visit(browser, one_file.as_uri(), (one_file.as_uri(), "blob:"), **DESK)
    page.tab.get_by_text("How to search").click()
    page.tab.get_by_label("Beams").select_option("10")
    page.ask("Wie spät ist es bitte?")
    expect(page.tab.locator(".status")).to_contain_text("Note: the text is split into letters")
    page.tab.get_by_label("Sentence", exact=True).first.fill("seven " * 100)
    buttons = "document.querySelector('.translate')"  # twice at once: the search takes a second
    page.tab.evaluate(f"{buttons}.click(), {buttons}.click()")
    expect(page.tab.locator(".problem")).to_have_text("Stopped.")
    page.close()


def test_page_refuses_by_name_what_the_engine_does_not_compute(tmp_path):
    model, tokenizer = load_translator(demo_model())
    model.generation_config.update(output_attentions=False)  # off, as in files of transformers 4
    check_engine("M", model, tokenizer)
    model.config.activation_function = "gelu"
    model.generation_config.update(do_sample=True, repetition_penalty=1.5)
    names = "do_sample=True, repetition_penalty=1.5, activation_function='gelu', which M needs"
    with pytest.raises(ValueError, match=names):
        check_engine("M", model, tokenizer)
    model, _ = load_translator(demo_model())
    tokenizer.add_tokens(AddedToken("<url>", lstrip=True))
    with pytest.raises(ValueError, match="does not compute lstrip of '<url>', which M needs"):
        check_engine("M", model, tokenizer)
    (tmp_path / "there").touch()
    for options in ({"single_file": True}, {}):
        with pytest.raises(FileExistsError, match="exists"):
            write_page(PageOptions(output=str(tmp_path / "there"), **options))
    with pytest.raises(ValueError, match=r"page.html': one HTML file needs --single_file True"):
        write_page(PageOptions(output=str(tmp_path / "page.html")))
