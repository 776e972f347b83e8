"""DETR in every published form, there and back: equal logits and every bit."""

import argparse
import json

import pytest
import torch
from detection_files import TINY
from image_models import vit
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close
from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessorPil, ResNetConfig

from hf_vanilla.convert import detr
from hf_vanilla.convert.detr import (
    SAME_FIELDS,
    DetrOptions,
    ToDetrOptions,
    config_of_weights,
    convert_detr,
    convert_to_detr,
    from_detr,
    to_authors,
    to_detr,
)
from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection

EXACT = {"rtol": 0, "atol": 0}
LABELS = {0: "cat", 1: "dog", 2: "owl"}


@pytest.fixture(scope="module")
def theirs():
    """transformers' own model with random weights and statistics, in evaluation mode."""
    torch.manual_seed(5)
    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[2, 1, 1, 2], out_features=["stage4"]
    )
    config = DetrConfig(
        backbone_config=backbone,
        d_model=24,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=29,
        decoder_ffn_dim=31,
        num_queries=11,
        id2label=LABELS,
    )
    model = DetrForObjectDetection(config).eval()
    for tensor in model.state_dict().values():
        nn.init.uniform_(tensor, 0.1, 0.9)
    return model


@pytest.fixture
def pixels():
    return torch.randn(2, 3, 64, 96)


def old_name(name):
    """The name that a weight has in the files of the Hub, which transformers 4 wrote."""
    for new, old in (
        ("backbone.model", "backbone.conv_encoder.model"),
        ("o_proj", "out_proj"),
        (".mlp.fc", ".fc"),
    ):
        name = name.replace(new, old)
    return name


def timm_name(name):
    """The name of a weight of transformers' ResNet in timm's."""
    head, _, rest = name.partition("conv_encoder.model.")
    if not rest:
        return name
    parts = rest.split(".")
    if parts[0] == "embedder":
        block = "conv1" if parts[2] == "convolution" else "bn1"
    else:
        layer, inner = f"layer{int(parts[2]) + 1}.{parts[4]}", parts[5:-1]
        is_norm = inner[-1] == "normalization"
        if inner[0] == "shortcut":
            block = f"{layer}.downsample.{int(is_norm)}"
        else:
            block = f"{layer}.{'bn' if is_norm else 'conv'}{int(inner[1]) + 1}"
    return f"{head}conv_encoder.model.{block}.{parts[-1]}"


