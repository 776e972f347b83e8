"""The app in headless Chromium: what a visitor sees and does, by mouse, keyboard and phone."""

import re
import shutil

import pytest
import torch

from hf_vanilla import train_tokenizer
from hf_vanilla.app.attention_view import CROSS, DECODER, ENCODER, one_head
from hf_vanilla.app.server import AppOptions, serve
from hf_vanilla.translation.attentions import attentions
from hf_vanilla.translation.n_best import best_translations
from hf_vanilla.translation.translator import load_translator, translate

pytest.importorskip("gradio")
playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

SENTENCE, HEBREW = "three one four", "שלום עולם"
HOSTILE = (
    "<img src=x onerror=\"window.broken='tag'\"><script>window.broken='script'</script>"
    "${window.broken='dollar'} {{window.broken}} **b** &lt;i&gt; \"'`"
)


@pytest.fixture(scope="module")
def address(trained_run, tmp_path_factory):
    model, tokenizer = load_translator(str(trained_run))
    tokenizer.model_max_length = 400  # room for long sentences
    folder = tmp_path_factory.mktemp("served")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    blocks = serve(AppOptions(model=str(folder), max_tokens=400), is_blocking=False)
    yield blocks.local_url
    blocks.close()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Visitor:
    """Somebody with a browser of their own."""

    def __init__(self, browser, address, **context):
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.outside, self.failures = [], []
        self.page.on("request", self._note)
        self.page.on("pageerror", lambda error: self.failures.append(str(error)))
        self.page.goto(address)
        self.button("Translate").wait_for()

    def _note(self, request):
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.outside.append(request.url)

    def button(self, name):
        return self.page.get_by_role("button", name=name, exact=True)

    def type(self, text):
        self.page.get_by_label("Sentence").fill(text)

    def translate(self, text):
        self.type(text)
        self.button("Translate").click()

    def load(self, name):
        self.page.get_by_label("Model folder or Hub id").fill(name)
        self.button("Load").click()

    def choose(self, group, name):
        self.page.locator(f"#{group}").get_by_role("radio", name=name, exact=True).check()

    def wait_for_title(self, text):
        self.page.locator(".attention-title", has_text=text).wait_for()

    @property
    def translation(self):
        return self.page.locator(".translation")

    @property
    def looking(self):
        return self.page.get_by_role("option")

    def shades(self):
        """Percent that each token that is looked at shows, 0 for none."""
        texts = self.page.locator(".looked-at .percent").all_inner_texts()
        return [int(text or 0) for text in texts]


@pytest.fixture
def visit(browser, address):
    visitors = []

    def visit(**context):
        visitors.append(Visitor(browser, address, **context))
        return visitors[-1]

    yield visit
    for visitor in visitors:
        visitor.context.close()
    assert [visitor.outside for visitor in visitors] == [[]] * len(visitors)
    assert [visitor.failures for visitor in visitors] == [[]] * len(visitors)


@pytest.fixture(scope="module")
def seen(trained):
    beams = trained[0].generation_config.num_beams
    ids = best_translations(*trained, SENTENCE, num_beams=beams)[0].ids
    return attentions(*trained, SENTENCE, translation=ids)


def percent(row):
    return [int(value) for value in (row * 100).round()]


def assert_shows(visitor, row):
    """Each percentage is that of the row; thousandths lie between, hence one may differ by 1."""
    shown = torch.tensor(visitor.shades())
    assert (shown - torch.tensor(percent(row))).abs().max() <= 1
    assert shown.sum() > 90


# --- the way through ---------------------------------------------------------------------------


def test_type_translate_and_read_where_each_token_looked(visit, trained, seen):
    visitor = visit()
    visitor.translate(SENTENCE)
    visitor.wait_for_title("Cross-attention, layer 0, mean of 2 heads.")
    assert visitor.translation.inner_text() == translate(*trained, [SENTENCE])[0]
    names = [
        visitor.page.get_by_role("group", name=name) for name in ("Layer", "Head", "Attention")
    ]
    assert [group.count() for group in names] == [1, 1, 1]
    radios = visitor.page.locator("#hypotheses").get_by_role("radio")
    assert radios.count() == trained[0].generation_config.num_beams
    assert visitor.looking.locator("bdi").all_inner_texts() == seen.target
    row = one_head(seen, CROSS, 0, "mean")
    assert_shows(visitor, row[0])
    for place in (2, 1):
        visitor.looking.nth(place).hover()
        assert_shows(visitor, row[place])
        assert visitor.looking.nth(place).get_attribute("aria-selected") == "true"
    heaviest = visitor.page.locator(".looked-at .token").nth(int(row[1].argmax()))
    weight = float(heaviest.evaluate("token => token.style.getPropertyValue('--weight')"))
    assert weight == pytest.approx(row[1].max().item(), abs=1e-3)
    assert seen.source[int(row[1].argmax())] in visitor.page.locator(".attention-told").inner_text()


