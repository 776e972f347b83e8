"""Object detection on the engine: it learns, resumes, and micro-batches do not matter."""

import json
import logging
import sys

import numpy as np
import pytest
import torch
import yaml
from detection_files import TINY, TINY_BACKBONE, boxed_images, tiny_detector
from process_runs import assert_processes_agree
from safetensors.torch import save_file
from torch.utils.data import Subset
from transformers import (
    AutoImageProcessor,
    AutoModelForObjectDetection,
    ResNetBackbone,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
    pipeline,
)

from hf_vanilla.commands import run
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection
from hf_vanilla.objects.coco_scores import score_detector
from hf_vanilla.objects.detection import DetectionCollator, detection_processor, save_coco
from hf_vanilla.objects.detector import Detector, load_detector
from hf_vanilla.objects.digit_scenes import digit_scenes
from hf_vanilla.objects.evaluation import EvaluateObjectsOptions, evaluate_objects
from hf_vanilla.objects.options import DetectionData
from hf_vanilla.objects.sources import read_coco
from hf_vanilla.objects.task import prepare
from hf_vanilla.objects.trainer import DetectionRows, ap_metrics
from hf_vanilla.training.options import TrainRecipe
from hf_vanilla.training.recipe import Recipe, read_recipe, shipped_recipes
from hf_vanilla.training.run import train
from hf_vanilla.training.validation import evaluate, read_evaluation


def recipe(folder, *, model=None, data=None, **training):
    given = {
        "output_dir": str(folder),
        "max_steps": 4,
        "warmup_steps": 1,
        "learning_rate": 1e-3,
        "schedule": "constant",
        "optimizer": "adamw",
        "max_grad_norm": 0.1,
        "eval_steps": 100,
        "save_steps": 2,
        "average_checkpoints": 1,
        "logging_steps": 1,
        "use_cpu": True,
        "trackers": [],
    }
    sizes = {"shortest_edge": 64, "longest_edge": 64, "images_per_step": 4, "images_per_batch": 4}
    return Recipe(
        task="object_detection",
        train=TrainRecipe(**given | training),
        data=DetectionData(**sizes | {"validation_scenes": 5} | (data or {})),
        model=TINY | (model or {}),
        decoding={},
    )


def log(folder):
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_short_training_learns_and_leaves_a_folder_for_the_auto_classes(tmp_path):
    folder = train(recipe(tmp_path / "run", max_steps=60, save_steps=60))
    losses = [entry["loss"] for entry in log(folder) if "loss" in entry]
    assert np.mean(losses[-5:]) < 0.88 * np.mean(losses[:3])
    assert any("validation_ap50" in entry or "ap50" in entry for entry in log(folder))
    assert isinstance(
        AutoModelForObjectDetection.from_pretrained(folder), VanillaForObjectDetection
    )
    processor = AutoImageProcessor.from_pretrained(folder)
    assert dict(processor.size) == {"shortest_edge": 64, "longest_edge": 64}
    image, _ = digit_scenes(seed=1).read(0)
    found = pipeline("object-detection", model=str(folder))(image, threshold=0.0)
    assert {entry["label"] for entry in found} <= set("0123456789")
    assert "COCO AP" in (folder / "README.md").read_text()


def test_the_pipeline_of_transformers_knows_the_model(tmp_path, caplog, monkeypatch):
    tiny_detector(tmp_path)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    assert pipeline("object-detection", model=str(tmp_path)).model.config.num_queries == 7
    assert "not supported" not in caplog.text


