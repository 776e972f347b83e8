"""The programs in `scripts/` as a user types them, in an empty working directory."""

import json
from pathlib import Path

import pytest
import small_run
import torch
from image_files import colour_folder
from image_models import vit
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
)

from hf_vanilla import demo_model
from hf_vanilla.images.batches import image_processor

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
TRAINER = ("--max_steps=3", "--use_cpu=True", "--report_to=none")


@pytest.fixture
def script(program, tmp_path):
    """Runs a script in an empty working directory; returns what it prints."""

    def script(name, *arguments):
        done = program("python", SCRIPTS / name, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    return script


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("fuzz_parsers.py", "x", "argument inputs: invalid int value: 'x'"),
        ("fuzz_parsers.py", "0", "inputs=0: give 1 or more"),
        ("list_options.py", "x", "unrecognized arguments: x"),
        ("benchmarks/import_cost.py", "0", "rounds=0: give 1 or more"),
        ("check_transformers_compat.py", "--end=lowest", "unknown: --end=lowest"),
    ],
)
def test_programs_of_developers_have_a_help_and_refuse_in_one_line(
    script, program, tmp_path, name, wrong, told
):
    assert f"usage: {Path(name).name} [" in script(name, "--help").stdout
    done = program("python", SCRIPTS / name, wrong, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr.splitlines()[-1]


def test_train_prints_the_folder_of_the_model(script, corpus_files, tmp_path):
    recipe = small_run.recipe("run", corpus_files, eval_sentences=3)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    done = script("train.py", "--recipe", "recipe.yaml", "--max_steps", "4")
    assert done.stdout == "run\n"
    assert "bleu" in done.stderr
    assert "shared tensor" not in done.stderr


def test_finetune_trains_scores_and_saves_a_translation_model(
    script, trained_run, corpus_files, tmp_path
):
    files = [f"--{name}={path}" for name, path in corpus_files.items()]
    told = ("--eval_strategy=steps", "--eval_steps=3", "--predict_with_generate=True")
    given = ("--model", trained_run, "--max_length=40", "--output_dir=tuned")
    script("finetune.py", *given, *files, *TRAINER, *told)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "tuned")
    before = AutoModelForSeq2SeqLM.from_pretrained(trained_run)
    assert model.config.use_cache
    assert model.generation_config.num_beams == before.generation_config.num_beams
    scores = json.loads((tmp_path / "tuned" / "eval_results.json").read_text(encoding="utf-8"))
    assert {"eval_loss", "eval_bleu", "eval_chrf"} <= scores.keys()


@pytest.mark.parametrize("side", ["source", "target"])
def test_finetune_refuses_one_validation_file(side, program, corpus_files, tmp_path):
    files = [f"--{name}={path}" for name, path in corpus_files.items() if name.startswith("train")]
    files.append(f"--validation_{side}={corpus_files[f'validation_{side}']}")
    given = ("--model=numbers", "--output_dir=tuned")
    done = program("python", SCRIPTS / "finetune.py", *given, *files, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("validation_source and validation_target: give both or neither\n")


def test_a_deeper_model_has_the_layers_that_are_named(script, program, tmp_path):
    told = ("--model", "numbers", "--output", "deeper", "--layers")
    script("deeper.py", *told, "1", "0", "1")
    layers = [
        AutoModelForSeq2SeqLM.from_pretrained(name).model.decoder.layers
        for name in (demo_model(), tmp_path / "deeper")
    ]
    assert len(layers[1]) == 3
    for new, old in ((0, 1), (1, 0), (2, 1)):
        assert torch.equal(layers[1][new].fc1.weight, layers[0][old].fc1.weight)
    card = (tmp_path / "deeper" / "README.md").read_text(encoding="utf-8")
    assert "encoder_layers: [1, 0, 1]; decoder_layers: [1, 0, 1]" in card
    done = program("python", SCRIPTS / "deeper.py", *told, "0", "2", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: layers=2: the encoder_layers of the model are 0, 1\n"


def test_finetune_images_gives_a_model_the_classes_of_a_folder(script, program, tmp_path):
    for split in ("train", "validation"):
        colour_folder(tmp_path / "photos" / split, count=4)
    (tmp_path / "photos" / "validation" / "red" / "cut.png").write_bytes(b"no picture")
    vit().save_pretrained(tmp_path / "vit")
    processor = image_processor((15, 20), [0.4, 0.5, 0.6], [0.3, 0.2, 0.1])
    processor.size, processor.crop_size = {"shortest_edge": 17}, {"height": 15, "width": 20}
    processor.do_center_crop = True  # as of a model of timm
    processor.save_pretrained(tmp_path / "vit")
    given = ("--model=vit", "--dataset=photos", "--validation=photos", "--output_dir=tuned")
    done = script("finetune_images.py", *given, "--flip=0.5", *TRAINER)
    assert "1 unreadable of 9 images of validation were left out, the first is red" in done.stdout
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "tuned")
    assert model.config.id2label == {0: "blue", 1: "red"}
    scores = json.loads((tmp_path / "tuned" / "eval_results.json").read_text(encoding="utf-8"))
    assert 0 <= scores["eval_accuracy"] <= 1
    saved = AutoImageProcessor.from_pretrained(tmp_path / "tuned")
    assert (dict(saved.size), saved.do_center_crop) == ({"height": 15, "width": 20}, False)
    gone = ("--resume_from_checkpoint=gone", *TRAINER)
    done = program("python", SCRIPTS / "finetune_images.py", *given, *gone, cwd=tmp_path)
    assert "a valid checkpoint at gone" in done.stderr
