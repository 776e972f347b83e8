"""Folders of each task give back the saved model, with what belongs to it."""

import pytest
from detection_files import tiny_detector
from image_models import vit
from transformers import AutoModelForSeq2SeqLM, ViTImageProcessorPil

from hf_vanilla import (
    VanillaForMultimodalTrajectoryPrediction,
    VanillaForQuantizedTrajectoryPrediction,
    VanillaForTrajectoryDensityPrediction,
    VanillaForTrajectoryPrediction,
    VanillaTracksConfig,
    demo_model,
)
from hf_vanilla.loading import load_folder

FORECASTERS = (
    VanillaForTrajectoryPrediction,
    VanillaForMultimodalTrajectoryPrediction,
    VanillaForTrajectoryDensityPrediction,
    VanillaForQuantizedTrajectoryPrediction,
)


def assert_loads(model, folder):
    found, _ = load_folder(folder)
    assert type(found) is type(model)
    saved, loaded = model.state_dict(), found.state_dict()
    assert saved.keys() == loaded.keys()
    assert all(saved[name].equal(loaded[name]) for name in saved)


@pytest.mark.parametrize("form", FORECASTERS, ids=lambda form: form.__name__)
def test_a_forecaster_of_each_form(form, tmp_path):
    model = form(VanillaTracksConfig(d_model=16, num_modes=3, num_codes=4))
    model.save_pretrained(tmp_path)
    assert_loads(model, tmp_path)


def test_an_image_classifier(tmp_path):
    model = vit()
    model.save_pretrained(tmp_path)
    ViTImageProcessorPil(size={"height": 15, "width": 20}).save_pretrained(tmp_path)
    assert_loads(model, tmp_path)


def test_a_detector_with_its_image_processor(tmp_path):
    assert_loads(tiny_detector(tmp_path), tmp_path)


def test_a_translator(tmp_path):
    assert_loads(AutoModelForSeq2SeqLM.from_pretrained(demo_model()), demo_model())
