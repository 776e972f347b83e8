"""The one way a saved model is loaded: it runs no code, takes whole models, and says why not."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from detection_files import tiny_detector
from image_models import vit
from safetensors.torch import load_file, save_file
from scene_models import scene_model
from transformers import AutoTokenizer, ViTConfig, ViTImageProcessorPil

from hf_vanilla import (
    VanillaAgentFormerConfig,
    VanillaForJointTrajectoryPrediction,
    VanillaForMultimodalTrajectoryPrediction,
    VanillaForSequenceClassification,
    VanillaTracksConfig,
    demo_model,
)
from hf_vanilla.hub.card import hub_id, languages_of
from hf_vanilla.images.classifier import load_classifier
from hf_vanilla.loading import (
    ForeignModelError,
    load_folder,
    load_rows,
    load_saved,
    model_folder,
    one_line,
    read_settings,
)
from hf_vanilla.models.quantization_vanilla import quantize
from hf_vanilla.objects.detector import load_detector
from hf_vanilla.text.alignments import saved_head
from hf_vanilla.text.corpus_translation import _full_name
from hf_vanilla.text.loading import load_translator
from hf_vanilla.tracks.forecaster import load_forecaster
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.validation import read_evaluation

LOADERS = {
    "text": load_translator,
    "int8": load_translator,
    "image": load_classifier,
    "objects": load_detector,
    "tracks": load_forecaster,
    "joint": load_forecaster,
    "scene": load_forecaster,
}
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model folder of each family; read it only."""
    root = tmp_path_factory.mktemp("models")
    for name in LOADERS:
        (root / name).mkdir()
    model, tokenizer = load_translator(demo_model(), dtype="float32")
    model.save_pretrained(root / "text")
    quantize(model).save_pretrained(root / "int8")
    for name in ("text", "int8"):
        tokenizer.save_pretrained(root / name)
    vit().save_pretrained(root / "image")
    ViTImageProcessorPil(size={"height": 15, "width": 20}).save_pretrained(root / "image")
    tiny_detector(root / "objects")
    VanillaForMultimodalTrajectoryPrediction(VanillaTracksConfig(d_model=16)).save_pretrained(
        root / "tracks"
    )
    joint = VanillaAgentFormerConfig(d_model=16, encoder_ffn_dim=20, decoder_ffn_dim=20)
    VanillaForJointTrajectoryPrediction(joint).save_pretrained(root / "joint")
    scene_model("gate").float().save_pretrained(root / "scene")
    return root


def refusal(family, folder):
    """The one line that says why a folder is not loaded."""
    with pytest.raises((ValueError, OSError)) as caught:
        LOADERS[family](str(folder))
    text = str(caught.value)
    assert "\n" not in text
    assert str(folder) in text
    assert "weights_only" not in text
    return text


@pytest.mark.parametrize("family", LOADERS)
def test_only_a_folder_with_every_weight_of_its_config_and_no_other_is_used(
    family, folders, tmp_path
):
    LOADERS[family](str(folders / family))
    folder = Path(shutil.copytree(folders / family, tmp_path / family))
    whole = load_file(folder / WEIGHTS)
    name = next(n for n, w in whole.items() if w.dim() == 2 and "layers.0" in n)
    less = {n: weight for n, weight in whole.items() if n != name}
    for fault, weights in {
        f"missing: {name}": less,
        "not in the model: stray": {**whole, "stray": torch.zeros(3)},
        f"of another size: {name} (": {**less, name: whole[name][1:].clone()},
    }.items():
        save_file(weights, folder / WEIGHTS, {"format": "pt"})
        assert f"{fault}" in refusal(family, folder)


