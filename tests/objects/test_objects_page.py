"""The page for object detectors: what its function returns, and the page in headless Chromium."""

import asyncio
import base64
import io

import numpy as np
import pytest
import torch
from chromium import PHONE, choose_by_key, needs_chromium, violations, visits
from detection_files import tiny_detector
from PIL import Image

from hf_vanilla.app.worker import Worker
from hf_vanilla.objects import page as objects_page
from hf_vanilla.objects.detector import load_detector, object_attention
from hf_vanilla.objects.page import look
from hf_vanilla.serve import Settings, served_by

HOSTILE = "<img src=x onerror=\"window.broken='tag'\">"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of random weights whose objects have scores of about a fifth."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    tiny_detector(folder, names=("a", f"b {HOSTILE}", "c", "d"))
    return folder


@pytest.fixture(scope="module")
def detector(folder):
    return load_detector(str(folder), device="cpu")


def picture(width=96, height=64):
    values = np.random.default_rng(3).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def sent(image):
    """The `data:` URL by which a browser sends an image."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def rows(text, width):
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, width).astype(int)


def in_255ths(weights):
    """Rows `(n, S)` as shares of the largest of their row."""
    return (255 * weights / weights.amax(-1, keepdim=True)).numpy()


def test_the_page_is_chosen_by_the_kind_of_the_model(folder):
    assert "Objects" in served_by([str(folder)], Settings(), Worker()).files["index.html"]


def test_the_service_detects_what_the_page_does(folder, detector):
    detect = served_by([str(folder)], Settings(), Worker()).calls["/v1/detect"]
    found = asyncio.run(detect({"image": sent(picture()), "threshold": 0}))["objects"]
    shown = look(detector, sent(picture()))["objects"]
    assert [one["label"] for one in found] == [one["label"] for one in shown]
    # eager attention of the page, fused one of the service
    for ours, theirs in zip(found, shown, strict=True):
        assert ours["score"] == pytest.approx(theirs["score"], abs=1e-5)
        assert ours["box"] == pytest.approx(np.multiply(theirs["box"], [96, 64] * 2), abs=1e-3)
    with pytest.raises(ValueError, match="threshold is not a number from 0 to 1"):
        asyncio.run(detect({"image": sent(picture()), "threshold": "much"}))
    with pytest.raises(ValueError, match="no field 'score': there is model, image, threshold"):
        asyncio.run(detect({"image": sent(picture()), "score": 0.9}))


def test_objects_and_attention_are_those_of_the_detector(detector):
    found = look(detector, sent(picture()))
    expected = object_attention(detector, picture())
    names = detector.label_names
    assert found["grid"] == list(expected.cross.shape[1:])
    assert [o["label"] for o in found["objects"]] == [names[i] for i in expected.found.labels]
    assert [o["score"] for o in found["objects"]] == expected.found.scores.tolist()
    boxes = np.asarray([entry["box"] for entry in found["objects"]]) * [96, 64, 96, 64]
    np.testing.assert_allclose(boxes, expected.found.boxes, atol=1e-9)
    places = found["grid"][0] * found["grid"][1]
    of_objects = expected.cross.flatten(1)[expected.found.queries.tolist()]
    assert abs(rows(found["cross"], places) - in_255ths(of_objects)).max() <= 0.51
    encoder = expected.encoder.flatten(2).flatten(0, 1)
    assert abs(rows(found["encoder"], places) - in_255ths(encoder)).max() <= 0.51


def test_a_large_picture_is_smaller_and_its_encoder_weights_may_stay_out(detector, monkeypatch):
    monkeypatch.setattr(objects_page, "SHOWN_PIXELS", 48)
    monkeypatch.setattr(objects_page, "MOST_POSITIONS", 10)
    found = look(detector, sent(picture()))
    shown = Image.open(io.BytesIO(base64.b64decode(found["image"].partition(",")[2])))
    assert shown.size == (48, 32)
    assert found["encoder"] == ""


@pytest.mark.parametrize("url", ["http://127.0.0.1/a.png", "data:image/png;base64,aGVsbG8="])
def test_what_is_no_picture_is_one_line(detector, url):
    with pytest.raises(ValueError, match=r"^[^\n]*picture[^\n]*$"):
        look(detector, url)


def test_the_line_about_the_model(folder):
    index = served_by([str(folder)], Settings(), Worker()).files["index.html"]
    assert "4 classes, 7 queries, 1 + 2 layers" in index


# --- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def visit(folder):
    with visits(str(folder), lambda tab: tab.locator(".objects").wait_for()) as visit:
        yield visit


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    files = tmp_path_factory.mktemp("files")
    picture().save(files / "picture.png")
    picture(40, 80).save(files / "high.png")
    (files / "text.png").write_text("no image")
    return files


@pytest.mark.slow
@needs_chromium
def test_the_page_works_by_mouse(visit, detector, files):
    with visit() as tab:
        by_mouse(tab, detector, files)


@pytest.mark.slow
@needs_chromium
def test_the_hint_names_only_what_can_be_chosen(visit, files, monkeypatch):
    with visit() as tab:
        said = tab.locator(".said")
        tab.locator("input.file").set_input_files(files / "picture.png")
        tab.locator("canvas.picture").wait_for()
        assert said.inner_text().startswith("No object has a score of 50 % or more. Choose a posi")
        tab.locator("input.score").fill("0")
        assert said.inner_text().endswith("attends to, or a position in the picture.")
    monkeypatch.setattr(objects_page, "MOST_POSITIONS", 10)  # the picture has more
    with visit() as tab:
        said = tab.locator(".said")
        tab.locator("input.file").set_input_files(files / "picture.png")
        tab.locator("canvas.picture").wait_for()
        assert said.inner_text() == "No object has a score of 50 % or more."
        tab.locator("input.score").fill("0")
        assert said.inner_text() == "Choose a box to see what its query attends to."


@pytest.mark.release
@needs_chromium
def test_the_page_works_by_keyboard(visit, detector, files):
    found = look(detector, sent(picture()))
    height, width = found["grid"]
    with visit() as tab:
        choose_by_key(tab, files / "picture.png")
        tab.locator("canvas.picture").wait_for()
        tab.locator("input.score").focus()
        tab.keyboard.press("Home")
        assert tab.locator(".percent").inner_text() == "0 %"
        assert violations(tab, ".objects") == []

        tab.keyboard.press("Tab")
        tab.keyboard.press("Tab")  # after the picture, its boxes
        tab.keyboard.press("Enter")
        assert shown_weights(tab) == rows(found["cross"], height * width)[0].tolist()
        tab.keyboard.press("Escape")
        assert shown_weights(tab) == []
        tab.locator("canvas.picture").focus()
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("ArrowRight")
        place = height // 2 * width + width // 2 + 1
        assert shown_weights(tab) == rows(found["encoder"], height * width)[place].tolist()
        tab.get_by_role("radio", name="what it attends to").focus()
        tab.keyboard.press("ArrowRight")
        assert tab.get_by_role("radio", name="what attends to it").is_checked()
        tab.locator("canvas.picture").press("Escape")
        assert shown_weights(tab) == []


@pytest.mark.release
@needs_chromium
def test_the_page_works_by_touch_and_nothing_moves_on_a_slow_phone(visit, detector, files):
    found = look(detector, sent(picture()))
    height, width = found["grid"]
    with visit(is_slow=True, **PHONE) as tab:
        tab.locator("input.file").set_input_files(files / "high.png")
        tab.locator("canvas.picture").wait_for()
        tab.locator("input.file").set_input_files(files / "picture.png")
        tab.wait_for_function("() => document.querySelector('canvas.picture').width > 300")
        tab.locator("input.score").fill("1")  # no box lies over the place
        box = tab.locator("canvas.picture").bounding_box()
        assert max(box["width"], box["height"]) == pytest.approx(358, abs=1)  # all of its room
        at = {"x": box["width"] * 0.5 / width, "y": box["height"] * 1.5 / height}
        tab.locator("canvas.picture").tap(position=at)
        assert shown_weights(tab) == rows(found["encoder"], height * width)[width].tolist()
        tab.get_by_role("radio", name="what attends to it").tap()
        assert "gets most attention from" in tab.locator(".said").inner_text()
        assert violations(tab, ".objects") == []
        tab.locator("input.score").fill("0")
        tab.locator(".boxes button").last.tap(force=True)
        pressed = "buttons => buttons.findIndex((one) => one.ariaPressed === 'true')"
        on_top = tab.locator(".boxes button").evaluate_all(pressed)
        assert on_top >= 0
        assert shown_weights(tab) == rows(found["cross"], height * width)[on_top].tolist()


IS_SMALLEST_ON_TOP = """buttons => buttons.every((button) => {
  button.scrollIntoView({ block: "center" });
  const area = (one) => one.offsetWidth * one.offsetHeight;
  const { x, y, width, height } = button.getBoundingClientRect();
  const top = document.elementFromPoint(x + width / 2, y + height / 2).closest("button");
  return area(top) <= area(button);
})"""


def by_mouse(tab, detector, files):
    """Choose a picture, lower the threshold, click a box, walk through places by keys."""
    tab.locator("input.file").set_input_files(files / "picture.png")
    tab.locator("canvas.picture").wait_for()
    found = look(detector, sent(picture()))
    tab.locator("input.score").fill("0.99")
    assert tab.locator(".boxes button").count() == 0
    tab.locator("input.score").fill("0")
    assert tab.locator(".boxes button").count() == len(found["objects"])
    assert tab.locator(".boxes button").evaluate_all(IS_SMALLEST_ON_TOP)
    names = tab.locator(".boxes button").evaluate_all("all => all.map(b => b.title)")
    assert [name.rpartition(",")[0] for name in names] == [o["label"] for o in found["objects"]]

    height, width = found["grid"]
    cross = rows(found["cross"], height * width)
    tab.locator(".boxes button").nth(1).evaluate("button => button.click()")
    assert shown_weights(tab) == cross[1].tolist()
    tab.locator(".boxes button").nth(1).evaluate("button => button.click()")  # off again
    assert shown_weights(tab) == []

    encoder = rows(found["encoder"], height * width)
    middle = height // 2 * width + width // 2
    tab.locator("canvas.picture").press("ArrowUp")  # the first key starts in the middle
    tab.locator("canvas.picture").press("ArrowLeft")
    assert shown_weights(tab) == encoder[middle - 1].tolist()
    tab.get_by_role("radio", name="what attends to it").check()
    weights = object_attention(detector, picture()).encoder.flatten(2).flatten(0, 1)
    column = weights[:, middle - 1]
    rounding = float(0.51 * weights.max() / column.max())  # each row has its own steps
    expected = (255 * column / column.max()).numpy()
    np.testing.assert_allclose(shown_weights(tab), expected, rtol=0.01, atol=rounding + 0.51)

    tab.locator("input.file").set_input_files(files / "text.png")
    tab.get_by_role("alert").filter(has_text="The picture is damaged or no image").wait_for()
    assert not tab.locator("canvas.picture").is_visible()


def shown_weights(tab):
    text = tab.locator("canvas.picture").get_attribute("data-weights")
    return [int(number) for number in text.split()]
