"""Beam search finds what trying everything finds, under the paper's length penalty (6.1)."""

import copy
import itertools

import pytest
import torch
from reference import beam_search
from torch.testing import assert_close
from transformers import GenerationConfig

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.models.generation_vanilla import (
    RESULTS_ALONE,
    GnmtExponent,
    length_penalty,
    paper_decoding,
    penalty_form,
)

PAD, EOS, V, LONGEST = 0, 1, 5, 4
# a score is a float32 sum of at most four log probabilities, divided once
SCORES = {"rtol": 0, "atol": 1e-5}
FORMS = pytest.mark.parametrize("form", ["gnmt", "power"])
# ((5 + n) / 6) ** 0.6 and n ** 0.6, worked out by hand
GNMT_NUMBERS = {1: 1, 5: 1.358655, 10: 1.732862, 20: 2.354362, 30: 2.881045}
POWER_NUMBERS = {1: 1, 5: 2.626528, 10: 3.981072, 20: 6.034176, 30: 7.696136}
PENALTIES = {"gnmt": lambda n, alpha: ((5 + n) / 6) ** alpha, "power": lambda n, alpha: n**alpha}


@pytest.fixture
def model():
    return model_with()


def model_with(**changes):
    config = VanillaConfig(
        **{
            "vocab_size": V,
            "d_model": 6,
            "encoder_layers": 1,
            "encoder_attention_heads": 3,
            "encoder_ffn_dim": 13,
            "decoder_layers": 2,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 11,
            **changes,
        }
    )
    return VanillaForConditionalGeneration(config).eval().double()


def search(model, source, form, **extra):
    model.generation_config.length_penalty_form = form
    return model.generate(
        source,
        return_dict_in_generate=True,
        **{"output_scores": True, "max_new_tokens": LONGEST, **extra},
    )


def every_sentence():
    """All that a decoder may say in four words: up to its first end token, or four without one."""
    others = [word for word in range(V) if word != EOS]
    for length in range(LONGEST):
        for start in itertools.product(others, repeat=length):
            yield [*start, EOS]
    for sentence in itertools.product(others, repeat=LONGEST):
        yield list(sentence)


def log_likelihoods(model, source, sentences):
    """Of each sentence, in the order given; sentences of one length are read at once."""
    found = {}
    for length in {len(sentence) for sentence in sentences}:
        rows = torch.tensor([sentence for sentence in sentences if len(sentence) == length])
        start = torch.full((len(rows), 1), model.config.decoder_start_token_id)
        inputs = torch.cat((start, rows[:, :-1]), dim=1)
        logits = model(input_ids=source.expand(len(rows), -1), decoder_input_ids=inputs).logits
        picked = logits.log_softmax(dim=-1).gather(-1, rows[:, :, None]).sum(dim=(1, 2))
        found |= {
            tuple(row): nats for row, nats in zip(rows.tolist(), picked.tolist(), strict=True)
        }
    return [found[tuple(sentence)] for sentence in sentences]


def log_likelihood(model, source, sentence):
    return log_likelihoods(model, source, [sentence])[0]


@pytest.mark.parametrize("length", GNMT_NUMBERS)
def test_the_gnmt_penalty_has_the_numbers_worked_out_by_hand(length):
    # rounded to six places
    assert length_penalty(length, 0.6, "gnmt") == pytest.approx(GNMT_NUMBERS[length], abs=5e-7)


@pytest.mark.parametrize("length", POWER_NUMBERS)
def test_the_power_penalty_has_other_numbers(length):
    assert length_penalty(length, 0.6, "power") == pytest.approx(POWER_NUMBERS[length], abs=5e-7)


def test_transformers_beam_search_divides_by_the_gnmt_penalty_where_it_must_run():
    for length, penalty in GNMT_NUMBERS.items():
        exponent = copy.deepcopy(GenerationConfig(length_penalty=GnmtExponent(0.6))).length_penalty
        assert length**exponent == length_penalty(length, 0.6, "gnmt")
        assert length**exponent == pytest.approx(penalty, abs=5e-7)


