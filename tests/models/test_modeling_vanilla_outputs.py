"""What the model returns: loss, weights, states, caches, and the same gradient by other ways."""

import pytest
import torch
from torch.testing import assert_close

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.models.loss_vanilla import label_smoothed_loss

B, S, T = 3, 7, 5
D, V = 12, 43  # of `tiny_config`, with 2 encoder layers of 3 heads, 5 decoder layers of 2


def words(rows, length):
    return torch.randint(2, V, (rows, length))


def labels_with_gaps():
    labels = words(B, T)
    labels[0, 4:] = labels[1, 1:] = -100
    return labels


def test_labels_are_shifted_right_behind_the_start_token(tiny_model):
    labels = torch.tensor([[5, 6, 7, 1], [8, 1, -100, -100]])
    shifted = tiny_model.prepare_decoder_input_ids_from_labels(labels)
    assert shifted.tolist() == [[0, 5, 6, 7], [0, 8, 1, 0]]
    assert labels[1].tolist() == [8, 1, -100, -100]  # the caller's own tensor is left alone


@pytest.mark.parametrize("missing", ["decoder_start_token_id", "pad_token_id"])
def test_labels_without_a_start_or_padding_token_are_refused_with_a_remedy(tiny_config, missing):
    setattr(tiny_config, missing, None)
    model = VanillaForConditionalGeneration(tiny_config)
    with pytest.raises(ValueError, match=rf"{missing} \(now None\).*set both in the config"):
        model(input_ids=words(B, S), labels=words(B, T))


def test_the_loss_in_evaluation_is_the_likelihood_counted_by_hand(tiny_model):
    source, labels = words(B, S), labels_with_gaps()
    outputs = tiny_model(input_ids=source, labels=labels)
    inputs = tiny_model.prepare_decoder_input_ids_from_labels(labels)
    logits = tiny_model(input_ids=source, decoder_input_ids=inputs).logits
    probabilities = logits.softmax(dim=-1)
    nats = [
        -probabilities[row, place, labels[row, place]].log()
        for row in range(B)
        for place in range(T)
        if labels[row, place] != -100
    ]
    assert len(nats) == 4 + 1 + 5
    assert_close(outputs.loss, sum(nats) / 10)
    assert torch.equal(outputs.logits, logits)


@pytest.mark.parametrize("form", ["non_target", "uniform", "non_target_non_pad"])
def test_the_loss_is_smoothed_in_training_mode_only(tiny_config, form):
    tiny_config.dropout, tiny_config.label_smoothing_type = 0, form
    model = VanillaForConditionalGeneration(tiny_config)
    arguments = {"input_ids": words(B, S), "labels": labels_with_gaps()}
    trained, evaluated = model.train()(**arguments), model.eval()(**arguments)
    assert torch.equal(trained.logits, evaluated.logits)
    for outputs, smoothing in ((trained, 0.1), (evaluated, 0.0)):
        expected = label_smoothed_loss(
            outputs.logits,
            arguments["labels"],
            smoothing=smoothing,
            smoothing_type=form,
            pad_token_id=0,
        )
        assert torch.equal(outputs.loss, expected)
    assert trained.loss != evaluated.loss


@pytest.mark.parametrize(
    ("form", "nats"),
    # worked out by hand: the third of five words is true, the first is padding, eps is 0.1
    [("non_target", 0.761938), ("uniform", 0.724438), ("non_target_non_pad", 0.774438)],
)
def test_the_models_own_loss_has_the_numbers_worked_out_by_hand(tiny_config, form, nats):
    sizes = {"vocab_size": 5, "decoder_vocab_size": 5}
    options = {"tie_word_embeddings": False, "lm_head_bias": True, "label_smoothing_type": form}
    config = VanillaConfig(**{**tiny_config.to_diff_dict(), **sizes, **options, "dropout": 0})
    model = VanillaForConditionalGeneration(config)
    with torch.no_grad():  # whatever it reads, its logits are these
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0]))
    arguments = {"input_ids": torch.tensor([[3, 4, 1]]), "labels": torch.tensor([[2, 2, 0, -100]])}
    for loss, expected in (
        (model.train()(**arguments).loss, nats),
        (model.eval()(**arguments).loss, 0.574438),
    ):
        assert_close(loss.item(), expected, rtol=0, atol=6e-7)  # six places, in float32


