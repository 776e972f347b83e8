"""The command detect, and what a detector returns."""

import io
import json

import numpy as np
import pytest
import torch
from detection_files import tiny_detector, write_coco
from PIL import Image

from hf_vanilla.objects.detector import (
    Detections,
    detect_files,
    drawn_objects,
    image_id,
    load_detector,
    object_attention,
    read_detection,
)
from hf_vanilla.options import UsageError
from hf_vanilla.plots.figures import plot, read_plot


@pytest.fixture
def folder(tmp_path):
    tiny_detector(tmp_path / "model")
    generator = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for name, size in (("b", (40, 64, 3)), ("a", (64, 50, 3)), ("c", (30, 90, 3))):
        pixels = generator.integers(0, 256, size, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "in" / f"{name}.png")
    return tmp_path


def detect(folder, capsys, *arguments):
    detect_files(read_detection(["--model", str(folder / "model"), *map(str, arguments)]))
    return capsys.readouterr().out


def test_lines_keep_the_order_of_paths_and_boxes_equal_the_pipelines(folder, capsys):
    from transformers import pipeline

    paths = [folder / "in" / f"{name}.png" for name in "cab"]
    out = detect(folder, capsys, *paths, "--threshold", "0.05", "--batch_size", "2")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["path"] for line in lines] == list(map(str, paths))
    theirs = pipeline("object-detection", model=str(folder / "model"))
    for line in lines:
        expected = theirs(line["path"], threshold=0.05)
        assert len(line["objects"]) == len(expected) > 0
        for found, wanted in zip(line["objects"], sorted(expected, key=by_score), strict=True):
            box = [wanted["box"][side] for side in ("xmin", "ymin", "xmax", "ymax")]
            assert found["label"] == wanted["label"]
            assert np.abs(np.asarray(found["box"]) - box).max() <= 1  # it cuts fractions off


def by_score(entry):
    return -entry["score"]


def test_batch_mates_do_not_change_boxes(folder):
    detector = load_detector(str(folder / "model"))
    images = [Image.open(path).convert("RGB") for path in sorted((folder / "in").iterdir())]
    images += [image.rotate(180) for image in images] + images[:2]  # eight of three sizes
    together = detector.detect(images)
    for image, entry in zip(images, together, strict=True):
        alone = detector.detect([image])[0]
        order, own = np.argsort(entry.queries), np.argsort(alone.queries)
        assert np.abs(entry.boxes[order] - alone.boxes[own]).max() < 1e-4  # pixels


def test_images_of_other_modes_are_detected_as_the_pipeline_does(folder):
    from transformers import pipeline

    image = Image.open(folder / "in" / "a.png")
    image.getexif()[0x0112] = 6  # turned by 90 degrees
    theirs = pipeline("object-detection", model=str(folder / "model"), threshold=0.0)
    for other in (image, image.convert("L"), image.convert("RGBA"), image.convert("CMYK")):
        (found,) = load_detector(str(folder / "model")).detect([other])
        best = max(theirs(other), key=lambda entry: entry["score"])
        assert found.scores[0] == pytest.approx(best["score"], abs=1e-5)
        assert np.abs(found.boxes[0] - list(best["box"].values())).max() <= 1
    with pytest.raises(ValueError, match="a ndarray is no image"):
        load_detector(str(folder / "model")).detect([np.asarray(image)])


def test_a_thin_image_is_searched_like_the_others_of_its_folder(folder, capsys):
    for name, size in (("aa", (1, 4000)), ("bb", (4000, 1))):
        Image.new("RGB", size, "white").save(folder / "in" / f"{name}.png")
    lines = detect(folder, capsys, folder / "in", "--threshold", "0").splitlines()
    assert [len(json.loads(line)["objects"]) for line in lines] == [7] * 5
    images = [Image.new("RGB", size) for size in ((1, 4000), (50, 64), (97, 41))]
    detector = load_detector(str(folder / "model"), device="cpu")
    for image in images[1:]:
        theirs = detector.processor(image, return_tensors="pt")["pixel_values"]
        assert torch.equal(detector.pixels(image), theirs)
    assert detector.pixels(images[0]).shape == (1, 3, 96, 1)
    assert len(object_attention(detector, images[0]).found) == 7
    shown = drawn_objects(images[0], detector.detect(images[:1])[0], detector.label_names)
    assert shown.size == (1, 4000)