def test_a_config_that_names_no_form_means_transformers_own():
    assert penalty_form(GenerationConfig(length_penalty=0.6)) == "power"


@FORMS
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0, 2.5])
@pytest.mark.parametrize("seed", range(5))
def test_a_beam_as_wide_as_all_sentences_finds_the_best_of_them(form, alpha, seed):
    torch.manual_seed(seed)
    model = model_with()
    source = torch.randint(2, V, (1, 3))
    sentences = list(every_sentence())
    scores = {
        tuple(sentence): likelihood / PENALTIES[form](len(sentence), alpha)
        for sentence, likelihood in zip(
            sentences, log_likelihoods(model, source, sentences), strict=True
        )
    }
    assert len(scores) == 1 + 4 + 16 + 64 + 256
    ranking = sorted(scores, key=scores.get, reverse=True)
    found = search(
        model, source, form, num_beams=V**3, num_return_sequences=5, length_penalty=alpha
    )
    for sequence, score, best in zip(
        found.sequences.tolist(), found.sequences_scores, ranking, strict=False
    ):
        assert tuple(sequence[1 : 1 + len(best)]) == best
        assert_close(score.item(), scores[best], **SCORES)


@FORMS
@pytest.mark.parametrize("num_beams", [2, 4])
def test_the_score_of_a_beam_is_its_log_probability_over_the_penalty(model, form, num_beams):
    source = torch.randint(2, V, (1, 3))
    found = search(model, source, form, num_beams=num_beams, num_return_sequences=num_beams)
    for sequence, score in zip(found.sequences.tolist(), found.sequences_scores, strict=True):
        sentence = sequence[1:]
        if EOS in sentence:
            sentence = sentence[: sentence.index(EOS) + 1]
        expected = log_likelihood(model, source, sentence) / PENALTIES[form](len(sentence), 0.6)
        assert_close(score.item(), expected, **SCORES)


def test_the_power_form_is_transformers_own_search(model, monkeypatch):
    source = torch.randint(2, V, (3, 5))
    ours = search(model, source, "power", length_penalty=1.7)
    gnmt = search(model, source, "gnmt", length_penalty=1.7)
    monkeypatch.delattr(VanillaForConditionalGeneration, "generate")
    theirs = search(model, source, "gnmt", length_penalty=1.7)  # they do not know the name
    assert torch.equal(ours.sequences, theirs.sequences)
    assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=0, atol=1e-6)
    assert not torch.equal(gnmt.sequences_scores, theirs.sequences_scores)


def test_an_unknown_form_is_refused_with_the_known_ones(model):
    with pytest.raises(ValueError, match="length_penalty_form='wu': choose one of gnmt, power"):
        search(model, torch.tensor([[2, 3, 1]]), "wu")


def test_a_model_starts_with_the_papers_decoding(model):
    config = model.generation_config
    assert (config.num_beams, config.length_penalty) == (4, 0.6)
    assert (config.length_penalty_form, config.max_tokens_beyond_source) == ("gnmt", 50)
    assert config.early_stopping == "never"
    assert (config.pad_token_id, config.eos_token_id) == (PAD, EOS)
    assert config.decoder_start_token_id == PAD
    # both settings are really the default of `generate`
    source = torch.tensor([[2, 3, 4]])
    explicit = paper_decoding(model.config)
    assert torch.equal(model.generate(source), model.generate(source, explicit))


@FORMS
def test_form_and_lengths_come_back_from_disk(model, tmp_path, form):
    model.generation_config.length_penalty_form = form
    model.generation_config.max_tokens_beyond_source = 3
    source = torch.randint(2, V, (2, 5))
    before = model.generate(source, output_scores=True, return_dict_in_generate=True)
    model.save_pretrained(tmp_path)
    loaded = VanillaForConditionalGeneration.from_pretrained(tmp_path)
    config = loaded.generation_config
    assert (config.length_penalty_form, config.max_tokens_beyond_source) == (form, 3)
    assert (config.num_beams, config.early_stopping) == (4, "never")
    assert type(config.length_penalty) is float
    after = loaded.generate(source, output_scores=True, return_dict_in_generate=True)
    assert torch.equal(after.sequences, before.sequences)
    assert torch.equal(after.sequences_scores, before.sequences_scores)