@pytest.mark.parametrize("family", LOADERS)
def test_a_damaged_folder_is_refused_in_one_line_that_names_it(family, folders, tmp_path):
    def changed(**changes):
        settings = json.loads((folders / family / "config.json").read_text())
        return json.dumps({**settings, **changes}).encode()

    weights = (folders / family / WEIGHTS).read_bytes()
    damages = [
        (WEIGHTS, weights[: len(weights) // 2]),
        (WEIGHTS, b"junk"),
        (WEIGHTS, b""),
        (WEIGHTS, None),
        ("config.json", b"[]"),
        ("config.json", b"{"),
        ("config.json", b"\xff"),
        ("config.json", changed(d_model=2**63)),
        ("config.json", changed(d_model="x")),
        ("config.json", changed(encoder_layers=10**6, decoder_layers=10**6)),
        ("config.json", changed(id2label="x")),
    ]
    if family != "int8":  # which has no dtype
        damages.append(("config.json", changed(dtype=True)))
    if family == "text":
        damages += [("tokenizer.json", text) for text in (b"{}", b"[]", b"{", b'{"model": 3}')]
    for number, (name, content) in enumerate(damages):
        folder = Path(shutil.copytree(folders / family, tmp_path / str(number)))
        if content is None:
            (folder / name).unlink()
            torch.save({"a": Path()}, folder / "pytorch_model.bin")  # more than weights
        else:
            (folder / name).write_bytes(content)
        refusal(family, folder)


def test_weights_of_an_older_class_are_refused_with_its_name(folders, tmp_path):
    folder = Path(shutil.copytree(folders / "scene", tmp_path / "old"))
    weights = load_file(folder / WEIGHTS)
    old = {name.replace("gates.", "channel_gates."): weight for name, weight in weights.items()}
    save_file(old, folder / WEIGHTS, {"format": "pt"})
    text = refusal("scene", folder)
    assert "VanillaForGatedTrajectoryPrediction" in text
    assert "missing: gates.0" in text
    assert "not in the model: channel_gates.0" in text
    assert text.endswith("if an older version of this class saved it, train it again")


def test_a_folder_of_another_class_is_refused_with_both_names(folders, tmp_path):
    folder = Path(shutil.copytree(folders / "text", tmp_path / "classifier"))
    VanillaForSequenceClassification.from_pretrained(folder).save_pretrained(folder)
    text = refusal("text", folder)
    assert text.endswith(
        "it is a VanillaForSequenceClassification; give a VanillaForConditionalGeneration"
    )


def test_a_model_of_another_family_is_no_translator(folders):
    assert refusal("text", folders / "image").endswith(
        "is of image_classification: give a translation model"
    )


def test_a_model_of_transformers_is_named_with_how_to_convert_it(tmp_path):
    ViTConfig().save_pretrained(tmp_path)
    task = ["--task", "image_classification", "--dataset", "photos", "--output_dir", "o"]
    for use in (
        lambda: load_translator(str(tmp_path)),
        lambda: read_evaluation(["--model", str(tmp_path), "--dataset", "photos"]),
        lambda: read_recipe(["--initial_model", str(tmp_path), *task]).config(),
    ):
        with pytest.raises(ForeignModelError, match=r"='vit';.* hf-vanilla convert --help"):
            use()


def test_a_folder_without_a_model_is_no_missing_option(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json\): give one"):
        read_evaluation(["--model", str(tmp_path), "--dataset", "photos"])


def test_a_checkpoint_of_any_task_is_no_model(tmp_path):
    start = tmp_path / "checkpoint-3"
    start.mkdir()
    with pytest.raises(ValueError, match=r"give its run, or make a model .* hf-vanilla average"):
        read_recipe(["--recipe", "digits_halves", "--initial_model", str(start)]).config()


def test_a_translator_without_a_tokenizer_is_refused_with_the_remedy(folders, tmp_path):
    folder = Path(shutil.copytree(folders / "text", tmp_path / "bare"))
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert "has no tokenizer: save its own there" in refusal("text", folder)


# --- models of the package -----------------------------------------------------------------------


def test_a_model_of_the_package_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("numbers").write_text("a file of this name is no model folder")
    assert model_folder("numbers") == _full_name("numbers") == demo_model()
    model, tokenizer = load_translator("numbers")
    assert (model.config.d_model, len(tokenizer)) == (128, 400)
    assert load_folder(Path("numbers"))[0].config.d_model == 128
    assert saved_head("numbers") == saved_head(demo_model()) is not None
    assert (languages_of("numbers"), hub_id("numbers")) == (("en", "de"), None)


def test_a_folder_of_the_same_name_comes_first(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders / "image", "numbers")
    assert read_settings("numbers")["model_type"] == "vanilla_vit"
    assert read_settings(demo_model("numbers"))["model_type"] == "vanilla"


def test_an_unknown_name_says_which_models_the_package_has():
    with pytest.raises(ValueError, match=r"'help'\): choose one of numbers, help-en-de"):
        demo_model("help")
    own = "the package has the translators numbers, help-en-de"
    with pytest.raises(OSError, match=own), one_line("help", ""):
        raise OSError("not there")
    with pytest.raises(OSError, match=r"Hub: not there$"), one_line("someone/help", ""):
        raise OSError("not there")


def test_an_unknown_dataset_is_not_told_with_models(monkeypatch):
    def load_dataset(name):
        raise FileNotFoundError("not there")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(OSError, match=r"^help: no such file or folder, and not .* not there$"):
        load_rows("help")


def test_text_on_stdin_never_consents_to_running_the_code_of_a_model(program, tmp_path):
    evil, mark = tmp_path / "evil", tmp_path / "ran"
    evil.mkdir()
    classes = {"AutoConfig": "nice.C", "AutoModelForSeq2SeqLM": "nice.M"}
    (evil / "config.json").write_text(json.dumps({"model_type": "nice", "auto_map": classes}))
    (evil / "nice.py").write_text(f"open({str(mark)!r}, 'w')")
    command = ("python", "-m", "hf_vanilla", "translate", "--model", evil)
    done = program(*command, input="Hello.\n1\ny\nyes\n")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "evil cannot be loaded: it needs code of its own" in done.stderr
    assert not mark.exists()


@pytest.mark.parametrize("load", [read_settings, partial(load_saved, AutoTokenizer), load_rows])
def test_a_hub_that_does_not_answer_is_asked_once_and_named_in_one_line(monkeypatch, load):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    asked = []

    def address(*parts, repo_type):
        asked.append((*parts, repo_type))
        return "http://127.0.0.1:9/config.json"  # nobody listens there

    monkeypatch.setattr("hf_vanilla.loading.hf_hub_url", address)
    with pytest.raises(
        OSError, match=r"^nothing/there: no such .*folder, .* no answer \(.*refused"
    ):
        load("nothing/there")
    assert asked == [("nothing/there", "config.json", "dataset" if load is load_rows else "model")]
