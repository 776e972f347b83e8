"""Encoder, classifier and language model: their numbers, held against the paper written out."""

import pytest
import torch
from reference import assert_same, decode, encode, part
from theirs import causal, copy_encoder_layer
from torch import nn
from torch.testing import assert_close
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    Trainer,
    TrainingArguments,
)

from hf_vanilla import (
    VanillaConfig,
    VanillaEncoderModel,
    VanillaForCausalLM,
    VanillaForSequenceClassification,
)

B, L, S, C = 3, 7, 5, 4
SIZES = {
    "vocab_size": 43,
    "d_model": 12,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
    "num_labels": C,
}
OWN_TABLES = {"decoder_vocab_size": 37, "share_encoder_decoder_embeddings": False}
UNTIED = {"tie_word_embeddings": False}
# double precision through at most three layers
DOUBLE = {"rtol": 0, "atol": 1e-9}
HALVES = [VanillaEncoderModel, VanillaForSequenceClassification, VanillaForCausalLM]
EACH_HALF = pytest.mark.parametrize("half", HALVES)
EACH_SHARING = pytest.mark.parametrize(
    "sharing",
    [{}, UNTIED, OWN_TABLES, {**OWN_TABLES, **UNTIED}],
    ids=["one table", "output apart", "source apart", "three tables"],
)
BOTH = pytest.mark.parametrize("implementation", ["eager", "sdpa"])


def half_with(half, **changes):
    """In double precision, and no weight at its start of zero or one."""
    model = half(VanillaConfig(**{**SIZES, **changes})).eval().double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def words(*shape):
    return torch.randint(2, 37, shape)


def padded(lengths, *, side="right"):
    """Ids with padding after or before their first words, and the mask of the real ones."""
    real = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    real = real if side == "right" else real.flip(1)
    return words(len(lengths), max(lengths)).masked_fill(~real, 0), real.long()


def encodings(model, prefix, ids, mask):
    """What the paper written out makes of each sentence alone."""
    weights = part(model.state_dict(), prefix)
    rows = zip(ids, mask, strict=True)
    return [encode(row[real == 1].tolist(), weights, model.config) for row, real in rows]


# --- the encoder -------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_encoder_only_model_is_the_papers_encoder_for_each_sentence(side, implementation):
    model = half_with(VanillaEncoderModel)
    model.set_attn_implementation(implementation)
    ids, mask = padded([7, 2, 5], side=side)
    found = model(input_ids=ids, attention_mask=mask).last_hidden_state
    for row, expected in enumerate(encodings(model, "encoder", ids, mask)):
        assert_close(found[row, mask[row] == 1], expected, **DOUBLE)


@EACH_HALF
def test_a_missing_mask_of_an_encoder_is_made_from_the_padding(half):
    model = half_with(half)
    ids, mask = padded([7, 2, 5])
    without, given = model(input_ids=ids), model(input_ids=ids, attention_mask=mask)
    if half is VanillaForCausalLM:  # padding on the right is never seen by what stands before it
        assert_close(without.logits[mask == 1], given.logits[mask == 1], **DOUBLE)
    else:
        assert_close(without[0], given[0], rtol=0, atol=0)


@EACH_HALF
def test_vectors_instead_of_ids_give_the_same(half):
    model = half_with(half)
    ids, mask = padded([7, 2, 5])
    vectors = model.get_input_embeddings()(ids)
    by_ids = model(input_ids=ids, attention_mask=mask)
    by_vectors = model(inputs_embeds=vectors, attention_mask=mask)
    assert_close(by_vectors[0], by_ids[0], rtol=0, atol=0)


@EACH_HALF
def test_attentions_and_states_of_every_layer_are_returned_on_request(half):
    model = half_with(half)
    model.set_attn_implementation("eager")
    asked = {"output_attentions": True, "output_hidden_states": True}
    outputs = model(input_ids=words(B, L), **asked)
    layers, heads = (3, 2) if half is VanillaForCausalLM else (2, 3)
    assert [weights.shape for weights in outputs.attentions] == [(B, heads, L, L)] * layers
    assert [states.shape for states in outputs.hidden_states] == [(B, L, 12)] * (layers + 1)


def test_the_callers_config_is_left_as_it_was():
    config = VanillaConfig(**SIZES, **OWN_TABLES)
    before = config.to_dict()
    models = [half(config) for half in HALVES]
    assert config.to_dict() == before
    assert not any(model.config.is_encoder_decoder for model in models)


