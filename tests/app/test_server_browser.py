"""The app in headless Chromium: by mouse, by keyboard and on a phone."""

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
        self.other_hosts, self.failures = [], []
        self.page.on("request", self._note)
        self.page.on("pageerror", lambda error: self.failures.append(str(error)))
        self.page.goto(address)
        self.button("Translate").wait_for()

    def _note(self, request):
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.other_hosts.append(request.url)

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
    def queries(self):
        return self.page.get_by_role("option")

    def percents(self):
        """Percent of each key token, 0 if none is shown."""
        texts = self.page.locator(".keys .percent").all_inner_texts()
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
    assert [visitor.other_hosts for visitor in visitors] == [[]] * len(visitors)
    assert [visitor.failures for visitor in visitors] == [[]] * len(visitors)


@pytest.fixture(scope="module")
def weights(trained):
    beams = trained[0].generation_config.num_beams
    ids = best_translations(*trained, SENTENCE, num_beams=beams)[0].ids
    return attentions(*trained, SENTENCE, translation=ids)


def percent(row):
    return [int(value) for value in (row * 100).round()]


def assert_shows(visitor, row):
    """Percents equal those of the row; rounding to thousandths first may change them by 1."""
    shown = torch.tensor(visitor.percents())
    assert (shown - torch.tensor(percent(row))).abs().max() <= 1
    assert shown.sum() > 90


# --- by mouse ----------------------------------------------------------------------------------


def test_translate_and_read_the_attention_of_each_token(visit, trained, weights):
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
    assert visitor.queries.locator("bdi").all_inner_texts() == weights.target
    row = one_head(weights, CROSS, 0, "mean")
    assert_shows(visitor, row[0])
    for index in (2, 1):
        visitor.queries.nth(index).hover()
        assert_shows(visitor, row[index])
        assert visitor.queries.nth(index).get_attribute("aria-selected") == "true"
    heaviest = visitor.page.locator(".keys .token").nth(int(row[1].argmax()))
    weight = float(heaviest.evaluate("token => token.style.getPropertyValue('--weight')"))
    assert weight == pytest.approx(row[1].max().item(), abs=1e-3)
    assert (
        weights.source[int(row[1].argmax())]
        in visitor.page.locator(".attention-summary").inner_text()
    )


def test_kind_layer_and_head_change_the_figure(visit, weights):
    visitor = visit()
    visitor.translate(SENTENCE)
    visitor.wait_for_title("Cross-attention")
    visitor.choose("head", "1")
    visitor.wait_for_title("head 1.")
    visitor.queries.nth(1).hover()
    assert_shows(visitor, one_head(weights, CROSS, 0, 1)[1])
    visitor.choose("kind", "Encoder self-attention")
    visitor.wait_for_title("Encoder self-attention, layer 0, head 1.")
    assert visitor.queries.locator("bdi").all_inner_texts() == weights.source
    assert_shows(visitor, one_head(weights, ENCODER, 0, 1)[1])  # the token stays selected
    visitor.choose("kind", "Decoder self-attention")
    visitor.wait_for_title("Decoder self-attention")
    visitor.queries.nth(0).hover()
    assert_shows(visitor, one_head(weights, DECODER, 0, 1)[0])
    assert visitor.percents()[0] == 100  # the start token is the only key


def test_another_hypothesis_can_be_selected(visit, trained):
    visitor = visit()
    visitor.translate(SENTENCE)
    visitor.wait_for_title("Cross-attention")
    beams = trained[0].generation_config.num_beams
    second = best_translations(*trained, SENTENCE, num_beams=beams)[1]
    visitor.page.locator("#hypotheses").get_by_role("radio").nth(1).check()
    playwright.expect(visitor.translation).to_have_text(second.text)
    playwright.expect(visitor.queries).to_have_count(len(second.ids))


@pytest.fixture
def deep(tiny_model, tmp_path):
    """A model of 2 + 5 layers and 3 + 2 heads that reads Hebrew."""
    tokenizer = train_tokenizer([HEBREW] * 2, vocab_size=300)
    tiny_model.resize_token_embeddings(len(tokenizer))
    tiny_model.generation_config.max_new_tokens = 4
    tiny_model.save_pretrained(tmp_path / "deep")
    tokenizer.save_pretrained(tmp_path / "deep")
    return str(tmp_path / "deep")


def test_another_model_has_its_own_layers_and_heads(visit, deep):
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


# --- by keyboard, on a phone, right to left ----------------------------------------------------


def test_the_page_works_by_keyboard(visit, weights):
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
    row = one_head(weights, CROSS, 0, "mean")
    for key, index in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", -1)):
        keyboard.press(key)
        assert_shows(visitor, row[index])
    focused = visitor.page.locator(".token:focus")
    assert focused.inner_text() == "</s>"
    assert focused.evaluate("token => getComputedStyle(token).outlineWidth") == "3px"
    keyboard.press("ArrowRight")  # there is no next
    assert focused.inner_text() == "</s>"
    keyboard.press("Home")
    assert_shows(visitor, row[0])


