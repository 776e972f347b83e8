"""Beam search finds what trying everything finds, under the paper's length penalty (6.1)."""

import itertools

import pytest
import torch
from torch.testing import assert_close
from transformers import GenerationConfig

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.generation_vanilla import GnmtLengthPenalty, length_penalty, paper_decoding

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
        max_new_tokens=LONGEST,
        output_scores=True,
        return_dict_in_generate=True,
        **extra,
    )


def every_sentence():
    """All that a decoder may say in four words: up to its first end token, or four without one."""
    others = [word for word in range(V) if word != EOS]
    for length in range(LONGEST):
        for start in itertools.product(others, repeat=length):
            yield [*start, EOS]
    for sentence in itertools.product(others, repeat=LONGEST):
        yield list(sentence)


def log_likelihood(model, source, sentence):
    inputs = torch.tensor([[model.config.decoder_start_token_id, *sentence[:-1]]])
    log_probs = model(input_ids=source, decoder_input_ids=inputs).logits[0].log_softmax(dim=-1)
    return sum(log_probs[place, word] for place, word in enumerate(sentence)).item()


@pytest.mark.parametrize("length", GNMT_NUMBERS)
def test_the_gnmt_penalty_has_the_numbers_worked_out_by_hand(length):
    # rounded to six places
    assert length ** GnmtLengthPenalty(0.6) == pytest.approx(GNMT_NUMBERS[length], abs=5e-7)


@pytest.mark.parametrize("length", POWER_NUMBERS)
def test_the_power_penalty_has_other_numbers(length):
    config = GenerationConfig(length_penalty=0.6, length_penalty_form="power")
    assert length ** length_penalty(config) == pytest.approx(POWER_NUMBERS[length], abs=5e-7)


def test_a_config_that_names_no_form_means_transformers_own():
    assert 20 ** length_penalty(GenerationConfig(length_penalty=0.6)) == 20**0.6


@FORMS
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.5])
@pytest.mark.parametrize("seed", range(2))
def test_a_beam_as_wide_as_all_sentences_finds_the_best_of_them(form, alpha, seed):
    torch.manual_seed(seed)
    model = model_with()
    source = torch.randint(2, V, (1, 3))
    scores = {
        tuple(sentence): log_likelihood(model, source, sentence)
        / PENALTIES[form](len(sentence), alpha)
        for sentence in every_sentence()
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
def test_the_score_of_a_beam_is_the_likelihood_of_its_words_over_the_penalty(
    model, form, num_beams
):
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
    monkeypatch.delattr(VanillaForConditionalGeneration, "_beam_search")
    theirs = search(model, source, "gnmt", length_penalty=1.7)  # they do not know the name
    assert torch.equal(ours.sequences, theirs.sequences)
    assert torch.equal(ours.sequences_scores, theirs.sequences_scores)
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


def test_the_search_stops_only_when_no_open_beam_can_win():
    """`early_stopping="never"` is the paper's bound: more patience never finds a better sentence.

    A loose bound would go on, a hasty one would miss; both are held against trying everything by
    the test above. Here: the first end in sight is not taken for the best.
    """
    for seed in range(40):
        torch.manual_seed(seed)
        model = model_with()
        source = torch.randint(2, V, (1, 3))
        hasty = search(model, source, "gnmt", early_stopping=True, length_penalty=2.5)
        patient = search(model, source, "gnmt", length_penalty=2.5)
        assert patient.sequences_scores[0] >= hasty.sequences_scores[0]


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
