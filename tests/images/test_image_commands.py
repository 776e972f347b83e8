"""The commands of an image model, evaluate and finetune, and the demo of images."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import colour_folder
from image_models import vit
from PIL import Image
from torch.testing import assert_close
from transformers import AutoImageProcessor, AutoModelForImageClassification, ViTImageProcessorPil

from hf_vanilla.data.images import digit_images, read_image_folder
from hf_vanilla.images.batches import image_processor
from hf_vanilla.images.classifier import load_classifier
from hf_vanilla.images.evaluation import EvaluateImagesOptions, evaluate_images
from hf_vanilla.images.finetuning import (
    FinetuneImagesOptions,
    ImageRows,
    processed_size,
    with_new_head,
)
from hf_vanilla.training.evaluate import evaluate, finetune_model, read_evaluation, read_finetuning
from hf_vanilla.training.recipe import read_recipe

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
    with pytest.raises(ValueError, match=r"class folder 'red', which is not among the 2 labels"):
        evaluate_images(options)
    digits = tmp_path / "optdigits.tes"
    digits.write_text("".join(",".join(["3"] * 64 + [str(label)]) + "\n" for label in range(3)))
    with pytest.raises(ValueError, match="has the class '0', which is not among the 2 labels"):
        evaluate_images(EvaluateImagesOptions(model=str(folder), dataset=str(digits)))
    with pytest.raises(ValueError, match="batch_size=0: give a positive number"):
        EvaluateImagesOptions(model="m", dataset="d", batch_size=0)


# --- finetune ----------------------------------------------------------------------------------


def test_finetune_learns_the_classes_of_a_folder_at_a_new_size(images, tmp_path):
    start = model_folder(tmp_path / "start", [f"kind {n}" for n in range(7)], has_pooler=True)
    command = ["--model", str(start), "--dataset", str(images), "--flip", "0.5"]
    command += ["--image_height", "20", "--image_width", "10", "--rotation", "10"]
    command += ["--output_dir", str(tmp_path / "tuned"), "--num_train_epochs", "8"]
    command += ["--learning_rate", "0.01", "--use_cpu", "true", "--report_to", "none"]
    folder = finetune_model(read_finetuning(command))
    model = AutoModelForImageClassification.from_pretrained(folder)
    assert model.config.id2label == {0: "blue", 1: "red"}
    assert model.config.image_height_width == (20, 10)
    assert model.model.embeddings.positions.shape[1] == 1 + 4 * 2
    assert model.model.pooler is None
    scores = evaluate_images(
        EvaluateImagesOptions(model=str(folder), dataset=str(images), split="validation")
    )
    assert scores.accuracy == 1.0
    assert AutoImageProcessor.from_pretrained(folder).size == {"height": 20, "width": 10}
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "accuracy 100.00 %" in card
    assert str(tmp_path) not in card


def test_a_new_head_is_zero_and_keeps_the_body(tmp_path):
    start = model_folder(tmp_path / "start", [f"kind {n}" for n in range(7)])
    AutoModelForImageClassification.from_pretrained(start).bfloat16().save_pretrained(start)
    tuned = with_new_head(str(start), ("even", "odd"))
    assert tuned.config.num_labels == 2
    assert tuned.dtype == torch.float32  # small steps would be lost in bfloat16
    assert not tuned.classifier.weight.any()
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


def test_unreadable_images_are_told_once_and_counted_in_the_card(images, tmp_path, caplog):
    start = model_folder(tmp_path / "start", ["blue", "red"])
    for number in (2, 4):
        (images / "train" / "red" / f"{number}.png").write_bytes(b"no image")
    command = ["--model", str(start), "--dataset", str(images), "--use_cpu", "true"]
    command += ["--output_dir", str(tmp_path / "tuned"), "--num_train_epochs", "1"]
    command += ["--report_to", "none", "--dataloader_num_workers", "1"]
    with caplog.at_level("WARNING", logger="hf_vanilla"):
        folder = finetune_model(read_finetuning(command))
    told = "2 unreadable of 12 images of train were left out, the first is red/2.png"
    assert caplog.text.count(told) == 1
    assert told in (folder / "README.md").read_text(encoding="utf-8")


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


def test_a_processor_without_a_fixed_size_is_refused():
    crop = ViTImageProcessorPil(do_center_crop=True, crop_size={"height": 9, "width": 7})
    assert processed_size(crop) == (9, 7)
    with pytest.raises(ValueError, match=r"resizes to .*shortest_edge.*set height and width"):
        processed_size(ViTImageProcessorPil(size={"shortest_edge": 9}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("do_normalize", False), ("do_rescale", False), ("do_resize", False), ("rescale_factor", 1.0)],
)
def test_a_processor_that_makes_other_pixels_than_training_is_refused(images, name, value):
    processor = image_processor((15, 20), [0.4, 0.5, 0.6], [0.3, 0.2, 0.1])
    setattr(processor, name, value)
    with pytest.raises(ValueError, match=f"the image processor has {name}={value}: training"):
        ImageRows(read_image_folder(images / "train"), processor)


def test_finetune_refuses_half_a_size():
    with pytest.raises(ValueError, match="give both image_height and image_width, or neither"):
        FinetuneImagesOptions(model="m", dataset="d", image_height=20)


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
