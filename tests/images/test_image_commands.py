"""Evaluation and fine-tuning of an image model, and the demo of images."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import colour_folder
from image_models import vit
from PIL import Image
from torch.testing import assert_close
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    EvalPrediction,
    ViTImageProcessorPil,
)

from hf_vanilla.data.images import digit_images, read_image_folder
from hf_vanilla.images.batches import image_processor
from hf_vanilla.images.classifier import load_classifier
from hf_vanilla.images.evaluation import (
    EvaluateImagesOptions,
    evaluate_images,
    score_classifier,
)
from hf_vanilla.images.trainer import ImageRows, accuracy, processed_size, with_new_head
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train
from hf_vanilla.training.validation import evaluate, read_evaluation

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def images(tmp_path):
    """Blue and red pictures: 6 of each to train on, 5 to validate."""
    colour_folder(tmp_path / "images" / "train", count=6)
    colour_folder(tmp_path / "images" / "validation", count=5)
    return tmp_path / "images"


def model_folder(folder, names, **changes):
    labels = {"num_labels": len(names), "id2label": dict(enumerate(names))}
    vit(**labels, **changes).save_pretrained(folder)
    image_processor((15, 20), [0.4, 0.5, 0.6], [0.3, 0.2, 0.1]).save_pretrained(folder)
    return folder


# --- evaluate ----------------------------------------------------------------------------------


def test_evaluate_takes_the_options_of_the_task_of_the_model(images, tmp_path):
    folder = model_folder(tmp_path / "model", ["blue", "red"])
    figure = tmp_path / "confusion.svg"
    command = ["--model", str(folder), "--dataset", str(images), "--split", "validation"]
    scores = evaluate(read_evaluation([*command, "--confusion", str(figure), "--device", "cpu"]))
    labelled = read_image_folder(images / "validation")
    found = load_classifier(str(folder), device="cpu").probabilities(
        [labelled.open(row) for row in range(10)]
    )
    right = found.argmax(-1).numpy() == labelled.labels
    assert scores.images == 10
    assert scores.accuracy == pytest.approx(right.mean())
    assert "<svg" in figure.read_text()
    with pytest.raises(FileExistsError):
        evaluate(read_evaluation([*command, "--confusion", str(figure)]))


def test_too_many_classes_for_a_figure_are_refused_before_images_are_read(tmp_path):
    folder = model_folder(tmp_path / "model", [f"class {number}" for number in range(101)])
    options = EvaluateImagesOptions(
        model=str(folder), dataset="not read", confusion=str(tmp_path / "c.png"), device="cpu"
    )
    with pytest.raises(ValueError, match="101 classes do not fit into a figure: at most 100"):
        evaluate_images(options)


def test_labels_are_compared_by_name_not_by_number(images, tmp_path):
    one = model_folder(tmp_path / "one", ["blue", "red"])
    model = AutoModelForImageClassification.from_pretrained(one)
    with torch.no_grad():  # the same classifier with its two labels exchanged
        model.classifier.weight.copy_(model.classifier.weight.flip(0))
        model.classifier.bias.copy_(model.classifier.bias.flip(0))
    model.config.id2label = {0: "red", 1: "blue"}
    other = tmp_path / "other"
    model.save_pretrained(other)
    AutoImageProcessor.from_pretrained(one).save_pretrained(other)
    first, second = (
        evaluate_images(
            EvaluateImagesOptions(model=str(folder), dataset=str(images), split="train")
        )
        for folder in (one, other)
    )
    assert first.accuracy == second.accuracy
    assert first.nats == pytest.approx(second.nats)
    assert first.confusion.flip(0, 1).tolist() == second.confusion.tolist()


def test_evaluate_refuses_what_the_model_does_not_know(images, tmp_path):
    folder = model_folder(tmp_path / "model", ["blue", "green"])
    options = EvaluateImagesOptions(model=str(folder), dataset=str(images), split="train")
    with pytest.raises(ValueError, match=r"has the class 'red', which is not among the 2 labels"):
        evaluate_images(options)
    digits = tmp_path / "optdigits.tes"
    digits.write_text("".join(",".join(["3"] * 64 + [str(label)]) + "\n" for label in range(3)))
    with pytest.raises(ValueError, match="has the class '0', which is not among the 2 labels"):
        evaluate_images(EvaluateImagesOptions(model=str(folder), dataset=str(digits)))
    with pytest.raises(ValueError, match="batch_size=0: give a positive number"):
        EvaluateImagesOptions(model="m", dataset="d", batch_size=0)


def test_each_image_is_resized_before_the_next_one_is_scored(images, tmp_path):
    """A batch of large images would fill the memory."""
    classifier, events = load_classifier(str(model_folder(tmp_path / "m", ["blue", "red"]))), []
    labelled = read_image_folder(images / "train")
    (images / "train" / "red" / "5.png").write_bytes(b"")

    def resize(image, **options):
        events.append("resize")
        return classifier.processor(image, **options)

    recorded = replace(labelled, open=lambda row: events.append("open") or labelled.open(row))
    scores = score_classifier(replace(classifier, processor=resize), recorded, batch_size=5)
    assert (scores.images, scores.unreadable) == (11, 1)
    assert events == ["open", "resize"] * 11 + ["open"]


# --- fine-tune ---------------------------------------------------------------------------------


def tuned(start, images, folder, *more):
    """Train a saved model further, as `hf-vanilla train` does."""
    command = ["--initial_model", str(start), "--dataset", str(images), "--use_cpu", "true"]
    command += ["--output_dir", str(folder), "--learning_rate", "0.01", "--warmup_steps", "2"]
    command += ["--images_per_step", "8", "--images_per_batch", "8", "--trackers", "none"]
    return train(read_recipe([*command, *more]))


def test_a_run_from_a_saved_model_learns_the_classes_of_a_folder_at_a_new_size(images, tmp_path):
    start = model_folder(tmp_path / "start", [f"kind {n}" for n in range(7)], has_pooler=True)
    processor = AutoImageProcessor.from_pretrained(start)
    processor.resample = 3
    processor.save_pretrained(start)
    (start / "README.md").write_text("---\nlicense: mpl-2.0\n---\n", encoding="utf-8")
    size = ["--model.image_size", "[20, 10]", "--flip", "0.5", "--rotation", "10"]
    folder = tuned(start, images, tmp_path / "tuned", *size, "--max_steps", "16")
    model = AutoModelForImageClassification.from_pretrained(folder)
    assert model.config.id2label == {0: "blue", 1: "red"}
    assert model.config.image_height_width == (20, 10)
    assert model.model.embeddings.positions.shape[1] == 1 + 4 * 2
    assert model.model.pooler is None
    scores = evaluate_images(
        EvaluateImagesOptions(model=str(folder), dataset=str(images), split="validation")
    )
    assert scores.accuracy == 1.0
    after = AutoImageProcessor.from_pretrained(folder)
    assert (dict(after.size), after.resample) == ({"height": 20, "width": 10}, 3)
    assert (after.image_mean, after.image_std) == (processor.image_mean, processor.image_std)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "accuracy 100.00 %" in card
    assert "From start: 16 steps, 128 images" in card
    assert "\nlicense: mpl-2.0\n" in card  # of the weights that it started from
    assert str(tmp_path) not in card


def test_an_initial_model_that_does_not_fit_is_refused(images, tmp_path):
    start = model_folder(tmp_path / "start", ["blue", "red"])
    for more, message in (
        (["--task", "object_detection"], "is a model of type 'vanilla_vit', and this task trains"),
        (["--model.encoder_layers", "7"], "has another config: encoder_layers is 2 there and 7"),
    ):
        with pytest.raises(ValueError, match=message):
            tuned(start, images, tmp_path / "run", *more)
    with pytest.raises(OSError, match="nothing: no such folder"):
        tuned(tmp_path / "nothing", images, tmp_path / "run", "--task", "image_classification")


def test_a_new_head_is_zero_and_keeps_the_body(tmp_path):
    start = model_folder(tmp_path / "start", [f"kind {n}" for n in range(7)])
    AutoModelForImageClassification.from_pretrained(start).bfloat16().save_pretrained(start)
    tuned = with_new_head(str(start), ("even", "odd"))
    assert tuned.config.num_labels == 2
    assert tuned.dtype == torch.float32  # small steps would be lost in bfloat16
    assert not tuned.classifier.weight.any()
    with pytest.raises(ValueError, match=r"^label_names=\['even'\]: give two classes or more$"):
        with_new_head(str(start), ("even",))
    with pytest.raises(ValueError, match=r"^label_names='even': give a list of names$"):
        with_new_head(str(start), "even")
    before = AutoModelForImageClassification.from_pretrained(start)
    for weight, other in zip(tuned.model.parameters(), before.model.parameters(), strict=True):
        assert_close(weight, other.float(), rtol=0, atol=0)


def test_a_head_for_as_many_other_classes_is_new_and_one_for_the_same_is_kept(tmp_path):
    start = model_folder(tmp_path / "start", ["blue", "red"], has_pooler=True)
    before = AutoModelForImageClassification.from_pretrained(start)
    other = with_new_head(str(start), ("even", "odd"))
    assert not other.classifier.weight.any()
    assert other.config.id2label == {0: "even", 1: "odd"}
    assert other.model.pooler is None
    same = with_new_head(str(start), ("blue", "red"))
    for weight, kept in zip(same.parameters(), before.parameters(), strict=True):
        assert_close(weight, kept, rtol=0, atol=0)


@pytest.mark.parametrize("resample", [2, 3])
def test_rows_for_trainer_are_those_of_the_image_processor(images, resample):
    labelled = read_image_folder(images / "train")
    processor = image_processor((15, 20), [0.4, 0.5, 0.6], [0.3, 0.2, 0.1])
    processor.resample = resample
    (images / "train" / "red" / "5.png").write_bytes(b"")
    rows = ImageRows(labelled, processor)
    expected = processor(labelled.open(7), return_tensors="pt")["pixel_values"][0]
    assert_close(rows[7]["pixel_values"], expected)
    assert [rows[row]["labels"] for row in (0, 7, 11)] == [0, 1, -100]
    logits, labels = np.eye(3), np.array([0, 2, -100])
    assert accuracy(EvalPrediction(logits, labels)) == {"accuracy": 0.5}
    with pytest.raises(ValueError, match="eval_do_concat_batches=False: accuracy needs True"):
        accuracy(EvalPrediction([logits], [labels]))


def test_a_processor_without_a_fixed_size_is_refused():
    crop = ViTImageProcessorPil(do_center_crop=True, crop_size={"height": 9, "width": 7})
    assert processed_size(crop) == (9, 7)
    with pytest.raises(ValueError, match=r"resizes to .*shortest_edge.*set height and width"):
        processed_size(ViTImageProcessorPil(size={"shortest_edge": 9}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, False) for name in ("do_normalize", "do_rescale", "do_resize")),
        *(("rescale_factor", 1.0), ("do_center_crop", True)),  # as models of timm have it
    ],
)
def test_a_processor_that_makes_other_pixels_than_training_is_refused(images, name, value):
    processor = image_processor((15, 20), [0.4, 0.5, 0.6], [0.3, 0.2, 0.1])
    setattr(processor, name, value)
    with pytest.raises(ValueError, match=f"the image processor has {name}={value}[:,] "):
        ImageRows(read_image_folder(images / "train"), processor)


# --- demo --------------------------------------------------------------------------------------


def test_the_demo_leaves_a_complete_model_folder(tmp_path, capsys, monkeypatch):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo_images.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    arguments = ["--recipe", program.RECIPE, "--max_steps", "3", "--warmup_steps", "2"]
    arguments += ["--save_steps", "1", "--eval_steps", "3", "--use_cpu", "true"]
    arguments += ["--output_dir", str(tmp_path / "run"), "--trackers", "none"]
    program.demo(read_recipe(arguments))
    printed = capsys.readouterr().out
    assert "Ten digits that were never trained on" in printed
    assert "All 899 unseen digits" in printed
    assert Image.open(tmp_path / "run" / "attention.png").width > 300
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run")
    processor = AutoImageProcessor.from_pretrained(tmp_path / "run")
    digit = digit_images(np.full((1, 8, 8), 5), np.zeros(1), origin="one").open(0)
    assert model(**processor(digit, return_tensors="pt")).logits.shape == (1, 10)
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert last["averaged_checkpoints"] == 3
