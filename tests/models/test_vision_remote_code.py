"""Saved models of images work in transformers' pipeline where this package is not installed."""

import json

import pytest
from detection_files import tiny_detector
from image_files import coloured
from image_models import vit

from hf_vanilla.images.batches import image_processor
from hf_vanilla.models.saving_vanilla import save_with_code

pytestmark = pytest.mark.slow

# the same lines for both: once with the package, once where importing it fails
USE = """
import json, sys, warnings
task, folder, image, has_package = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "with"
if not has_package:
    sys.modules["hf_vanilla"] = None
sys.modules["torchvision"] = sys.modules["timm"] = None
import torch
torch.set_num_threads(1)
from transformers import AutoImageProcessor, pipeline
trust = {} if has_package else {"trust_remote_code": True}
if has_package:
    import hf_vanilla
    warnings.simplefilter("error")
use = pipeline(task, model=folder, **trust)
processor = AutoImageProcessor.from_pretrained(folder, **trust)
found = {
    "results": use(image, **({"threshold": 0.05} if task == "object-detection" else {})),
    "module": type(use.model).__module__,
    "processor": type(processor).__name__,
}
with open(sys.argv[5], "w") as file:
    json.dump(found, file)
"""


def classifier_folder(folder):
    model = vit(id2label={index: f"kind {index}" for index in range(7)})
    save_with_code(model, folder)
    image_processor((15, 20), [0.4, 0.5, 0.6], [0.3, 0.2, 0.1]).save_pretrained(folder)


def detector_folder(folder):
    model = tiny_detector(folder)
    save_with_code(model, folder)


@pytest.mark.parametrize(
    ("task", "make_folder"),
    [("image-classification", classifier_folder), ("object-detection", detector_folder)],
)
def test_a_pipeline_gives_the_same_with_and_without_the_package(
    program, program_without_package, task, make_folder, tmp_path
):
    make_folder(tmp_path / "model")
    coloured(tmp_path / "image.png", (200, 30, 90), size=(33, 21))
    environment = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    found = {}
    for side, run in (("with", program), ("without", program_without_package)):
        arguments = [tmp_path / "model", tmp_path / "image.png", side, tmp_path / f"{side}.json"]
        done = run("python", "-c", USE, task, *arguments, environment=environment)
        assert done.returncode == 0, done.stderr
        found[side] = json.loads((tmp_path / f"{side}.json").read_text())
        if side == "with":
            assert "warn" not in done.stderr.lower()
    assert found["with"]["results"] == found["without"]["results"] != []
    assert found["with"]["module"].startswith("hf_vanilla.")
    assert found["without"]["module"].startswith("transformers_modules.")
    assert found["with"]["processor"] == found["without"]["processor"]
    assert found["with"]["processor"].endswith("ImageProcessorPil")
