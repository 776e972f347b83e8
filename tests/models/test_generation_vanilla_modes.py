"""Every way to search that transformers has, through `generate()` of the whole model."""

import copy

import pytest
import torch
from lively import (
    EOS,
    PAD,
    D,
    V,
    assert_same_sentence,
    gnmt,
    lively_model,
    log_probs_of,
    row_of,
    sources,
    spoken,
)
from torch.testing import assert_close

# a score is a float32 sum of at most eleven log probabilities
SCORES = {"rtol": 1e-5, "atol": 1e-5}
# the same double-precision sums in another order
DOUBLE = {"rtol": 0, "atol": 1e-9}
GREEDY_AND_BEAM = pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beam"])


@pytest.fixture
def model():
    return lively_model()


def decode(model, batch, **extra):
    settings = {"max_new_tokens": 11, "return_dict_in_generate": True, "output_scores": True}
    return model.generate(**batch, **{**settings, **extra})


def test_the_model_of_these_tests_has_different_things_to_say(model):
    greedy = decode(model, sources(3, 7, 5, 2), num_beams=1).sequences
    assert len({tuple(row) for row in greedy.tolist()}) == 4
    assert len(set(greedy.flatten().tolist())) > 9


# --- sampling ----------------------------------------------------------------------------------


def by_hand(probabilities, keep):
    """The kept words' probabilities, made to sum to one again."""
    kept = torch.where(keep, probabilities, 0)
    return kept / kept.sum()


def nucleus(probabilities, mass):
    """Fewest likeliest words that reach the mass."""
    keep, total = torch.zeros(V, dtype=torch.bool), 0.0
    for word in probabilities.argsort(descending=True).tolist():
        if total >= mass:
            break
        keep[word] = True
        total += probabilities[word].item()
    return keep


WARPERS = [
    ({}, lambda logits: logits.softmax(-1)),
    ({"temperature": 0.5}, lambda logits: (2 * logits).softmax(-1)),
    (
        {"top_k": 3},
        lambda logits: by_hand(logits.softmax(-1), logits >= logits.sort().values[-3]),
    ),
    (
        {"top_p": 0.6},
        lambda logits: by_hand(logits.softmax(-1), nucleus(logits.softmax(-1), 0.6)),
    ),
    (
        {"min_p": 0.2},
        lambda logits: by_hand(
            logits.softmax(-1), logits.softmax(-1) >= 0.2 * logits.softmax(-1).max()
        ),
    ),
]


@pytest.mark.parametrize(("settings", "expected"), WARPERS, ids=lambda value: str(value)[:20])
def test_tokens_are_drawn_as_often_as_their_warped_probability_says(model, settings, expected):
    source, draws = sources(5), 4000
    logits = model(**source, decoder_input_ids=torch.tensor([[PAD]])).logits[0, 0]
    probabilities = expected(logits)
    found = model.generate(
        **source,
        num_beams=1,
        do_sample=True,
        num_return_sequences=draws,
        max_new_tokens=1,
        **settings,
    )
    frequencies = found[:, 1].bincount(minlength=V) / draws
    # five standard errors of a frequency, which is none for a word that cannot come
    errors = 5 * (probabilities * (1 - probabilities) / draws).sqrt()
    assert ((frequencies - probabilities).abs() <= errors + 1e-12).all()


@pytest.mark.parametrize(
    "settings", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}], ids=str
)
def test_sampling_with_one_token_left_is_greedy(model, settings):
    batch = sources(3, 7, 5)
    greedy = decode(model, batch, num_beams=1).sequences
    sampled = decode(model, batch, num_beams=1, do_sample=True, **settings).sequences
    assert torch.equal(sampled, greedy)


@GREEDY_AND_BEAM
def test_one_seed_draws_one_sample_and_another_seed_another(model, num_beams):
    batch = sources(3, 7, 5)
    samples = []
    for seed in (5, 5, 6, 7, 8):
        torch.manual_seed(seed)
        samples.append(decode(model, batch, num_beams=num_beams, do_sample=True).sequences)
    assert torch.equal(samples[0], samples[1])
    assert not all(torch.equal(samples[0], other) for other in samples[2:])


