"""Classifying files: order and count, formats, damaged files, the pipeline's labels."""

import csv
import dataclasses
import io
import json
import logging
import os
from functools import partial

import numpy as np
import pytest
import torch
from detection_files import tiny_detector
from image_files import coloured, damaged
from image_models import vit
from PIL import Image
from torch.testing import assert_close
from transformers import ViTConfig, ViTForImageClassification, pipeline

from hf_vanilla.data import image_models
from hf_vanilla.data.image_models import image_paths, load_image_model, results_of_files
from hf_vanilla.data.images import read_image_folder
from hf_vanilla.images.batches import image_processor
from hf_vanilla.images.classifier import classify_files, load_classifier, read_classification
from hf_vanilla.images.evaluation import score_classifier
from hf_vanilla.objects.detector import load_detector
from hf_vanilla.options import UsageError
from hf_vanilla.training.validation import evaluate, read_evaluation

NAMES = {index: f"kind {index}" for index in range(7)}


@pytest.fixture
def folder(tmp_path):
    """A model folder with an image processor."""
    model = vit(id2label=NAMES)
    model.save_pretrained(tmp_path / "model")
    image_processor((15, 20), [0.4, 0.5, 0.6], [0.3, 0.2, 0.1]).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def images(tmp_path):
    """Five images in two folders."""
    for number in range(5):
        coloured(tmp_path / "images" / ("b" if number % 2 else "a") / f"{number}.png", (50, 9, 9))
    return tmp_path / "images"


def run(capsys, *arguments):
    classify_files(read_classification([str(argument) for argument in arguments]))
    return capsys.readouterr().out


def test_labels_equal_those_of_transformers_pipeline(folder, images):
    paths = list(image_paths([str(images)]))
    guesses = partial(load_classifier(str(folder)).guesses, top_k=3)
    found = list(results_of_files(paths, guesses, batch_size=2))
    expected = pipeline("image-classification", model=str(folder))(paths, top_k=3)
    for result, guesses in zip(found, expected, strict=True):
        assert [guess.label for guess in result.result] == [guess["label"] for guess in guesses]
        scores = [guess["score"] for guess in guesses]
        # the pipeline takes one image at a time, which sums in another order
        assert [guess.probability for guess in result.result] == pytest.approx(scores, abs=1e-5)


def test_every_path_gets_one_line_in_its_order(capsys, folder, images, tmp_path):
    bad = damaged(tmp_path / "bad")
    paths = [str(bad[0]), str(images), str(bad[1]), str(images / "b" / "1.png")]
    with pytest.raises(ValueError, match=f"unreadable images: 2, the first is {paths[0]}"):
        run(capsys, "--model", folder, *paths, "--top_k", 2)
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["path", "label_1", "p_1", "label_2", "p_2", "error"]
    inner = [str(images / name) for name in ("a/0.png", "a/2.png", "a/4.png", "b/1.png", "b/3.png")]
    assert [row[0] for row in rows[1:]] == [paths[0], *inner, paths[2], paths[3]]
    assert all(len(row) == 6 for row in rows)
    assert [bool(row[5]) for row in rows[1:]] == [True, *[False] * 5, True, False]
    assert rows[5][1:] == rows[8][1:]


def test_names_of_files_may_be_no_utf_8(caplog, folder, images, tmp_path):
    # processes of pytest-xdist cannot send such a name of a log
    caplog.set_level(logging.CRITICAL, logger="hf_vanilla.data.image_models")
    for name, content in ((b"\xe9.png", (images / "a" / "0.png").read_bytes()), (b"\xff.png", b"")):
        (images / "a" / os.fsdecode(name)).write_bytes(content)
    asked = ["--model", str(folder), str(images / "a"), "--output", str(tmp_path / "out.csv")]
    with pytest.raises(ValueError, match="unreadable images: 1"):
        classify_files(read_classification(asked))
    rows = list(csv.reader((tmp_path / "out.csv").open(encoding="utf-8")))
    assert [row[0].rpartition("/")[2] for row in rows[-2:]] == ["\\xe9.png", "\\xff.png"]
    assert r"\xff.png is empty" in rows[-1][-1]
    assert len(read_image_folder(images)) == 7  # as training reads them