def test_labels_padded_with_the_padding_token_do_not_count(tiny_model):
    labels = labels_with_gaps()
    source, padded = words(B, S), labels.masked_fill(labels == -100, 0)
    losses = [tiny_model(input_ids=source, labels=each).loss for each in (labels, padded)]
    assert torch.equal(losses[0], losses[1])
    assert padded[1, 1:].eq(0).all()  # the caller's own tensor is left alone


def test_labels_that_are_all_ignored_have_zero_loss_and_zero_gradient(tiny_model):
    model = tiny_model.train()
    loss = model(input_ids=words(B, S), labels=torch.full((B, T), -100)).loss
    loss.backward()
    assert loss.item() == 0
    assert all(parameter.grad.abs().max() == 0 for parameter in model.parameters())


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_eight_sentences_at_once_have_the_gradient_of_four_times_two(tiny_config):
    tiny_config.dropout = 0
    model = VanillaForConditionalGeneration(tiny_config).train()
    lengths = (2, 11, 3, 5, 7, 1, 13, 4)
    source, labels = words(8, S), words(8, 13)
    for row, length in enumerate(lengths):
        labels[row, length:] = -100
    model(input_ids=source, labels=labels).loss.backward()
    whole = gradients(model)
    model.zero_grad()
    for rows in torch.arange(8).split(2):
        model(
            input_ids=source[rows], labels=labels[rows], num_items_in_batch=sum(lengths)
        ).loss.backward()
    # the same float32 terms, summed in another order
    assert_close(gradients(model), whole, rtol=1e-4, atol=1e-6)


def test_padding_in_labels_changes_nothing_where_a_trainer_counts_it(tiny_model):
    source, labels = words(B, S), labels_with_gaps()
    plain = tiny_model(input_ids=source, labels=labels, num_items_in_batch=int((labels > 0).sum()))
    padded = labels.masked_fill(labels == -100, tiny_model.config.pad_token_id)
    counted = tiny_model(input_ids=source, labels=padded, num_items_in_batch=torch.tensor(B * T))
    assert_close(counted.loss, plain.loss)
    assert counted.loss > 2


def test_a_step_without_labels_has_no_loss_and_no_gradient(tiny_model):
    labels = torch.full((B, T), -100)
    loss = tiny_model(input_ids=words(B, S), labels=labels, num_items_in_batch=torch.tensor(0)).loss
    loss.backward()
    assert loss == 0
    assert all(gradient.eq(0).all() for gradient in gradients(tiny_model).values())


def test_an_end_token_that_also_pads_is_learned(tiny_config):
    tiny_config.pad_token_id = tiny_config.eos_token_id
    model = VanillaForConditionalGeneration(tiny_config).eval()
    source, labels = words(1, S), torch.tensor([[5, 6, tiny_config.eos_token_id]])
    outputs = model(input_ids=source, labels=labels)
    likely = outputs.logits.log_softmax(dim=-1)[0, range(3), labels[0]]
    assert_close(outputs.loss, -likely.mean())


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_computes_twice_and_changes_nothing(tiny_config, use_reentrant):
    tiny_config.attention_dropout = 0.1
    model = VanillaForConditionalGeneration(tiny_config).train()
    calls = []
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        layer.fc1.register_forward_hook(lambda *_: calls.append(1))
    arguments = {"input_ids": words(B, S), "labels": labels_with_gaps()}

    def forward_and_backward():
        calls.clear()
        model.zero_grad()
        torch.manual_seed(29)  # the same dropout
        loss = model(**arguments).loss
        loss.backward()
        return loss, gradients(model), len(calls)

    loss, expected, once = forward_and_backward()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    its_loss, actual, twice = forward_and_backward()
    assert (once, twice) == (7, 14)
    assert torch.equal(its_loss, loss)
    # recomputed by the same operations; only the order of the sums over layers may differ
    assert_close(actual, expected, rtol=1e-5, atol=1e-7)