def test_the_recipe_of_coco_trains_on_a_stand_in_from_a_pretrained_backbone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "annotations").mkdir()
    for part, seed in (("train2017", 1), ("val2017", 2)):
        written = save_coco(digit_scenes(seed=seed).images(4), tmp_path / part)
        written.rename(tmp_path / "annotations" / f"instances_{part}.json")
    classifier = ResNetForImageClassification(ResNetConfig(**TINY_BACKBONE))
    pretrained = classifier.resnet
    norms = [m for m in pretrained.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        torch.nn.init.uniform_(norm.running_var, 0.5, 2)
    classifier.save_pretrained(tmp_path / "resnet")
    sizes = {**TINY, "backbone_is_pretrained": True}
    del sizes["backbone_config"]
    (tmp_path / "small.yaml").write_text(
        yaml.safe_dump(
            {
                **yaml.safe_load(shipped_recipes()["coco_r50"].read_text()),
                **{"max_steps": 3, "save_steps": 3, "eval_steps": 3, "backbone": "resnet"},
                **{"images_per_step": 4, "shortest_edge": 64, "longest_edge": 96, "use_cpu": True},
                "model": {**sizes, "backbone_config": TINY_BACKBONE},
            }
        )
    )
    folder = train(read_recipe(["--recipe", "small.yaml", "--trackers", "none"]))
    trained = VanillaForObjectDetection.from_pretrained(folder).model.backbone.model.state_dict()
    before = pretrained.state_dict()
    stem = "embedder.embedder.convolution.weight"
    last = "encoder.stages.1.layers.0.layer.0.convolution.weight"
    assert torch.equal(trained[stem], before[stem])
    assert torch.equal(trained[stem.replace("convolution.weight", "normalization.running_var")],
                       norms[0].running_var)  # fmt: skip
    assert 0 < (trained[last] - before[last]).abs().max() < 1e-4  # three steps at a rate of 1e-5


@pytest.mark.parametrize(
    ("pretrained", "backbone", "message"),
    [
        (True, None, "model.backbone_is_pretrained=True, but backbone=None: name a pretrained"),
        (False, "resnet", "model.backbone_is_pretrained=False, but backbone=resnet"),
    ],
)
def test_a_pretrained_backbone_needs_its_weights(tmp_path, pretrained, backbone, message):
    model, data = {"backbone_is_pretrained": pretrained}, {"backbone": backbone}
    with pytest.raises(ValueError, match=message):
        prepare(recipe(tmp_path / "run", model=model, data=data))


def test_a_backbone_of_other_sizes_is_refused(tmp_path):
    ResNetBackbone(ResNetConfig(**{**TINY_BACKBONE, "embedding_size": 4})).save_pretrained(
        tmp_path / "resnet"
    )
    model, data = {"backbone_is_pretrained": True}, {"backbone": str(tmp_path / "resnet")}
    task = prepare(recipe(tmp_path / "run", model=model, data=data))
    with pytest.raises(ValueError, match=r"differs from model.backbone_config in \d+ weights"):
        task.model()


def test_a_backbone_without_its_weights_is_refused(tmp_path):
    config = ResNetConfig(**TINY_BACKBONE)
    config.save_pretrained(tmp_path / "resnet")
    save_file({"other": torch.ones(2)}, tmp_path / "resnet" / "model.safetensors", {"format": "pt"})
    model, data = {"backbone_is_pretrained": True}, {"backbone": str(tmp_path / "resnet")}
    task = prepare(recipe(tmp_path / "run", model=model, data=data))
    with pytest.raises(ValueError, match=r"lacks \d+ weights of a resnet, such as"):
        task.model()


def test_a_resumed_run_equals_one_that_never_stopped(tmp_path):
    whole = train(recipe(tmp_path / "whole"))
    train(recipe(tmp_path / "parts", max_steps=2))
    parts = train(recipe(tmp_path / "parts"))
    ours, theirs = (
        AutoModelForObjectDetection.from_pretrained(folder).state_dict()
        for folder in (whole, parts)
    )
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_another_set_of_classes_cannot_be_resumed(tmp_path):
    train(recipe(tmp_path / "run", max_steps=2))
    with pytest.raises(ValueError, match="classes"):
        train(recipe(tmp_path / "run", data={"digit_classes": "0123"}))


def test_micro_batches_give_the_gradient_of_one_batch(tmp_path):
    """Fixed statistics, so that a BatchNorm does not see the micro-batches."""
    classifier = ResNetForImageClassification(ResNetConfig(**TINY_BACKBONE))
    classifier.save_pretrained(tmp_path / "resnet")
    data = {"backbone": str(tmp_path / "resnet")}
    task = prepare(recipe(tmp_path, model={"backbone_is_pretrained": True}, data=data))
    model = task.model().train()
    rows, generator = task.order(1)[0], torch.Generator()
    gradients = []
    for size in (4, 2, 1):
        batches = [task.batch(rows[i : i + size], generator) for i in range(0, 4, size)]
        totals = torch.tensor([task.counts(batch) for batch in batches]).sum(0)
        model.zero_grad()
        for batch in batches:
            task.losses(model, batch, totals, is_logged=False)["loss"].backward()
        gradients.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])
        )
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_processes_and_micro_batches_give_the_same_weights(processes, tmp_path):
    """With fixed statistics of BatchNorm; others are those of a micro-batch."""
    ResNetForImageClassification(ResNetConfig(**TINY_BACKBONE)).save_pretrained(tmp_path / "resnet")
    data = {"backbone": str(tmp_path / "resnet"), "images_per_batch": 1}
    model = {"backbone_is_pretrained": True}
    assert_processes_agree(
        processes,
        lambda folder: recipe(folder, model=model, data=data),
        tmp_path,
        ignored="k_proj.bias",
    )


def test_orders_never_repeat_a_scene_and_cut_a_step(tmp_path):
    task = prepare(recipe(tmp_path))
    assert [task.order(2)[number] for number in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="cut into 3 equal micro-batches: make it a multiple"):
        task.order(3)