def test_an_image_is_not_padded_to_the_pad_size_of_the_processor(folder):
    image = Image.open(folder / "in" / "b.png")
    detector = load_detector(str(folder / "model"), device="cpu")
    expected = detector.pixels(image)
    detector.processor.do_pad = True
    detector.processor.pad_size = {"height": 120, "width": 130}
    assert torch.equal(detector.pixels(image), expected)


def test_a_detector_that_was_saved_in_bfloat16_detects(folder):
    images = [Image.open(folder / "in" / "a.png").convert("RGB")]
    plain = load_detector(str(folder / "model"))
    expected = plain.detect(images)[0]
    plain.model.bfloat16().save_pretrained(folder / "model")
    detector = load_detector(str(folder / "model"))
    assert detector.model.dtype == torch.bfloat16
    found = detector.detect(images)[0]
    order, own = np.argsort(found.queries), np.argsort(expected.queries)
    assert np.abs(found.boxes[order] - expected.boxes[own]).max() < 3  # 8 bits of mantissa


def test_the_name_of_a_box_is_readable_on_a_black_image():
    box = np.array([[50.0, 100.0, 200.0, 200.0]])
    found = Detections(np.array([0]), box, np.array([0.97]), np.array([0]))
    pixels = np.asarray(drawn_objects(Image.new("RGB", (256, 256)), found, ("8",)))[:98]  # above it
    ys, xs = pixels.any(2).nonzero()
    label = pixels[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1].astype(int)
    for edge in (label[0], label[-1], label[:, 0], label[:, -1]):
        assert (edge == label[0, 0]).all()  # no letter touches the image beside the label
    both = Detections(np.arange(2), box.repeat(2, 0), np.array([0.97, 0.6]), np.arange(2))
    covered = np.asarray(drawn_objects(Image.new("RGB", (256, 256)), both, ("8", "8")))[:98]
    assert (covered == pixels).all()  # the surest is seen