# --- the classifier ----------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_text_is_classified_by_the_mean_of_its_real_tokens(side):
    model = half_with(VanillaForSequenceClassification)
    ids, mask = padded([7, 2, 5], side=side)
    logits = model(input_ids=ids, attention_mask=mask).logits
    assert logits.shape == (B, C)
    weight, bias = model.classifier.weight, model.classifier.bias
    for row, states in enumerate(encodings(model, "model.encoder", ids, mask)):
        assert_close(logits[row], weight @ (states.sum(0) / len(states)) + bias, **DOUBLE)


def test_a_text_of_only_padding_is_classified_by_the_bias_alone():
    model = half_with(VanillaForSequenceClassification)
    ids, mask = padded([7, 0, 5])
    logits = model(input_ids=ids, attention_mask=mask).logits
    assert_close(logits[1], model.classifier.bias, **DOUBLE)
    assert logits.isfinite().all()


def single_label_by_hand(logits, labels):
    nats = [
        -logits[row].softmax(-1)[label].log() for row, label in enumerate(labels) if label != -100
    ]
    return sum(nats) / len(nats)


def multi_label_by_hand(logits, labels):
    chance = 1 / (1 + (-logits).exp())
    return -(labels * chance.log() + (1 - labels) * (1 - chance).log()).mean()


def squared_error_by_hand(logits, labels):
    return ((logits.reshape(labels.shape) - labels) ** 2).mean()


PROBLEMS = {
    "single": ({}, lambda rows: torch.randint(C, (rows,)), single_label_by_hand),
    "multi": ({}, lambda rows: torch.randint(2, (rows, C)).double(), multi_label_by_hand),
    "value": ({"num_labels": 1}, lambda rows: torch.randn(rows).double(), squared_error_by_hand),
    "values": (
        {"problem_type": "regression"},
        lambda rows: torch.randn(rows, C).double(),
        squared_error_by_hand,
    ),
}
EACH_PROBLEM = pytest.mark.parametrize("problem", PROBLEMS)


@EACH_PROBLEM
def test_the_loss_of_a_classifier_is_the_one_worked_out_by_hand(problem):
    changes, make_labels, by_hand = PROBLEMS[problem]
    model = half_with(VanillaForSequenceClassification, **changes)
    labels = make_labels(B)
    outputs = model(input_ids=words(B, L), labels=labels)
    assert_close(outputs.loss, by_hand(outputs.logits, labels), **DOUBLE)


def test_an_ignored_class_does_not_count():
    model = half_with(VanillaForSequenceClassification)
    labels = torch.tensor([2, -100, 1])
    outputs = model(input_ids=words(B, L), labels=labels)
    assert_close(outputs.loss, single_label_by_hand(outputs.logits, labels.tolist()), **DOUBLE)


@EACH_PROBLEM
def test_the_losses_of_micro_batches_add_up_to_that_of_all(problem):
    changes, make_labels, _ = PROBLEMS[problem]
    model = half_with(VanillaForSequenceClassification, **changes)
    ids, labels = words(5, L), make_labels(5)
    whole = model(input_ids=ids, labels=labels).loss
    count = torch.tensor(labels.numel())  # as Trainer counts
    losses = [
        model(input_ids=ids[rows], labels=labels[rows], num_items_in_batch=count).loss
        for rows in (slice(0, 3), slice(3, 5))
    ]
    assert_close(sum(losses), whole, **DOUBLE)


# --- the language model ------------------------------------------------------------------------


@BOTH
def test_the_language_model_is_torchs_encoder_under_a_causal_mask(implementation):
    """A decoder without a source is an encoder that does not look ahead."""
    model = half_with(VanillaForCausalLM, attention_bias=True)
    model.set_attn_implementation(implementation)
    ids = words(B, L)
    states = model.model.decoder.embed(ids, None, None)
    for layer in model.model.decoder.layers:
        theirs = nn.TransformerEncoderLayer(
            12, 2, 31, dropout=0.0, layer_norm_eps=1e-6, batch_first=True
        ).double()
        copy_encoder_layer(theirs, layer)
        states = theirs(states, src_mask=causal(L))
    assert_close(model(input_ids=ids).logits, model.lm_head(states), **DOUBLE)


@BOTH
def test_with_a_source_it_is_the_papers_decoder(implementation):
    model = half_with(VanillaForCausalLM, add_cross_attention=True)
    model.set_attn_implementation(implementation)
    ids, source = words(B, L), torch.randn(B, S, 12).double()
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 1, 0]])
    given = {"encoder_hidden_states": source, "encoder_attention_mask": mask}
    logits = model(input_ids=ids, **given).logits
    weights = part(model.state_dict(), "model.decoder")
    for row in range(B):
        seen = source[row, mask[row] == 1]
        states = decode(ids[row].tolist(), seen, weights, model.config)
        assert_close(logits[row], states @ model.lm_head.weight.T, **DOUBLE)