def test_every_attention_gives_its_weights_under_eager(tiny_model):
    tiny_model.set_attn_implementation("eager")
    source = words(B, S)
    source[1, 3:] = 0
    outputs = tiny_model(input_ids=source, decoder_input_ids=words(B, T), output_attentions=True)
    shapes = {
        "encoder_attentions": [(B, 3, S, S)] * 2,
        "decoder_attentions": [(B, 2, T, T)] * 5,
        "cross_attentions": [(B, 2, T, S)] * 5,
    }
    for name, expected in shapes.items():
        assert [weights.shape for weights in outputs[name]] == expected
        for weights in outputs[name]:  # float32 sums of seven numbers
            assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:3]), rtol=0, atol=1e-6)
    assert all(weights[1, ..., 3:].eq(0).all() for weights in outputs.cross_attentions)
    assert all(weights.triu(1).eq(0).all() for weights in outputs.decoder_attentions)


def test_every_state_from_the_embedding_to_the_last_layer_is_returned(tiny_model):
    arguments = {"input_ids": words(B, S), "decoder_input_ids": words(B, T)}
    outputs = tiny_model(**arguments, output_hidden_states=True)
    inner = tiny_model.model
    assert [h.shape for h in outputs.encoder_hidden_states] == [(B, S, D)] * 3
    assert [h.shape for h in outputs.decoder_hidden_states] == [(B, T, D)] * 6
    embedded = inner.encoder.embed(arguments["input_ids"], None, None)
    assert torch.equal(outputs.encoder_hidden_states[0], embedded)
    embedded = inner.decoder.embed(arguments["decoder_input_ids"], None, None)
    assert torch.equal(outputs.decoder_hidden_states[0], embedded)
    assert torch.equal(outputs.encoder_hidden_states[-1], outputs.encoder_last_hidden_state)
    assert torch.equal(tiny_model.lm_head(outputs.decoder_hidden_states[-1]), outputs.logits)


def test_nothing_is_recorded_unless_asked_for(tiny_model):
    outputs = tiny_model(input_ids=words(B, S), decoder_input_ids=words(B, T))
    recorded = {name for name in outputs if "attentions" in name or name.endswith("hidden_states")}
    assert not recorded


def test_a_tuple_is_returned_on_request(tiny_model):
    arguments = {"input_ids": words(B, S), "labels": words(B, T)}
    outputs = tiny_model(**arguments)
    loss, logits, *_ = tiny_model(**arguments, return_dict=False)
    assert torch.equal(loss, outputs.loss)
    assert torch.equal(logits, outputs.logits)


def test_the_cache_has_one_entry_for_every_decoder_layer(tiny_model):
    cache = tiny_model(input_ids=words(B, S), decoder_input_ids=words(B, T)).past_key_values
    own, of_source = cache.self_attention_cache, cache.cross_attention_cache
    assert [layer.keys.shape for layer in own.layers] == [(B, 2, T, 6)] * 5
    assert [layer.keys.shape for layer in of_source.layers] == [(B, 2, S, 6)] * 5


@pytest.mark.parametrize("setting", ["argument", "config", "labels"])
def test_no_cache_is_kept_where_none_is_wanted(tiny_model, setting):
    arguments = {"input_ids": words(B, S), "decoder_input_ids": words(B, T)}
    if setting == "argument":
        arguments["use_cache"] = False
    elif setting == "config":
        tiny_model.config.use_cache = False
    else:
        arguments["labels"] = words(B, T)
    assert tiny_model(**arguments).past_key_values is None


def test_only_the_last_logits_are_computed_on_request(tiny_model):
    arguments = {"input_ids": words(B, S), "decoder_input_ids": words(B, T)}
    logits = tiny_model(**arguments).logits
    last = tiny_model(**arguments, logits_to_keep=2).logits
    assert last.shape == (B, 2, V)
    # a float32 matrix product over fewer rows may sum in another order
    assert_close(last, logits[:, -2:], rtol=0, atol=1e-6)


def test_without_its_scale_the_embedding_enters_as_it_is():
    sizes = {"vocab_size": V, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    scaled, plain = (
        VanillaForConditionalGeneration(VanillaConfig(**sizes, scale_embedding=scale)).eval()
        for scale in (True, False)
    )
    plain.load_state_dict(scaled.state_dict())
    with torch.no_grad():
        plain.model.shared.weight.mul_(4)  # sqrt(16)
    ids = words(B, S)
    embedded = [model.model.encoder.embed(ids, None, None) for model in (scaled, plain)]
    assert torch.equal(*embedded)