def test_letters_and_lines_of_a_drawing_grow_with_the_image_and_have_umlauts(monkeypatch, caplog):
    def drawn(size, name):
        box = np.array([[0.2, 0.5, 0.8, 0.9]]) * [*size, *size]
        found = Detections(np.array([0]), box, np.array([0.97]), np.array([0]))
        return np.asarray(drawn_objects(Image.new("RGB", size), found, (name,)))

    small, large = (drawn((256 * n, 192 * n), "Tür").any(2) for n in (2, 16))
    of_label = [shown[: len(shown) // 2].any(1).sum() for shown in (small, large)]
    of_sides = [shown[len(shown) * 7 // 10].sum() for shown in (small, large)]
    for low, high in (of_label, of_sides):
        assert 5 < high / low < 8
    assert (drawn((512, 384), "Tür") != drawn((512, 384), "Tör")).any()
    assert not caplog.records

    monkeypatch.setattr("hf_vanilla.objects.detector.find_spec", lambda _: None)
    monkeypatch.setattr("hf_vanilla.objects.detector.SYSTEM_FONTS", ())
    drawn((1000, 1000), "Tuer")
    assert not caplog.records
    drawn((1000, 1000), "Tür")
    assert "as boxes, as no font has them; pip install -e '.[plot]'" in caplog.text


def test_coco_results_carry_the_ids_of_the_annotations(folder, capsys, tmp_path):
    tiny_detector(folder / "model", names=("car", "dog"))
    annotations = write_coco(tmp_path / "coco")
    image = tmp_path / "coco" / "a.png"
    out = detect(folder, capsys, image, "--format", "coco", "--annotations", annotations)
    results = json.loads(out)
    assert len(results) == 7  # every query
    assert {entry["image_id"] for entry in results} == {7}
    assert {entry["category_id"] for entry in results} <= {3, 18}


def test_an_image_without_an_id_ends_before_the_work(folder, capsys, tmp_path, monkeypatch):
    tiny_detector(folder / "model", names=("car", "dog"))
    annotations = write_coco(tmp_path / "coco")
    Image.new("RGB", (9, 9)).save(tmp_path / "coco" / "z.png")
    monkeypatch.setattr("hf_vanilla.objects.detector.Detector.detect", None)  # any detection fails
    with pytest.raises(ValueError, match=r"z\.png is not among .*: leave it out"):
        detect(folder, capsys, tmp_path / "coco", "--format", "coco", "--annotations", annotations)


def test_labels_without_a_category_are_left_out_with_a_warning(folder, capsys, tmp_path, caplog):
    annotations = write_coco(tmp_path / "coco")
    arguments = (tmp_path / "coco" / "a.png", "--format", "coco", "--annotations", annotations)
    model = tiny_detector(folder / "model", names=("N/A", "dog", "N/A"))  # as in published models
    for label, expected in ((0, []), (1, [18] * 7)):
        with torch.no_grad():
            model.class_labels_classifier.bias[label] += 100
        model.save_pretrained(folder / "model")
        results = json.loads(detect(folder, capsys, *arguments))
        assert [entry["category_id"] for entry in results] == expected
        model.class_labels_classifier.bias.data.zero_()
    assert "boxes.json has no category 'N/A', labels of the model: such objects" in caplog.text
    tiny_detector(folder / "model", names=("bird", "cow"))
    with pytest.raises(ValueError, match="has no category 'bird', a label of the model"):
        detect(folder, capsys, *arguments)


def test_file_names_of_annotations_may_have_folders():
    ids = {"val/a.png": 3, "a.png": 5}
    assert image_id(ids, "/photos/val/a.png") == 3
    assert image_id(ids, "other/a.png") == 5
    with pytest.raises(ValueError, match=r"val/b\.png is not among the 2 annotated images"):
        image_id(ids, "val/b.png")


def test_unreadable_images_are_reported_and_drawing_goes_on(folder, capsys, monkeypatch, caplog):
    caplog.set_level("INFO")
    (folder / "in" / "bad.png").write_bytes(b"nothing")
    listed = "".join(f"{folder / 'in' / name}.png\n" for name in ("bad", "a"))
    monkeypatch.setattr("sys.stdin", io.StringIO(listed))
    with pytest.raises(ValueError, match=r"unreadable images: 1, the first is .*bad\.png"):
        detect(folder, capsys, "-", "--draw", folder / "drawn", "--threshold", "0")
    bad, good = map(json.loads, capsys.readouterr().out.splitlines())
    assert "is damaged or no image" in bad["error"]
    assert "images: 2, unreadable: 1" in caplog.text
    assert len(good["objects"]) == 7
    assert [path.name for path in (folder / "drawn").iterdir()] == ["a.png"]
    with Image.open(folder / "drawn" / "a.png") as drawn, Image.open(folder / "in/a.png") as plain:
        assert drawn.width % plain.width == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(listed))
    with pytest.raises(ValueError, match="damaged"):
        detect(folder, capsys, "-", "--stop_at_unreadable", "True")


def test_a_drawing_never_replaces_its_image(folder, capsys):
    before = (folder / "in" / "a.png").read_bytes()
    with pytest.raises(FileExistsError, match=r"is the folder of .*a\.png.*: give another"):
        detect(folder, capsys, folder / "in", "--draw", folder / "in")
    assert (folder / "in" / "a.png").read_bytes() == before


def test_a_drawing_replaces_no_other_image_and_no_other_drawing(folder, capsys):
    with Image.open(folder / "in" / "b.png") as image:
        (folder / "in" / "d").mkdir()
        paths = [folder / "in" / name for name in ("a.jpg", "z-2.jpg", "z.jpg", "d/z.jpg")]
        for path in paths:
            image.save(path)
    before = (folder / "in" / "a.png").read_bytes()
    with pytest.raises(FileExistsError, match=r"folder of .*a\.jpg, and .* replace a\.png there"):
        detect(folder, capsys, paths[0], "--draw", folder / "in")
    assert (folder / "in" / "a.png").read_bytes() == before
    detect(folder, capsys, *paths[1:], "--draw", folder / "drawn")
    assert len(list((folder / "drawn").iterdir())) == 3
    inner = folder / "in" / "z"
    lines = detect(folder, capsys, folder / "in", "--draw", inner).splitlines()
    assert len(lines) == len(list(inner.iterdir())) == 7  # drawings are not read


def test_sure_objects_are_drawn_or_those_from_the_threshold_on(folder, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "hf_vanilla.objects.detector.drawn_objects",
        lambda image, found, names: drawn.append(len(found)) or image,
    )
    model = tiny_detector(folder / "model")
    with torch.no_grad():
        model.class_labels_classifier.weight.zero_()  # all four scores of a query are 0.25
    model.save_pretrained(folder / "model")
    told = (folder / "in" / "a.png", "--draw", folder / "drawn", "--format", "coco")
    for more in ([], ["--threshold", "0.2"]):
        detect(folder, capsys, *told, *more)
    assert drawn == [0, 7]


def test_wrong_uses_are_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="missing: paths"):
        read_detection(["--model", "m"])
    with pytest.raises(ValueError, match="threshold=2"):
        read_detection(["--model", "m", "--threshold", "2", "a.png"])
    with pytest.raises(ValueError, match="only the format coco"):
        read_detection(["--model", "m", "--annotations", "x.json", "a.png"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "deformable_detr"}')
    with pytest.raises(ValueError, match="'deformable_detr': give a detector"):
        load_detector(str(tmp_path / "other"))


def test_attention_sums_to_one(folder):
    detector = load_detector(str(folder / "model"))
    image = Image.open(folder / "in" / "c.png").convert("RGB")
    attention = object_attention(detector, image)
    queries, rows, columns = attention.cross.shape
    assert (queries, attention.encoder.shape) == (7, (rows, columns, rows, columns))
    assert torch.allclose(attention.cross.sum((1, 2)), torch.ones(7), atol=1e-5)
    assert attention.encoder[1, 2].sum() == pytest.approx(1, abs=1e-5)
    assert detector.model.config._attn_implementation != "eager"  # as before


@pytest.mark.parametrize("kind", ["boxes", "queries", "encoder", "places"])
def test_every_figure_of_objects_is_drawn(folder, kind):
    image = folder / "in" if kind == "places" else folder / "in" / "a.png"
    asked = ["objects", "--model", str(folder / "model"), "--image", str(image), "--kind", kind]
    asked += ["--threshold", "0", "--output", str(folder / "f.png")]
    asked += ["--pixels", "3,5", "40,60"] if kind == "encoder" else []
    with Image.open(plot(read_plot(asked))) as figure:
        assert figure.width > 200


def test_a_pixel_that_is_none_or_outside_is_refused(folder):
    asked = ["objects", "--model", str(folder / "model"), "--image", str(folder / "in" / "a.png")]
    asked += ["--kind", "encoder", "--output", str(folder / "outside.png")]
    for pixels, told in (
        (["3,5", "50,5"], "x=50, y=5 lies outside of 50 x 64"),
        (["3"], "pixels='3': give column and row, such as 120,80"),
        (["3,-5"], "pixels='3,-5': give"),
        (["3,5"] * 11, "needs 1 to 10 pixels: give --pixels X,Y"),
        ([], "needs 1 to 10 pixels"),
    ):
        with pytest.raises(ValueError, match=told):
            plot(read_plot([*asked, *(["--pixels", *pixels] if pixels else [])]))
    with pytest.raises(ValueError, match=r"^kind='boxes' has no pixels: add --kind encoder$"):
        read_plot([*asked, "--kind", "boxes", "--pixels", "3,5"])
    assert not (folder / "outside.png").exists()
