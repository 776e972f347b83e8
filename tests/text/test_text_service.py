"""Translation over HTTP: the API of LibreTranslate, `/v1/translate`, batches, bad input, access."""

import asyncio
import contextlib
import http.client
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from chromium import served
from num2words import num2words

from hf_vanilla import demo_model
from hf_vanilla.app import access, server
from hf_vanilla.app.page import Served
from hf_vanilla.app.worker import Worker
from hf_vanilla.serve import ServeOptions, Settings, bound, serve, served_by
from hf_vanilla.text.decoding import generated_texts
from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.service import BLOCK, check_html

PAIR = {"source": "en", "target": "de"}
JSON = {"content-type": "application/json"}


def asked(address, path, body=None, *, kind="application/json", **headers):
    """Status, headers and JSON value of an answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    method = headers.pop("method", "GET" if body is None else "POST")
    connection.request(method, f"/{path}", data, {"content-type": kind, **headers})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    with contextlib.suppress(ValueError):
        text = json.loads(text)
    return answer.status, answer.headers, text


@pytest.fixture(scope="module")
def address():
    with served(demo_model()) as address:
        yield address


@pytest.fixture(scope="module")
def ask(address):
    def ask(path, body=None, **others):
        status, _, found = asked(address, path, body, **others)
        assert status == 200, found
        return found

    return ask


# --- answers -----------------------------------------------------------------------------------


def test_the_client_of_libretranslate_works(address):
    libretranslatepy = pytest.importorskip("libretranslatepy")
    client = libretranslatepy.LibreTranslateAPI(address)
    assert client.translate("forty-two", "en", "de") == "zweiundvierzig"
    assert client.detect("forty-two thousand")[0]["language"] == "en"
    english, german = client.languages()
    assert english == {"code": "en", "name": "English", "targets": ["de"]}
    assert german == {"code": "de", "name": "German", "targets": []}


def test_texts_lists_forms_html_and_alternatives(ask):
    found = ask("translate", {"q": "Forty-two. One thousand nine.".lower(), **PAIR})
    assert found == {"translatedText": "zweiundvierzig eintausendneun"}
    found = ask("translate", {"q": ["seven", " ", "forty-two"], "source": "auto", "target": "de"})
    assert found["translatedText"] == ["sieben", " ", "zweiundvierzig"]
    assert [one["language"] for one in found["detectedLanguage"]] == ["en"] * 3
    form = b"q=seven&q=forty-two&source=en&target=de"
    found = ask("translate", form, kind="application/x-www-form-urlencoded")
    assert found == {"translatedText": ["sieben", "zweiundvierzig"]}
    parts = [f'--x\r\ncontent-disposition: form-data; name="{n}"\r\n\r\n{v}\r\n'
             for n, v in {"q": "seven", **PAIR}.items()]  # fmt: skip
    form = "".join([*parts, "--x--\r\n"]).encode()
    found = ask("translate", form, kind="multipart/form-data; boundary=x")
    assert found == {"translatedText": "sieben"}
    html = "<p>forty&#45;two</p><br><b>one&nbsp;thousand nine</b>"
    found = ask("translate", {"q": html, **PAIR, "format": "html", "alternatives": 2})
    assert found["translatedText"] == "<p>zweiundvierzig</p><br><b>eintausendneun</b>"
    assert len(found["alternatives"]) == 2
    blank = ask("translate", {"q": ["two", " "], **PAIR, "alternatives": 2})
    assert [len(one) for one in blank["alternatives"]] == [2, 0]
    assert all("<p>" in text for text in found["alternatives"])


def test_our_own_api_has_lists_scores_alignments_and_streams(ask):
    asked_for = {"text": ["forty-two. seven", "one thousand nine"], "n_best": 3, "alignment": True}
    first, second = ask("v1/translate", asked_for)["translations"]
    assert first["translation"] == "zweiundvierzig sieben"
    assert [one["source"] for one in first["sentences"]] == ["forty-two.", "seven"]
    (sentence,) = second["sentences"]
    assert sentence["alignment"] == [[2, 0]] or sentence["alignment"]
    scores = [one["score"] for one in sentence["hypotheses"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
    lines = ask("v1/translate", {**asked_for, "stream": True}).splitlines()
    found = {(one["text"], one["sentence"]): one["translation"] for one in map(json.loads, lines)}
    expected = {(0, 0): "zweiundvierzig", (0, 1): "sieben", (1, 0): "eintausendneun"}
    assert found == expected
    doubted = ask("v1/translate", {"text": "A man is riding a bike."})
    assert "letters or bytes" in doubted["translations"][0]["sentences"][0]["doubt"]


def test_facts_of_the_service(ask):
    assert ask("health") == {"status": "ok"}
    assert ask("frontend/settings")["language"]["source"] == {"code": "en", "name": "English"}
    ask("translate", {"q": "two", **PAIR})
    metrics = ask("metrics")
    assert 'hf_vanilla_requests_total{path="/translate",status="200"}' in metrics
    assert "# TYPE hf_vanilla_waiting gauge\nhf_vanilla_waiting 0\n" in metrics


def test_many_clients_get_what_each_sentence_gets_alone(address, ask):
    sentences = [num2words(137 * number + 11).replace(",", "") for number in range(96)]
    with ThreadPoolExecutor(32) as clients:
        found = list(clients.map(lambda q: ask("translate", {"q": q, **PAIR}), sentences))
    model, tokenizer = load_translator(demo_model())
    for sentence, one in zip(sentences[::3], found[::3], strict=True):
        ((alone, _),) = generated_texts(model, tokenizer, [tokenizer(sentence).input_ids])
        assert one == {"translatedText": alone}
    numbers = dict(line.split() for line in ask("metrics").splitlines() if line[0] != "#")
    values = float(numbers["hf_vanilla_batch_values_total"])
    assert values > 2 * float(numbers["hf_vanilla_batches_total"])


# --- what is refused ---------------------------------------------------------------------------


def test_what_cannot_be_translated_is_one_sentence_and_a_4xx(address):
    long = "one " * 600
    html = {**PAIR, "format": "html"}
    for body, problem in (
        ({"q": "", **PAIR}, "There is no text in q."),
        ({"q": " \n\t", **PAIR}, "There is no text in q."),
        ({"q": [], **PAIR}, "There is no text in q."),
        ({**PAIR}, "There is no q: give a text"),
        ({"q": 7, **PAIR}, "There is no q: give a text"),
        ({"q": ["one", None], **PAIR}, "There is no q: give a text"),
        ({"q": "x" * 100_000, **PAIR}, "There are 100,000 characters"),
        ({"q": ["one"] * 10_000, **PAIR}, "There are 10,000 texts"),
        ({"q": ["one. two. three."] * 200, **PAIR}, "There are 600 sentences"),
        ({"q": long, **PAIR}, "tokens; the limit is"),
        ({"q": "Привет, мир", **PAIR}, "an alphabet that the model does not know"),
        ({"q": "你好世界", **PAIR}, "an alphabet that the model does not know"),
        ({"q": "one\0two", **PAIR}, "NUL or half of a surrogate pair"),
        ({"q": "one \ud83d two", **PAIR}, "NUL or half of a surrogate pair"),
        ({"q": "<b>one", **html}, "<b> without an end tag"),
        ({"q": "one <b class=", **html}, "a tag or a comment that never ends"),
        ({"q": "one <!-- two", **html}, "a tag or a comment that never ends"),
        ({"q": "one <![foo[ two", **html}, "a <![ section that cannot be read"),
        ({"q": "one", "source": "en", "target": "fr"}, "no model from 'en' to 'fr'"),
        ({"q": "one", "source": 5, "target": "de"}, "source is no text"),
        ({"q": "one", **PAIR, "format": "pdf"}, "neither text nor html"),
        ({"q": "one", **PAIR, "alternatives": 100}, "alternatives is not a number from 1 to 9"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "There is no q"),
    ):
        status, _, found = asked(address, "translate", body)
        assert (status, list(found)) == (400, ["error"]), (body, found)
        assert problem in found["error"]
        assert "\n" not in found["error"]
    for path, body, others, status in (
        ("v1/translate", {"text": "one", "model": "/etc"}, {}, 400),
        ("v1/translate", {"text": "one", "n_best": "many"}, {}, 400),
        ("v1/translate", {"text": "one", "alignment": "yes"}, {}, 400),
        ("v1/translate", {"text": "one", "alignments": True}, {}, 400),
        ("translate", None, {}, 405),
        ("health", {}, {}, 405),
        ("translate", b"x" * (2**20 + 1), {}, 413),
        ("translate", b"q=1" * 10, {"kind": "multipart/form-data"}, 400),
    ):
        found_status, _, found = asked(address, path, body, **others)
        assert (found_status, list(found)) == (status, ["error"]), (path, found)


def test_html_of_the_usual_kinds_is_whole():
    for text in ("<p>one<p>two", "a <br> b < c", "<img src=x>", "1 <2", "x < y </b>", "<i/>", "a<"):
        check_html(text)


def test_scripts_styles_and_the_document_type_are_not_translated(ask):
    html = "<!DOCTYPE html>\n<STYLE>two {{}}</style><p>{}</p><script>if (two) {{}}</script> {}"
    found = ask("translate", {"q": html.format("two", "seven"), **PAIR, "format": "html"})
    assert found["translatedText"] == html.format("zwei", "sieben")


def test_each_element_of_html_has_its_own_text(ask):
    for html in (
        "<html><head><title>{}</title></head><body>{}</body></html>",
        "<button title='a > b'>{}</button> <button>{}</button>",
        "<select><option>{}</option><option>{}</option></select>",
        '<details><summary>{}</summary>{}</details><img alt="7 > 8">',
        """<p data-x="<b>">{}</p><p data-x='</p> <i>'>{}</p>""",
    ):
        found = ask("translate", {"q": html.format("two", "seven"), **PAIR, "format": "html"})
        assert found["translatedText"] == html.format("zwei", "sieben")


def test_a_comment_of_several_lines_is_not_translated(ask):
    html = "{} <!-- five.\n\nSix. --> {}"
    found = ask("translate", {"q": html.format("two", "seven"), **PAIR, "format": "html"})
    assert found["translatedText"] == html.format("zwei", "sieben")


def test_white_space_around_a_text_and_its_lines_stays(ask):
    text = "\t{}\n\n  {}\r\n"
    for form in ("text", "html"):
        found = ask("translate", {"q": text.format("two", "seven"), **PAIR, "format": form})
        assert found["translatedText"] == text.format("zwei", "sieben")


def test_a_model_that_reads_letters_knows_no_language(trained_run, tmp_path):
    shutil.copytree(trained_run, tmp_path, dirs_exist_ok=True)
    (tmp_path / "README.md").write_text("- Translates: fr to de\n")
    served = served_by([demo_model(), str(tmp_path)], Settings(), Worker())
    first, second = asyncio.run(served.calls["/detect"]({"q": "forty-two"}))
    assert (first["language"], second) == ("en", {"confidence": 0, "language": "fr"})
    answer = asyncio.run(served.calls["/translate"]({"q": "seven", "target": "de"}))
    assert answer["translatedText"] == "sieben"
    assert answer["detectedLanguage"]["language"] == "en"


def test_long_white_space_in_html_does_not_stop_the_service():
    started = time.process_time()
    text = "two" + " " * 19_000 + "3"
    assert BLOCK.split(f"one <p> {text}") == ["one", " <p> ", text]
    assert BLOCK.split("<script>" * 2500) == ["", "<script>" * 2500, ""]
    assert time.process_time() - started < 1


def test_a_model_that_cannot_serve_is_refused_at_the_start(tmp_path, trained_run):
    for name, problem in ((str(tmp_path), "not a model folder"), (str(trained_run), None)):
        if problem is None:  # without its tokenizer
            folder = tmp_path / "without"
            folder.mkdir()
            for file in ("config.json", "generation_config.json", "model.safetensors"):
                (folder / file).write_bytes((trained_run / file).read_bytes())
            name, problem = str(folder), "This model cannot be used"
        with pytest.raises(ValueError, match=problem):
            serve(ServeOptions(model=[name]))


def test_two_models_of_one_pair_of_languages_are_one_pair():
    served = served_by([demo_model(), demo_model("help-en-de")], Settings(), Worker())
    english, german = served.facts["/languages"]()
    assert (english["targets"], german["targets"]) == (["de"], [])
    with pytest.raises(ValueError, match=r"from 'fr' to 'de': there is en to de\."):
        asyncio.run(served.calls["/translate"]({"q": "un", "source": "fr", "target": "de"}))


@pytest.mark.parametrize("codes", ["en-US to pt-BR", "en_XX to de_DE", "english to german"])
def test_a_card_may_state_other_codes_than_those_of_languages(trained_run, tmp_path, codes):
    shutil.copytree(trained_run, tmp_path, dirs_exist_ok=True)
    (tmp_path / "README.md").write_text(f"- Translates: {codes}\n")
    served = served_by([str(tmp_path)], Settings(), Worker())
    assert [one["code"] for one in served.facts["/languages"]()] == codes.split(" to ")
    source, target = codes.split(" to ")
    answer = asyncio.run(
        served.calls["/translate"]({"q": "one. Two.", "source": source, "target": target})
    )
    assert answer["translatedText"].strip()


def test_a_learned_position_model_refuses_what_is_over_its_length(trained, tmp_path):
    model, tokenizer = trained
    from hf_vanilla import VanillaForConditionalGeneration

    config = model.config.__class__.from_dict(
        {**model.config.to_dict(), "position_embedding_type": "learned",
         "max_position_embeddings": 11}
    )  # fmt: skip
    VanillaForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    calls = served_by([str(tmp_path)], Settings(), Worker()).calls
    with pytest.raises(ValueError, match="tokens; the limit is 11: shorten it"):
        asyncio.run(calls["/translate"]({"q": "one " * 9}))


def test_a_batch_stays_within_its_memory(trained_run, monkeypatch):
    sizes = []
    search = TorchEngine.n_best_rows
    monkeypatch.setattr(
        TorchEngine,
        "n_best_rows",
        lambda engine, rows, n: sizes.append(len(rows)) or search(engine, rows, n),
    )
    body = {"q": ["one two three", "four five", "six"]}

    def found(memory):
        sizes.clear()
        settings = Settings(max_batch_memory=memory)
        call = served_by([str(trained_run)], settings, Worker(max_wait_seconds=1)).calls
        return asyncio.run(call["/translate"](body)), sizes[:]

    free, together = found(None)
    model, tokenizer = load_translator(str(trained_run))
    longest = len(tokenizer(body["q"][0]).input_ids)
    needed = TorchEngine(model, tokenizer).sentence_bytes(longest) / 2**20
    assert together == [3]
    assert found(2.5 * needed) == (free, [1, 2])
    with pytest.raises(ValueError, match=r"^max_batch_memory=0\.1: a sentence of 2 tokens"):
        found(0.1)
    shortest = TorchEngine(model, tokenizer).sentence_bytes(2) / 2**20
    message = rf"^A sentence of {longest} tokens may need \d+ MiB of memory; the limit is "
    with pytest.raises(ValueError, match=message):
        found((shortest + needed) / 2)


# --- access ------------------------------------------------------------------------------------


def test_other_names_and_pages_of_other_sites_are_refused(address):
    body = {"q": "two", **PAIR}
    own = urlsplit(address).netloc
    for headers, status in (
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:7860", "Origin": "http://evil.example:7860"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"http://{own}"}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:1"}, 200),
    ):
        found, headers_of_answer, _ = asked(address, "translate", body, **headers)
        assert found == status, headers
        assert "access-control-allow-origin" not in headers_of_answer


def test_a_name_that_is_no_name_is_refused_without_a_line_in_the_log(address, caplog):
    for headers in ({"Host": "["}, {"Origin": "http://["}):
        assert asked(address, "health", **headers)[0] == 400
    assert not caplog.records


def test_a_name_of_the_service_may_have_capitals():
    access.Access(host="My-Machine").check_names("My-Machine:7860", None)


def test_keys_and_another_origin(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("\n")
    with pytest.raises(ValueError, match="the file has no key"):
        serve(ServeOptions(api_key=str(keys)))
    keys.write_text("\ufefffirst\nsecond\nschlüssel\n", encoding="utf-8")  # a mark of editors
    site = "https://translate.example.org"
    body = {"q": "two", **PAIR}
    options = {"api_key": str(keys), "origin": site.replace("example", "Example")}
    with served(demo_model(), options=options) as address:
        for path, given, headers, status in (
            ("translate", body, {}, 401),
            ("translate", {**body, "api_key": "third"}, {}, 401),
            ("translate", {**body, "api_key": "second"}, {}, 200),
            ("translate", body, {"Authorization": "Bearer first"}, 200),
            ("translate", body, {"Authorization": "Bearer schlüssel".encode()}, 200),
            ("translate", body, {"Authorization": "Basic eDpmaXJzdA=="}, 200),  # x:first
            ("translate", body, {"Authorization": "Basic first"}, 401),
            ("", None, {}, 401),
            ("metrics", None, {}, 401),
            ("health", None, {}, 200),
            ("health", None, {"Host": "translate.example.org"}, 200),
        ):
            found, answer, _ = asked(address, path, given, **headers)
            assert found == status, (path, headers)
            assert (status == 401) == ("www-authenticate" in answer)
        own = {"Origin": site}
        first = {**own, "Access-Control-Request-Method": "POST"}  # what a browser asks before
        for name in ("content-type", "authorization"):
            first["Access-Control-Request-Headers"] = name
            status, answer, _ = asked(address, "translate", **first, method="OPTIONS")
            assert (status, answer["access-control-allow-origin"]) == (200, site)
        status, answer, _ = asked(address, "health", **own)
        assert (status, answer["access-control-allow-origin"]) == (200, site)
        status, answer, _ = asked(address, "translate", b"x" * (2**20 + 1), **own)
        assert (status, answer["access-control-allow-origin"]) == (413, site)


# --- load --------------------------------------------------------------------------------------


def test_a_full_queue_a_slow_client_and_one_that_leaves(monkeypatch):
    monkeypatch.setattr(access, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(server, "MAX_SECONDS", 1.0)
    is_held, is_free, queues = threading.Event(), threading.Event(), []
    init = Worker.__init__

    def small(self, **options):
        init(self, **options, most_waiting=4)
        queues.append(self)

    def hold(_):
        is_held.set()
        is_free.wait(60)
        return [None]

    monkeypatch.setattr(Worker, "__init__", small)
    with served(demo_model()) as address:
        (worker,) = queues
        worker.submit(hold, [0], [1])
        is_held.wait(60)
        left = http.client.HTTPConnection(urlsplit(address).netloc)
        left.request("POST", "/translate", json.dumps({"q": ["two"] * 3, **PAIR}), JSON)
        while worker.waiting < 3:
            pass
        status, headers, found = asked(address, "translate", {"q": ["one"] * 2, **PAIR})
        assert (status, headers["retry-after"]) == (429, "2")
        assert found == {"error": "Too many wait: ask again later."}
        left.close()
        while any(not work.future.cancelled() for work in worker._waiting):
            pass
        status, _, found = asked(address, "translate", {"q": ["one"] * 2, **PAIR})  # has room
        assert (status, found["error"][:39]) == (503, "The answer took more than 1 seconds: se")
        slow = http.client.HTTPConnection(urlsplit(address).netloc)
        slow.request("POST", "/translate", None, {"content-length": "10", **JSON})
        assert slow.getresponse().status == 408
        slow.close()
        is_free.set()
        assert asked(address, "translate", {"q": "two", **PAIR})[0] == 200


def test_a_client_that_does_not_read_its_answer_does_not_stop_the_end(monkeypatch):
    monkeypatch.setattr(server, "END_SECONDS", 1)
    listener, worker = bound("127.0.0.1", None), Worker()
    large = Served({}, {}, {}, {"/large": lambda: "x" * 2**25})
    service = server.Server(large, listener, worker, access.Access())
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    client = http.client.HTTPConnection(*listener.getsockname(), timeout=60)
    client.request("GET", "/large")
    assert client.getresponse().status == 200
    service.should_exit = True
    thread.join(30)
    assert not thread.is_alive()
    client.close()
    worker.close()