def test_long_work_shows_its_progress(capsys, folder, images, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_vanilla.options.PROGRESS_AFTER", 0)
    arguments = ["--model", str(folder), str(images), "--output", str(tmp_path / "out.csv")]
    classify_files(read_classification(arguments))
    assert "images/s]" in capsys.readouterr().err
    labelled = read_image_folder(images).relabelled("abcdefg")
    score_classifier(load_classifier(str(folder)), labelled)
    assert "batches/s]" in capsys.readouterr().err


def test_a_folder_without_images_is_an_error_and_leaves_no_output(capsys, folder, tmp_path):
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "page.pdf").write_bytes(b"%PDF")
    with pytest.raises(ValueError, match=r"scans: no files ending in \.avif, \.bmp, .*\.webp$"):
        run(capsys, "--model", folder, tmp_path / "scans", "--output", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_json_lines_hold_labels_and_errors(capsys, folder, images, tmp_path):
    (tmp_path / "empty.png").write_bytes(b"")
    with pytest.raises(ValueError, match="unreadable images: 1"):
        run(capsys, "--format=jsonl", "--model", folder, images / "a", tmp_path / "empty.png")
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(entries) == 4
    probabilities = [guess["probability"] for guess in entries[0]["labels"]]
    assert len(probabilities) == 5
    assert probabilities == sorted(probabilities, reverse=True)
    assert entries[3]["labels"] == []
    assert "is empty" in entries[3]["error"]


def test_a_model_with_fewer_labels_than_asked_gives_all(capsys, folder, images):
    out = run(capsys, "--model", folder, images / "b", "--top_k", 100)
    assert len(out.splitlines()[1].split(",")) == 1 + 2 * 7 + 1


def test_paths_come_from_stdin_and_lines_go_to_a_file(
    capsys, folder, images, tmp_path, monkeypatch
):
    paths = [str(images / "b" / "3.png"), str(images / "a" / "0.png")]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(paths) + "\n"))
    assert run(capsys, "-", "--model", folder, "--output", tmp_path / "out.csv") == ""
    rows = list(csv.reader((tmp_path / "out.csv").open()))
    assert [row[0] for row in rows[1:]] == paths


def test_a_folder_among_the_paths_of_stdin_is_reported_and_the_rest_goes_on(
    capsys, folder, images, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{images}\n{images / 'a' / '0.png'}\n"))
    with pytest.raises(ValueError, match="unreadable images: 1, the first is "):
        run(capsys, "-", "--model", folder)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert "is a folder: give files" in rows[0]["error"]
    assert [row["path"] for row in rows] == [str(images), str(images / "a" / "0.png")]
    assert not rows[1]["error"]


@pytest.mark.parametrize("command", ["classify", "detect"])
def test_each_image_is_resized_before_the_next_one_is_opened(
    command, folder, images, tmp_path, monkeypatch
):
    """A batch of large images would fill the memory."""
    events = []
    opened, files = image_models.open_image, sorted(map(str, images.rglob("*.png")))
    monkeypatch.setattr(
        image_models, "open_image", lambda path: events.append("open") or opened(path)
    )
    tiny_detector(tmp_path)
    is_classifier = command == "classify"
    model = load_classifier(str(folder)) if is_classifier else load_detector(str(tmp_path))
    resize = model.processor

    def recorded(*images, **options):
        events.append("resize")
        return resize(*images, **options)

    recorded.size = resize.size
    model = dataclasses.replace(model, processor=recorded)
    answers = model.guesses if is_classifier else model.detect
    found = list(results_of_files([*files, "gone.png", files[0]], answers, batch_size=9))
    assert [result.error is None for result in found] == [True] * len(files) + [False, True]
    assert events == ["open", "resize"] * len(files) + ["open", "open", "resize"]


def test_an_unreadable_image_ends_it_where_asked(folder, tmp_path):
    (tmp_path / "empty.png").write_bytes(b"")
    asked = ["--model", str(folder), str(tmp_path / "empty.png"), "--stop_at_unreadable", "true"]
    with pytest.raises(ValueError, match=r"empty\.png is empty: replace or remove it"):
        classify_files(read_classification(asked))


def test_what_cannot_be_classified_is_named(folder, tmp_path):
    with pytest.raises(UsageError, match="missing: paths of images or folders"):
        read_classification(["--model", "m"])
    with pytest.raises(FileNotFoundError, match="gone: no such file or folder"):
        classify_files(read_classification(["--model", str(folder), "gone"]))
    with pytest.raises(ValueError, match="format='xml': choose one of csv, jsonl"):
        read_classification(["--model", "m", "--format", "xml", "x"])
    with pytest.raises(ValueError, match="top_k=0: give a positive number"):
        read_classification(["--model", "m", "--top_k", "0", "x"])
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match="has no image processor"):
        load_classifier(str(folder))
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = ViTConfig(**tiny, intermediate_size=8, image_size=8, patch_size=4)
    ViTForImageClassification(config).save_pretrained(tmp_path / "theirs")
    with pytest.raises(ValueError, match="type 'vit': give an image model of this package"):
        load_classifier(str(tmp_path / "theirs"))
    with pytest.raises(OSError, match="no such folder"):
        load_classifier(str(tmp_path / "nothing"))


