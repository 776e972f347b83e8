"""Image classification by the engine: runs, resumes, processes, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import small_run
import torch
from datasets import ClassLabel, Dataset, Features
from datasets import Image as ImageFeature
from image_files import colour_folder, coloured
from process_runs import assert_processes_agree
from torch.testing import assert_close
from transformers import pipeline

from hf_vanilla.data.batching import RowOrder
from hf_vanilla.images.classifier import load_classifier
from hf_vanilla.images.evaluation import EvaluateImagesOptions, labelled_as, score_classifier
from hf_vanilla.images.options import ImageDataOptions
from hf_vanilla.images.task import prepare, training_and_validation, training_flops
from hf_vanilla.training.options import TrainRecipe
from hf_vanilla.training.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train

ROOT = Path(__file__).resolve().parents[2]
MODEL = {
    "image_size": 6,
    "patch_size": 3,
    "d_model": 12,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "dropout": 0.1,
}
SHARED = {
    "max_steps": 6,
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "eval_steps": 3,
    "save_steps": 2,
    "logging_steps": 2,
    "average_checkpoints": 2,
    "use_cpu": True,
    "trackers": [],
}
DATA = {"images_per_step": 8, "images_per_batch": 4, "rotation": 20, "shift": 0.1, "flip": 0.5}


def recipe(folder, images, *, data=None, **shared):
    return Recipe(
        task="image_classification",
        train=TrainRecipe(**{**SHARED, "output_dir": str(folder), **shared}),
        data=ImageDataOptions(**{**DATA, "dataset": str(images), **(data or {})}),
        model=MODEL,
        decoding={},
    )


@pytest.fixture
def images(tmp_path):
    """Blue and red pictures, 9 of each to train on and 5 to validate."""
    colour_folder(tmp_path / "images" / "train", count=9)
    colour_folder(tmp_path / "images" / "validation", count=5)
    return tmp_path / "images"


def test_a_run_learns_colours_and_leaves_a_folder_that_transformers_loads(images, tmp_path):
    folder = train(
        recipe(tmp_path / "run", images, max_steps=40, save_steps=20, learning_rate=0.02)
    )
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["accuracy"] == 100.0
    assert lines[-1]["top5_accuracy"] == 100.0
    classify = pipeline("image-classification", model=str(folder))
    coloured(tmp_path / "new.png", (240, 10, 30), size=(50, 20))
    assert classify(str(tmp_path / "new.png"))[0]["label"] == "red"
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "trained with hf_vanilla on images:" in card  # the folder, not its part train
    assert "accuracy 100.00 %" in card
    assert "pipeline_tag: image-classification" in card
    assert "| training loss at the end |" in card  # whether targets are smoothed or not
    assert str(tmp_path) not in card.split("```yaml")[0]


def test_validation_equals_the_scores_of_the_finished_model(images, tmp_path):
    folder = train(recipe(tmp_path / "run", images))
    last = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    task = prepare(recipe(tmp_path / "other", images))
    scores = score_classifier(load_classifier(str(folder)), task.validation.images)
    assert last["accuracy"] == pytest.approx(100 * scores.accuracy)
    assert last["validation_nll"] == pytest.approx(scores.nats, abs=1e-5)


def test_an_interrupted_run_ends_in_the_same_weights(images, tmp_path, monkeypatch):
    whole = small_run.weights(train(recipe(tmp_path / "whole", images)))
    for workers in (0, 1):
        cut = recipe(tmp_path / f"cut-{workers}", images, dataloader_workers=workers)
        with monkeypatch.context() as patch:
            small_run.interrupt(patch, after=3)
            with pytest.raises(KeyboardInterrupt):
                train(cut)
        found = small_run.weights(train(cut))
        for name, weight in whole.items():
            assert_close(found[name], weight, rtol=0, atol=0)


@pytest.mark.slow
def test_processes_and_micro_batches_give_the_same_weights(processes, images, tmp_path):
    data = {"images_per_batch": 2}
    assert_processes_agree(
        processes, lambda folder: recipe(folder, images, data=data), tmp_path, ignored="k_proj.bias"
    )


def test_a_run_whose_images_changed_is_not_resumed(images, tmp_path):
    train(recipe(tmp_path / "run", images))
    coloured(images / "train" / "red" / "new.png", (230, 20, 20))
    (images / "train" / "blue" / "0.png").unlink()
    (images / "train" / "blue" / "1.png").unlink()
    with pytest.raises(ValueError, match=r"2 of 17 images of .*train changed since the run in"):
        train(recipe(tmp_path / "run", images, max_steps=8))


def test_an_unreadable_image_is_counted_and_fatal_only_if_asked(images, tmp_path, caplog):
    (images / "train" / "red" / "3.png").write_bytes(b"no image")
    folder = train(recipe(tmp_path / "run", images, max_steps=10, logging_steps=1))
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert sum(line.get("unreadable_images", 0) for line in lines) >= 4  # 80 images of 18
    told = "1 unreadable of 18 images of train were left out, the first is red/3.png"
    assert told in (folder / "README.md").read_text(encoding="utf-8")
    assert caplog.text.count(told) == 1
    with pytest.raises(ValueError, match=r"red/3\.png is damaged or no image"):
        train(recipe(tmp_path / "strict", images, data={"stop_at_unreadable": True}))


def test_validation_images_that_are_all_unreadable_have_no_scores(images, tmp_path):
    for path in (images / "validation").rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"no image of .*validation is readable"):
        train(recipe(tmp_path / "run", images))


def test_a_folder_of_the_name_digits_does_not_stand_for_the_built_in_ones(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    colour_folder(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    train, validation = training_and_validation(ImageDataOptions())
    assert (train.origin, len(train), len(validation)) == ("digits", 898, 899)
    options = EvaluateImagesOptions(model="m", dataset="digits")
    assert len(labelled_as(options, train.label_names)) == 1797


def test_a_share_of_the_training_images_validates_where_nothing_else_does(images, tmp_path):
    asked = recipe(tmp_path / "run", images / "train", data={"validation_share": 1 / 3})
    task = prepare(asked)
    train_names = set(task.train.images.names)
    held_out = set(task.validation.images.names)
    assert (len(train_names), len(held_out)) == (12, 6)
    assert not train_names & held_out
    assert prepare(asked).validation.images.names == task.validation.images.names


def test_training_images_do_not_stand_for_a_split_that_is_not_there(images):
    options = {"dataset": str(images / "train"), "validation_split": "val"}
    with pytest.raises(ValueError, match=r"validation_split='val': .*train has no such split"):
        training_and_validation(ImageDataOptions(**options))
    shutil.copytree(images / "train", images / "val")
    copied = ImageDataOptions(dataset=str(images), validation_split="val")
    with pytest.raises(ValueError, match="has no such split, or it holds the training images"):
        training_and_validation(copied)
    same = {"validation": options["dataset"]}, {"train_split": "val"}  # as they were asked for
    for changes in same:
        train, validation = training_and_validation(ImageDataOptions(**options | changes))
        assert len(train) == len(validation) == 18


def test_a_validation_folder_has_the_classes_of_training(images, tmp_path):
    coloured(images / "validation" / "green" / "0.png", (0, 200, 0))
    with pytest.raises(ValueError, match="has the class 'green', which is not among the 2 labels"):
        prepare(recipe(tmp_path / "run", images))


def test_validation_of_the_hub_may_lack_a_class_but_no_label(monkeypatch):
    kinds = {"train": ["b", "a", "c"], "validation": ["c", "b"], "test": [-1, -1]}
    names = Features(image=ImageFeature(), label=ClassLabel(names=["a", "b", "c"]))

    def load(name, split):
        rows = {"image": [None] * len(kinds[split]), "label": kinds[split]}
        return Dataset.from_dict(rows, names if split == "test" else None)

    monkeypatch.setattr("datasets.load_dataset", load)
    monkeypatch.setattr("hf_vanilla.data.images.ImageCells", lambda *_: None)
    options = {"dataset": "some/dataset", "validation_split": "validation"}
    _, validation = training_and_validation(ImageDataOptions(**options))
    assert validation.label_names == ("a", "b", "c")
    assert validation.labels.tolist() == [2, 1]
    with pytest.raises(ValueError, match="labels from -1 to -1, but 3 label names"):
        training_and_validation(ImageDataOptions(**options | {"validation_split": "test"}))
    kinds["validation"] += ["d"]
    with pytest.raises(ValueError, match="has the class 'd', which is not among the 3 labels"):
        training_and_validation(ImageDataOptions(**options))


def test_the_order_passes_every_image_once_an_epoch():
    order = RowOrder(rows=7, size=3, seed=5)
    rows = [row for number in range(7) for row in order[number]]
    epochs = [rows[:7], rows[7:14], rows[14:]]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert RowOrder(rows=7, size=3, seed=5)[4] == order[4]
    assert RowOrder(rows=7, size=3, seed=6)[0] != order[0]


def test_a_batch_is_a_function_of_rows_and_generator(images, tmp_path):
    task = prepare(recipe(tmp_path / "run", images))
    batches = [task.batch([3, 12], torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert batches[0]["pixel_values"].shape == (2, 3, 6, 6)
    assert batches[0]["labels"].tolist() == [0, 1]
    assert_close(batches[0]["pixel_values"], batches[1]["pixel_values"], rtol=0, atol=0)
    assert not torch.equal(batches[0]["pixel_values"], batches[2]["pixel_values"])


def test_operations_by_hand():
    """Two layers, 4 patches of 27 values, width 12: six operations for each product."""
    task_config = Recipe(
        task="image_classification",
        train=TrainRecipe(**SHARED),
        data=ImageDataOptions(),
        model=MODEL,
        decoding={},
    ).config(num_labels=5)
    patches = 4 * 12 * 27
    first = 5 * (4 * 12 * 12 + 2 * 12 * 20) + 2 * 5 * 5 * 12
    last = 5 * 2 * 12 * 12 + (2 * 12 * 12 + 2 * 12 * 20) + 2 * 5 * 12
    assert training_flops(task_config) == 6 * (patches + first + last + 12 * 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images_per_step": 10, "images_per_batch": 4}, "images_per_step=10 is not a multiple"),
        ({"rotation": 270.0}, "rotation=270.0"),
        ({"flip": 2.0}, "flip=2.0"),
        ({"validation": "x", "validation_share": 0.1}, "give one of them"),
        ({"images_per_batch": 0}, "images_per_batch=0"),
    ],
)
def test_impossible_options_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        ImageDataOptions(**changes)


def test_a_model_of_other_channels_is_refused(images, tmp_path):
    asked = recipe(tmp_path / "run", images)
    asked.model["num_channels"] = 1
    try:
        with pytest.raises(ValueError, match=r"model\.num_channels=1: images are read in three"):
            prepare(asked)
    finally:
        del asked.model["num_channels"]


@pytest.mark.parametrize("name", ["digits", "digits_halves"])
def test_the_shipped_recipes_stay_small(name):
    asked = read_recipe(["--recipe", name])
    config = asked.config(num_labels=10)
    from hf_vanilla import VanillaForImageClassification

    with torch.device("meta"):
        model = VanillaForImageClassification(config)
    assert sum(weight.numel() for weight in model.parameters()) == 136_650
