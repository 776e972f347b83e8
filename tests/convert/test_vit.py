"""ViT checkpoints of transformers, of the authors and of timm: to our model."""

import json

import numpy as np
import pytest
import torch
from image_models import lively, their_vit, vit
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    DeiTConfig,
    DeiTForImageClassification,
    ViTForImageClassification,
    ViTImageProcessorPil,
    ViTModel,
)

from hf_vanilla import VanillaForImageClassification, VanillaVitModel
from hf_vanilla.convert.checkpoint_files import read_arrays
from hf_vanilla.convert.formats import convert, read_conversion
from hf_vanilla.convert.vit import from_vit, to_vit
from hf_vanilla.convert.vit_checkpoints import TimmOptions, from_google, from_timm
from hf_vanilla.convert.weight_names import rename_to_theirs

EXACT = {"rtol": 0, "atol": 0}
CLOSE = {"rtol": 0, "atol": 1e-6}  # float32, sums in another order


def run(*arguments):
    return convert(read_conversion([str(argument) for argument in arguments]))


def assert_same_weights(found, expected):
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert_close(torch.as_tensor(found[name]), torch.as_tensor(weight), **EXACT)


# --- transformers ------------------------------------------------------------------------------


def test_a_vit_folder_comes_and_goes_with_labels_processor_and_every_bit(tmp_path):
    theirs = their_vit(id2label={index: f"kind {index}" for index in range(7)}, num_labels=7)
    theirs.save_pretrained(tmp_path / "theirs")
    processor = ViTImageProcessorPil(size={"height": 15, "width": 15}, image_mean=[0.1, 0.2, 0.3])
    processor.save_pretrained(tmp_path / "theirs")
    run("--format", "vit", "--input", tmp_path / "theirs", "--output", tmp_path / "ours")
    ours = AutoModelForImageClassification.from_pretrained(tmp_path / "ours")
    assert isinstance(ours, VanillaForImageClassification)
    assert ours.config.id2label[3] == "kind 3"
    assert tuple(AutoImageProcessor.from_pretrained(tmp_path / "ours").image_mean) == (
        0.1,
        0.2,
        0.3,
    )
    images = torch.randn(3, 3, 15, 15)
    assert_close(ours(images).logits, theirs(images).logits, **CLOSE)
    run("--format", "to-vit", "--input", tmp_path / "ours", "--output", tmp_path / "back")
    back = ViTForImageClassification.from_pretrained(tmp_path / "back")
    assert back.config.label2id == theirs.config.label2id
    assert_same_weights(back.state_dict(), theirs.state_dict())
    assert tuple(AutoImageProcessor.from_pretrained(tmp_path / "back").image_mean) == (
        0.1,
        0.2,
        0.3,
    )


@pytest.mark.parametrize("has_pooler", [True, False])
def test_a_vit_body_comes_and_goes(tmp_path, has_pooler):
    theirs = lively(ViTModel(their_vit().config, add_pooling_layer=has_pooler))
    ours = from_vit(theirs)
    assert isinstance(ours, VanillaVitModel)
    assert_same_weights(to_vit(ours).state_dict(), theirs.state_dict())
    theirs.save_pretrained(tmp_path / "theirs")
    if has_pooler:
        run("--format", "vit", "--input", tmp_path / "theirs", "--output", tmp_path / "ours")
        images = torch.randn(3, 3, 15, 15)
        found = VanillaVitModel.from_pretrained(tmp_path / "ours")(images).pooler_output
        assert_close(found, theirs(images).pooler_output, **CLOSE)


def test_a_vit_without_biases_on_queries_gets_zeros():
    theirs, images = their_vit(qkv_bias=False), torch.randn(3, 3, 15, 15)
    ours = from_vit(theirs)
    assert not ours.model.layers[1].self_attn.q_proj.bias.any()
    assert_close(ours(images).logits, theirs(images).logits, **CLOSE)


