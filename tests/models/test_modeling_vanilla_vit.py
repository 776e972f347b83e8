"""The Vision Transformer, held against transformers' own and against its definition."""

import pytest
import torch
from image_models import lively, their_vit, vit, vit_config
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.testing import assert_close
from transformers import AutoModel, AutoModelForImageClassification, Trainer, TrainingArguments

from hf_vanilla import VanillaForImageClassification, VanillaVitConfig, VanillaVitModel
from hf_vanilla.convert.vit import CLASSIFIER_NAMES, from_vit
from hf_vanilla.convert.weight_names import rename_to_ours
from hf_vanilla.models.modeling_vanilla_vit import resized

EXACT = {"rtol": 0, "atol": 0}
CLOSE = {"rtol": 0, "atol": 1e-6}  # float32, sums in another order


@pytest.fixture(params=["eager", "sdpa"])
def pair(request):
    """Transformers' ViT and ours with its weights, by the same attention implementation."""
    theirs = their_vit(request.param)
    ours = from_vit(theirs)
    ours.set_attn_implementation(request.param)
    return theirs, ours


def test_logits_states_and_attentions_equal_transformers_to_the_last_bit(pair):
    theirs, ours = pair
    images = torch.randn(5, 3, 15, 15)
    is_eager = theirs.config._attn_implementation == "eager"
    options = {"output_hidden_states": True, "output_attentions": is_eager}
    expected, found = theirs(images, **options), ours(images, **options)
    assert_close(found.logits, expected.logits, **EXACT)
    assert len(found.hidden_states) == len(expected.hidden_states) == 3
    for ours_state, theirs_state in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert_close(ours_state, theirs_state, **EXACT)
    if is_eager:
        for weights, their_weights in zip(found.attentions, expected.attentions, strict=True):
            assert weights.shape == (5, 3, 10, 10)
            assert_close(weights, their_weights, **EXACT)


def test_loss_and_gradients_equal_transformers(pair):
    theirs, ours = pair
    images, labels = torch.randn(5, 3, 15, 15), torch.tensor([1, 6, 0, 2, 2])
    expected, found = theirs(images, labels=labels).loss, ours(images, labels=labels).loss
    assert_close(found, expected, **CLOSE)
    expected.backward()
    found.backward()
    gradients = {name: weight.grad for name, weight in theirs.named_parameters()}
    renamed = rename_to_ours(gradients, CLASSIFIER_NAMES).weights
    for name, weight in ours.named_parameters():
        assert_close(weight.grad, renamed[name], **CLOSE)


def test_the_body_with_a_pooler_equals_transformers():
    theirs = their_vit(is_body=True)
    ours = from_vit(theirs)
    assert isinstance(ours, VanillaVitModel)
    images = torch.randn(2, 3, 15, 15)
    expected, found = theirs(images), ours(images)
    assert_close(found.last_hidden_state, expected.last_hidden_state, **CLOSE)
    assert_close(found.pooler_output, expected.pooler_output, **CLOSE)


def test_positions_are_interpolated_as_by_transformers(pair):
    theirs, ours = pair
    images = torch.randn(2, 3, 35, 20)
    expected = theirs(images, interpolate_pos_encoding=True).logits
    assert_close(ours(images, interpolate_pos_encoding=True).logits, expected, **CLOSE)


@pytest.mark.parametrize("size", [(15, 20), (20, 15), (35, 30), (5, 5), (65, 185)])
def test_every_size_gets_one_position_per_patch(size):
    logits = vit()(torch.randn(2, 3, *size), interpolate_pos_encoding=True).logits
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


def test_vit_b_16_has_as_many_parameters_as_published():
    with torch.device("meta"):
        model = VanillaForImageClassification(VanillaVitConfig(num_labels=1000))
    assert sum(weight.numel() for weight in model.parameters()) == 86_567_656


def test_a_model_saved_at_another_size_gives_the_interpolated_logits(tmp_path):
    model, images = vit(), torch.randn(2, 3, 30, 35)
    expected = model(images, interpolate_pos_encoding=True).logits
    model.resize_positions(30, 35)
    model.save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert again.config.grid == (6, 7)
    assert_close(again(images).logits, expected, **EXACT)
    with pytest.raises(ValueError, match=r"image_size=\[32, 35\] is not a multiple .* \(35, 35\)"):
        again.resize_positions(32, 35)
    assert again.config.grid == (6, 7)


