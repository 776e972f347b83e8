"""DETR: equal to transformers' own without auxiliary losses, and what theirs gets wrong."""

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoModelForObjectDetection,
    BitConfig,
    DetrConfig,
    DetrForObjectDetection,
    PvtV2Config,
    ResNetConfig,
    SwinConfig,
    UVDocBackboneConfig,
)

from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection

SIZES = {
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
    "num_queries": 11,
    "num_labels": 7,
}


def backbone(**options):
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1]}
    return ResNetConfig(**sizes, layer_type="basic", out_features=["stage4"], **options)


def build(**options):
    return VanillaForObjectDetection(
        VanillaDetrConfig(**{"backbone_config": backbone()} | SIZES | options)
    )


def their_name(name):
    """Our name of a weight as transformers' DETR has it."""
    for ours, theirs in (
        ("backbone.model", "backbone.model"),
        ("query_positions", "query_position_embeddings"),
        ("decoder.layer_norm", "decoder.layernorm"),
        ("out_proj", "o_proj"),
        (".fc1", ".mlp.fc1"),
        (".fc2", ".mlp.fc2"),
    ):
        name = name.replace(ours, theirs)
    return name


def pair(attention="sdpa"):
    """Our model and transformers', with the same weights, in evaluation mode."""
    theirs = DetrForObjectDetection(
        DetrConfig(backbone_config=backbone(), auxiliary_loss=False, **SIZES)
    ).eval()
    theirs.config._attn_implementation_internal = attention
    ours = build(attn_implementation=attention).eval()
    weights = theirs.state_dict()
    for module in theirs.modules():  # statistics that change the result
        if hasattr(module, "running_mean"):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    ours.load_state_dict({name: weights[their_name(name)] for name in ours.state_dict()})
    return ours, theirs


def padded_images():
    """Three images of different size in one batch, and their mask."""
    sizes, pixels = ((64, 96), (37, 96), (64, 45)), torch.zeros(3, 3, 64, 96)
    mask = torch.zeros(3, 64, 96, dtype=torch.long)
    for image, (height, width) in enumerate(sizes):
        pixels[image, :, :height, :width] = torch.randn(3, height, width)
        mask[image, :height, :width] = 1
    return pixels, mask


def targets(device="cpu"):
    counts = (3, 0, 2)
    return [
        {"class_labels": torch.randint(7, (n,)), "boxes": 0.1 + 0.4 * torch.rand(n, 4)}
        for n in counts
    ]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("is_padded", [True, False])
def test_everything_equals_transformers_detr(attention, is_padded):
    ours, theirs = pair(attention)
    pixels, mask = padded_images()
    told = {"pixel_values": pixels, "pixel_mask": mask if is_padded else None}
    record = {"output_hidden_states": True, "output_attentions": attention == "eager"}
    found, expected = ours(**told, **record), theirs(**told, **record)
    near = {"rtol": 0, "atol": 1e-5}
    assert_close(found.logits, expected.logits, **near)
    assert_close(found.pred_boxes, expected.pred_boxes, **near)
    assert_close(found.encoder_last_hidden_state, expected.encoder_last_hidden_state, **near)
    assert len(found.decoder_hidden_states) == len(expected.decoder_hidden_states)
    if attention == "eager":
        for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            for own, other in zip(getattr(found, name), getattr(expected, name), strict=True):
                assert_close(own, other, **near)


def test_loss_and_gradients_equal_transformers_on_the_last_layer():
    ours, theirs = pair()
    ours.config.auxiliary_loss = False
    pixels, mask = padded_images()
    wanted = targets()
    found, expected = (model(pixels, pixel_mask=mask, labels=wanted) for model in (ours, theirs))
    assert_close(found.loss, expected.loss, rtol=0, atol=1e-5)
    for name in ("loss_ce", "loss_bbox", "loss_giou"):
        assert_close(found.loss_dict[name], expected.loss_dict[name].squeeze(), rtol=0, atol=1e-5)
    found.loss.backward()
    expected.loss.backward()
    gradients = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        if "backbone" not in name:
            assert_close(parameter.grad, gradients[their_name(name)].grad, rtol=1e-3, atol=1e-5)