def test_another_model_is_refused_with_what_sets_it_apart(tmp_path):
    config = DeiTConfig(
        image_size=15,
        patch_size=5,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=29,
    )
    DeiTForImageClassification(config).save_pretrained(tmp_path / "deit")
    with pytest.raises(ValueError, match=r"type 'deit' \(a distillation token\)"):
        run("--format", "vit", "--input", tmp_path / "deit", "--output", tmp_path / "ours")
    with pytest.raises(OSError, match="no such folder"):
        run("--format", "vit", "--input", tmp_path / "nothing", "--output", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_left_over_and_missing_weights_of_a_vit_are_all_named(tmp_path):
    theirs = their_vit()
    theirs.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    weights = load_file(path)
    gone = next(name for name in weights if "fc1.bias" in name or "intermediate" in name)
    weights["register_tokens"] = weights.pop(gone)
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"left over: register_tokens; missing: model\.layers"):
        run("--format", "vit", "--input", tmp_path / "theirs", "--output", tmp_path / "ours")


def test_a_result_that_computes_something_else_is_never_written(tmp_path, monkeypatch):
    vit(image_size=15).save_pretrained(tmp_path / "ours")
    renamed = rename_to_theirs

    def slipped(weights, names):
        weights = {n: w + ("final_layer_norm.bias" in n) for n, w in weights.items()}
        return renamed(weights, names)

    monkeypatch.setattr("hf_vanilla.convert.vit.rename_to_theirs", slipped)
    output = tmp_path / "there"
    with pytest.raises(ValueError, match=r"logits of a random image by .* nothing was written"):
        run("--format", "to-vit", "--input", tmp_path / "ours", "--output", output)
    assert not output.exists()


def test_what_vit_cannot_express_is_refused():
    with pytest.raises(ValueError, match=r"has_pooler=True.*activation_dropout=0.1"):
        to_vit(vit(has_pooler=True, activation_dropout=0.1))


# --- the authors' arrays -----------------------------------------------------------------------