def test_frozen_positions_stay_frozen_when_they_are_resized():
    model = vit()
    model.model.embeddings.positions.requires_grad_(False)
    model.resize_positions(30, 35)
    assert not model.model.embeddings.positions.requires_grad


def test_weights_of_another_size_are_reported_by_name(tmp_path):
    vit().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"embeddings\.positions has shape .*resize_positions"):
        VanillaForImageClassification.from_pretrained(tmp_path, image_size=[30, 35])
    with pytest.raises(RuntimeError, match=r"classifier\.bias has shape \(7,\), expected \(5,\)"):
        VanillaForImageClassification.from_pretrained(tmp_path, num_labels=5)


def test_a_model_is_built_from_weights_without_a_folder():
    model = vit()
    again = VanillaForImageClassification.from_pretrained(
        pretrained_model_name_or_path=None, config=model.config, state_dict=model.state_dict()
    )
    images = torch.randn(2, 3, 15, 20)
    assert_close(again(images).logits, model(images).logits, **EXACT)


def test_interpolation_by_hand_with_the_cubic_kernel():
    """Keys' kernel with a = -0.75, as torch has it; pixel centres, so row 5 of 12 lies at 2.25."""

    def weight(distance, a=-0.75):
        if distance <= 1:
            return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
        return a * (distance**3 - 5 * distance**2 + 8 * distance - 4)

    table = torch.randn(6, 6)
    columns_equal = table[:, :1].expand(6, 6).reshape(1, 36, 1)
    positions = torch.cat((torch.full((1, 1, 1), 9.0), columns_equal), dim=1)
    found = resized(positions, (6, 6), (12, 4))
    assert found[0, 0, 0] == 9.0
    expected = sum(weight(abs(2.25 - row)) * table[row, 0] for row in range(1, 5))
    assert_close(found[0, 1:].view(12, 4)[5], expected.expand(4))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_computing_the_class_token_alone_leaves_logits_and_gradients(implementation):
    model = vit(attn_implementation=implementation)
    images, labels = torch.randn(3, 3, 15, 20), torch.tensor([1, 2, 3])
    short = model(images, labels=labels)
    full = model(images, labels=labels, output_hidden_states=True)
    assert short.hidden_states is None
    assert full.hidden_states[-1].shape == (3, 13, 24)
    assert_close(short.logits, full.logits, **CLOSE)
    gradients = torch.autograd.grad(short.loss, list(model.parameters()))
    expected = torch.autograd.grad(full.loss, list(model.parameters()))
    for gradient, other in zip(gradients, expected, strict=True):
        assert_close(gradient, other, **CLOSE)


def test_the_last_layer_computes_one_token_when_only_logits_are_asked_for():
    model, shapes = vit(), []
    model.model.layers[-1].fc1.register_forward_hook(lambda *call: shapes.append(call[2].shape))
    model(torch.randn(3, 3, 15, 20))
    model(torch.randn(3, 3, 15, 20), output_attentions=True)
    assert shapes == [(3, 1, 29), (3, 13, 29)]


def test_without_gradients_nothing_is_overwritten_that_a_hook_reads():
    model, images = vit(), torch.randn(110, 3, 15, 20)  # many numbers
    expected = model(images).logits
    calls = []
    with torch.no_grad():
        assert_close(model(images).logits, expected, **EXACT)
        layer = model.model.layers[0]
        parts = (layer.self_attn.out_proj, layer.fc1, layer.fc2)
        hooks = [part.register_forward_hook(lambda *call: calls.append(call)) for part in parts]
        assert_close(model(images).logits, expected, **EXACT)
        for part, (states,), found in calls:
            assert_close(found, nn.functional.linear(states, part.weight, part.bias), **EXACT)
        assert len(calls) == 3
        for hook in hooks:
            hook.remove()
        of_all = register_module_forward_hook(lambda *call: calls.append(call))
        model(images)
        of_all.remove()
        (states,), found = next(call[1:] for call in calls[3:] if call[0] is layer.fc1)
        assert_close(found, layer.fc1(states), **EXACT)
        layer.activation_fn.forward = lambda states: calls.append(states) or states.relu()
        model(images)
    assert calls[-1].min() < -0.2  # less than any GELU


def test_permuting_patches_with_their_positions_changes_nothing():
    model, images = vit(), torch.randn(2, 3, 15, 20)
    before = model(images).logits
    order = torch.randperm(12)
    patches = images.unfold(2, 5, 5).unfold(3, 5, 5).reshape(2, 3, 12, 5, 5)[:, :, order]
    shuffled = patches.reshape(2, 3, 3, 4, 5, 5).permute(0, 1, 2, 4, 3, 5).reshape(2, 3, 15, 20)
    assert not torch.allclose(model(shuffled).logits, before, atol=1e-3)
    positions = model.model.embeddings.positions
    with torch.no_grad():
        positions[:, 1:] = positions[:, 1:][:, order]
    assert_close(model(shuffled).logits, before, **CLOSE)