def scenes_on_disk(folder, count=7, classes="0123456789", seed=2):
    return save_coco(digit_scenes(classes=classes, seed=seed).images(count), folder)


def test_training_reads_coco_files_and_scores_the_validation(tmp_path):
    path = scenes_on_disk(tmp_path / "coco", classes="012")
    data = {"dataset": str(path), "validation": str(path), "flip": 0.5, "crop": 0.5}
    folder = train(recipe(tmp_path / "run", data=data))
    config = AutoModelForObjectDetection.from_pretrained(folder).config
    assert config.id2label == {0: "0", 1: "1", 2: "2"}


@pytest.mark.parametrize(
    ("model", "data", "told"),
    [
        ({"num_queries": 1}, {}, "queries: give a new model a larger"),
        ({}, {"images_per_step": 3, "images_per_batch": 2}, "not a multiple"),
        ({}, {"shortest_edge": 90}, "longest_edge=64 is smaller"),
        ({}, {"smallest_scale": 1.5}, "smallest_scale=1.5"),
        ({}, {"validation_split": "val"}, "validation_split='val': .*json has no such split"),
        ({}, {"dataset": "digit_scenes", "validation": "val.json"}, "validation='val.json': digit"),
        ({}, {"dataset": "digit_scenes", "images": "x"}, "images='x': digit_scenes are generated"),
    ],
)
def test_bad_recipes_end_before_training(tmp_path, model, data, told):
    path = scenes_on_disk(tmp_path / "coco")
    with pytest.raises(ValueError, match=told):
        prepare(recipe(tmp_path / "run", model=model, data={"dataset": str(path)} | data))


def test_a_missing_library_of_scores_is_named_before_training_and_before_images_are_read(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(ImportError, match=r"needs faster-coco-eval: pip install -e '\.\[vision\]'"):
        prepare(recipe(tmp_path / "run", data={"digits": "digits"}))
    with pytest.raises(ImportError, match="needs faster-coco-eval"):
        evaluate_objects(EvaluateObjectsOptions(model="not read", dataset="not read"))


def test_a_file_of_crowds_alone_cannot_be_trained_on(tmp_path):
    path = scenes_on_disk(tmp_path / "coco")
    content = json.loads(path.read_text())
    for entry in content["annotations"]:
        entry["iscrowd"] = 1
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="no object to train on"):
        prepare(recipe(tmp_path / "run", data={"dataset": str(path)}))


def test_evaluation_by_trainer_equals_our_own_on_seven_images_in_batches_of_four(tmp_path):
    tiny_detector(tmp_path / "model", names=tuple("0123456789"))
    images = read_coco(scenes_on_disk(tmp_path / "coco"))
    detector = load_detector(str(tmp_path / "model"), device="cpu")
    model = detector.model
    with torch.no_grad():  # surer, so that the order of scores is not decided by rounding
        model.class_labels_classifier.weight.mul_(3)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_eval_batch_size=4,
        use_cpu=True,
        report_to=[],
    )
    trainer = Trainer(
        model,
        arguments,
        data_collator=DetectionCollator(),
        eval_dataset=DetectionRows(images, detector.processor),
        compute_metrics=ap_metrics(images),
    )
    theirs = trainer.evaluate()
    assert theirs["eval_loss"] > 0
    ours = score_detector(Detector(model.eval(), detector.processor), images).figures
    assert theirs["eval_ap"] == pytest.approx(ours["AP"], abs=1e-9)
    assert theirs["eval_ap50"] == pytest.approx(ours["AP50"], abs=1e-9)
    with pytest.raises(ValueError, match=r"of 1 images, but ap_metrics got .* of eval_dataset"):
        trainer.evaluate(Subset(trainer.eval_dataset, [0]))
    trainer.args.eval_do_concat_batches = False
    with pytest.raises(ValueError, match="eval_do_concat_batches=False: ap_metrics needs True"):
        trainer.evaluate()


def test_trainer_gathers_logits_and_boxes_where_metrics_for_transformers_detr_read_them(tmp_path):
    model = tiny_detector(tmp_path / "model")
    rows = DetectionRows(boxed_images([[(0, 3, 3, 20, 20)]] * 3), detection_processor(32, 64))
    gathered = []

    def keep(predictions):
        gathered.extend(predictions.predictions)
        return {}

    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_eval_batch_size=2,
        eval_do_concat_batches=False,
        use_cpu=True,
        report_to=[],
    )
    trainer = Trainer(model, arguments, data_collator=DetectionCollator(), compute_metrics=keep)
    trainer.evaluate(rows)
    queries, classes = model.config.num_queries, model.config.num_labels + 1
    for batch, images in zip(gathered, (2, 1), strict=True):
        assert batch[0].keys() >= {"loss_ce", "loss_bbox", "loss_giou"}
        assert batch[1].shape == (images, queries, classes)
        assert batch[2].shape == (images, queries, 4)
        assert len(batch) == 3


