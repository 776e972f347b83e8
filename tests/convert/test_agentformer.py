"""AgentFormer's checkpoints: random weights in the authors' layout, and what is refused."""

import pytest
import torch
import yaml
from torch.testing import assert_close
from transformers import AutoModelForTimeSeriesPrediction

from hf_vanilla.convert.agentformer import AgentFormerOptions, convert_agentformer

WIDTH, INNER, LATENT, SAMPLES = 12, 20, 5, 3
SETTINGS = {
    "dataset": "eth",
    "past_frames": 8,
    "future_frames": 12,
    "traj_scale": 2,
    "model_id": "agentformer",
    "tf_model_dim": WIDTH,
    "tf_ff_dim": INNER,
    "tf_nhead": 2,
    "tf_dropout": 0.1,
    "input_type": ["scene_norm", "vel"],
    "pred_type": "scene_norm",
    "sn_out_type": "norm",
    "scene_orig_all_past": True,
    "pos_concat": True,
    "context_encoder": {"nlayer": 2},
    "future_decoder": {"nlayer": 1, "out_mlp_dim": [7, 6]},
    "future_encoder": {"nlayer": 1, "out_mlp_dim": [7, 6]},
    "nz": LATENT,
    "sample_k": SAMPLES,
    "learn_prior": True,
    "loss_cfg": {"kld": {"weight": 1.0, "min_clip": 2.0}, "sample": {"weight": 1.0, "k": 3}},
}
SECOND = {
    "model_id": "dlow",
    "nz": LATENT,
    "sample_k": SAMPLES,
    "qnet_mlp": [9, 8],
    "loss_cfg": {"diverse": {"weight": 20, "d_scale": 10}},
}


def linear(name, outputs, inputs):
    return {f"{name}.weight": torch.randn(outputs, inputs), f"{name}.bias": torch.randn(outputs)}


def attention(name):
    return {
        f"{name}.in_proj_weight": torch.randn(3 * WIDTH, WIDTH),
        f"{name}.in_proj_bias": torch.randn(3 * WIDTH),
        f"{name}.in_proj_weight_self": torch.randn(2 * WIDTH, WIDTH),
        f"{name}.in_proj_bias_self": torch.randn(2 * WIDTH),
        **linear(f"{name}.out_proj", WIDTH, WIDTH),
    }


def layer(name, norms):
    found = {**attention(f"{name}.self_attn"), **linear(f"{name}.linear1", INNER, WIDTH)}
    found |= linear(f"{name}.linear2", WIDTH, INNER)
    if norms == 3:
        found |= attention(f"{name}.multihead_attn")
    for number in range(1, norms + 1):
        found[f"{name}.norm{number}.weight"] = torch.rand(WIDTH) + 0.5
        found[f"{name}.norm{number}.bias"] = torch.randn(WIDTH)
    return found


def stack(name, inputs, kind, layers):
    found = {**linear(f"{name}.input_fc", WIDTH, inputs), f"{name}.pos_encoder.pe": torch.ones(9)}
    found |= linear(f"{name}.pos_encoder.fc", WIDTH, 2 * WIDTH)
    for number in range(layers):
        found |= layer(f"{name}.{kind}.layers.{number}", 2 if kind == "tf_encoder" else 3)
    return found


def first_stage():
    found = stack("context_encoder", 4, "tf_encoder", 2)
    found |= stack("future_encoder", 4, "tf_decoder", 1)
    found |= stack("future_decoder", 2 + LATENT, "tf_decoder", 1)
    for name in ("future_encoder", "future_decoder"):
        found |= linear(f"{name}.out_mlp.affine_layers.0", 7, WIDTH)
        found |= linear(f"{name}.out_mlp.affine_layers.1", 6, 7)
    found |= linear("future_encoder.q_z_net", 2 * LATENT, 6)
    found |= linear("future_decoder.out_fc", 2, 6)
    return found | linear("future_decoder.p_z_net", 2 * LATENT, WIDTH)


def second_stage():
    found = linear("q_mlp.affine_layers.0", 9, WIDTH) | linear("q_mlp.affine_layers.1", 8, 9)
    return found | linear("q_A", SAMPLES * LATENT, 8) | linear("q_b", SAMPLES * LATENT, 8)


@pytest.fixture
def write(tmp_path):
    """Writes checkpoints and YAML files; returns options that name them."""

    def writer(*, weights=None, second=None, settings=None, second_settings=None):
        paths = {"output": str(tmp_path / "ours")}
        content = {"model_dict": weights or first_stage(), "opt_dict": {"state": {}}, "epoch": 30}
        torch.save(content, tmp_path / "first.p")
        paths["input"] = str(tmp_path / "first.p")
        paths["config"] = str(tmp_path / "first.yml")
        (tmp_path / "first.yml").write_text(yaml.safe_dump(settings or SETTINGS))
        if second is not None:
            torch.save({"model_dict": second, "epoch": 50}, tmp_path / "second.p")
            (tmp_path / "second.yml").write_text(yaml.safe_dump(second_settings or SECOND))
            paths["second"] = str(tmp_path / "second.p")
            paths["second_config"] = str(tmp_path / "second.yml")
        return AgentFormerOptions(**paths)

    return writer