def test_auxiliary_losses_never_change_the_logits():
    model = build().eval()
    pixels, mask = padded_images()
    logits = []
    for is_auxiliary in (True, False):
        model.config.auxiliary_loss = is_auxiliary
        logits.append(model(pixels, mask, labels=targets()).logits)
    assert_close(*logits, rtol=0, atol=0)
    assert_close(model(pixels, mask).logits, logits[0], rtol=0, atol=0)


def test_all_outputs_equal_the_layers_run_by_hand():
    model = build().eval()
    pixels, _ = padded_images()
    out = model.model(pixels, output_hidden_states=True)
    hidden = out.encoder_last_hidden_state
    positions = model.model.query_positions.weight.expand(3, -1, -1)
    from hf_vanilla.models.positions_vanilla import sinusoid_2d

    height, width = out.feature_size
    image = sinusoid_2d(torch.ones(3, height, width, dtype=torch.bool), 24).float()
    states = torch.zeros_like(positions)
    for number, layer in enumerate(model.model.decoder.layers):
        states = layer(states, None, hidden, None, positions=positions, encoder_positions=image)
        normed = model.model.decoder.layer_norm(states)
        assert_close(out.intermediate_hidden_states[number], normed, rtol=0, atol=1e-6)


def test_padding_never_moves_a_box():
    model = build().eval()
    image = torch.randn(1, 3, 64, 64)
    alone = model(image, torch.ones(1, 64, 64))
    wide = torch.zeros(1, 3, 64, 128)
    wide[..., :64] = image
    mask = torch.zeros(1, 64, 128)
    mask[..., :64] = 1
    # convolutions look over the border, so the backbone is left out: equal features, padded
    features = model.model.backbone(image)

    class Padded(torch.nn.Module):
        width = model.model.backbone.width

        def forward(self, pixels):
            missing = pixels.shape[-1] // 32 - features.shape[-1]
            return torch.nn.functional.pad(features, (0, missing))

    model.model.backbone = Padded()
    padded = model(wide, mask)
    assert_close(padded.pred_boxes, alone.pred_boxes, rtol=0, atol=1e-5)
    assert_close(padded.logits, alone.logits, rtol=0, atol=1e-5)


def test_a_pretrained_backbone_learns_in_its_later_stages_only():
    model = build()
    pixels, mask = padded_images()
    model(pixels, mask, labels=targets()).loss.backward()
    learning = {
        name: parameter.grad is not None
        for name, parameter in model.model.backbone.model.named_parameters()
    }
    for name, learns in learning.items():
        assert learns == name.startswith(
            ("encoder.stages.1", "encoder.stages.2", "encoder.stages.3")
        )
    assert any(learning.values())
    assert not any("normalization.weight" in name for name in learning)  # fixed: no parameter


def test_stem_and_first_stage_stay_frozen_after_loading(tmp_path):
    build().save_pretrained(tmp_path)
    loaded, _ = VanillaForObjectDetection.from_pretrained(tmp_path, output_loading_info=True)
    for model in (loaded, AutoModelForObjectDetection.from_pretrained(tmp_path)):
        weights = model.model.backbone.model.named_parameters()
        frozen = {name for name, weight in weights if not weight.requires_grad}
        assert {name.split(".")[0] for name in frozen} == {"embedder", "encoder"}
        assert len(frozen) == len([p for p in model.parameters() if not p.requires_grad]) == 3


@pytest.mark.parametrize(
    ("backbone", "frozen"),
    [
        (
            SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[1, 1], out_features=["stage2"]),
            {"swin.embeddings", "swin.encoder.layers.0"},
        ),
        (
            BitConfig(embedding_size=32, hidden_sizes=[128, 128], depths=[1, 1]),
            {"bit.embedder", "bit.encoder.stages.0"},
        ),
        (
            PvtV2Config(hidden_sizes=[8] * 4, depths=[1] * 4, num_attention_heads=[1] * 4),
            {"encoder.layers.0"},
        ),
    ],
)
def test_stem_and_first_stage_of_every_kind_of_backbone_are_frozen(backbone, frozen):
    model = build(backbone_config=backbone).model.backbone.model
    names = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    inside = {name for name, _ in model.named_parameters() if name.startswith(tuple(frozen))}
    assert names == inside
    assert all(any(name.startswith(part + ".") for name in names) for part in frozen)


def test_a_backbone_whose_stages_are_unknown_is_refused():
    with pytest.raises(ValueError, match=r"backbone_is_pretrained=True, but .* set backbone"):
        build(backbone_config=UVDocBackboneConfig())


