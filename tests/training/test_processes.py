"""What a run computes with: who decides on precision and trackers, and what accelerate is told."""

import re
from pathlib import Path

import pytest
import small_run
import torch
from accelerate.commands.config.config_args import load_config_from_file

from hf_vanilla.models import modeling_vanilla
from hf_vanilla.training import processes
from hf_vanilla.training.options import TrainRecipe
from hf_vanilla.training.processes import (
    PEAK_FLOPS,
    check_settings_of_accelerate,
    chosen_precision,
    chosen_trackers,
    is_slow_bf16,
    make_accelerator,
    peak_flops,
    precision_in_words,
)

CONFIGS = Path(__file__).resolve().parents[2] / "scripts" / "accelerate"


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU, as far as torch can tell; returns a switch for bf16."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def has_bf16(answer):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: answer)

    return has_bf16


# --- precision ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "precision"), [(True, "bf16"), (False, "no")])
def test_a_gpu_computes_in_bf16_where_it_can(gpu, answer, precision):
    gpu(answer)
    assert chosen_precision(TrainRecipe()) == precision


def test_a_cpu_computes_in_float32(gpu, monkeypatch):
    gpu(True)
    assert chosen_precision(TrainRecipe(use_cpu=True)) == "no"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert chosen_precision(TrainRecipe()) == "no"


@pytest.mark.parametrize("told", ["no", "bf16", "fp16"])
def test_the_recipe_decides_over_accelerate_and_the_gpu(gpu, monkeypatch, told):
    gpu(True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert chosen_precision(TrainRecipe(mixed_precision=told)) == told


def test_what_accelerate_is_told_decides_where_the_recipe_does_not(gpu, monkeypatch):
    gpu(True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert chosen_precision(TrainRecipe()) == "fp16"
    # the launcher says so as well where nobody was asked
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert chosen_precision(TrainRecipe()) == "bf16"


@pytest.mark.parametrize(
    ("has_instructions", "kind", "precision", "is_slow"),
    [
        (False, "cpu", "bf16", True),
        (True, "cpu", "bf16", False),
        (False, "cpu", "no", False),
        (False, "cuda", "bf16", False),
    ],
)
def test_bf16_is_slow_on_a_cpu_without_instructions(
    monkeypatch, has_instructions, kind, precision, is_slow
):
    monkeypatch.setattr(processes, "multiplies_bfloat16", lambda: has_instructions)
    assert is_slow_bf16(Device(kind, precision)) is is_slow


def test_fp16_on_a_cpu_is_float32_and_says_so(caplog, fresh_accelerator):
    accelerator = make_accelerator(TrainRecipe(mixed_precision="fp16", use_cpu=True))
    assert "mixed_precision=fp16 is for GPUs: this CPU computes in float32" in caplog.text
    assert precision_in_words(accelerator) == "float32"
    assert precision_in_words(Device("cuda", "bf16")) == "bf16, the validations too"
    assert precision_in_words(Device("cuda", "no")).startswith("float32, products in TF32")


# --- trackers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "recipe", "chosen"),
    [
        (["tensorboard", "wandb"], None, ["tensorboard"]),
        (["wandb"], None, []),
        (["tensorboard"], [], []),
        (["tensorboard", "wandb"], ["wandb", "tensorboard"], ["wandb", "tensorboard"]),
    ],
)
def test_tensorboard_is_told_where_it_is_there_and_nobody_chose(
    monkeypatch, installed, recipe, chosen
):
    monkeypatch.setattr(processes, "get_available_trackers", lambda: installed)
    assert chosen_trackers(TrainRecipe(trackers=recipe)) == chosen


def test_a_tracker_that_is_not_installed_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr(processes, "get_available_trackers", lambda: ["tensorboard"])
    with pytest.raises(ImportError, match=r"trackers=wandb: .*pip install wandb"):
        chosen_trackers(TrainRecipe(trackers=["tensorboard", "wandb"]))


# --- speed -------------------------------------------------------------------------------------


class Device:
    def __init__(self, kind, precision):
        self.device, self.mixed_precision = torch.device(kind), precision


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", PEAK_FLOPS["H100"]),
        ("NVIDIA H100 PCIe", PEAK_FLOPS["H100 PCIe"]),
        ("NVIDIA A100-SXM4-80GB", PEAK_FLOPS["A100"]),
        ("NVIDIA L40S", PEAK_FLOPS["L40S"]),
        ("NVIDIA L4", PEAK_FLOPS["L4"]),
        ("NVIDIA L40", None),
        ("NVIDIA RTX A1000", None),
        ("Some Chip 9000", None),
    ],
)
def test_a_gpus_peak_is_found_by_its_name(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(Device("cuda", "bf16")) == peak


@pytest.mark.parametrize(("kind", "precision"), [("cpu", "bf16"), ("cuda", "no")])
def test_no_peak_is_guessed(monkeypatch, kind, precision):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    assert peak_flops(Device(kind, precision)) is None


# --- launching ---------------------------------------------------------------------------------


def test_two_processes_that_do_not_know_each_other_are_refused(
    corpus_files, tmp_path, monkeypatch, fresh_accelerator
):
    class Alone:
        num_processes = 1

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(processes, "Accelerator", lambda **_: Alone())
    with pytest.raises(ValueError, match=r"2 processes were launched.*--use_cpu True"):
        make_accelerator(small_run.recipe(tmp_path, corpus_files, use_cpu=False).train)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, "_STEPS=4: .* divide every gradient"),
        ({"ACCELERATE_USE_FSDP": "true"}, "set to FSDP 1, .*fsdp_version 2"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, "set to FSDP 1, "),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "set to DeepSpeed, .* MULTI_GPU"),
    ],
)
def test_settings_that_would_change_gradients_or_save_shards_are_refused(
    monkeypatch, environment, message
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        make_accelerator(TrainRecipe(use_cpu=True))


def test_fsdp_2_is_not_refused(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    check_settings_of_accelerate()


@pytest.mark.parametrize(
    ("name", "kind", "machines", "count"),
    [
        ("one_gpu", "NO", 1, 1),
        ("8_gpus_ddp", "MULTI_GPU", 1, 8),
        ("8_gpus_fsdp2", "FSDP", 1, 8),
        ("2_nodes", "MULTI_GPU", 2, 16),
        ("cpu_2_processes", "MULTI_GPU", 1, 2),
    ],
)
def test_accelerate_reads_each_of_our_configurations(name, kind, machines, count):
    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    assert config.distributed_type == kind
    assert (config.num_machines, config.num_processes) == (machines, count)
    assert config.use_cpu is name.startswith("cpu")
    assert config.mixed_precision == ("no" if config.use_cpu else "bf16")


def test_no_configuration_is_left_untested():
    tested = re.findall(r'^        \("(\w+)", "', Path(__file__).read_text(), re.MULTILINE)
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(tested)


def test_the_sharded_configuration_wraps_the_layers_there_are():
    config = load_config_from_file(str(CONFIGS / "8_gpus_fsdp2.yaml")).fsdp_config
    named = config["fsdp_transformer_layer_cls_to_wrap"].split(",")
    assert set(named) == set(modeling_vanilla.VanillaModel._no_split_modules)
    assert config["fsdp_version"] == 2
