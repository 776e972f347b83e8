"""The page of translation as the service answers it, in headless Chromium."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import pytest
from chromium import HOSTILE, PHONE, launched, needs_chromium, served, tab_of, violations

from hf_vanilla import train_tokenizer
from hf_vanilla.text.alignments import Aligner
from hf_vanilla.text.attentions import CROSS, attentions, layer_steps
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.n_best import best_translations
from hf_vanilla.text.translator import translate

expect = pytest.importorskip("playwright.sync_api").expect
expect.set_options(timeout=60_000)

pytestmark = [pytest.mark.slow, needs_chromium]

SENTENCE, HEBREW = "three one four", "שלום עולם"
VIEWS = ["overview", "map", "lines", "heads", "tokens", "search", "layer", "compare", "words"]


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
        open_tabs.append(tab_of(browser, address + path, reduced_motion="reduce", **context))
        tab = open_tabs[-1].__enter__()
        tab.locator(".about:not(:empty)").wait_for()
        return tab

    yield visit
    for tab in open_tabs:
        tab.__exit__(None, None, None)


@pytest.fixture(scope="module")
def found(trained):
    return best_translations(*trained, SENTENCE, num_beams=trained[0].generation_config.num_beams)


def ask(tab, text=SENTENCE):
    tab.get_by_label("Sentence", exact=True).first.fill(text)
    tab.get_by_role("button", name="Translate").click()
    tab.locator("body:not([aria-busy])").wait_for()


def asked(tab, text=SENTENCE):
    ask(tab, text)
    tab.locator(".panel svg").wait_for()
    return tab


def show(tab, view):
    tab.locator(f"#tab-{view}").click()
    tab.locator(f"body[data-view={view}]").wait_for()


def said(tab, text):
    expect(tab.locator(".said")).to_contain_text(text)


def fields(tab, **values):
    """Open the settings of the search and fill some; the last one is entered."""
    tab.get_by_text("How to search").click()
    for label, value in values.items():
        tab.locator(f"[name={label}]").fill(value)
    tab.locator(f"[name={label}]").press("Enter")
    tab.locator("body:not([aria-busy])").wait_for()


def test_the_map_the_words_and_the_tokens_are_those_of_the_model(visit, trained, found):
    tab = asked(visit())
    expect(tab.locator(".translation")).to_have_text(found[0].text)
    seen = attentions(*trained, SENTENCE, translation=found[0].ids)
    tab.locator(".panel").focus()
    tab.keyboard.press("ArrowRight")
    weight = seen.of(CROSS)[-1, :, 0, 0].mean().item()
    shown = int(tab.locator(".said").inner_text().split()[-5])
    assert shown == pytest.approx(100 * weight, abs=1)
    show(tab, "words")
    [links] = Aligner(*trained).align([(SENTENCE, found[0].text)])
    [first, *_] = [source for source, target in links if target == 0]
    said(tab, f"is aligned with “\u2068{SENTENCE.split()[first]}\u2069”")
    show(tab, "tokens")
    probability = 100 * seen.log_probs[0, found[0].ids[0]].exp().item()
    shown = float(tab.locator(".said").inner_text().split(" %")[0].split()[-1])
    assert shown == pytest.approx(probability, abs=0.06)
    tab.locator("select.hypothesis").select_option("1")
    expect(tab.locator(".translation")).to_have_text(found[1].text)


def test_sampling_and_lengths_follow_their_fields_and_the_link(visit, trained):
    tab = asked(visit())
    limits = {"min_new_tokens": 9, "max_new_tokens": 12}
    expected = best_translations(*trained, SENTENCE, num_beams=4, **limits)[0].text
    fields(tab, max_new_tokens="12", min_new_tokens="9")
    expect(tab.locator(".translation")).to_have_text(expected)
    tab.locator("[name=max_new_tokens]").fill("8")
    tab.locator("[name=max_new_tokens]").press("Enter")
    expect(tab.locator(".problem")).to_contain_text("9 tokens is above the maximum of 8")
    tab = asked(visit())
    tab.get_by_text("How to search").click()
    tab.locator("[name=search]").select_option("sampling")
    for name, value in {"temperature": "5", "seed": "3"}.items():
        tab.locator(f"[name={name}]").fill(value)
        tab.locator(f"[name={name}]").press("Enter")
        tab.locator("body:not([aria-busy])").wait_for()
    show(tab, "search")
    said(tab, "No search was made")
    drawn = tab.locator("select.hypothesis option").all_text_contents()
    assert violations(tab, part="body") == []
    again = visit("#" + tab.url.split("#")[1])
    said(again, "No search was made")
    assert again.locator("select.hypothesis option").all_text_contents() == drawn
    again.get_by_text("How to search").click()
    again.locator("[name=temperature]").fill("warm")
    again.locator("[name=temperature]").press("Enter")
    expect(again.locator(".problem")).to_contain_text("The temperature is 'warm': give a number")


def test_a_link_has_the_first_head_and_the_first_key(visit):
    tab = asked(visit())
    tab.locator("fieldset.head label", has_text="0").click()
    tab.locator(".panel").focus()
    tab.keyboard.press("ArrowRight")
    said(tab, "head 0: the step that writes")
    again = visit("#" + tab.url.split("#")[1])
    expect(again.locator(".said")).to_have_text(tab.locator(".said").inner_text())


@pytest.fixture
def deep(tiny_model, tmp_path):
    """A model of 2 + 5 layers and 3 + 2 heads that reads Hebrew."""
    tokenizer = train_tokenizer([HEBREW] * 2, vocab_size=300)
    tiny_model.resize_token_embeddings(len(tokenizer))
    tiny_model.generation_config.max_new_tokens = 4
    tiny_model.save_pretrained(tmp_path / "deep")
    tokenizer.save_pretrained(tmp_path / "deep")
    return str(tmp_path / "deep")


def test_another_model_and_text_from_right_to_left(visit, deep):
    tab = visit()
    tab.get_by_text("Another model").click()
    for name, problem in ((HOSTILE, "there is no such model here"), (deep, "")):
        tab.get_by_label("Folder or Hub id").fill(name)
        tab.get_by_role("button", name="Load").click()
        expect(tab.locator(".problem")).to_contain_text(problem)
    tab.get_by_text("2 + 5 layers, 3 + 2 heads").wait_for()
    asked(tab, HEBREW)
    tab.locator("fieldset.layer").get_by_label("4").check()
    said(tab, "layer 4, mean of 2 heads")
    tab.get_by_label("encoder").check()
    said(tab, "layer 1, mean of 3 heads")
    cells = tab.locator(".panel [data-hover]")
    assert cells.nth(0).bounding_box()["x"] > cells.nth(1).bounding_box()["x"]
    for view in VIEWS[:-1]:
        show(tab, view)


def test_a_late_answer_to_a_view_leaves_a_newer_message(visit, monkeypatch):
    released = threading.Event()

    def late(*arguments, **others):
        released.wait(60)
        return layer_steps(*arguments, **others)

    monkeypatch.setattr("hf_vanilla.text.page.layer_steps", late)
    tab = asked(visit())
    show(tab, "layer")
    tab.get_by_label("Sentence", exact=True).first.fill("")
    tab.get_by_role("button", name="Translate").click()
    with tab.expect_event("requestfinished"):
        released.set()
    expect(tab.locator(".problem")).to_contain_text("There is no text")


def test_a_view_whose_request_failed_asks_again(visit):
    tab = asked(visit())
    tab.route("**/v1/view/inside", lambda route: route.fulfill(json={"error": "Too many wait."}))
    show(tab, "layer")
    expect(tab.locator(".problem")).to_have_text("Too many wait.")
    tab.unroute("**/v1/view/inside")
    show(tab, "map")
    show(tab, "layer")
    said(tab, "the weights go to")


def test_two_visitors_at_once_see_their_own_results(visit, trained):
    sentences = ["three one four", "eight"]
    tabs = [visit(), visit()]
    for tab, sentence in zip(tabs, sentences, strict=True):
        tab.get_by_label("Sentence", exact=True).first.fill(sentence)
        tab.get_by_role("button", name="Translate").click()
    for tab, translation in zip(tabs, translate(*trained, sentences), strict=True):
        expect(tab.locator(".translation")).to_have_text(translation)


def test_every_view_is_accessible_and_nothing_moves_on_a_slow_phone(browser, address):
    with tab_of(browser, address, is_slow=True, reduced_motion="reduce", **PHONE) as tab:
        tab.locator(".about:not(:empty)").wait_for()
        asked(tab)
        for view in VIEWS:
            show(tab, view)
        assert violations(tab, part="body") == []
        assert tab.evaluate("window.shifts") == []


def test_nothing_moves_while_the_page_arrives(browser, address):
    whole = urlopen(address).read()
    cut = whole.index(b'<div class="views"')

    class InTwoParts(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            kind = {"/": "text/html", "/page.css": "text/css"}.get(self.path, "text/javascript")
            self.send_header("Content-Type", kind)
            self.end_headers()
            if self.path != "/":
                self.wfile.write(urlopen(address + self.path[1:]).read())
                return
            self.wfile.write(whole[:cut])
            time.sleep(1)  # the browser draws what it has
            self.wfile.write(whole[cut:])

    with ThreadingHTTPServer(("127.0.0.1", 0), InTwoParts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with tab_of(browser, f"http://127.0.0.1:{server.server_port}/", **PHONE) as tab:
            tab.locator(".views").wait_for()
            assert tab.evaluate("window.shifts") == []
        server.shutdown()