def test_a_backbone_from_scratch_learns_everywhere():
    model = build(backbone_is_pretrained=False).train()
    pixels, mask = padded_images()
    model(pixels, mask, labels=targets()).loss.backward()
    assert all(p.grad is not None for p in model.model.backbone.parameters())
    mean = model.model.backbone.model.embedder.embedder.normalization.running_mean
    assert mean.abs().sum() > 0


def test_detr_r50_has_the_authors_number_of_parameters():
    with torch.device("meta"):
        model = VanillaForObjectDetection(VanillaDetrConfig(num_labels=91))
    assert sum(parameter.numel() for parameter in model.parameters()) == 41_524_768


def test_a_dilated_last_stage_has_twice_the_resolution():
    model = build(dilation=True).eval()
    assert model(torch.randn(1, 3, 64, 96)).feature_size == (4, 6)
    assert build().eval()(torch.randn(1, 3, 64, 96)).feature_size == (2, 3)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_can_be_chosen(attention, recwarn):
    model = build(attn_implementation=attention)
    assert model.config._attn_implementation == attention
    other = {"eager": "sdpa", "sdpa": "eager"}[attention]
    model.set_attn_implementation(other)
    assert {m.config._attn_implementation for m in (model.model.encoder, model)} == {other}


def test_a_saved_model_comes_back_to_the_bit(tmp_path):
    model = build().eval()
    model.save_pretrained(tmp_path)
    again = VanillaForObjectDetection.from_pretrained(tmp_path).eval()
    pixels, mask = padded_images()
    assert_close(again(pixels, mask).logits, model(pixels, mask).logits, rtol=0, atol=0)
    kept = [config.to_dict() | {"_name_or_path": ""} for config in (again.config, model.config)]
    assert kept[0] == kept[1]


def test_initial_values_are_those_of_the_paper():
    torch.manual_seed(3)
    model = build(num_queries=200, d_model=48)
    queries = model.model.query_positions.weight
    assert queries.std().item() == pytest.approx(1, abs=0.05)
    projection = model.model.encoder.layers[0].fc1.weight
    bound = (6 / sum(projection.shape)) ** 0.5
    assert projection.abs().max().item() == pytest.approx(bound, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_queries": 0}, "num_queries=0"),
        ({"d_model": 26}, "multiple of"),
        ({"eos_coefficient": -1}, "eos_coefficient=-1"),
        ({"class_cost": 0, "bbox_cost": 0, "giou_cost": 0}, "nothing to match by"),
        ({"activation_function": "zzz"}, "zzz"),
        ({"backbone_config": {}}, "model_type"),
        ({"backbone_config": ResNetConfig(), "num_channels": 1}, "backbone_config has 3: give"),
        ({"backbone": "resnet101"}, "backbone='resnet101': give backbone_config"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(options, message):
    with pytest.raises(Exception, match=message):
        VanillaDetrConfig(**options)


def test_images_have_the_channels_of_the_backbone():
    backbone = ResNetConfig(num_channels=1, out_features=["stage4"])
    assert VanillaDetrConfig(backbone_config=backbone).num_channels == 1


def test_a_mask_that_does_not_fit_is_named():
    model, (pixels, mask) = build(), padded_images()
    with pytest.raises(ValueError, match=r"pixel_mask has shape \(3, 64, 95\).*\(3, 64, 96\)"):
        model(pixels, mask[..., :95])
    mask[1] = 0
    with pytest.raises(ValueError, match="pixel_mask is 0 everywhere"):
        model(pixels, mask)


def test_labels_without_boxes_and_boxes_without_labels_are_named():
    model, (pixels, mask) = build(), padded_images()
    with pytest.raises(ValueError, match=r"give boxes \(B, M, 4\)"):
        model(pixels, mask, labels=torch.zeros(3, 1, dtype=torch.long))
    with pytest.raises(ValueError, match=r"give labels \(B, M\) too; .* label_smoothing_factor"):
        model(pixels, mask, boxes=torch.rand(3, 1, 4))


def test_gradients_of_the_loss_in_float64_equal_finite_differences():
    model = build().double().eval()
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    targets = {"labels": torch.tensor([[3]]), "boxes": torch.tensor([[[0.4, 0.5, 0.2, 0.3]]])}
    assert torch.autograd.gradcheck(
        lambda pixels: model(pixels, **targets).loss, images, fast_mode=True
    )