def searched(model, source, form, *, alpha, width, longest):
    """What `generate()` finds, as score and words without filling, and how many words it read."""
    found = search(
        model,
        source,
        form,
        num_beams=width,
        num_return_sequences=width,
        length_penalty=alpha,
        max_new_tokens=longest,
    )
    sentences = [row[1:] for row in found.sequences.tolist()]
    ends = [row.index(EOS) + 1 if EOS in row else longest for row in sentences]
    sentences = [row[:end] for row, end in zip(sentences, ends, strict=True)]
    return list(zip(found.sequences_scores.tolist(), sentences, strict=True)), len(found.scores)


def searched_by_hand(model, source, form, *, alpha, width, longest):
    def next_log_probs(words):
        inputs = torch.tensor([[model.config.decoder_start_token_id, *words]])
        logits = model(input_ids=source, decoder_input_ids=inputs).logits
        return logits[0, -1].log_softmax(dim=-1).tolist()

    return beam_search(
        next_log_probs,
        width=width,
        longest=longest,
        penalty=lambda length: PENALTIES[form](length, alpha),
        end=EOS,
    )


@FORMS
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("width", [2, 3, 4])
def test_a_narrow_beam_finds_and_stops_as_the_search_written_out(form, alpha, width):
    """`early_stopping="never"` is the paper's bound: no word is read more or less than it asks."""
    read = []
    for seed in (0, 2, 4):
        torch.manual_seed(seed)
        model, source = model_with(lm_head_bias=True), torch.randint(2, V, (1, 3))
        with torch.no_grad():
            model.lm_head.bias[EOS] = seed  # from sentences that hardly end to those that end soon
        settings = {"alpha": alpha, "width": width, "longest": 9}
        found, steps = searched(model, source, form, **settings)
        expected, words = searched_by_hand(model, source, form, **settings)
        assert steps == words
        for (score, sentence), (best_score, best) in zip(found, expected, strict=True):
            assert sentence == best
            assert_close(score, best_score, **SCORES)
        read.append(steps)
    # some search is stopped by the bound, unless nine words to the power of 1.5 outbid any end
    assert (min(read) < 9) == ((form, alpha) != ("power", 1.5))


def test_two_end_tokens_both_end_a_sentence():
    model = model_with(eos_token_id=[EOS, 3])
    found = model.generate(torch.randint(2, V, (7, 5)), num_beams=3)
    ends = 0
    for row in found[:, 1:].tolist():
        places = [place for place, word in enumerate(row) if word in (EOS, 3)]
        ends += bool(places)
        # what follows an end is filling of one kind only
        assert len(set(row[places[0] + 1 :] if places else [])) <= 1
    assert ends > 0


@pytest.mark.parametrize("has_own_search", [True, False])
def test_scores_of_the_results_alone_are_those_of_a_search_that_records_every_step(
    monkeypatch, has_own_search
):
    torch.manual_seed(2)
    model, source = model_with(vocab_size=9), torch.randint(2, 9, (40, 3))
    returned = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 30}
    recorded = search(model, source, "gnmt", **returned)
    assert len(recorded.scores) == 30
    ends = (recorded.sequences == EOS).float().argmax(dim=1).view(-1, 3).amax(dim=1)
    assert len(ends.unique()) > 3  # so that sentences leave the batch at different steps
    if not has_own_search:
        monkeypatch.setattr(model, "own_search", lambda *_, **__: None)
    found = search(model, source, "gnmt", output_scores=RESULTS_ALONE, **returned)
    assert found.sequences.equal(recorded.sequences)
    assert found.beam_indices.equal(recorded.beam_indices)
    assert_close(found.sequences_scores, recorded.sequences_scores)
    if has_own_search:
        assert found.scores is None
        assert found.past_key_values is None