def random_arrays(*, has_pre_logits, rows=2, columns=3):
    """A checkpoint in the authors' layout: width 12, 3 heads, 2 layers, patches of 4 x 5."""
    width, heads, fed, labels, random = 12, 3, 20, 7, np.random.default_rng(5)
    shapes = {
        "cls": (1, 1, width),
        "embedding/kernel": (4, 5, 3, width),
        "embedding/bias": (width,),
        "Transformer/posembed_input/pos_embedding": (1, 1 + rows * columns, width),
        "Transformer/encoder_norm/scale": (width,),
        "Transformer/encoder_norm/bias": (width,),
        "head/kernel": (width, labels),
        "head/bias": (labels,),
    }
    if has_pre_logits:
        shapes |= {"pre_logits/kernel": (width, width), "pre_logits/bias": (width,)}
    for block in (f"Transformer/encoderblock_{number}" for number in range(2)):
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}/{norm}/scale": (width,), f"{block}/{norm}/bias": (width,)}
        for part in ("query", "key", "value"):
            shapes |= {
                f"{attention}/{part}/kernel": (width, heads, width // heads),
                f"{attention}/{part}/bias": (heads, width // heads),
            }
        shapes |= {
            f"{attention}/out/kernel": (heads, width // heads, width),
            f"{attention}/out/bias": (width,),
            f"{block}/MlpBlock_3/Dense_0/kernel": (width, fed),
            f"{block}/MlpBlock_3/Dense_0/bias": (fed,),
            f"{block}/MlpBlock_3/Dense_1/kernel": (fed, width),
            f"{block}/MlpBlock_3/Dense_1/bias": (width,),
        }
    return {
        name: random.normal(scale=0.3, size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def as_tensors(arrays):
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def by_the_authors_arrays(arrays, images):
    """Logits in the authors' own shapes, slowly. `images`: (B, H, W, 3)."""
    arrays = as_tensors(arrays)

    def norm(states, name):
        scale, bias = arrays[f"{name}/scale"], arrays[f"{name}/bias"]
        return nn.functional.layer_norm(states, scale.shape, scale, bias, eps=1e-6)

    patches = images.unfold(1, 4, 4).unfold(2, 5, 5)  # (B, rows, columns, 3, 4, 5)
    states = torch.einsum("brqcij,ijcd->brqd", patches, arrays["embedding/kernel"])
    states = (states + arrays["embedding/bias"]).flatten(1, 2)
    states = torch.cat((arrays["cls"].expand(len(images), -1, -1), states), dim=1)
    states = states + arrays["Transformer/posembed_input/pos_embedding"]
    for block in (f"Transformer/encoderblock_{number}" for number in range(2)):
        attention = f"{block}/MultiHeadDotProductAttention_1"
        normed = norm(states, f"{block}/LayerNorm_0")
        query, key, value = (
            torch.einsum("bld,dnk->bnlk", normed, arrays[f"{attention}/{part}/kernel"])
            + arrays[f"{attention}/{part}/bias"][:, None]
            for part in ("query", "key", "value")
        )
        weights = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(-1)
        out = torch.einsum("bnlk,nkd->bld", weights @ value, arrays[f"{attention}/out/kernel"])
        states = states + out + arrays[f"{attention}/out/bias"]
        normed = norm(states, f"{block}/LayerNorm_2")
        # flax's gelu is the approximation by tanh
        for number, act in ((0, nn.GELU(approximate="tanh")), (1, nn.Identity())):
            dense = f"{block}/MlpBlock_3/Dense_{number}"
            normed = act(normed @ arrays[f"{dense}/kernel"] + arrays[f"{dense}/bias"])
        states = states + normed
    pooled = norm(states, "Transformer/encoder_norm")[:, 0]
    if "pre_logits/kernel" in arrays:
        pooled = (pooled @ arrays["pre_logits/kernel"] + arrays["pre_logits/bias"]).tanh()
    return pooled @ arrays["head/kernel"] + arrays["head/bias"]


@pytest.mark.parametrize("has_pre_logits", [True, False])
def test_the_authors_arrays_give_their_logits(tmp_path, has_pre_logits):
    arrays = random_arrays(has_pre_logits=has_pre_logits)
    np.savez(tmp_path / "theirs.npz", **arrays)
    ours = tmp_path / "ours"
    run(
        *("--format", "vit-google", "--input", tmp_path / "theirs.npz"),
        *("--output", ours, "--image_height", 8),
    )
    model = VanillaForImageClassification.from_pretrained(ours)
    assert model.config.grid == (2, 3)
    images = torch.randn(3, 3, 8, 15)
    expected = by_the_authors_arrays(arrays, images.permute(0, 2, 3, 1))
    assert_close(model(images).logits, expected, rtol=0, atol=1e-5)  # logits reach 10
    assert AutoImageProcessor.from_pretrained(ours).size == {"height": 8, "width": 15}


def test_an_archive_that_is_no_vit_is_refused_by_name(tmp_path):
    arrays = as_tensors(random_arrays(has_pre_logits=False, columns=2))
    with pytest.raises(ValueError, match=r"left over: conv_root\.kernel \(a convolutional stem\)"):
        from_google({**arrays, "conv_root/kernel": arrays["cls"]})
    missing = {name: array for name, array in arrays.items() if name != "head/bias"}
    with pytest.raises(ValueError, match=r"missing: classifier\.bias"):
        from_google(missing)
    with pytest.raises(ValueError, match="wrong or missing head/kernel"):
        from_google({name: array for name, array in arrays.items() if name != "head/kernel"})
    with pytest.raises(ValueError, match="6 positions, which make no grid: give image_height"):
        from_google(as_tensors(random_arrays(has_pre_logits=False)))
    for height in (9, 16, -4):
        with pytest.raises(ValueError, match=f"image_height={height} does not fit the"):
            from_google(as_tensors(random_arrays(has_pre_logits=False)), image_height=height)


def test_an_archive_of_python_objects_is_never_run(tmp_path):
    np.savez(tmp_path / "objects.npz", cls=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="has object arrays, which can run code"):
        read_arrays(tmp_path / "objects.npz")
    with pytest.raises(FileNotFoundError, match=r"a folder; give the \.npz file in it"):
        read_arrays(tmp_path)
    with pytest.raises(ValueError, match=r"a ViT of Google: .* vit-google the .npz file"):
        run(
            *("--format", "timm", "--input", tmp_path / "objects.npz", "--output", tmp_path / "o"),
        )
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match="cannot be read"):
        read_arrays(tmp_path / "cut.npz")
    np.savez(tmp_path / "text.npz", cls=np.array(["a"]))
    with pytest.raises(ValueError, match="cannot be read"):
        read_arrays(tmp_path / "text.npz")


# --- timm --------------------------------------------------------------------------------------


def timm_weights(*, width=24, norm="norm", has_bias=True):
    """A checkpoint in timm's layout: 2 layers, patches of 5 x 5, 3 x 3 of them."""
    fed, labels = 29, 7
    shapes = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 10, width),
        "patch_embed.proj.weight": (width, 3, 5, 5),
        "patch_embed.proj.bias": (width,),
        f"{norm}.weight": (width,),
        f"{norm}.bias": (width,),
        "head.weight": (labels, width),
        "head.bias": (labels,),
    }
    for block in ("blocks.0", "blocks.1"):
        linears = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
        linears |= {"mlp.fc1": (fed, width), "mlp.fc2": (width, fed)}
        for name, shape in linears.items():
            shapes |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[:1]}
        for name in ("norm1", "norm2"):
            shapes |= {f"{block}.{name}.weight": (width,), f"{block}.{name}.bias": (width,)}
        if not has_bias:
            del shapes[f"{block}.attn.qkv.bias"]
    return {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}


def by_timm_weights(weights, images, *, heads=3, norm="norm"):
    """Logits in timm's own layout, slowly."""

    def normed(states, name):
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return nn.functional.layer_norm(states, weight.shape, weight, bias, eps=1e-6)

    def linear(states, name):
        return nn.functional.linear(states, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    patches = nn.functional.unfold(images, 5, stride=5).transpose(1, 2)  # (B, 9, 75)
    states = patches @ weights["patch_embed.proj.weight"].flatten(1).T
    states = states + weights["patch_embed.proj.bias"]
    states = torch.cat((weights["cls_token"].expand(len(images), -1, -1), states), dim=1)
    states = states + weights["pos_embed"]
    for block in ("blocks.0", "blocks.1"):
        qkv = linear(normed(states, f"{block}.norm1"), f"{block}.attn.qkv")
        qkv = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, heads, L, K)
        scores = qkv[0] @ qkv[1].transpose(-2, -1) / qkv.shape[-1] ** 0.5
        mean = (scores.softmax(-1) @ qkv[2]).transpose(1, 2).flatten(2)
        states = states + linear(mean, f"{block}.attn.proj")
        fed = linear(normed(states, f"{block}.norm2"), f"{block}.mlp.fc1")
        states = states + linear(nn.functional.gelu(fed), f"{block}.mlp.fc2")
    return linear(normed(states, norm)[:, 0], "head")


def test_a_timm_folder_comes_with_labels_processor_and_logits(tmp_path):
    theirs, settings = timm_weights(), {"label_names": list("abcdefg"), "global_pool": "token"}
    settings["pretrained_cfg"] = {
        "input_size": [3, 15, 15],
        "mean": [0.4, 0.5, 0.6],
        "std": [0.1, 0.2, 0.3],
        "crop_pct": 0.75,
        "interpolation": "bicubic",
    }
    (tmp_path / "theirs").mkdir()
    save_file(theirs, tmp_path / "theirs" / "model.safetensors")
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(settings))
    (tmp_path / "theirs" / "README.md").write_text("---\nlicense: mit\n---\n# ViT\n")
    run(
        *("--format", "timm", "--input", tmp_path / "theirs", "--output", tmp_path / "ours"),
        *("--heads", 3),
    )
    card = (tmp_path / "ours" / "README.md").read_text()
    assert "license: mit" in card
    assert "Converted from theirs to hf_vanilla." in card
    model = VanillaForImageClassification.from_pretrained(tmp_path / "ours")
    images = torch.randn(3, 3, 15, 15)
    assert_close(model(images).logits, by_timm_weights(theirs, images), rtol=0, atol=1e-5)
    assert model.config.id2label[6] == "g"
    processor = AutoImageProcessor.from_pretrained(tmp_path / "ours")
    assert tuple(processor.image_std) == (0.1, 0.2, 0.3)
    assert processor.size["shortest_edge"] == 20
    assert processor(np.zeros((40, 30, 3), np.uint8)).pixel_values[0].shape == (3, 15, 15)