def test_kind_layer_and_head_change_the_picture(visit, seen):
    visitor = visit()
    visitor.translate(SENTENCE)
    visitor.wait_for_title("Cross-attention")
    visitor.choose("head", "1")
    visitor.wait_for_title("head 1.")
    visitor.looking.nth(1).hover()
    assert_shows(visitor, one_head(seen, CROSS, 0, 1)[1])
    visitor.choose("kind", "Encoder self-attention")
    visitor.wait_for_title("Encoder self-attention, layer 0, head 1.")
    assert visitor.looking.locator("bdi").all_inner_texts() == seen.source
    assert_shows(visitor, one_head(seen, ENCODER, 0, 1)[1])  # the token stays chosen
    visitor.choose("kind", "Decoder self-attention")
    visitor.wait_for_title("Decoder self-attention")
    visitor.looking.nth(0).hover()
    assert_shows(visitor, one_head(seen, DECODER, 0, 1)[0])
    assert visitor.shades()[0] == 100  # nothing but the start to look at


def test_another_of_the_best_translations_can_be_looked_into(visit, trained):
    visitor = visit()
    visitor.translate(SENTENCE)
    visitor.wait_for_title("Cross-attention")
    beams = trained[0].generation_config.num_beams
    second = best_translations(*trained, SENTENCE, num_beams=beams)[1]
    visitor.page.locator("#hypotheses").get_by_role("radio").nth(1).check()
    playwright.expect(visitor.translation).to_have_text(second.text)
    playwright.expect(visitor.looking).to_have_count(len(second.ids))


@pytest.fixture
def deep(tiny_model, tmp_path):
    """A model of 2 + 5 layers and 3 + 2 heads that reads Hebrew."""
    tokenizer = train_tokenizer([HEBREW] * 2, vocab_size=300)
    tiny_model.resize_token_embeddings(len(tokenizer))
    tiny_model.generation_config.max_new_tokens = 4
    tiny_model.save_pretrained(tmp_path / "deep")
    tokenizer.save_pretrained(tmp_path / "deep")
    return str(tmp_path / "deep")


def test_another_model_offers_its_own_layers_and_heads(visit, deep):
    visitor = visit()
    visitor.load(deep)
    visitor.page.get_by_text("2 + 5 layers, 3 + 2 heads").wait_for()
    visitor.translate(SENTENCE)
    visitor.wait_for_title("Cross-attention, layer 4,")
    visitor.choose("layer", "0")
    visitor.wait_for_title("Cross-attention, layer 0,")
    visitor.choose("kind", "Encoder self-attention")
    visitor.wait_for_title("Encoder self-attention, layer 0,")
    visitor.choose("head", "2")
    visitor.wait_for_title("head 2.")


# --- by keyboard, on a phone, from right to left -----------------------------------------------


def test_the_keyboard_is_enough(visit, seen):
    visitor = visit()
    keyboard = visitor.page.keyboard
    visitor.page.get_by_label("Sentence").focus()
    keyboard.type(SENTENCE)
    keyboard.press("Enter")
    visitor.wait_for_title("Cross-attention")
    for _ in range(40):
        keyboard.press("Tab")
        if visitor.page.locator(".token:focus").count():
            break
    row = one_head(seen, CROSS, 0, "mean")
    for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", -1)):
        keyboard.press(key)
        assert_shows(visitor, row[place])
    focused = visitor.page.locator(".token:focus")
    assert focused.inner_text() == "</s>"
    assert focused.evaluate("token => getComputedStyle(token).outlineWidth") == "3px"
    keyboard.press("ArrowRight")  # there is no next
    assert focused.inner_text() == "</s>"
    keyboard.press("Home")
    assert_shows(visitor, row[0])


def test_a_phone_needs_no_scrolling_to_the_side(visit):
    visitor = visit(viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True)
    visitor.translate("three one four " * 20 + "x" * 60)
    visitor.wait_for_title("Cross-attention")
    width = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
    assert visitor.page.evaluate(width) <= 375
    edges = visitor.page.locator(".token").evaluate_all(
        "all => all.map(token => token.getBoundingClientRect()).map(box => [box.left, box.right])"
    )
    assert all(0 <= left < right <= 375 for left, right in edges)
    visitor.looking.nth(1).tap()
    assert visitor.looking.nth(1).get_attribute("aria-selected") == "true"