def test_a_sampled_beam_has_the_score_of_its_tokens(model):
    with torch.no_grad():
        model.lm_head.weight.div_(3)  # so undecided that chance has a say
    source = sources(5)
    searched = decode(model, source, num_beams=3, num_return_sequences=3)
    sampled = decode(model, source, num_beams=3, num_return_sequences=3, do_sample=True)
    assert not torch.equal(sampled.sequences, searched.sequences)
    for sequence, score in zip(sampled.sequences, sampled.sequences_scores, strict=True):
        log_probs = log_probs_of(model, source, sequence)
        expected = log_probs.sum() / gnmt(len(log_probs))
        assert_close(score.double(), expected, **SCORES)


# --- several results, and their scores ---------------------------------------------------------


def test_the_returned_beams_are_different_and_come_best_first(model):
    found = decode(model, sources(3, 7), num_beams=5, num_return_sequences=4)
    assert found.sequences.shape[0] == 8
    for sentences, scores in zip(
        found.sequences.split(4), found.sequences_scores.split(4), strict=True
    ):
        assert len({tuple(spoken(row)) for row in sentences}) == 4
        assert scores.tolist() == sorted(scores.tolist(), reverse=True)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static", None])
def test_several_beams_of_a_padded_batch_equal_those_of_the_sentences_alone(model, side, cache):
    batch = sources(2, 7, 5, side=side)
    settings = {"num_beams": 4, "num_return_sequences": 3, "use_cache": cache is not None}
    if cache:
        settings["cache_implementation"] = cache
    together = decode(model, batch, **settings)
    for row in range(3):
        alone = decode(model, row_of(batch, row), num_beams=4, num_return_sequences=3)
        place = slice(3 * row, 3 * row + 3)
        assert_close(together.sequences_scores[place], alone.sequences_scores, **SCORES)
        for in_batch, sentence in zip(together.sequences[place], alone.sequences, strict=True):
            assert_same_sentence(in_batch, sentence)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_static_cache_decodes_a_padded_batch_greedily_as_its_sentences_alone(model, side):
    batch = sources(2, 7, 5, side=side)
    together = decode(model, batch, num_beams=1, cache_implementation="static").sequences
    for row in range(3):
        alone = decode(model, row_of(batch, row), num_beams=1).sequences
        assert_same_sentence(together[row], alone[0])


def test_greedy_transition_scores_are_the_log_probabilities_of_the_tokens(model):
    batch = sources(3, 7, 5)
    found = decode(model, batch, num_beams=1)
    scores = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
    for row in range(3):
        expected = log_probs_of(model, row_of(batch, row), found.sequences[row])
        assert_close(scores[row, : len(expected)].double(), expected, **SCORES)