FORMS = {
    "transformers 5": lambda name: name,
    "transformers 4, no_timm": old_name,
    "transformers 4, timm": lambda name: timm_name(old_name(name)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_of_every_form_gives_equal_logits_and_every_bit_back(
    form, theirs, pixels, tmp_path
):
    rename = FORMS[form]
    theirs.save_pretrained(tmp_path / "theirs")
    DetrImageProcessorPil(size={"shortest_edge": 77, "longest_edge": 99}).save_pretrained(
        tmp_path / "theirs"
    )
    weights = {rename(n): w.contiguous() for n, w in theirs.state_dict().items()}
    save_file(weights, tmp_path / "theirs" / "model.safetensors", metadata={"format": "pt"})
    card = "---\nlicense: mit\nmodel-index:\n- name: a\n---\nA card without a title.\n"
    (tmp_path / "theirs" / "README.md").write_text(card)
    told = {"input": str(tmp_path / "theirs"), "output": str(tmp_path / "ours")}
    convert_detr(DetrOptions(**told))
    assert (tmp_path / "ours" / "README.md").read_text() == card.replace(
        "A card", "\nConverted from theirs to hf_vanilla.\n\nA card"
    )
    ours = VanillaForObjectDetection.from_pretrained(tmp_path / "ours").eval()
    expected = theirs(pixels)
    assert_close(ours(pixels).logits, expected.logits, rtol=0, atol=1e-5)
    assert_close(ours(pixels).pred_boxes, expected.pred_boxes, rtol=0, atol=1e-5)
    assert ours.config.id2label == LABELS
    assert DetrImageProcessorPil.from_pretrained(tmp_path / "ours").size["shortest_edge"] == 77

    back = {"input": str(tmp_path / "ours"), "output": str(tmp_path / "back")}
    convert_to_detr(ToDetrOptions(**back))
    again = DetrForObjectDetection.from_pretrained(tmp_path / "back").state_dict()
    for name, weight in theirs.state_dict().items():
        assert_close(again[name], weight, **EXACT)


def test_the_authors_file_there_and_back(theirs, pixels, tmp_path):
    ours = from_detr(theirs.state_dict(), _config(theirs))
    weights = to_authors(ours)
    weights["backbone.0.body.bn1.num_batches_tracked"] = torch.tensor(3)
    torch.save({"model": weights, "epoch": 299}, tmp_path / "detr.pth")
    told = {"input": str(tmp_path / "detr.pth"), "output": str(tmp_path / "ours")}
    convert_detr(DetrOptions(**told, heads=3))
    again = VanillaForObjectDetection.from_pretrained(tmp_path / "ours").eval()
    assert_close(again(pixels).logits, theirs(pixels).logits, rtol=0, atol=1e-5)
    back = {"input": str(tmp_path / "ours"), "output": str(tmp_path / "back.pth")}
    convert_to_detr(ToDetrOptions(**back))
    written = torch.load(tmp_path / "back.pth", weights_only=True)["model"]
    assert written.keys() == to_authors(ours).keys()
    for name, weight in to_authors(ours).items():
        assert_close(written[name], weight, **EXACT)


def test_the_authors_names_are_those_of_torch_and_torchvision(theirs):
    weights = to_authors(from_detr(theirs.state_dict(), _config(theirs)))
    attention = nn.MultiheadAttention(24, 3)
    layer = nn.TransformerDecoderLayer(24, 3, dim_feedforward=31)
    prefix = "transformer.decoder.layers.2."
    own = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
    assert {n: w.shape for n, w in own.items()} == {
        n: w.shape for n, w in layer.state_dict().items()
    }
    prefix = "transformer.encoder.layers.1.self_attn."
    own = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
    attention.load_state_dict(own)
    states = torch.randn(5, 1, 24)
    model = from_detr(theirs.state_dict(), _config(theirs))
    inner = model.model.encoder.layers[1].self_attn
    by_ours, _ = inner(*3 * (states.transpose(0, 1),))
    assert_close(
        attention(states, states, states)[0].transpose(0, 1), by_ours, rtol=1e-5, atol=1e-6
    )
    for name in ("conv1.weight", "bn1.running_var", "layer1.1.conv3.weight", "layer4.0.bn2.bias"):
        assert f"backbone.0.body.{name}" in weights
    assert "backbone.0.body.layer2.0.downsample.1.running_mean" in weights


def test_sizes_of_an_authors_file_are_read_from_its_shapes(theirs):
    ours = from_detr(theirs.state_dict(), _config(theirs))
    config = config_of_weights(to_authors(ours), heads=3)
    for name in ("d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "num_queries"):
        assert getattr(config, name) == getattr(ours.config, name)
    assert config.num_labels == 3
    assert config.backbone_config.depths == [2, 1, 1, 2]


def test_transformers_model_of_ours_has_equal_logits(theirs, pixels):
    again = to_detr(from_detr(theirs.state_dict(), _config(theirs)))
    assert_close(again(pixels).logits, theirs(pixels).logits, **EXACT)


# --- what is refused ---------------------------------------------------------------------------


def _config(theirs):
    known = {name: getattr(theirs.config, name) for name in SAME_FIELDS}
    return VanillaDetrConfig(
        **known, backbone_config=theirs.config.backbone_config, id2label=theirs.config.id2label
    )


def test_what_the_other_formats_cannot_express_is_refused_and_named(theirs):
    odd = {"layer_norm_eps": 1e-2, "attention_bias": False, "class_cost": 0.5}
    odd |= {"dilation": True, "activation_function": "gelu", "decoder_attention_heads": 2}
    config = VanillaDetrConfig(**_config(theirs).to_dict() | odd)
    with pytest.raises(ValueError, match="cannot express") as refused:
        to_detr(VanillaForObjectDetection(config))
    told = ["layer_norm_eps=0.01", "attention_bias=False", "class_cost=0.5", "dilation=True"]
    assert all(part in str(refused.value) for part in told)
    with pytest.raises(ValueError, match="cannot express") as refused:
        to_authors(VanillaForObjectDetection(config))
    told = [*told[:2], "activation_function='gelu'", "3 and 2 attention heads"]
    assert all(part in str(refused.value) for part in told)
    with pytest.raises(ValueError, match="a backbone of 2 stages"):
        to_authors(VanillaForObjectDetection(VanillaDetrConfig(**TINY)))


def test_a_model_of_another_family_is_no_detector(tmp_path):
    vit().save_pretrained(tmp_path / "vit")
    options = ToDetrOptions(input=str(tmp_path / "vit"), output=str(tmp_path / "out"))
    with pytest.raises(ValueError, match="model of type 'vanilla_vit': give a detector"):
        convert_to_detr(options)
    assert not (tmp_path / "out").exists()


def test_dilation_that_transformers_ignores_is_not_ours(theirs, pixels, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs")
    DetrImageProcessorPil().save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dilation": True}))
    told = {"input": str(tmp_path / "theirs"), "output": str(tmp_path / "ours")}
    for other in ({"heads": 3}, {"dilation": True}):
        with pytest.raises(ValueError, match=r"are for a \.pth file: leave them out"):
            convert_detr(DetrOptions(**told, **other))
    convert_detr(DetrOptions(**told))
    ours = VanillaForObjectDetection.from_pretrained(tmp_path / "ours")
    assert_close(ours(pixels).logits, theirs(pixels).logits, rtol=0, atol=1e-5)
    assert ours.config.label2id == {"cat": 0, "dog": 1, "owl": 2}


@pytest.mark.parametrize("output", ["back", "back.pth"])
def test_a_result_that_computes_something_else_is_never_written(
    output, theirs, tmp_path, monkeypatch
):
    from_detr(theirs.state_dict(), _config(theirs)).save_pretrained(tmp_path / "ours")
    DetrImageProcessorPil().save_pretrained(tmp_path / "ours")
    renamed = detr.rename_to_theirs

    def slipped(weights, names):
        return renamed({n: w + ("attn_layer_norm.bias" in n) for n, w in weights.items()}, names)

    monkeypatch.setattr(detr, "rename_to_theirs", slipped)
    options = ToDetrOptions(input=str(tmp_path / "ours"), output=str(tmp_path / output))
    with pytest.raises(ValueError, match=r"logits of a random image by .* nothing was written"):
        convert_to_detr(options)
    assert not (tmp_path / output).exists()


def test_a_segmentation_head_is_an_error_unless_it_is_left_out(theirs):
    weights = {f"detr.{name}": weight for name, weight in theirs.state_dict().items()}
    weights["mask_head.conv1.weight"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"segmentation head \(1 tensors.*--without_masks"):
        from_detr(weights, _config(theirs))
    from_detr(weights, _config(theirs), without_masks=True)


def test_a_segmentation_file_of_the_authors_is_converted_without_its_head(theirs, tmp_path):
    weights = to_authors(from_detr(theirs.state_dict(), _config(theirs)))
    weights = {f"detr.{name}": weight for name, weight in weights.items()}
    weights["mask_head.lay1.weight"] = torch.zeros(3)
    torch.save({"model": weights}, tmp_path / "panoptic.pth")
    given = {"input": str(tmp_path / "panoptic.pth"), "output": str(tmp_path / "ours"), "heads": 3}
    with pytest.raises(ValueError, match=r"segmentation head \(1 tensors.*--without_masks"):
        convert_detr(DetrOptions(**given))
    convert_detr(DetrOptions(**given, without_masks=True))
    ours = VanillaForObjectDetection.from_pretrained(tmp_path / "ours")
    assert_close(
        ours.model.query_positions.weight, theirs.model.query_position_embeddings.weight, **EXACT
    )


def test_heads_and_dilation_are_those_of_the_training_that_saved_the_file(theirs, tmp_path):
    weights = to_authors(from_detr(theirs.state_dict(), _config(theirs)))
    trained = argparse.Namespace(nheads=3, dilation=True, lr_drop=200)
    torch.save({"model": weights, "args": trained, "epoch": 9}, tmp_path / "checkpoint.pth")
    for given, heads, is_dilated in (({}, 3, True), ({"heads": 1, "dilation": False}, 1, False)):
        output = tmp_path / str(heads)
        told = {"input": str(tmp_path / "checkpoint.pth"), "output": str(output)}
        convert_detr(DetrOptions(**told, **given))
        config = VanillaDetrConfig.from_pretrained(output)
        assert (config.encoder_attention_heads, config.dilation) == (heads, is_dilated)


def test_every_missing_and_left_over_tensor_is_named(theirs):
    weights = dict(theirs.state_dict())
    del weights["model.encoder.layers.0.mlp.fc2.bias"]
    weights["odd"] = torch.zeros(1)
    message = r"left over: odd; missing: model\.encoder\.layers\.0\.fc2\.bias"
    with pytest.raises(ValueError, match=message):
        from_detr(weights, _config(theirs))


def test_a_file_of_the_authors_without_its_class_head_is_refused_by_name(theirs, tmp_path):
    weights = to_authors(from_detr(theirs.state_dict(), _config(theirs)))
    del weights["class_embed.weight"], weights["class_embed.bias"]  # as for training on new classes
    torch.save({"model": weights}, tmp_path / "no_head.pth")
    given = {"input": str(tmp_path / "no_head.pth"), "output": str(tmp_path / "ours"), "heads": 3}
    with pytest.raises(ValueError, match=r"no_head\.pth has no 'class_embed\.weight'"):
        convert_detr(DetrOptions(**given))


def test_a_file_of_another_model_is_named_with_the_weight_that_it_lacks(tmp_path):
    torch.save({"model": {"module.query_embed.weight": torch.ones(2, 2)}}, tmp_path / "odd.pth")
    given = {"input": str(tmp_path / "odd.pth"), "output": str(tmp_path / "ours")}
    with pytest.raises(ValueError, match=r"odd\.pth has no query_embed\.weight, so these"):
        convert_detr(DetrOptions(**given))


def test_a_folder_without_image_processor_gets_that_of_the_authors(theirs, tmp_path, caplog):
    theirs.save_pretrained(tmp_path / "theirs")
    told = {"input": str(tmp_path / "theirs"), "output": str(tmp_path / "ours")}
    convert_detr(DetrOptions(**told))
    saved = DetrImageProcessorPil.from_pretrained(tmp_path / "ours")
    assert saved.size == DetrImageProcessorPil().size
    assert "has no image processor: that of DETR's authors is saved" in caplog.text


@pytest.mark.parametrize(
    ("mark", "kin"),
    [("sampling_offsets.weight", "Deformable DETR"), ("ref_point_head.0.bias", "Conditional DETR")],
)
def test_kin_of_detr_are_named(mark, kin, theirs):
    authors = {"query_embed.weight": torch.zeros(7, 16)}  # Deformable DETR has queries, too
    for more in ({}, authors):
        weights = {f"transformer.encoder.layers.0.{mark}": torch.zeros(1), **more}
        with pytest.raises(ValueError, match=f"not DETR's: they look like {kin}"):
            config_of_weights(weights, heads=8)
    with pytest.raises(ValueError, match=f"not DETR's: they look like {kin}"):
        from_detr({f"model.decoder.{mark}": torch.zeros(1)}, _config(theirs))


def test_a_pickle_that_would_run_code_is_refused_and_leaves_no_folder(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (open, (str(tmp_path / "written"), "w"))

    torch.save({"model": {"a": Harmful()}}, tmp_path / "bad.pth")
    told = {"input": str(tmp_path / "bad.pth"), "output": str(tmp_path / "ours")}
    with pytest.raises(ValueError, match="more than tensors"):
        convert_detr(DetrOptions(**told))
    assert not (tmp_path / "written").exists()
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_folder_is_one_line(name, theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs")
    DetrImageProcessorPil().save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / name
    path.write_bytes(path.read_bytes()[:100])
    options = DetrOptions(input=str(tmp_path / "theirs"), output=str(tmp_path / "ours"))
    with pytest.raises((OSError, ValueError), match=r"theirs.*(incomplete|be loaded).*again"):
        convert_detr(options)
    assert not (tmp_path / "ours").exists()


def test_another_kind_of_model_is_named(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text('{"model_type": "yolos"}')
    save_file({"a": torch.zeros(1)}, tmp_path / "in" / "model.safetensors")
    with pytest.raises(ValueError, match="of type 'yolos': give one of type 'detr'"):
        convert_detr(DetrOptions(input=str(tmp_path / "in"), output=str(tmp_path / "out")))