def test_text_from_right_to_left_runs_from_right_to_left(visit, deep):
    visitor = visit()
    visitor.load(deep)
    visitor.translate(HEBREW)
    visitor.choose("kind", "Encoder self-attention")
    visitor.wait_for_title("Encoder")
    box = visitor.page.get_by_label("Sentence")
    assert box.evaluate("box => getComputedStyle(box).unicodeBidi") == "plaintext"
    first, second = (visitor.looking.nth(place) for place in (0, 1))
    assert "".join(visitor.looking.locator("bdi").all_inner_texts()).startswith("שלום␣")
    assert first.bounding_box()["x"] > second.bounding_box()["x"]
    first.focus()
    visitor.page.keyboard.press("ArrowLeft")
    assert second.get_attribute("aria-selected") == "true"


# --- bad input, and others ---------------------------------------------------------------------


def test_hostile_text_is_shown_and_never_interpreted(visit):
    visitor = visit()
    visitor.translate(HOSTILE)
    visitor.wait_for_title("Cross-attention")
    visitor.choose("kind", "Encoder self-attention")
    visitor.wait_for_title("Encoder")
    visitor.looking.nth(0).hover()
    shown = "".join(visitor.looking.locator("bdi").all_inner_texts())
    assert shown.removesuffix("</s>") == HOSTILE.replace(" ", "␣")
    assert visitor.page.evaluate("window.broken") is None
    assert visitor.page.locator("#attention :is(img, script, b b, i)").count() == 0


def test_a_hostile_name_is_shown_and_never_interpreted(visit):
    visitor = visit()
    visitor.load(HOSTILE)
    playwright.expect(visitor.page.get_by_role("alert")).to_contain_text("<img src=x onerror=")
    visitor.translate(SENTENCE)
    playwright.expect(visitor.page.locator("#told")).to_contain_text("<img src=x onerror=")
    assert visitor.page.evaluate("window.broken") is None


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "There is no text"), ("one " * 500, "at most"), ("x" * 20_000, "20,000 characters")],
    ids=["blank", "long", "huge"],
)
def test_text_that_cannot_be_translated_is_told_and_the_next_is(visit, text, told):
    visitor = visit()
    visitor.translate(SENTENCE)
    visitor.wait_for_title("Cross-attention")
    visitor.translate(text)
    playwright.expect(visitor.page.get_by_role("alert")).to_contain_text(told)
    playwright.expect(visitor.page.locator("#results")).to_be_hidden()
    visitor.translate("two")
    visitor.wait_for_title("Cross-attention")
    assert visitor.page.get_by_role("alert").count() == 0


def test_two_people_at_once_each_see_their_own(visit, trained):
    sentences = ["three one four", "eight"]
    people = [visit(), visit()]
    for visitor, sentence in zip(people, sentences, strict=True):
        visitor.translate(sentence)
    expected = translate(*trained, sentences)
    for visitor, translation in zip(people, expected, strict=True):
        visitor.wait_for_title("Cross-attention")
        playwright.expect(visitor.translation).to_have_text(translation)
    people[0].choose("kind", "Encoder self-attention")
    people[0].wait_for_title("Encoder")
    people[1].choose("kind", "Decoder self-attention")
    people[1].wait_for_title("Decoder")
    shown = "".join(people[0].looking.locator("bdi").all_inner_texts())
    assert shown == "three␣one␣four</s>"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_it_stands_on(visit, scheme):
    visitor = visit(color_scheme=scheme)
    visitor.translate(SENTENCE)
    visitor.wait_for_title("Cross-attention")
    fills = []
    visitor.page.evaluate(PAINTED)
    for weight in ("0", "0.5", "1"):
        token = visitor.page.locator(".looked-at .token").first
        token.evaluate(f"token => token.style.setProperty('--weight', {weight})")
        ink, fill = token.evaluate("token => [getComputedStyle(token).color, painted(token)]")
        fills.append(fill)
        assert contrast(ink, fill) >= 4.5
    assert len(set(map(tuple, fills))) == 3


# what is seen behind a token: its own fill over that of the nearest element which has one
PAINTED = """
(() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  window.painted = (token) => {
    const fills = [];
    for (let node = token; node; node = node.parentElement)
      fills.unshift(getComputedStyle(node).backgroundColor);
    context.clearRect(0, 0, 1, 1);
    for (const fill of ["white", ...fills]) {
      context.fillStyle = fill;
      context.fillRect(0, 0, 1, 1);
    }
    return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
})()
"""


def contrast(ink, fill):
    """WCAG's ratio of two colors, from `rgb(...)` text and three bytes."""

    def luminance(channels):
        linear = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    inks = [float(part) for part in re.findall(r"[\d.]+", ink)[:3]]
    light, dark = sorted((luminance(inks), luminance(fill)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