def test_every_weight_of_both_stages_arrives_and_every_setting(write):
    theirs, maps = first_stage(), second_stage()
    folder = convert_agentformer(write(weights=theirs, second=maps))
    model = AutoModelForTimeSeriesPrediction.from_pretrained(folder)
    ours = model.state_dict()
    renamed = sum(weight.numel() for name, weight in theirs.items() if not name.endswith("pe"))
    renamed += sum(weight.numel() for weight in maps.values())
    assert sum(weight.numel() for weight in ours.values()) == renamed
    packed = theirs["future_decoder.tf_decoder.layers.0.multihead_attn.in_proj_weight"]
    own = theirs["future_decoder.tf_decoder.layers.0.multihead_attn.in_proj_bias_self"]
    attention = "first_stage.future_decoder.layers.0.encoder_attn"
    pairs = {
        f"{attention}.k_proj.weight": packed[WIDTH : 2 * WIDTH],
        f"{attention}.own_k_proj.bias": own[WIDTH:],
        "first_stage.context_encoder.layers.1.final_layer_norm.weight": theirs[
            "context_encoder.tf_encoder.layers.1.norm2.weight"
        ],
        "first_stage.future_encoder.layers.0.encoder_attn_layer_norm.bias": theirs[
            "future_encoder.tf_decoder.layers.0.norm2.bias"
        ],
        "first_stage.future_decoder.hidden.1.weight": theirs[
            "future_decoder.out_mlp.affine_layers.1.weight"
        ],
        "map_scale.weight": maps["q_A.weight"],
        "map_shift.bias": maps["q_b.bias"],
    }
    for name, wanted in pairs.items():
        assert_close(ours[name], wanted, rtol=0, atol=0)
    config = model.config
    assert (config.position_scale, config.origin_is_past_mean) == (2, True)
    assert (config.head_dims, config.map_dims) == ([7, 6], [9, 8])
    assert (config.diversity_weight, config.diversity_scale) == (20, 10)
    assert model(torch.randn(1, 2, 8, 2)).trajectories.shape == (1, 2, SAMPLES, 12, 2)


def test_a_first_stage_alone_becomes_the_first_stage(write):
    folder = convert_agentformer(write())
    model = AutoModelForTimeSeriesPrediction.from_pretrained(folder)
    assert type(model).__name__ == "VanillaForJointTrajectoryPrediction"
    card = (folder / "README.md").read_text()
    assert "AgentFormer (Yuan et al., 2021), converted from first.p." in card
    assert 'from_pretrained("THIS_MODEL")' in card


def test_all_tensors_that_do_not_fit_the_yaml_are_named_at_once(write):
    settings = {**SETTINGS, "context_encoder": {"nlayer": 3}, "nz": LATENT + 1}
    with pytest.raises(ValueError, match="does not fit") as caught:
        convert_agentformer(write(settings=settings))
    for part in ("missing: context_encoder.layers.2.fc1.bias", "q_z_net.weight", "p_z_net.bias"):
        assert part in str(caught.value)
    weights = {**first_stage(), "map_encoder.conv.weight": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"left over: map_encoder\.conv\.weight"):
        convert_agentformer(write(weights=weights))


def test_other_models_are_refused_by_what_differs(write):
    cases = [
        ({"use_map": True}, "is a model with a raster map"),
        ({"input_type": ["scene_norm", "vel", "map"]}, "is a model with a raster map"),
        ({"sn_out_type": "vel", "pos_concat": False}, "'vel' instead of 'norm'; pos_concat=False"),
        ({"future_encoder": {"nlayer": 1}}, "out_mlp_dim="),
        ({"tf_cfg": {"gaussian_kernel": True}}, "tf_cfg="),
        (
            {"context_encoder": {"pooling": "max"}},
            r"context_encoder\.pooling='max' instead of 'mean'",
        ),
        (
            {"future_decoder": {"out_mlp_dim": [7, 6], "pos_offset": True, "heads": 3}},
            r"future_decoder\.pos_offset=True.*future_decoder\.heads=3, which is unknown",
        ),
        ({"loss_cfg": {"mse": {"normalize": False}}}, r"loss_cfg\.mse\.normalize=False"),
        ({"loss_cfg": "x"}, "loss_cfg is 'x': give keys and values"),
        ({"future_encoder": 3}, "future_encoder is 3: give keys and values"),
        ({"past_frames": "eight"}, "yml: past_frames is 'eight': give a whole number"),
        ({"traj_scale": "big"}, "yml: traj_scale is 'big': give a number"),
        ({"future_decoder": {"nlayer": "x"}}, "yml: future_decoder.nlayer is 'x'"),
        ({"loss_cfg": {"kld": {"weight": "x"}}}, "loss_cfg.kld.weight is 'x': give a number"),
    ]
    for change, message in cases:
        with pytest.raises(ValueError, match=message):
            convert_agentformer(write(settings={**SETTINGS, **change}))


def test_a_second_stage_of_another_latent_size_is_refused(write):
    options = write(second=second_stage(), second_settings={**SECOND, "nz": 9})
    with pytest.raises(ValueError, match=r"nz=9, but .* nz=5: give the first stage"):
        convert_agentformer(options)
    with pytest.raises(ValueError, match="both second and second_config"):
        AgentFormerOptions(input="a", config="b", output="c", second="d")


class Harmful:
    """A class that a checkpoint must not contain."""


def test_nothing_is_unpickled_that_can_run_code(write, tmp_path):
    options = write()
    torch.save({"model_dict": {}, "extra": Harmful()}, tmp_path / "first.p")
    with pytest.raises(ValueError, match="contains more than tensors"):
        convert_agentformer(options)