def test_a_phone_needs_no_horizontal_scrolling(visit):
    visitor = visit(viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True)
    visitor.translate("three one four " * 20 + "x" * 60)
    visitor.wait_for_title("Cross-attention")
    width = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
    assert visitor.page.evaluate(width) <= 375
    edges = visitor.page.locator(".token").evaluate_all(
        "all => all.map(token => token.getBoundingClientRect()).map(box => [box.left, box.right])"
    )
    assert all(0 <= left < right <= 375 for left, right in edges)
    visitor.queries.nth(1).tap()
    assert visitor.queries.nth(1).get_attribute("aria-selected") == "true"


def test_right_to_left_text_is_shown_right_to_left(visit, deep):
    visitor = visit()
    visitor.load(deep)
    visitor.translate(HEBREW)
    visitor.choose("kind", "Encoder self-attention")
    visitor.wait_for_title("Encoder")
    box = visitor.page.get_by_label("Sentence")
    assert box.evaluate("box => getComputedStyle(box).unicodeBidi") == "plaintext"
    first, second = (visitor.queries.nth(index) for index in (0, 1))
    assert "".join(visitor.queries.locator("bdi").all_inner_texts()).startswith("שלום␣")
    assert first.bounding_box()["x"] > second.bounding_box()["x"]
    first.focus()
    visitor.page.keyboard.press("ArrowLeft")
    assert second.get_attribute("aria-selected") == "true"


# --- bad input, several visitors ---------------------------------------------------------------


def test_html_in_a_text_is_escaped(visit):
    visitor = visit()
    visitor.translate(HOSTILE)
    visitor.wait_for_title("Cross-attention")
    visitor.choose("kind", "Encoder self-attention")
    visitor.wait_for_title("Encoder")
    visitor.queries.nth(0).hover()
    shown = "".join(visitor.queries.locator("bdi").all_inner_texts())
    assert shown.removesuffix("</s>") == HOSTILE.replace(" ", "␣")
    assert visitor.page.evaluate("window.broken") is None
    assert visitor.page.locator("#attention :is(img, script, b b, i)").count() == 0


def test_html_in_a_model_name_is_escaped(visit):
    visitor = visit()
    visitor.load(HOSTILE)
    playwright.expect(visitor.page.get_by_role("alert")).to_contain_text("<img src=x onerror=")
    visitor.translate(SENTENCE)
    playwright.expect(visitor.page.locator("#status")).to_contain_text("<img src=x onerror=")
    assert visitor.page.evaluate("window.broken") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "There is no text"), ("one " * 500, "the limit is"), ("x" * 20_000, "20,000 characters")],
    ids=["blank", "long", "huge"],
)
def test_a_refused_text_shows_a_message_and_the_next_text_works(visit, text, expected):
    visitor = visit()
    visitor.translate(SENTENCE)
    visitor.wait_for_title("Cross-attention")
    visitor.translate(text)
    playwright.expect(visitor.page.get_by_role("alert")).to_contain_text(expected)
    playwright.expect(visitor.page.locator("#results")).to_be_hidden()
    visitor.translate("two")
    visitor.wait_for_title("Cross-attention")
    assert visitor.page.get_by_role("alert").count() == 0


def test_two_visitors_at_once_see_their_own_results(visit, trained):
    sentences = ["three one four", "eight"]
    visitors = [visit(), visit()]
    for visitor, sentence in zip(visitors, sentences, strict=True):
        visitor.translate(sentence)
    expected = translate(*trained, sentences)
    for visitor, translation in zip(visitors, expected, strict=True):
        visitor.wait_for_title("Cross-attention")
        playwright.expect(visitor.translation).to_have_text(translation)
    visitors[0].choose("kind", "Encoder self-attention")
    visitors[0].wait_for_title("Encoder")
    visitors[1].choose("kind", "Decoder self-attention")
    visitors[1].wait_for_title("Decoder")
    shown = "".join(visitors[0].queries.locator("bdi").all_inner_texts())
    assert shown == "three␣one␣four</s>"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrast_is_sufficient(visit, scheme):
    visitor = visit(color_scheme=scheme)
    visitor.translate(SENTENCE)
    visitor.wait_for_title("Cross-attention")
    fills = []
    visitor.page.evaluate(PAINTED)
    for weight in ("0", "0.5", "1"):
        token = visitor.page.locator(".keys .token").first
        token.evaluate(f"token => token.style.setProperty('--weight', {weight})")
        ink, fill = token.evaluate("token => [getComputedStyle(token).color, painted(token)]")
        fills.append(fill)
        assert contrast(ink, fill) >= 4.5
    assert len(set(map(tuple, fills))) == 3


# the color behind a token: its fill over those of the elements around it
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