def test_batch_mates_change_nothing():
    model, images = vit(), torch.randn(3, 3, 15, 20)
    assert_close(model(images).logits[1:2], model(images[1:2]).logits, **CLOSE)


def test_initial_values():
    """Sines of row and column, by hand; zeros for the class token; patches by their fan-in."""
    model = VanillaForImageClassification(vit_config(d_model=192, patch_size=1, image_size=[3, 5]))
    embeddings = model.model.embeddings
    assert not embeddings.class_token.any()
    assert not embeddings.positions[0, 0].any()
    table = embeddings.positions[0, 1:].view(3, 5, 192)
    assert_close(table[:, 0, :96], table[:, 4, :96], **EXACT)  # rows first
    assert_close(table[0, :, 96:], table[2, :, 96:], **EXACT)  # then columns
    assert len(torch.unique(table.flatten(0, 1), dim=0)) == 15
    fan_in = 3.0
    assert embeddings.patch_projection.weight.std().item() == pytest.approx(fan_in**-0.5, rel=0.1)
    assert model.classifier.weight.any()


def test_normal_positions_are_drawn_where_the_config_says_so():
    positions = VanillaVitModel(vit_config(position_start="normal", image_size=100)).embeddings
    assert positions.positions.std().item() == pytest.approx(0.02, rel=0.05)


def test_a_new_head_on_trained_weights_starts_at_zero(tmp_path):
    vit().save_pretrained(tmp_path)
    model = VanillaForImageClassification.from_pretrained(
        tmp_path, num_labels=4, ignore_mismatched_sizes=True
    )
    assert model.classifier.weight.shape == (4, 24)
    assert not model.classifier.weight.any()
    assert not model.classifier.bias.any()
    assert model.model.layers[0].fc1.weight.any()


@pytest.mark.parametrize("option", ["ignore_mismatched_sizes", "output_loading_info"])
def test_weights_of_another_size_are_named_beside_options_of_loading(tmp_path, option):
    vit().save_pretrained(tmp_path)
    given = {"num_labels": 4, option: option == "output_loading_info"}
    with pytest.raises(ValueError, match=r"classifier\.bias has shape \(7,\), expected \(4,\)"):
        VanillaForImageClassification.from_pretrained(tmp_path, **given)


def test_the_body_and_the_classifier_load_each_others_folders(tmp_path):
    model, images = vit(), torch.randn(2, 3, 15, 20)
    model.save_pretrained(tmp_path)
    body = AutoModel.from_pretrained(tmp_path)
    assert_close(
        model.classifier(body(images).last_hidden_state[:, 0]), model(images).logits, **CLOSE
    )


# --- losses ------------------------------------------------------------------------------------


def test_the_loss_of_several_labels_and_of_a_regression():
    images = torch.randn(3, 3, 15, 20)
    model = vit()
    targets = torch.rand(3, 7)
    found = model(images, labels=targets)
    expected = nn.functional.binary_cross_entropy_with_logits(found.logits, targets)
    assert_close(found.loss, expected)
    model = vit(problem_type="regression")
    found = model(images, labels=targets)
    assert_close(found.loss, nn.functional.mse_loss(found.logits, targets))
    model = vit(num_labels=1)
    found = model(images, labels=targets[:, 0])
    assert_close(found.loss, nn.functional.mse_loss(found.logits.squeeze(1), targets[:, 0]))
    assert model.config.problem_type is None  # the labels decide each time


def test_labels_are_smoothed_in_training_alone():
    model = vit(label_smoothing=0.2)
    images, labels = torch.randn(3, 3, 15, 20), torch.tensor([1, 2, 3])
    plain = model.eval()(images, labels=labels)
    smoothed = model.train()(images, labels=labels)
    log_probs = plain.logits.log_softmax(-1)
    nll = -log_probs[range(3), labels].mean()
    assert_close(plain.loss, nll)
    assert_close(smoothed.loss, 0.8 * nll - 0.2 * log_probs.mean())


def test_ignored_labels_count_for_nothing():
    model, images = vit(), torch.randn(3, 3, 15, 20)
    loss = model(images, labels=torch.tensor([4, -100, 5])).loss
    assert_close(loss, model(images[[0, 2]], labels=torch.tensor([4, 5])).loss, **CLOSE)


