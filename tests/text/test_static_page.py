"""The page without a server, in headless Chromium: as one file from disk, and as a folder."""

import functools
import http.server
import random
import threading

import pytest
from chromium import PHONE, launched, needs_chromium, violations
from num2words import num2words

from hf_vanilla import demo_model
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.n_best import best_translations
from hf_vanilla.text.static_page import EXAMPLE, PageOptions, check_engine, write_page

expect = pytest.importorskip("playwright.sync_api").expect
expect.set_options(timeout=60_000)
SPOILED = "</script><img src=x onerror=\"window.broken='tag'\">"


@pytest.fixture(scope="module")
def one_file(tmp_path_factory):
    output = tmp_path_factory.mktemp("page") / "numbers.html"
    return write_page(PageOptions(output=str(output), single_file=True, title=SPOILED))


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


class Visit:
    """A page in a tab; at the end it has failed nowhere and asked for nothing elsewhere."""

    def __init__(self, browser, address, own, **context):
        self.context, self.own = browser.new_context(**context), own
        self.requests, self.failures = [], []
        self.tab = self.context.new_page()
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("pageerror", lambda error: self.failures.append(str(error)))
        self.tab.on("console", lambda message: self.failures.append(message.text))
        self.tab.goto(address)
        self.tab.locator(".panel svg").wait_for(timeout=60_000)

    def close(self):
        broken = self.tab.evaluate("window.broken")
        self.context.close()
        assert (self.failures, broken) == ([], None)
        assert [one for one in self.requests if not one.startswith(self.own)] == []


@pytest.mark.slow
@needs_chromium
def test_one_file_translates_from_disk_as_generate_does_and_asks_nobody(one_file, browser):
    assert one_file.stat().st_size < 3e6
    page = Visit(browser, one_file.as_uri(), (one_file.as_uri(), "blob:"))
    assert page.tab.locator(".about").inner_text().startswith("Translates: en to de.")
    assert page.tab.locator("h1").inner_text() == SPOILED
    model, tokenizer = load_translator(demo_model(), dtype="float32")
    draw = random.Random(5)
    sentences = [EXAMPLE, *(num2words(draw.randrange(10**6)) for _ in range(12))]
    script = """async (texts) => {
      const found = [];
      for (const text of texts) found.push(await hfVanilla.translate(text));
      return found.map(({ ids, score }) => ({ ids, score }));
    }"""
    for text, answer in zip(sentences, page.tab.evaluate(script, sentences), strict=True):
        [best, *_] = best_translations(model, tokenizer, text, num_beams=4)
        assert answer["ids"] == best.ids
        assert answer["score"] == pytest.approx(best.score, abs=1e-4)
    best = best_translations(model, tokenizer, EXAMPLE, num_beams=4)[0]
    assert page.tab.locator(".translation").inner_text() == best.text
    page.close()


@pytest.mark.slow
@needs_chromium
def test_a_link_shows_its_cell_or_the_nearest_that_the_model_has(one_file, browser):
    links = {
        "kind=encoder&layer=1&head=2&row=2&column=1": "head 3 of layer 2, “␣nine” attends to “␣th",
        "layer=9&head=99&row=99&column=99": "head 4 of layer 2, “</s>” attends to “</s>”",
        "kind=constructor&layer=x&head=-1&row=1e3": "the mean of all heads of layer 1, “ein”",
    }
    for link, said in links.items():
        address = f"{one_file.as_uri()}#text=one+thousand+nine&{link}"
        page = Visit(browser, address, (one_file.as_uri(), "blob:"))
        assert page.tab.locator(".translation").inner_text() == "eintausendneun"
        assert page.tab.locator(".said").inner_text().startswith(f"In {said}")
        assert page.tab.locator(".chips :checked").count() == 3
        page.close()


@pytest.mark.slow
@needs_chromium
def test_page_from_a_static_host_can_be_used_by_keyboard_and_passes_axe(tmp_path, browser):
    folder = write_page(PageOptions(output=str(tmp_path / "page"), dtype="int8"))
    handler = functools.partial(QuietHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        for context in ({"viewport": {"width": 1280, "height": 800}}, PHONE):
            page = Visit(browser, address, (address, "data:"), **context)
            tab = page.tab
            assert violations(tab, part="body") == []
            tab.get_by_label("Sentence", exact=True).fill("forty-two")
            tab.keyboard.press("Enter")
            expect(tab.locator(".translation")).to_have_text("zweiundvierzig")
            tab.locator(".panel").focus()
            tab.keyboard.press("ArrowRight")
            assert "“zwei” attends to “orty”" in tab.locator(".said").inner_text()
            tab.get_by_label("within the sentence").check()
            assert "“f” attends to “f”" in tab.locator(".said").inner_text()
            assert "kind=encoder" in tab.url
            tab.get_by_label("Sentence", exact=True).fill("x" * 1100)
            tab.get_by_role("button", name="Translate").click()
            expect(tab.locator(".translation")).to_contain_text("the model accepts 1024")
            tab.locator("summary").click()
            tab.get_by_label("Beams").fill("16")
            tab.get_by_label("Longest translation").fill("512")
            tab.get_by_label("Sentence", exact=True).fill(EXAMPLE)
            tab.get_by_role("button", name="Translate").click()
            tab.get_by_role("button", name="Stop").click()
            expect(tab.locator(".translation")).to_have_text("Stopped.")
            is_wider = "document.documentElement.scrollWidth > innerWidth"
            assert not tab.evaluate(is_wider)
            page.close()
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """The tests' output shows no requests."""


def test_page_refuses_by_name_what_the_engine_does_not_compute(tmp_path):
    model, tokenizer = load_translator(demo_model())
    model.generation_config.update(output_attentions=False)  # off, as in files of transformers 4
    check_engine("M", model, tokenizer)
    model.config.activation_function = "gelu"
    model.generation_config.update(do_sample=True, repetition_penalty=1.5)
    names = "do_sample=True, repetition_penalty=1.5, activation_function='gelu', which M needs"
    with pytest.raises(ValueError, match=names):
        check_engine("M", model, tokenizer)
    (tmp_path / "there.html").touch()
    for options in ({"single_file": True}, {}):
        with pytest.raises(FileExistsError, match="exists"):
            write_page(PageOptions(output=str(tmp_path / "there.html"), **options))
