"""The page for image classifiers: what its function returns, and the page in headless Chromium."""

import asyncio
import base64
import io

import numpy as np
import pytest
import torch
from chromium import PHONE, choose_by_key, drag_by_finger, needs_chromium, violations, visits
from image_models import vit
from PIL import Image
from torch.testing import assert_close

from hf_vanilla.app import page as shared
from hf_vanilla.app.worker import Worker
from hf_vanilla.images.batches import image_processor
from hf_vanilla.images.classifier import load_classifier, patch_attention
from hf_vanilla.images.page import centred, look
from hf_vanilla.serve import Settings, served_by

HOSTILE = "<img src=x onerror=\"window.broken='tag'\">"
NAMES = {index: f"kind {index} {HOSTILE}" for index in range(7)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of seven labels for images of 15 x 20 pixels, 3 x 4 patches, with random weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    vit(id2label=NAMES).save_pretrained(folder)
    image_processor((15, 20), [0.4, 0.5, 0.6], [0.3, 0.2, 0.1]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(folder):
    return load_classifier(str(folder), device="cpu")


def picture():
    values = np.random.default_rng(3).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    return Image.fromarray(values)


def sent(image, kind="PNG"):
    """The `data:` URL by which a browser sends an image."""
    file = io.BytesIO()
    image.save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def received(url):
    header, content = url.split(",")
    assert header == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_the_page_is_chosen_by_the_kind_of_the_model(folder, trained_run):
    served = served_by([str(folder), str(trained_run)], Settings(), Worker())
    assert list(served.views) == ["look"]  # of the first model
    assert {"/v1/classify", "/translate"} <= served.calls.keys()


def test_the_service_classifies_what_the_page_does_and_refuses_the_rest(folder, classifier):
    classify = served_by([str(folder)], Settings(), Worker()).calls["/v1/classify"]
    found = asyncio.run(classify({"image": sent(picture()), "top_k": 3}))
    assert found == {"labels": look(classifier, sent(picture()), is_drawn=False)["labels"][:3]}
    for body, problem in (
        ([], "no JSON object"),
        ({}, "This is no picture: .* in a request, image is data:image/png;base64,"),
        ({"image": sent(picture()), "top_k": 0}, "top_k is not a number from 1 to 1000"),
        ({"image": sent(picture()), "model": "other"}, "There is no model 'other'"),
        ({"image": sent(picture()), "model": 7}, "There is no model 7"),
    ):
        with pytest.raises(ValueError, match=problem):
            asyncio.run(classify(body))


def test_labels_and_attention_are_those_of_the_classifier(classifier):
    found = look(classifier, sent(picture()), is_drawn=False)
    expected = patch_attention(classifier, picture())
    assert [guess["label"] for guess in found["labels"]] == [g.label for g in expected.guesses]
    assert len(found["labels"]) == 5
    assert found["labels"][0]["probability"] == pytest.approx(expected.guesses[0].probability)
    assert found["grid"] == [3, 4]
    weights = torch.tensor(found["weights"]) / 1e6
    assert weights.shape == (2, 3, 12)
    assert_close(weights, expected.of_class_token.flatten(2), rtol=0, atol=6e-7)
    rollout = torch.tensor(found["rollout"]) / 1e6
    assert_close(rollout, expected.rollout.flatten(), rtol=0, atol=6e-7)


def test_the_shown_image_is_what_the_model_sees(classifier):
    shown = received(look(classifier, sent(picture()), is_drawn=False)["image"])
    resized = picture().resize((20, 15), Image.Resampling.BILINEAR)
    difference = np.asarray(shown, int) - np.asarray(resized, int)
    assert shown.size == (20, 15)
    assert abs(difference).max() <= 1  # rounding


def test_a_drawing_is_moved_to_the_middle_and_fills_the_square():
    drawing = Image.new("RGB", (100, 90))
    drawing.paste((255, 255, 255), (70, 10, 80, 40))  # 10 wide, 30 high
    found = centred(drawing)
    assert found.size == (30, 30)
    assert found.getbbox() == (10, 0, 20, 30)


def test_a_thin_drawing_is_scaled_and_not_squared_at_its_full_length():
    # as a square it would take 1.2 GB
    assert centred(Image.new("RGB", (20_000, 3), (255, 255, 255))).size == (512, 512)


def test_a_drawing_of_nothing_is_an_error(classifier):
    with pytest.raises(ValueError, match="Nothing is drawn: draw with the pressed mouse"):
        look(classifier, sent(Image.new("RGB", (64, 64))), is_drawn=True)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://127.0.0.1/image.png", "This is no picture: choose an image file"),
        ("data:text/plain,hello", "This is no picture"),
        ("data:image/png;base64,!!", "did not arrive whole"),
        ("data:image/png;base64,aGVsbG8=", "The picture is damaged or no image"),
        ("None", "This is no picture"),
    ],
)
def test_what_is_no_picture_is_one_line(classifier, url, problem):
    with pytest.raises(ValueError, match=f"^[^\n]*{problem}[^\n]*$"):
        look(classifier, url, is_drawn=False)


