"""Every default and every number on docs/fidelity.md equals that of the code."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from reference import fields_of

from hf_vanilla import VanillaConfig
from hf_vanilla.file_values import yaml_value
from hf_vanilla.models.generation_vanilla import length_penalty, paper_decoding
from hf_vanilla.models.loss_vanilla import label_smoothed_loss
from hf_vanilla.models.positions_vanilla import sinusoid
from hf_vanilla.text.options import TranslationDataOptions
from hf_vanilla.training.optimization import inverse_sqrt_schedule, paper_adam, peak_learning_rate
from hf_vanilla.training.options import Adam, TrainRecipe

ROOT = Path(__file__).resolve().parent.parent
TABLE_3 = ROOT / "hf_vanilla" / "recipes" / "table3"
PAGE = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
# inline code of the form `name=value`, outside of code blocks
DEFAULTS = sorted(set(re.findall(r"`(\w+)=([^`\s]+)`", PAGE)))


def table(*columns):
    """The rows of the page's table with these columns, without its head."""
    head = f"| {' | '.join(columns)} |\n"
    assert PAGE.count(head) == 1
    lines = PAGE.split(head)[1].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def numbers(*columns):
    return [tuple(map(yaml_value, row)) for row in table(*columns)]


# --- defaults ----------------------------------------------------------------------------------


def test_the_defaults_on_the_page_are_those_of_the_code():
    options = TrainRecipe(), Adam(), TranslationDataOptions()
    homes = (VanillaConfig(), *options, paper_decoding(VanillaConfig()))
    assert len(DEFAULTS) > 40
    for name, value in DEFAULTS:
        found = [getattr(home, name) for home in homes if hasattr(home, name)]
        assert yaml_value(value) in found, (name, value, found)


def test_every_field_of_the_config_is_on_the_page():
    missing = [name for name in fields_of(VanillaConfig) if f"`{name}" not in PAGE]
    assert missing == ["is_encoder_decoder"]  # which has one value


# --- numbers -----------------------------------------------------------------------------------


def test_the_sinusoids_of_the_page():
    rows = numbers("frequencies", "position", "c", "sine", "cosine")
    assert len(rows) == 6
    for frequencies, position, channel, *pair in rows:
        vector = sinusoid(torch.tensor(position), 512, frequencies=frequencies)
        assert vector[channel : channel + 2].tolist() == pytest.approx(pair, abs=5e-7)


def test_the_difference_of_both_frequencies():
    rows = numbers("position", "largest difference of a channel")
    assert len(rows) == 3
    for position, largest in rows:
        forms = [
            sinusoid(torch.tensor(position), 512, frequencies=frequencies)
            for frequencies in ("paper", "tensor2tensor")
        ]
        assert (forms[0] - forms[1]).abs().max().item() == pytest.approx(largest, abs=5e-5)


def test_the_rates_of_the_page():
    rows = numbers("d_model", "step", "learning rate")
    assert len(rows) == 6
    for d_model, step, rate in rows:
        optimizer = paper_adam(
            [torch.nn.Parameter(torch.zeros(1))], learning_rate=peak_learning_rate(d_model, 4000)
        )
        (share,) = inverse_sqrt_schedule(optimizer, warmup_steps=4000).lr_lambdas
        assert peak_learning_rate(d_model, 4000) * share(step - 1) == pytest.approx(rate, rel=1e-6)


def test_the_losses_of_the_page():
    logits, label = torch.tensor([[[0.5, -1, 2, 0, 1]]], dtype=torch.float64), torch.tensor([[2]])
    target = torch.tensor([0.025, 0.025, 0.9, 0.025, 0.025], dtype=torch.float64)
    losses = {
        kind: label_smoothed_loss(
            logits, label, smoothing=0.1, smoothing_type=kind, pad_token_id=0
        ).item()
        for kind in ("non_target", "uniform", "non_target_non_pad")
    }
    losses["none"] = label_smoothed_loss(logits, label, smoothing=0).item()
    entropy = -(target * target.log()).sum().item()
    losses["non_target minus the entropy"] = losses["non_target"] - entropy
    assert dict(numbers("smoothing", "nats")) == pytest.approx(losses, abs=5e-7)


def test_the_penalties_of_the_page():
    rows = numbers("n", "gnmt", "power")
    assert len(rows) == 5
    for length, *penalties in rows:
        for form, penalty in zip(("gnmt", "power"), penalties, strict=True):
            assert length_penalty(length, 0.6, form) == pytest.approx(penalty, abs=5e-7)


# --- parameters --------------------------------------------------------------------------------


def test_the_table_of_parameters_is_the_scripts():
    program = runpy.run_path(str(ROOT / "scripts" / "count_parameters.py"))
    options = program["ParameterTableOptions"](folder=str(TABLE_3))
    assert program["parameter_table"](options) in PAGE
