"""What all twelve classes of forecasters share: precision, gaps, and transformers' Trainer."""

import pytest
import torch
from scene_models import every_forecaster, scene_model, scenes, without_future
from torch.testing import assert_close
from transformers import Trainer, TrainingArguments

DRAWS = ("VanillaForQuantizedTrajectoryPrediction", "VanillaForJointTrajectoryPrediction")


def forecast(model, inputs):
    torch.manual_seed(0)
    with torch.no_grad():
        return model(**without_future(inputs)).trajectories


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_every_precision_read_positions_of_every_precision(dtype):
    for model, inputs in every_forecaster():
        expected = forecast(model, inputs)
        if dtype is torch.float64:
            inputs = {k: v.double() if "values" in k else v for k, v in inputs.items()}
        else:
            model.to(dtype)
        found = forecast(model, inputs)
        name = type(model).__name__
        assert found.dtype == (torch.float64 if dtype is torch.float64 else torch.float32), name
        # a rounded probability may draw another code or keep another future
        if dtype is torch.float64 or name not in DRAWS:
            kept = (found - expected).abs().amax(dim=(-1, -2)) < 0.3
            assert kept.float().mean() > (0.99 if dtype is torch.float64 else 0.8), name
        model.train()
        loss = model(**inputs).loss
        loss.backward()
        assert loss.isfinite(), name
        grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
        assert all(grad.isfinite().all() for grad in grads), name


def test_an_agent_at_half_the_rate_of_the_others_keeps_its_speed():
    every = torch.arange(5.0).view(1, 1, 5, 1) * torch.tensor([1.0, 0.5])  # (1, 1, T, 2)
    mask = torch.tensor([[[1, 0, 1, 0, 1]]])
    for model, inputs in every_forecaster():
        if any(
            kind in type(model).__name__ for kind in ("Quantized", "Joint", "Diverse", "Social")
        ):
            continue  # without training these do not go on as before
        is_scene = inputs["past_values"].dim() == 4
        past, seen = (every, mask) if is_scene else (every[0], mask[0])
        walk = model(past_values=past).trajectories
        half = past.masked_fill(~seen.bool().unsqueeze(-1), torch.nan)
        moved = model(past_values=half, past_observed_mask=seen).trajectories
        apart = (moved - walk).norm(dim=-1).mean()
        standing = (past[..., -1:, :].unsqueeze(-3) - walk).norm(dim=-1).mean()
        assert apart < standing / 2, type(model).__name__


class Rows(torch.utils.data.Dataset):
    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs["past_values"])

    def __getitem__(self, row):
        return {name: values[row] for name, values in self.inputs.items()}


def test_trainer_with_its_defaults_hands_on_lanes_and_reports_a_loss(tmp_path):
    arguments = TrainingArguments(
        tmp_path, max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True
    )
    for model, inputs in every_forecaster():
        read = []
        model.register_forward_pre_hook(
            lambda _, args, kwargs, read=read: read.append(set(kwargs)), with_kwargs=True
        )
        trainer = Trainer(model, arguments, train_dataset=Rows(inputs), eval_dataset=Rows(inputs))
        trainer.train()
        assert read[0] >= set(inputs), type(model).__name__
        assert trainer.evaluate()["eval_loss"] > -100, type(model).__name__
        assert model(**inputs, return_loss=False).loss is None


def test_rounding_never_decides_which_futures_are_kept():
    inputs = scenes(count=20)
    model = scene_model("early full", num_seeds=24, num_modes=6, thinning_distance=50.0).float()
    expected = forecast(model, {k: v.float() for k, v in inputs.items()})
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        noise = 1e-7 * torch.randn(inputs["past_values"].shape, generator=draw)
        near = {**inputs, "past_values": inputs["past_values"] + noise}
        assert_close(
            forecast(model, {k: v.float() for k, v in near.items()}), expected, rtol=0, atol=1e-3
        )


def test_proposals_are_not_trained_without_regions():
    model, inputs = scene_model("proposals"), scenes()
    model.centres.zero_()
    assert model(**without_future(inputs)).loss is None
    with pytest.raises(ValueError, match=r"no regions.*set_regions"):
        model(**inputs)