def test_too_many_bytes_are_refused_before_they_are_decoded(classifier, monkeypatch):
    monkeypatch.setattr(shared, "MOST_BYTES", 2**20)
    monkeypatch.setattr(shared, "open_image", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(ValueError, match="The picture has more than 1 MiB: make it smaller"):
        look(classifier, "data:image/png;base64," + "A" * 2**21, is_drawn=False)


def test_the_line_about_the_model(folder):
    index = served_by([str(folder)], Settings(), Worker()).files["index.html"]
    assert "7 labels, 2 layers, 3 heads, 15 x 20 pixels" in index


# --- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def visit(folder):
    def is_ready(tab):
        tab.get_by_label("Draw here with the mouse").wait_for()

    with visits(str(folder), is_ready) as visit:
        yield visit


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    files = tmp_path_factory.mktemp("files")
    picture().save(files / "picture.png")
    (files / "text.png").write_text("no image")
    return files


@pytest.mark.slow
@needs_chromium
def test_the_page_works_by_mouse(visit, classifier, files):
    with visit() as tab:
        by_mouse(tab, classifier, files)


@pytest.mark.release
@needs_chromium
def test_the_page_works_by_keyboard(visit, classifier, files):
    with visit() as tab:
        expected = look(classifier, sent(picture()), is_drawn=False)
        choose_by_key(tab, files / "picture.png")
        tab.locator(".labels li").nth(4).wait_for()
        assert tab.locator("input.file").input_value().endswith("picture.png")
        assert violations(tab, ".images") == []
        tab.get_by_role("radio", name="1", exact=True).focus()
        for key, weights in (
            ("ArrowUp", expected["weights"][0]),
            ("ArrowDown", expected["weights"][1]),
            ("ArrowRight", [expected["rollout"]]),
        ):
            tab.keyboard.press(key)
            assert shown_weights(tab) == weights
        tab.locator("button.clear").focus()
        tab.keyboard.press("Enter")
        tab.locator(".labels").wait_for(state="hidden")
        assert tab.locator("input.file").input_value() == ""


@pytest.mark.release
@needs_chromium
def test_the_page_works_by_touch_and_nothing_moves_on_a_slow_phone(visit, files):
    with visit(is_slow=True, **PHONE) as tab:
        labels = tab.locator(".labels li")
        tab.locator("input.file").set_input_files(files / "picture.png")
        labels.nth(4).wait_for()
        assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
        first = labels.all_inner_texts()
        tab.get_by_role("radio", name="all, as rollout").tap()
        assert len(shown_weights(tab)) == 1
        tab.get_by_role("button", name="Clear the drawing").tap()
        labels.first.wait_for(state="hidden")
        pad = tab.get_by_label("Draw here with the mouse")
        pad.scroll_into_view_if_needed()
        box = pad.bounding_box()
        drag_by_finger(tab, [(box["x"] + 90 + n, box["y"] + 40 + 8 * n) for n in range(20)])
        labels.nth(4).wait_for()
        assert labels.all_inner_texts() != first
        assert violations(tab, ".images") == []


def by_mouse(tab, classifier, files):
    """Draw a line, clear it, choose a picture, look at all layers, choose a file that is none."""
    pad, labels = tab.get_by_label("Draw here with the mouse"), tab.locator(".labels li")
    box = pad.bounding_box()
    tab.mouse.move(box["x"] + 90, box["y"] + 40)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 120, box["y"] + 200, steps=5)
    tab.mouse.up()
    labels.nth(4).wait_for()
    tab.get_by_role("button", name="Clear the drawing").click()
    labels.first.wait_for(state="hidden")

    expected = look(classifier, sent(picture()), is_drawn=False)
    tab.locator("input.file").set_input_files(files / "picture.png")
    labels.nth(4).wait_for()
    names = [guess["label"] for guess in expected["labels"]]
    assert tab.locator(".labels .name").all_inner_texts() == names
    assert shown_weights(tab) == expected["weights"][-1]  # the last layer is shown first
    share = f"head 0: {sum(expected['weights'][-1][0]) / 1e4:.0f} % on patches"
    assert tab.locator("figcaption").nth(1).inner_text() == share
    plain = tab.get_by_role("img", name="what the model sees")
    assert plain.get_attribute("src") == expected["image"]
    assert plain.bounding_box()["y"] == tab.locator("figure canvas").first.bounding_box()["y"]
    tab.get_by_role("radio", name="0", exact=True).check()
    assert shown_weights(tab) == expected["weights"][0]
    tab.get_by_role("radio", name="all, as rollout").check()
    assert shown_weights(tab) == [expected["rollout"]]
    assert plain.is_visible()

    tab.locator("input.file").set_input_files(files / "text.png")
    tab.get_by_role("alert").filter(has_text="The picture is damaged or no image").wait_for()
    assert not labels.first.is_visible()


def shown_weights(tab):
    texts = tab.locator("figure canvas").evaluate_all("all => all.map(c => c.dataset.weights)")
    return [[int(number) for number in text.split()] for text in texts]