def test_transition_scores_of_a_beam_are_its_tokens_log_probabilities_and_make_its_score(model):
    batch = sources(3, 7)
    found = decode(model, batch, num_beams=3, num_return_sequences=2)
    scores = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
    for index, sequence in enumerate(found.sequences):
        expected = log_probs_of(model, row_of(batch, index // 2), sequence)
        assert_close(scores[index, : len(expected)].double(), expected, **SCORES)
        assert (scores[index, len(expected) :] == 0).all()
        total = scores[index].sum() / gnmt(len(expected))
        assert_close(total, found.sequences_scores[index], **SCORES)


@GREEDY_AND_BEAM
@pytest.mark.parametrize("target", [V - 5, V + 9])
def test_transition_scores_of_two_tables_are_of_the_targets_tokens(num_beams, target):
    tables = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": target}
    model, batch = lively_model(**tables), sources(3, 7)
    found = decode(model, batch, num_beams=num_beams)
    scores = model.compute_transition_scores(
        found.sequences, found.scores, found.get("beam_indices"), normalize_logits=num_beams == 1
    )
    for row, sequence in enumerate(found.sequences):
        expected = log_probs_of(model, row_of(batch, row), sequence)
        assert_close(scores[row, : len(expected)].double(), expected, **SCORES)
    assert model.config.vocab_size == V


@GREEDY_AND_BEAM
def test_logits_are_the_models_own_and_scores_are_what_the_processors_left(model, num_beams):
    source = sources(5)
    found = decode(
        model, source, num_beams=num_beams, suppress_tokens=[PAD, EOS], output_logits=True
    )
    first = model(**source, decoder_input_ids=torch.tensor([[PAD]])).logits[0, 0]
    for step, (logits, scores) in enumerate(zip(found.logits, found.scores, strict=True)):
        assert logits.isfinite().all()
        assert scores[:, :2].eq(float("-inf")).all()
        assert step or torch.allclose(logits[0].double(), first, atol=1e-6)


def test_greedy_logits_of_every_step_are_those_of_reading_the_sentence_at_once(model):
    source = sources(5)
    found = decode(model, source, num_beams=1, output_logits=True)
    inputs = found.sequences[:, :-1]
    expected = model(**source, decoder_input_ids=inputs).logits[0]
    # `generate` keeps them in float32
    assert_close(torch.cat(found.logits).double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["decoder_attentions", "cross_attentions"])
def test_attentions_of_every_step_are_those_of_reading_the_sentence_at_once(model, name):
    model.set_attn_implementation("eager")
    source = sources(5)
    found = decode(model, source, num_beams=1, output_attentions=True)
    inputs = found.sequences[:, :-1]
    expected = model(**source, decoder_input_ids=inputs, output_attentions=True)
    assert len(found[name]) == inputs.shape[1]
    for step, layers in enumerate(found[name]):
        seen = step + 1 if name == "decoder_attentions" else 5
        for weights, whole in zip(layers, expected[name], strict=True):
            assert weights.shape == (1, 2, 1, seen)
            assert_close(weights[0, :, 0], whole[0, :, step, :seen], **DOUBLE)
    encoder = zip(found.encoder_attentions, expected.encoder_attentions, strict=True)
    for weights, whole in encoder:
        assert_close(weights, whole, **DOUBLE)


def test_hidden_states_of_every_step_are_those_of_reading_the_sentence_at_once(model):
    source = sources(5)
    found = decode(model, source, num_beams=1, output_hidden_states=True)
    inputs = found.sequences[:, :-1]
    expected = model(**source, decoder_input_ids=inputs, output_hidden_states=True)
    for step, layers in enumerate(found.decoder_hidden_states):
        for states, whole in zip(layers, expected.decoder_hidden_states, strict=True):
            assert states.shape == (1, 1, D)
            assert_close(states[0, 0], whole[0, step], **DOUBLE)
    assert len(found.encoder_hidden_states) == 2
    assert_close(found.encoder_hidden_states[-1], expected.encoder_last_hidden_state, **DOUBLE)


# --- the source in other forms -----------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{"num_beams": 1}, {"num_beams": 3, "num_return_sequences": 2}]
)
@pytest.mark.parametrize("form", ["encoder_outputs", "inputs_embeds"])
def test_a_source_given_encoded_or_as_vectors_decodes_as_its_ids_do(model, form, settings):
    batch = sources(3, 7, 5)
    if form == "encoder_outputs":
        given = {form: model.get_encoder()(**batch)}
    else:
        given = {form: model.get_input_embeddings()(batch["input_ids"])}
    expected = decode(model, batch, **settings).sequences
    given["attention_mask"] = batch["attention_mask"]
    assert torch.equal(decode(model, given, **settings).sequences, expected)


# --- prompts -----------------------------------------------------------------------------------


@GREEDY_AND_BEAM
@pytest.mark.parametrize("cache", ["dynamic", "static", None])
def test_prompts_padded_on_the_left_go_on_as_they_do_alone(model, num_beams, cache):
    batch = sources(3, 7, 5)
    prompt = torch.tensor([[PAD, 5, 6, 7], [PAD, PAD, PAD, 8], [PAD, PAD, 9, 4]])
    real = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]])
    settings = {"num_beams": num_beams, "use_cache": cache is not None}
    together = decode(
        model,
        batch,
        decoder_input_ids=prompt,
        decoder_attention_mask=real,
        **settings,
        **({"cache_implementation": cache} if cache else {}),
    )
    for row in range(3):
        own = prompt[row : row + 1, real[row] == 1]
        alone = decode(model, row_of(batch, row), decoder_input_ids=own, num_beams=num_beams)
        assert_same_sentence(together.sequences[row, 4:], alone.sequences[0, own.shape[1] :])