def test_timm_without_biases_on_queries_or_with_a_late_norm():
    images = torch.randn(3, 3, 15, 15)
    theirs = timm_weights(has_bias=False)
    found = from_timm(theirs, heads=3)(images).logits
    assert_close(found, by_timm_weights(theirs, images), rtol=0, atol=1e-5)
    theirs = timm_weights(norm="fc_norm")
    found = from_timm(theirs, {"global_pool": "token"}, heads=3)(images).logits
    assert_close(found, by_timm_weights(theirs, images, norm="fc_norm"), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="global_pool='avg', where ours reads the class"):
        from_timm(theirs, heads=3)


def test_what_is_no_plain_vit_is_refused_by_name():
    for name, reason in (
        ("reg_token", "register tokens"),
        ("dist_token", "a distillation token"),
        ("blocks.1.ls1.gamma", "layer scale"),
        ("blocks.0.attn.rel_pos_h", "windowed attention"),
    ):
        with pytest.raises(ValueError, match=rf"left over: {name} \({reason}"):
            from_timm({**timm_weights(), name: torch.zeros(24)}, heads=3)


def test_timm_settings_of_older_files_are_read(tmp_path):
    settings = {"input_size": [3, 15, 15], "mean": [0.4, 0.5, 0.6], "std": [0.1, 0.2, 0.3]}
    settings |= {"architecture": "vit_tiny_patch16_224", "labels": list("abcdefg")}
    (tmp_path / "theirs").mkdir()
    save_file(timm_weights(), tmp_path / "theirs" / "model.safetensors")
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(settings))
    run(
        *("--format", "timm", "--input", tmp_path / "theirs", "--output", tmp_path / "ours"),
        *("--heads", 3),
    )
    processor = AutoImageProcessor.from_pretrained(tmp_path / "ours")
    assert tuple(processor.image_std) == (0.1, 0.2, 0.3)
    ours = VanillaForImageClassification.from_pretrained(tmp_path / "ours")
    assert ours.config.id2label[6] == "g"


