"""Classifiers, detectors and forecasters in ONNX Runtime: their programs give our results."""

import subprocess
import sys

import detection_files
import image_models
import numpy as np
import pytest
import torch
from onnx_folders import BLOCKED, runner_of
from PIL import Image
from scene_models import SCENE_FORMS, scene_model

from hf_vanilla.convert.export import ExportOptions, export
from hf_vanilla.convert.onnx.images import RUNNERS
from hf_vanilla.convert.onnx.tracks import FAULTS
from hf_vanilla.families import TASKS
from hf_vanilla.images.batches import image_processor
from hf_vanilla.images.classifier import Classifier
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.objects.detector import load_detector
from hf_vanilla.tracks.forecaster import new_forecaster, predict

for name in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(name)

EXPORTED_FORMS = ["modes", "one", "density", *sorted(SCENE_FORMS.keys() - {"proposals"})]


def exported(folder, **options):
    given = {"model": str(folder), "output": f"{folder}-onnx", "format": "onnx", **options}
    return export(ExportOptions(**given))


def typed(folder, program, *arguments, text=""):
    command = [sys.executable, "-c", BLOCKED, str(folder / program), *arguments]
    return subprocess.run(command, input=text, capture_output=True, check=False, text=True)


def picture(width, height):
    values = np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.release
def test_a_classifier_gives_the_same_probabilities(tmp_path):
    model = image_models.vit()
    processor = image_processor((15, 20), [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    model.save_pretrained(tmp_path / "vit")
    processor.save_pretrained(tmp_path / "vit")
    folder = exported(tmp_path / "vit")
    pictures = [picture(31, 47), picture(20, 15), picture(64, 64).convert("L")]
    ours = Classifier(model, processor).probabilities([p.convert("RGB") for p in pictures])
    theirs = runner_of(folder, "classify").Classifier(folder).probabilities(pictures)
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    pictures[0].save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no image")
    done = typed(folder, "classify.py", str(tmp_path / "a.png"), str(tmp_path / "b.png"))
    assert done.stdout.startswith(
        f"{tmp_path / 'a.png'},{model.config.id2label[ours[0].argmax().item()]},"
    )
    assert done.stderr.startswith(f"error: {tmp_path / 'b.png'}: ")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_programs_are_short():
    for program in ("classify.py", "detect.py", "forecast.py"):
        assert len((RUNNERS / program).read_text().splitlines()) < 60


def test_what_draws_samples_is_refused(tmp_path):
    new_forecaster(VanillaAgentFormerConfig(observed_steps=3, d_model=16)).save_pretrained(
        tmp_path / "m"
    )
    with pytest.raises(ValueError, match="VanillaForJointTrajectoryPrediction, which draws"):
        exported(tmp_path / "m")
    forms = {name for entry in TASKS.values() for name in entry.forms.values()}
    assert set(FAULTS) < forms


@pytest.mark.release
def test_a_detector_gives_the_same_boxes(tmp_path):
    detection_files.tiny_detector(tmp_path / "detr")
    folder, detector = (
        exported(tmp_path / "detr"),
        load_detector(str(tmp_path / "detr"), device="cpu"),
    )
    theirs = runner_of(folder, "detect").Detector(folder)
    for size in ((120, 70), (50, 91), (64, 64), (300, 20), (64, 95)):
        image = picture(*size)
        (ours,) = detector.detect([image])
        found = theirs.detect(image, threshold=0.0)
        assert [one[0] for one in found] == [detector.label_names[i] for i in ours.labels]
        np.testing.assert_allclose([one[1] for one in found], ours.scores, atol=1e-4)
        np.testing.assert_allclose([one[2:] for one in found], ours.boxes, atol=2e-2)
    image.save(tmp_path / "a.png")
    assert typed(folder, "detect.py", str(tmp_path / "a.png")).returncode == 0
    # padding of a batch, by the mask
    pixels, mask = torch.randn(2, 3, 64, 96), torch.ones(2, 64, 96, dtype=torch.long)
    mask[1, 50:], mask[1, :, 70:] = 0, 0
    with torch.no_grad():
        outputs = detector.model(pixels, mask)
    given = {"pixel_values": pixels.numpy(), "pixel_mask": mask.numpy()}
    for mine, other in zip(
        (outputs.logits, outputs.pred_boxes), theirs.session.run(None, given), strict=True
    ):
        np.testing.assert_allclose(other, mine, atol=1e-4)


@pytest.mark.release
@pytest.mark.parametrize(
    "form", ["modes", "one", "density", *sorted(SCENE_FORMS.keys() - {"proposals"})]
)
def test_a_forecaster_gives_the_same_futures(form, tmp_path):
    if form in SCENE_FORMS:
        model = scene_model("early full" if form == "fusion" else form).float()
    else:
        config = VanillaTracksConfig(
            observed_steps=5,
            predicted_steps=3,
            d_model=24,
            encoder_attention_heads=3,
            decoder_attention_heads=2,
            velocity_std=0.4,
        )
        config.architectures = [TASKS["trajectories"].forms[form]]
        model = new_forecaster(config).eval()
    model.save_pretrained(tmp_path / "model")
    folder = exported(tmp_path / "model")
    past = np.random.default_rng(1).normal(size=(4, 5, 2)).cumsum(1) + 1000.0
    seen = np.ones((4, 5), bool)
    seen[1, :2] = False
    theirs = runner_of(folder, "forecast").Forecaster(folder)
    for a, b in zip(predict(model, past, seen), theirs.predict(past, seen), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-3)