def test_a_prompt_changes_what_follows_it(model):
    source = sources(5)
    found = [
        decode(model, source, num_beams=1, decoder_input_ids=torch.tensor([[PAD, *words]]))
        for words in ([5, 6], [6, 5], [7, 8])
    ]
    assert len({tuple(each.sequences[0, 3:].tolist()) for each in found}) > 1


# --- guesses checked by the model --------------------------------------------------------------


def decoder_calls(model):
    calls = []
    model.model.decoder.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize("length", [2, 5, 11])
@pytest.mark.parametrize("helper", ["smaller", "equal", "lookup"])
def test_assisted_decoding_equals_greedy_decoding(model, length, helper):
    source = sources(length)
    settings = {"num_beams": 1, "max_new_tokens": 17}
    expected = decode(model, source, **settings).sequences
    help_given = {
        "smaller": {"assistant_model": lively_model(d_model=18, encoder_layers=2)},
        "equal": {"assistant_model": copy.deepcopy(model)},
        "lookup": {"prompt_lookup_num_tokens": 3},
    }[helper]
    calls = decoder_calls(model)
    found = decode(model, source, **settings, **help_given).sequences
    assert_same_sentence(found[0], expected[0])
    if helper == "equal":  # every guess is right, so one call settles several words
        assert len(calls) < len(spoken(expected[0]))


def test_the_source_of_an_assisted_search_may_be_padded(model):
    batch = sources(7, 3)
    padded = {name: tensor[1:] for name, tensor in batch.items()}
    helper = lively_model(decoder_layers=1)
    found = decode(model, padded, num_beams=1, assistant_model=helper).sequences
    expected = decode(model, row_of(batch, 1), num_beams=1).sequences
    assert_same_sentence(found[0], expected[0])


# --- precision and modes of torch --------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_each_greedy_token_in_half_precision_is_the_most_probable_up_to_rounding(model, dtype):
    model = model.to(dtype)
    source = sources(5)
    found = decode(model, source, num_beams=1).sequences
    logits = model(**source, decoder_input_ids=found[:, :-1]).logits[0].float()
    chosen = logits.gather(-1, found[0, 1:, None]).squeeze(-1)
    # one pass and many round differently: a few units in the last place of the largest logit
    slack = 8 * torch.finfo(dtype).eps * logits.abs().max()
    said = len(spoken(found[0]))
    assert (chosen >= logits.amax(dim=-1) - slack)[:said].all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_beam_search_in_half_precision_stays_finite_beside_a_row_of_padding(model, dtype):
    batch = sources(3, 7, 5)
    batch["attention_mask"][1] = 0
    found = decode(model.to(dtype), batch, num_beams=3)
    assert found.sequences_scores.isfinite().all()
    assert ((found.sequences >= 0) & (found.sequences < V)).all()


@GREEDY_AND_BEAM
def test_inference_mode_changes_nothing(model, num_beams):
    batch = sources(3, 7, 5)
    expected = decode(model, batch, num_beams=num_beams).sequences
    with torch.inference_mode():
        found = decode(model, batch, num_beams=num_beams).sequences
    assert torch.equal(found, expected)


def test_generation_leaves_training_mode_and_gradients_as_they_were(model):
    model.train()
    decode(model, sources(3, 7), num_beams=2)
    assert model.training
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