def test_images_without_objects_teach_trainer_as_much_as_others(tmp_path):
    model = tiny_detector(tmp_path / "model")
    images = boxed_images([[], [(0, 3, 3, 20, 20)], []])
    rows = DetectionRows(images, load_detector(str(tmp_path / "model")).processor)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=1,
        max_steps=3,
        learning_rate=0.0,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
    )
    trainer = Trainer(model, arguments, train_dataset=rows, data_collator=DetectionCollator())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    with torch.no_grad():
        alone = [float(model(**DetectionCollator()([rows[row]])).loss) for row in range(3)]
    assert sorted(losses) == pytest.approx(sorted(alone), rel=1e-3)
    assert min(losses) > 1


def test_a_recipe_may_start_from_the_model_that_it_made(tmp_path):
    start = train(recipe(tmp_path / "start", max_steps=1, save_steps=1))
    config = AutoModelForObjectDetection.from_pretrained(start).config
    given = recipe(tmp_path / "run", initial_model=str(start))
    assert given.config().backbone_config == config.backbone_config
    other = {"backbone_config": {**TINY_BACKBONE, "depths": [1, 2]}}
    told = r"backbone_config is {'depths': \[1, 1\]} there and {'depths': \[1, 2\]} here: set the"
    with pytest.raises(ValueError, match=told):
        recipe(tmp_path / "run", initial_model=str(start), model=other).config()


def test_fine_tuning_gives_the_classes_of_the_file_and_keeps_the_queries(tmp_path):
    start = tiny_detector(tmp_path / "model").bfloat16()
    start.save_pretrained(tmp_path / "model")
    processor = AutoImageProcessor.from_pretrained(tmp_path / "model")
    processor.image_mean = [0.5, 0.4, 0.3]
    processor.save_pretrained(tmp_path / "model")
    path = scenes_on_disk(tmp_path / "coco", classes="89")
    asked = ["--initial_model", str(tmp_path / "model"), "--dataset", str(path)]
    asked += ["--validation", str(path), "--output_dir", str(tmp_path / "out")]
    asked += ["--max_steps", "2", "--learning_rate", "1e-9", "--use_cpu", "True"]
    asked += ["--trackers", "none", "--images_per_step", "4", "--images_per_batch", "2"]
    with pytest.raises(ValueError, match="shortest_edge=9 and longest_edge=1333: initial_model"):
        train(read_recipe([*asked, "--shortest_edge", "9"]))
    with pytest.raises(ValueError, match="has its own backbone; leave backbone out"):
        read_recipe([*asked, "--backbone", "resnet"])
    folder = train(read_recipe(asked))
    after = AutoImageProcessor.from_pretrained(folder)
    assert after.size == processor.size
    assert list(after.image_mean) == processor.image_mean
    model = AutoModelForObjectDetection.from_pretrained(folder)
    assert model.config.id2label == {0: "8", 1: "9"}
    assert model.dtype == torch.float32  # small steps would be lost in bfloat16
    before, after = (m.model.query_positions.weight.float() for m in (start, model))
    torch.testing.assert_close(after, before, atol=1e-6, rtol=0)
    scores = evaluate(
        read_evaluation(
            [
                *("--model", str(folder), "--dataset", str(path), "--device", "cpu"),
                *("--figures", str(tmp_path / "f.json"), "--curve", str(tmp_path / "c.png")),
                *("--layers", str(tmp_path / "l.png")),
            ]
        )
    )
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures["AP"] == scores.figures["AP"] == figures["by_layer"][-1]["ap"]
    assert len(figures["by_layer"]) == model.config.decoder_layers
    assert f"after layer {model.config.decoder_layers}" in str(scores)
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("c.png", "l.png"))
    for name, told in (("l.txt", "end it with .png or .svg"), ("c.png", "different ones")):
        asked = ["--model", str(folder), "--dataset", str(path), "--curve", "c.png"]
        with pytest.raises(ValueError, match=told):
            evaluate(read_evaluation([*asked, "--layers", name]))


def test_the_shipped_recipe_is_valid_and_small(tmp_path):
    read = read_recipe(["--recipe", "digit_scenes", "--digits", "digits"])
    model = VanillaForObjectDetection(read.config(num_labels=10))
    assert 1_000_000 < model.num_parameters() < 1_100_000
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_report_is_a_command(tmp_path, monkeypatch, capsys):
    from hf_vanilla.objects.report import InspectOptions, inspect_dataset

    path = scenes_on_disk(tmp_path / "coco", count=2)
    monkeypatch.setattr("sys.argv", ["inspect", "--dataset", str(path), "--num_queries", "1"])
    told = str(run(inspect_dataset, InspectOptions))
    assert told.startswith(f"{path}: 2 images")
    assert "raise num_queries" in told