def test_a_batch_without_labels_has_no_loss_and_no_gradient():
    model = vit()
    loss = model(torch.randn(2, 3, 15, 20), labels=torch.tensor([-100, -100])).loss
    loss.backward()
    assert loss == 0
    assert all(weight.grad.eq(0).all() for weight in model.parameters())


def test_gradients_of_the_loss_in_float64_equal_finite_differences():
    model = vit().double().eval()
    images = torch.randn(1, 3, 15, 20, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1])
    assert torch.autograd.gradcheck(
        lambda pixels: model(pixels, labels=labels).loss, images, fast_mode=True
    )


@pytest.mark.parametrize("kind", ["single", "multi", "regression"])
def test_micro_batches_of_unequal_size_give_the_gradient_of_one_batch(kind):
    model = vit(problem_type="regression" if kind == "regression" else None)
    images = torch.randn(5, 3, 15, 20)
    labels = torch.tensor([1, 2, 3, 4, 5]) if kind == "single" else torch.rand(5, 7)
    model(images, labels=labels).loss.backward()
    expected = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    for part in (slice(0, 4), slice(4, 5)):
        model(images[part], labels=labels[part], num_items_in_batch=labels.numel()).loss.backward()
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        assert_close(weight.grad, gradient, **CLOSE)


def test_accumulation_by_trainer_gives_the_weights_of_one_batch(tmp_path):
    rows = [
        {"pixel_values": image, "labels": label}
        for image, label in zip(torch.randn(8, 3, 15, 20), range(1, 7), strict=False)
    ]
    start = vit().state_dict()
    trained = []
    for batch, accumulation in ((6, 1), (2, 3)):
        model = VanillaForImageClassification(vit_config())
        model.load_state_dict(start)
        arguments = TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            num_train_epochs=1,
            optim="sgd",
            learning_rate=0.1,
            max_grad_norm=0,
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=rows).train()
        trained.append(model.state_dict())
    assert not torch.equal(trained[0]["classifier.weight"], start["classifier.weight"])
    for name, weight in trained[0].items():
        assert_close(trained[1][name], weight, rtol=0, atol=1e-6)


# --- messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 1, 15, 20), "images of 1 channels, but this model reads num_channels=3"),
        ((2, 3, 15, 15), r"images of 15 x 15 pixels, but image_size=\[15, 20\].*resize_positions"),
        ((3, 15, 20), r"pixel_values of shape \(3, 15, 20\): give \(batch, channels"),
    ],
)
def test_wrong_images_are_refused_by_name_and_value(shape, message):
    with pytest.raises(ValueError, match=message):
        vit()(torch.randn(shape))


def test_images_that_are_not_whole_patches_are_refused():
    with pytest.raises(ValueError, match="17 x 20 pixels are not cut into whole patches"):
        vit()(torch.randn(1, 3, 17, 20), interpolate_pos_encoding=True)


def test_labels_beyond_the_head_are_refused():
    with pytest.raises(ValueError, match="labels from 2 to 7, but the model has 7 labels"):
        vit()(torch.randn(2, 3, 15, 20), labels=torch.tensor([2, 7]))
    with pytest.raises(ValueError, match=r"labels of shape \(2, 6\)"):
        vit()(torch.randn(2, 3, 15, 20), labels=torch.rand(2, 6))
    one_hot = torch.eye(7, dtype=torch.long)[:2]
    with pytest.raises(ValueError, match=r"labels of shape \(2, 7\).*several labels as floats"):
        vit()(torch.randn(2, 3, 15, 20), labels=one_hot)


def test_a_config_that_cannot_be_built_is_refused():
    cases = [
        ({"image_size": 224, "patch_size": 15}, r"224 is not a multiple of patch_size=15.*225"),
        ({"image_size": [1, 2, 3]}, "height and width"),
        ({"patch_size": 0}, "patch_size=0"),
        ({"d_model": 25}, "d_model=25"),
        ({"position_start": "sine"}, "position_start='sine'"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"encoder_layers": 0}, "encoder_layers=0"),
        ({"problem_type": "two"}, "problem_type='two'"),
        ({"activation_function": "gulu"}, "activation_function='gulu'"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps=0.0"),
        ({"d_model": 6, "encoder_attention_heads": 3}, "d_model=6 is not a multiple of 4"),
    ]
    for changes, message in cases:
        with pytest.raises(Exception, match=message):
            VanillaVitConfig(**changes)


