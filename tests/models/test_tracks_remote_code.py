"""Saved forecasters of all forms load where this package is not installed."""

import pytest
import torch
from scene_models import SCENE_FORMS
from torch.testing import assert_close

from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_agentformer import (
    VanillaForDiverseTrajectoryPrediction,
    VanillaForJointTrajectoryPrediction,
)
from hf_vanilla.models.modeling_vanilla_tracks import VanillaForTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_tracks_forms import (
    VanillaForMultimodalTrajectoryPrediction,
    VanillaForQuantizedTrajectoryPrediction,
    VanillaForTrajectoryDensityPrediction,
)
from hf_vanilla.models.saving_vanilla import save_with_code

pytestmark = pytest.mark.slow

USE = """
import sys
import torch
from transformers import AutoModelForTimeSeriesPrediction
past = torch.load(sys.argv[1] + "/past.pt")
for name in sys.argv[2:]:
    folder = sys.argv[1] + "/" + name
    model = AutoModelForTimeSeriesPrediction.from_pretrained(folder, trust_remote_code=True).eval()
    assert type(model).__name__ == name
    torch.manual_seed(0)
    with torch.no_grad():
        torch.save(model(past).trajectories, folder + "/found.pt")
"""


FORMS = (
    VanillaForTrajectoryPrediction,
    VanillaForMultimodalTrajectoryPrediction,
    VanillaForTrajectoryDensityPrediction,
    VanillaForQuantizedTrajectoryPrediction,
)
STAGES = (VanillaForJointTrajectoryPrediction, VanillaForDiverseTrajectoryPrediction)


@pytest.mark.parametrize(
    ("forms", "config", "shape"),
    [
        (FORMS, VanillaTracksConfig(d_model=12, encoder_layers=1, decoder_layers=1), (3, 8, 2)),
        (STAGES, VanillaAgentFormerConfig(d_model=16, decoder_layers=1), (2, 3, 8, 2)),
        (tuple(SCENE_FORMS.values()), VanillaSceneConfig(d_model=16), (2, 3, 8, 2)),
    ],
    ids=["agents", "joint", "scenes"],
)
def test_all_forms_load_and_predict_the_same_without_the_package(
    program_without_package, tmp_path, forms, config, shape
):
    past = torch.randn(shape)
    torch.save(past, tmp_path / "past.pt")
    expected = {}
    for form in forms:
        model = form(config).eval()
        if hasattr(model, "fit_codebook"):
            model.fit_codebook(torch.randn(100, 8, 2), torch.randn(100, 12, 2))
        torch.manual_seed(0)
        save_with_code(model, tmp_path / form.__name__)
        with torch.no_grad():
            expected[form.__name__] = model(past).trajectories
    environment = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    words = ("python", "-c", USE, tmp_path, *expected)
    done = program_without_package(*words, environment=environment)
    assert done.returncode == 0, done.stderr
    for name, tracks in expected.items():
        assert_close(torch.load(tmp_path / name / "found.pt"), tracks, rtol=0, atol=1e-5)