def test_probabilities_sum_to_one_and_ignore_batch_mates(folder):
    classifier = load_classifier(str(folder), device="cpu")
    random = np.random.default_rng(3)
    images = [
        Image.fromarray(random.integers(0, 255, (9, 8 + number, 3), dtype=np.uint8))
        for number in range(3)
    ]
    found = classifier.probabilities(images)
    assert_close(found.sum(-1), torch.ones(3))
    assert_close(classifier.probabilities(images[1:2])[0], found[1])


def test_images_of_other_modes_get_the_labels_of_the_pipeline(folder):
    theirs = pipeline("image-classification", model=str(folder))
    pixels = np.random.default_rng(3).integers(0, 255, (9, 14, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = 6  # turned by 90 degrees
    for other in (image, image.convert("L"), image.convert("RGBA"), image.convert("CMYK")):
        (guesses,) = load_classifier(str(folder)).guesses([other], top_k=1)
        assert guesses[0].probability == pytest.approx(theirs(other)[0]["score"], abs=1e-5)


@pytest.mark.parametrize("labels", [1, 7])
def test_each_label_of_a_multi_label_model_has_the_probability_of_the_pipeline(
    labels, images, tmp_path
):
    kind = None if labels == 1 else "multi_label_classification"
    names = {index: f"kind {index}" for index in range(labels)}
    vit(id2label=names, num_labels=labels, problem_type=kind).save_pretrained(tmp_path / "model")
    processor = image_processor((15, 20), [0.5] * 3, [0.5] * 3)
    processor.save_pretrained(tmp_path / "model")
    classifier = load_classifier(str(tmp_path / "model"))
    image = Image.open(images / "a" / "0.png")
    (guesses,) = classifier.guesses([image], top_k=labels)
    expected = pipeline("image-classification", model=str(tmp_path / "model"))(image, top_k=labels)
    assert [guess.label for guess in guesses] == [guess["label"] for guess in expected]
    scores = [guess["score"] for guess in expected]
    assert [guess.probability for guess in guesses] == pytest.approx(scores, abs=1e-5)
    request = read_evaluation(["--model", str(tmp_path / "model"), "--dataset", str(images)])
    with pytest.raises(ValueError, match="gives each label a probability of its own"):
        evaluate(request)


def test_a_regression_is_refused(folder):
    vit(problem_type="regression").save_pretrained(folder)
    with pytest.raises(ValueError, match="model is a regression, without labels"):
        load_classifier(str(folder))


def test_images_that_the_processor_leaves_in_several_sizes_are_refused(folder):
    classifier = load_classifier(str(folder), device="cpu")
    classifier.processor.do_resize = False
    images = [Image.new("RGB", size) for size in ((20, 15), (9, 9))]
    assert len(classifier.probabilities(images[:1])) == 1
    with pytest.raises(ValueError, match=r"\[\(9, 9\), \(15, 20\)\] pixels: set do_resize to true"):
        classifier.probabilities(images)


def test_what_the_model_sees_has_the_colours_of_the_image(folder):
    classifier = load_classifier(str(folder), device="cpu")
    image = Image.new("RGB", (40, 30), (100, 150, 200))
    for field in ("do_rescale", "do_normalize"):
        assert classifier.seen(image).getcolors() == [(300, (100, 150, 200))]
        setattr(classifier.processor, field, False)


def test_a_path_may_follow_an_option_that_is_true_or_false(folder, images):
    for flag in (["--stop-at-unreadable"], ["--stop_at_unreadable", "true"]):
        request = read_classification([*flag, str(images), "--model", "m", "--top_k", "2", "-"])
        assert request.paths == (str(images), "-")
        assert request.options.stop_at_unreadable is True
    request = read_classification(["--stop_at_unreadable", "--model", "m", "-"])
    assert (request.options.model, request.options.stop_at_unreadable) == ("m", True)
    with pytest.raises(UsageError, match="argument --output: expected one argument"):
        read_classification(["--model", "m", "--output", "--top_k", "2", "-"])


def test_an_output_named_like_an_image_and_an_unknown_device_are_refused(folder, images):
    image = images / "a" / "0.png"
    with pytest.raises(UsageError, match=r"0\.png: give the name of a text file"):
        read_classification(["--model", str(folder), "--output", str(image), str(image)])
    for device in ("foo", "cuda:99"):
        with pytest.raises(ValueError, match=f"device='{device}': .* give another, such as cpu"):
            load_classifier(str(folder), device=device)


def test_a_folder_without_a_model_is_named_so(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json\): give one"):
        load_image_model(str(tmp_path), "image_classification", remedy="give an image model")


def test_a_model_without_classes_is_refused():
    with pytest.raises(ValueError, match=r"label_names=\[\]: give a list of names"):
        image_models.label_fields([])