# --- tools of transformers and torch -----------------------------------------------------------


def test_checkpointing_gives_the_same_gradients():
    model = vit().train()
    images, labels = torch.randn(3, 3, 15, 20), torch.tensor([1, 2, 3])
    expected = torch.autograd.grad(model(images, labels=labels).loss, list(model.parameters()))
    model.gradient_checkpointing_enable()
    model(images, labels=labels).loss.backward()
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        assert_close(weight.grad, gradient, **EXACT)


def test_half_precision_is_close_to_full():
    model, images = vit(), torch.randn(3, 3, 15, 20)
    expected = model(images).logits
    with torch.no_grad():
        found = model.to(torch.bfloat16)(images).logits
    assert found.dtype == torch.bfloat16
    # bfloat16 keeps 8 bits: 0.4 % of values that reach 10
    assert_close(found.float(), expected, rtol=0.05, atol=0.2)


def test_lora_trains_few_weights_and_changes_the_logits():
    peft = pytest.importorskip("peft")
    model, images = vit(), torch.randn(3, 3, 15, 20)
    before = model(images).logits.detach()
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"]
    )
    tuned = peft.get_peft_model(model, config)
    assert_close(tuned(images).logits, before, **CLOSE)
    optimizer = torch.optim.SGD([w for w in tuned.parameters() if w.requires_grad], lr=0.1)
    for _ in range(2):
        tuned(images, labels=torch.tensor([0, 1, 2])).loss.backward()
        optimizer.step()
    assert not torch.allclose(tuned(images).logits, before)
    assert not any(w.requires_grad for n, w in tuned.named_parameters() if "fc1" in n)


@pytest.mark.slow
def test_int8_weights_keep_the_labels():
    model, images = vit(), torch.randn(20, 3, 15, 20)
    expected = model(images).logits
    linear = {nn.Linear}
    found = torch.ao.quantization.quantize_dynamic(model, linear, dtype=torch.qint8)(images).logits
    spread = expected.std()
    assert (found - expected).abs().max() < 0.2 * spread  # 7 bits a weight, two layers


@pytest.mark.slow
def test_compiled_as_one_graph_it_gives_the_same_logits():
    model, images = vit(), torch.randn(3, 3, 15, 20)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_close(compiled(images).logits, model(images).logits, **CLOSE)


@pytest.mark.slow
def test_exported_programs_take_batches_and_images_of_any_size():
    model = vit()
    batch, rows, columns = (torch.export.Dim(name, min=2, max=64) for name in ("b", "r", "c"))
    sizes = {"pixel_values": {0: batch, 2: 5 * rows, 3: 5 * columns}}
    program = torch.export.export(
        Interpolating(model), (torch.randn(3, 3, 20, 30),), dynamic_shapes=sizes
    )
    for shape in ((2, 3, 20, 15), (5, 3, 35, 50)):
        images = torch.randn(shape)
        expected = model(images, interpolate_pos_encoding=True).logits
        assert_close(program.module()(images), expected, rtol=0, atol=1e-5)


@pytest.mark.release
def test_onnx_runtime_gives_the_same_logits_for_batches_and_images_of_any_size(tmp_path):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    runtime = pytest.importorskip("onnxruntime")
    model, path = vit(), str(tmp_path / "vit.onnx")
    batch, rows, columns = (torch.export.Dim(name, min=2, max=64) for name in ("b", "r", "c"))
    torch.onnx.export(
        Interpolating(model).eval(),
        (torch.randn(3, 3, 20, 30),),
        path,
        dynamo=True,
        input_names=["pixel_values"],
        dynamic_shapes={"pixel_values": {0: batch, 2: 5 * rows, 3: 5 * columns}},
        verbose=False,
    )
    session = runtime.InferenceSession(path)
    for shape in ((2, 3, 20, 15), (5, 3, 35, 50)):
        images = torch.randn(shape)
        expected = model(images, interpolate_pos_encoding=True).logits.detach()
        (found,) = session.run(None, {"pixel_values": images.numpy()})
        assert_close(torch.from_numpy(found), expected, rtol=0, atol=1e-4)  # bicubic in float32


class Interpolating(nn.Module):
    """Logits of images of any size, as one output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values):
        return self.model(pixel_values, interpolate_pos_encoding=True).logits


def test_every_parameter_gets_a_gradient():
    model = lively(VanillaForImageClassification(vit_config(has_pooler=True)))
    model(torch.randn(2, 3, 15, 20), labels=torch.tensor([1, 2])).loss.backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())