def test_timm_label_names_may_be_a_dict_with_gaps():
    settings = {"label_names": {"1": "cat", "5": "dog"}}
    config = from_timm(timm_weights(), settings, heads=3).config
    assert (config.id2label[1], config.id2label[5], config.id2label[6]) == ("cat", "dog", "LABEL_6")
    assert config.label2id["dog"] == 5


def test_timm_heads_follow_from_the_width_or_the_settings():
    # tiny; test_vit; giant of timm
    for width, heads in ((192, 3), (64, 2), (1408, 16)):
        theirs = timm_weights(width=width)
        assert from_timm(theirs).config.encoder_attention_heads == heads
    settings = {"model_args": {"num_heads": 2}}
    assert from_timm(theirs, settings).config.encoder_attention_heads == 2
    with pytest.raises(ValueError, match="does not tell its attention heads: give them with --hea"):
        from_timm(timm_weights(width=96))
    with pytest.raises(ValueError, match="heads=0: give a positive number"):
        TimmOptions(input="theirs", output="ours", heads=0)


def test_a_timm_folder_without_safetensors_is_read(tmp_path):
    theirs = timm_weights()
    torch.save(theirs, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps({"model_args": {"num_heads": 3}}))
    run("--format", "timm", "--input", tmp_path, "--output", tmp_path / "ours")
    model = VanillaForImageClassification.from_pretrained(tmp_path / "ours")
    images = torch.randn(3, 3, 15, 15)
    assert_close(model(images).logits, by_timm_weights(theirs, images), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pretrained_cfg": {"interpolation": "random"}}, "interpolation='random': give bicubic"),
        ({"pretrained_cfg": {"crop_mode": "squash"}}, "crop_mode='squash': give center"),
        ({"pretrained_cfg": {"crop_pct": "all"}}, "crop_pct is 'all': give"),
        ({"pretrained_cfg": [1]}, r"pretrained_cfg is \[1\]: give keys and values"),
        ({"pretrained_cfg": {}, "model_args": "x"}, "model_args is 'x': give keys and values"),
        ({"label_names": ["cat", "dog"]}, "has 7 classes, but 2 label_names .*: correct them"),
    ],
    ids=str,
)
def test_settings_of_timm_that_cannot_be_read_are_named(tmp_path, settings, message):
    save_file(timm_weights(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        run("--format", "timm", "--input", tmp_path, "--output", tmp_path / "ours", "--heads", 3)
    assert not (tmp_path / "ours").exists()


def test_timm_layers_that_shapes_do_not_tell_are_refused():
    for name, own, other in (("act_layer", "gelu", "relu"), ("norm_layer", "layernorm", "rmsnorm")):
        for value in (None, own):
            from_timm(timm_weights(), {"model_args": {name: value}}, heads=3)
        told = f"has {name}='{other}' in config.json; ours is '{own}'"
        with pytest.raises(ValueError, match=told):
            from_timm(timm_weights(), {"model_args": {name: other}}, heads=3)