def test_a_source_is_refused_where_there_is_no_attention_to_it():
    model = half_with(VanillaForCausalLM)
    with pytest.raises(ValueError, match="needs a decoder with add_cross_attention=True"):
        model(input_ids=words(B, L), encoder_hidden_states=torch.randn(B, S, 12).double())
    assert not any("encoder_attn" in name for name, _ in model.named_parameters())


def test_several_texts_in_one_row_need_a_mask_and_not_positions():
    model, first, second = half_with(VanillaForCausalLM), words(1, 4), words(1, 3)
    row = torch.cat([first, second], dim=1)
    own = torch.block_diag(torch.ones(4, 4), torch.ones(3, 3)).tril().bool()[None, None]
    logits = model(row, attention_mask=own).logits
    for text, found in ((first, logits[:, :4]), (second, logits[:, 4:])):
        assert_close(found, model(text).logits)
    with pytest.raises(ValueError, match="position_ids: positions follow from attention_mask"):
        model(row, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2]]))


def test_a_later_token_never_changes_an_earlier_logit():
    model, ids = half_with(VanillaForCausalLM), words(B, L)
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 35 + 2
    before, after = model(input_ids=ids).logits, model(input_ids=changed).logits
    assert_close(after[:, :4], before[:, :4], rtol=0, atol=0)
    assert (after[:, 4:] != before[:, 4:]).any(dim=-1).all()


@pytest.mark.parametrize("has_source", [False, True])
@pytest.mark.parametrize("chunks", [[1] * 7, [3, 1, 3], [6, 1]], ids=str)
def test_reading_with_a_cache_equals_reading_at_once(has_source, chunks):
    model, ids = half_with(VanillaForCausalLM, add_cross_attention=has_source), words(B, L)
    given = {"encoder_hidden_states": torch.randn(B, S, 12).double()} if has_source else {}
    whole = model(input_ids=ids, use_cache=False, **given)
    assert whole.past_key_values is None
    cache, found = None, []
    for piece in ids.split(chunks, dim=1):
        outputs = model(input_ids=piece, past_key_values=cache, use_cache=True, **given)
        cache = outputs.past_key_values
        found.append(outputs.logits)
    assert cache.get_seq_length() == L
    assert_close(torch.cat(found, dim=1), whole.logits, **DOUBLE)


@BOTH
def test_padding_on_the_left_changes_nothing(implementation):
    model = half_with(VanillaForCausalLM)
    model.set_attn_implementation(implementation)
    ids, mask = padded([7, 2, 5], side="left")
    logits = model(input_ids=ids, attention_mask=mask).logits
    for row in range(B):
        alone = model(input_ids=ids[row : row + 1, mask[row] == 1]).logits[0]
        assert_close(logits[row, mask[row] == 1], alone, **DOUBLE)


def labels_with_gaps(ids):
    labels = ids.clone()
    labels[0, 5:] = labels[1, 2:] = labels[2, :3] = -100
    return labels


def smoothed_by_hand(log_probs, word, smoothing):
    """The share of each of the other 42 words is the same (5.4)."""
    others = log_probs.sum() - log_probs[word]
    return -(1 - smoothing) * log_probs[word] - smoothing / 42 * others


@pytest.mark.parametrize(("training", "smoothing"), [(False, 0.0), (True, 0.1)])
def test_the_loss_looks_one_token_ahead(training, smoothing):
    model, ids = half_with(VanillaForCausalLM, dropout=0.0).train(training), words(B, L)
    labels = labels_with_gaps(ids)
    outputs = model(input_ids=ids, labels=labels)
    log_probs = outputs.logits.log_softmax(-1)
    nats = [
        smoothed_by_hand(log_probs[row, place - 1], labels[row, place], smoothing)
        for row in range(B)
        for place in range(1, L)
        if labels[row, place] != -100
    ]
    assert len(nats) == 4 + 1 + 4
    assert_close(outputs.loss, sum(nats) / 9, **DOUBLE)
    assert outputs.past_key_values is None
    halves = [
        model(input_ids=ids[rows], labels=labels[rows], num_items_in_batch=9).loss
        for rows in (slice(0, 1), slice(1, 3))
    ]
    assert_close(sum(halves), outputs.loss, **DOUBLE)


def test_labels_padded_with_the_padding_token_do_not_count_for_the_language_model():
    model, ids = half_with(VanillaForCausalLM), words(B, L)
    labels = labels_with_gaps(ids)
    losses = [
        model(input_ids=ids, labels=each).loss for each in (labels, labels.where(labels != -100, 0))
    ]
    assert torch.equal(losses[0], losses[1])


def test_only_the_last_logits_of_the_language_model_are_computed_on_request():
    model, ids = half_with(VanillaForCausalLM), words(B, L)
    logits, last = model(input_ids=ids).logits, model(input_ids=ids, logits_to_keep=2).logits
    assert last.shape == (B, 2, 43)
    assert_close(last, logits[:, -2:], **DOUBLE)


# --- training ----------------------------------------------------------------------------------


@EACH_SHARING
@pytest.mark.parametrize("has_source", [False, True])
def test_every_weight_of_the_language_model_gets_a_gradient(sharing, has_source):
    model = half_with(VanillaForCausalLM, add_cross_attention=has_source, **sharing).train()
    given = {"encoder_hidden_states": torch.randn(B, S, 12).double()} if has_source else {}
    ids = words(B, L)
    model(input_ids=ids, labels=ids, **given).loss.backward()
    assert all(weight.grad.abs().max() > 0 for weight in model.parameters())


@EACH_SHARING
def test_every_weight_of_the_classifier_gets_a_gradient(sharing):
    model = half_with(VanillaForSequenceClassification, **sharing).train()
    ids = words(B, L)
    model(input_ids=ids, labels=torch.tensor([0, 3, 1])).loss.backward()
    assert all(weight.grad.abs().max() > 0 for weight in model.parameters())


def one_step(model, rows, folder, *, size):
    """The weights after one step of plain gradient descent over all rows."""
    arguments = TrainingArguments(
        str(folder),
        max_steps=1,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=len(rows) // size,
        optim="sgd",
        learning_rate=0.5,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


TRAINED = [
    *((VanillaForSequenceClassification, problem) for problem in PROBLEMS),
    (VanillaForCausalLM, "next token"),
]


@pytest.mark.parametrize(("half", "problem"), TRAINED, ids=lambda value: str(value)[-12:])
def test_trainer_takes_the_same_step_with_one_batch_of_eight_and_four_of_two(
    half, problem, tmp_path
):
    ids = words(8, L)
    changes, make_labels, _ = PROBLEMS.get(problem, ({}, lambda _: ids.clone(), None))
    labels = make_labels(8)
    if half is VanillaForCausalLM:
        for row in range(8):
            labels[row, : row % 5] = -100
    rows = [{"input_ids": i, "labels": label} for i, label in zip(ids, labels, strict=True)]
    model = half_with(half, dropout=0.0, **changes)
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = []
    for size in (8, 2):
        model.load_state_dict(start)
        found.append(one_step(model, rows, tmp_path, size=size))
    assert_close(found[0], found[1], **DOUBLE)
    assert all(not torch.equal(weight, start[name]) for name, weight in found[0].items())


# --- vocabularies and names --------------------------------------------------------------------


@EACH_SHARING
@EACH_HALF
@pytest.mark.parametrize("size", [53, 31])
def test_the_vocabulary_of_a_one_sided_model_can_be_resized(half, sharing, size, tmp_path):
    model = half_with(half, **sharing)
    ids = torch.randint(2, 31, (B, L))
    before = model(input_ids=ids)[0]
    model.resize_token_embeddings(size)
    assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == size
    after = model(input_ids=ids)[0]
    if half is VanillaForCausalLM:
        common = min(before.shape[-1], size)
        assert after.shape == (B, L, size)
        assert_same(after[..., :common], before[..., :common])
        tied = model.lm_head.weight is model.get_input_embeddings().weight
        assert tied == model.config.tie_word_embeddings
    else:
        assert_same(after, before)
    model.save_pretrained(tmp_path)
    loaded = half.from_pretrained(tmp_path)
    assert_same(loaded(input_ids=ids)[0], after)


@pytest.mark.parametrize(
    ("auto", "half"),
    [
        (AutoModelForTextEncoding, VanillaEncoderModel),
        (AutoModelForSequenceClassification, VanillaForSequenceClassification),
        (AutoModelForCausalLM, VanillaForCausalLM),
    ],
    ids=lambda value: value.__name__,
)
def test_auto_classes_make_and_load_the_one_sided_model_that_they_name(auto, half, tmp_path):
    assert type(auto.from_config(VanillaConfig(**SIZES))) is half
    model = half_with(half)
    model.save_pretrained(tmp_path)
    loaded = auto.from_pretrained(tmp_path)
    assert type(loaded) is half
    ids = words(B, L)
    assert_same(loaded(input_ids=ids)[0], model(input_ids=ids)[0])
